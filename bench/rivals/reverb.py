"""DeepMind Reverb: a server process, and clients that reach it over the loopback interface."""

import multiprocessing
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
import tensorflow as tf

LABEL = "Reverb"
DISTRIBUTIONS = ("dm-reverb", "tensorflow")
FILL_AT_MOST = 20_000  # a million, record by record, take minutes; a smaller table is no harder
OPTIONS = {
    "Writer, one record an item": "faster here than TrajectoryWriter and StructuredWriter",
    "chunk_length=1": "longer chunks write faster, but each sampled record would carry its chunk",
    "max_in_flight_items=200, no flush": "writing overlaps with sending",
    "TrajectoryDataset.batch(), 256 in flight, 1 worker": "the fastest of those tried; reads ahead",
    "server in its own process": "as it is deployed: learner and writers are its clients",
    "MinSize(1)": "never blocks, as nobody here does",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        context = multiprocessing.get_context("spawn")
        ready, self.stop = context.Queue(), context.Event()
        self.server = context.Process(target=_serve, args=(fields, capacity, ready, self.stop))
        self.server.start()
        self.address, self.batch = f"localhost:{ready.get(timeout=120)}", batch

    def extend(self, rows):
        return writer(self.address, "", rows)

    def sample(self):
        dataset = reverb.TrajectoryDataset.from_table_signature(
            self.address, "t", max_in_flight_samples_per_worker=256, num_workers_per_iterator=1
        )
        batches = dataset.batch(self.batch).as_numpy_iterator()
        return lambda: next(batches).data

    def share(self):
        return self.address

    def close(self):
        self.stop.set()
        self.server.join()


def writer(shared, variant, rows):
    out = reverb.Client(shared).writer(1, chunk_length=1, max_in_flight_items=200)
    count = len(next(iter(rows.values())))
    steps = [{path: array[i] for path, array in rows.items()} for i in range(count)]

    def write():
        for step in steps:
            out.append(step)
            out.create_item("t", 1, 1.0)

    return write


def _serve(fields, capacity, ready, stop):
    signature = {path: tf.TensorSpec([None, *s], dtype) for path, (dtype, s) in fields.items()}
    uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    limiter = reverb.rate_limiters.MinSize(1)
    table = reverb.Table("t", uniform, fifo, capacity, limiter, signature=signature)
    server = reverb.Server([table])
    ready.put(server.port)
    stop.wait()
    server.stop()
