"""What a process that only collects does not load, and what a learner does not touch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COLLECTOR = """
import numpy as np, pickle, shmrb
from shmrb.components import SharedStorage
schema = {"x": ("float32", 3), "half": ("bfloat16", 2), "n": {"done": bool}}
rb = shmrb.ReplayBuffer("collected", storage=SharedStorage(64), schema=schema, format="numpy",
                        limiter=shmrb.MinSize(1), batch_size=4)
data = {"x": np.zeros((8, 3), np.float32), "half": np.zeros((8, 2), np.uint16),
        "n": {"done": np.zeros(8, bool)}}
index = rb.extend(data)
rb.add({"x": [1, 2, 3], "half": np.zeros(2, np.uint16), "n": {"done": True}})
out = rb.sample()
rb.sample(out=out)
rb[:], rb[0], rb["x"], rb["n"]
rb[[0, 1]] = {key: rb[[2, 3]][key] for key in ("x", "half", "n")}
rb.set_("half", np.ones((9, 2), np.uint16))
rb.update_({"n": {"done": np.ones(9, bool)}})
rb.generations_of(index), rb.stats(), rb.limiter.info
rb.set_sampler(shmrb.SamplerWithoutReplacement())
for batch in rb:
    pass
rb.append_transform(lambda batch: batch)
rb.sample()
other = shmrb.attach("collected", format="numpy", role="learner")
thawed = pickle.loads(pickle.dumps(other))
late = shmrb.ReplayBuffer("decided", storage=SharedStorage(8), format="numpy")
late.extend([{"y": 1.5}, {"y": 2.5}])
late.empty()
for handle in (rb, other, thawed, late):
    handle.close()
"""


def run(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    prelude = f"import sys; sys.path[:] = {sys.path!r}\n"
    command = [sys.executable, "-W", "error", *flags, "-c", prelude + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_numpy_format_loads_neither_torch_nor_tensordict() -> None:
    done = run(COLLECTOR + "print(sorted({'torch', 'tensordict'} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_numpy_format_works_where_torch_cannot_be_imported() -> None:
    blocked = "sys.modules['torch'] = sys.modules['tensordict'] = None\n"
    done = run(blocked + COLLECTOR + "print('done')")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"


def test_number_for_a_bfloat16_field_says_that_torch_is_missing() -> None:
    code = (
        "import shmrb\n"
        "rb = shmrb.ReplayBuffer(storage=shmrb.SharedStorage(4), schema={'h': 'bfloat16'},\n"
        "                        format='numpy')\n"
        "try: rb.add({'h': 0.5})\n"
        "except shmrb.RecordError as error: print(error)\n"
        "rb.close()"
    )
    done = run("sys.modules['torch'] = None\n" + code)
    assert "field 'h': a number needs torch to become bfloat16" in done.stdout, done.stderr


def test_torch_is_loaded_by_the_first_call_that_returns_tensors() -> None:
    code = (
        "import numpy as np, shmrb\n"
        "rb = shmrb.ReplayBuffer('late', storage=shmrb.SharedStorage(4), schema={'x': 'int64'})\n"
        "loaded = ['torch' in sys.modules]\n"
        "rb.extend({'x': np.arange(3)})\n"
        "loaded.append('torch' in sys.modules)\n"
        "batch = rb.sample(2)\n"
        "import torch, tensordict\n"
        "assert isinstance(batch, tensordict.TensorDict)\n"
        "print(loaded)\n"
        "rb.close()"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[False, True]"


CUDA = """
import json, os
import numpy as np, shmrb, torch
from tensordict import TensorDict
rb = shmrb.ReplayBuffer("cuda", storage=shmrb.SharedStorage(64), schema={"x": "int64"})
seen = {"available": torch.cuda.is_available(), "touched": [torch.cuda.is_initialized()]}
rb.extend(TensorDict({"x": torch.arange(10)}, [10]))
rb.sample(16), rb[0], rb["x"], rb.generations_of(torch.arange(3))
seen["touched"].append(torch.cuda.is_initialized())
if seen["available"]:
    mine = torch.arange(20, 30, device="cuda")
    rb.extend(TensorDict({"x": mine * 2 // 2}, [10]))
    stamps = rb.generations_of(torch.tensor([0, 19, 63], device="cuda"))
    seen["device"] = str(stamps.device)
    seen["stamps"] = stamps.tolist()
    seen["records"] = rb["x"][10:].tolist()
    seen["by_index"] = rb[torch.tensor([3, 11], device="cuda")]["x"].tolist()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    batch = rb.sample(64)
    slots = batch["index"]
    right = torch.equal(batch["x"], torch.where(slots < 10, slots, slots + 10))
    rb.extend(TensorDict({"x": torch.full((2,), 7)}, [2]))
    os.write(writer, str(right).encode())
    os._exit(0)
os.close(writer)
seen["child"] = os.read(reader, 100).decode()
os.waitpid(child, 0)
seen["length"] = len(rb)
print(json.dumps(seen))
rb.close()
"""


def test_cuda_is_left_alone_until_the_user_brings_it(root: Path) -> None:
    """Nor does a child that was forked after the parent used it need it."""
    done = run(CUDA, "-W", "ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["touched"] == [False, False]
    assert seen["child"] == "True"
    assert seen["length"] == (22 if seen["available"] else 12)
    if seen["available"]:
        assert seen["device"].startswith("cuda")
        assert seen["stamps"] == [0, 0, -1]
        assert seen["records"] == list(range(20, 30))
        assert seen["by_index"] == [3, 21]


@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_format_that_does_not_exist(format: str) -> None:
    done = run(
        f"import shmrb\nrb = shmrb.ReplayBuffer(storage=shmrb.SharedStorage(4), format='{format}x')"
    )
    assert done.returncode == 1
    assert f"format: expected 'torch' or 'numpy', got '{format}x'" in done.stderr
