"""Batches drawn ahead, and what became of their records until they are wanted (floor F5).

One thread draws while nobody waits for it: it never waits for a limiter or for records, so what
goes wrong shows in the call that asks for a batch, which then draws for itself. Draws follow each
other in the order in which batches are handed out.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from shmrb import core
from shmrb.consumer import Consumer
from shmrb.drawn import Ahead, Drawn
from shmrb.errors import ClosedError, DeadlineError, ShmrbError, SpecError
from shmrb.refreshing import refreshed
from shmrb.spec import BufferSpec, FifoSampler, LifoSampler
from shmrb.waiting import check_timeout, deadline_of

log = logging.getLogger("shmrb")


def check_prefetch(prefetch: Any, spec: BufferSpec) -> int:
    """The number of batches to draw ahead.

    Args:
        prefetch: as the user gave it; None: none.
        spec: the buffer's, with the handle's own settings.

    Raises:
        SpecError: it is no number, or does not go with the rest.
    """
    if prefetch is None:
        return 0
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise SpecError(f"prefetch: expected batches to draw ahead, >= 0, got {prefetch!r}.")
    if prefetch == 0:
        return 0
    if spec.batch_size is None:
        raise SpecError(
            "Dynamic batch-size specification is incompatible with multithreaded sampling. When "
            "using prefetch, the batch-size must be specified in advance. "
        )
    if spec.consume_after_n_samples is not None:
        raise SpecError("Prefetching is not supported when consume_after_n_samples is set.")
    if isinstance(spec.sampler, FifoSampler | LifoSampler):
        raise SpecError(
            f"Prefetching is not supported with {type(spec.sampler).__name__}: which records are "
            "oldest or newest is decided when a batch is asked for."
        )
    return prefetch


@dataclass
class _Shelf:
    """What the thread and its handle share.

    Attributes:
        room: batches to draw ahead.
        ready: those that are there, in order.
        drawing: whether somebody draws now.
        wanted: whether the thread should draw more.
        open: False: the thread ends.
        ended: whether the latest batch was the last of its pass: then nothing is drawn ahead.
        round: which batches are still wanted; those of an earlier one are dropped.
    """

    room: int
    condition: threading.Condition = field(default_factory=threading.Condition)
    ready: collections.deque[Ahead] = field(default_factory=collections.deque)
    drawing: bool = False
    wanted: bool = False
    open: bool = True
    ended: bool = False
    round: int = 0

    def stop(self) -> None:
        """Ends the thread as soon as it has drawn what it is drawing."""
        with self.condition:
            self.open = False
            self.ready.clear()
            self.condition.notify_all()

    def forget(self) -> None:
        """Drops what is there, and what is being drawn."""
        with self.condition:
            self.ready.clear()
            self.wanted = self.ended = False
            self.round += 1

    def take(self, deadline: float) -> Ahead | None:
        """The next batch; None: there is none, and the caller is the one who draws now.

        Raises:
            ClosedError: the handle was closed.
            DeadlineError: another thread draws and does not come to an end.
        """
        with self.condition:
            while self.open and not self.ready and self.drawing:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineError("sample: another thread of this handle is still drawing.")
                self.condition.wait(left)
            if not self.open:
                raise ClosedError("sample: this handle was closed.")
            if not self.ready:
                self.drawing = True
                return None
            self.wanted = not self.ended
            self.condition.notify_all()
            return self.ready.popleft()

    def put_back(self, ahead: Ahead) -> None:
        """A batch that was taken and not handed out."""
        with self.condition:
            self.ready.appendleft(ahead)

    def drawn(self, ended: bool, wanted: bool, ahead: Ahead | None = None, round: int = 0) -> None:
        """The draw is over.

        Args:
            ended: whether the pass is.
            wanted: whether to draw more.
            ahead: what the thread drew, in this round.
        """
        with self.condition:
            self.drawing = False
            self.ended, self.wanted = ended, wanted and not ended
            if ahead is not None and round == self.round and self.open:
                self.ready.append(ahead)
            self.condition.notify_all()

    def await_work(self) -> int | None:
        """Waits until a batch should be drawn ahead; the round it is for, None at the end."""
        with self.condition:
            while self.open and (not self.wanted or self.drawing or len(self.ready) >= self.room):
                self.condition.wait()
            if not self.open:
                return None
            self.drawing = True
            return self.round


class Prefetcher:
    """Draws batches ahead for one handle. A forked child starts anew.

    Args:
        consumer: the handle's reading half.
        count: how many batches.
    """

    def __init__(self, consumer: Consumer, count: int) -> None:
        self._consumer = consumer
        self.count = count
        self._owner = 0
        self._thread: threading.Thread | None = None
        self._shelf = _Shelf(count)

    @property
    def ready(self) -> int:
        """Batches that wait to be handed out."""
        return len(self._shelf.ready) if self._owner == core.this_process() else 0

    def next(self, timeout: float | None) -> Drawn:
        """The next batch, its records checked a moment ago. Args and errors as `Consumer.drawn`."""
        if timeout is not None:
            check_timeout(timeout)
        shelf, consumer = self._started(), self._consumer
        deadline = deadline_of(timeout, consumer.attachment.default_timeout)
        while True:
            ahead = shelf.take(deadline)
            if ahead is None:
                drawn: Drawn | None = self._draw(shelf, timeout)
            else:
                try:
                    drawn = refreshed(consumer, ahead, max(0.0, deadline - time.monotonic()))
                except BaseException:
                    shelf.put_back(ahead)
                    raise
            if drawn is not None:
                consumer.ran_out = drawn.ends_pass
                return drawn

    def forget(self) -> None:
        """Drops what was drawn ahead, as when the buffer is emptied."""
        if self._owner == core.this_process():
            self._shelf.forget()

    def close(self) -> None:
        """Ends the thread."""
        if self._owner != core.this_process():
            return
        self._shelf.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _draw(self, shelf: _Shelf, timeout: float | None) -> Drawn:
        drawn: Drawn | None = None
        try:
            drawn = self._consumer.drawn(None, timeout, None)
            return drawn
        finally:
            shelf.drawn(drawn is not None and drawn.ends_pass, drawn is not None)

    def _started(self) -> _Shelf:
        """The shelf of this process; what a fork brought along belongs to the parent."""
        with self._consumer.attachment.guard:
            if self._owner != core.this_process():
                self._shelf, self._thread = _Shelf(self.count), None
                self._owner = core.this_process()
                # A handle that is forgotten without being closed leaves no thread behind.
                weakref.finalize(self, _stop, self._shelf, self._owner)
            if self._thread is None:
                name = f"shmrb batches of {self._consumer.attachment.address.name}"
                work = self._shelf, weakref.ref(self._consumer)
                self._thread = threading.Thread(target=_work, args=work, name=name, daemon=True)
                self._thread.start()
            return self._shelf


def _work(shelf: _Shelf, consumer_of: weakref.ref[Consumer]) -> None:
    while (round := shelf.await_work()) is not None:
        ahead: Ahead | None = None
        try:
            consumer = consumer_of()
            if consumer is None:
                return
            ahead = consumer.ahead()
        except ShmrbError as error:
            # Whoever asks for the next batch draws it for itself, and gets the error if it lasts.
            log.debug("nothing drawn ahead: %s", error)
        finally:
            consumer = None
            ended = ahead is not None and ahead.ends_pass
            shelf.drawn(ended, ahead is not None, ahead, round)


def _stop(shelf: _Shelf, owner: int) -> None:
    # A fork may have copied the lock as another thread held it.
    if owner == core.this_process():
        shelf.stop()
