"""Late writes with tensors: TensorDict batches, dtypes that numpy lacks, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

import shmrb


@pytest.fixture
def rb() -> Any:
    buffer = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(8),
        schema={"x": "int64", "n": {"w": ("bfloat16", 2)}, "v": "bfloat16"},
        sampler=shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0),
        batch_size=6,
    )
    buffer.extend(
        TensorDict(
            {
                "x": torch.arange(4),
                "n": {"w": torch.zeros(4, 2, dtype=torch.bfloat16)},
                "v": torch.zeros(4, dtype=torch.bfloat16),
                "td_error": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
            },
            [4],
        )
    )
    yield buffer
    buffer.close()


def test_batches_carry_weights(rb: Any) -> None:
    batch = rb.sample()
    assert isinstance(batch, TensorDict)
    assert batch["priority_weight"].dtype == torch.float32
    assert torch.allclose(batch["priority_weight"], 1 / (batch["index"] + 1).float())
    again = rb.sample(out=batch)
    assert again is batch
    assert torch.allclose(batch["priority_weight"], 1 / (batch["index"] + 1).float())


def test_priorities_of_any_floating_dtype_and_with_gradients(rb: Any) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32):
        batch = rb.sample()
        error = torch.full((6,), 3, dtype=dtype)
        if dtype.is_floating_point:
            error.requires_grad_()
        result = rb.update_priority(batch, error)
        assert result.updated.dtype == torch.bool
        assert result.updated.all()
        assert (rb.sampler.priorities_of(batch["index"]) == 3).all()
    result = rb.update_priority(batch["index"].int(), error[0], batch["index_generation"])
    assert result.updated_count == 6
    for wrong in (torch.ones(6, dtype=torch.bool), torch.ones(6, dtype=torch.complex64)):
        with pytest.raises(shmrb.RecordError, match="expected numbers"):
            rb.update_priority(batch, wrong)


def test_errors_that_a_loss_wrote_into_the_batch(rb: Any) -> None:
    batch = rb.sample()
    batch["td_error"] = torch.arange(12.0).reshape(6, 2, 1)
    assert rb.update_tensordict_priority(batch).updated.all()
    last = {int(slot): 2.0 * row + 1 for row, slot in enumerate(batch["index"])}
    found = rb.sampler.priorities_of(torch.tensor(list(last)))
    assert found.tolist() == list(last.values())


def test_patches_from_tensordicts(rb: Any) -> None:
    batch = rb.sample()
    patch = TensorDict({"n": {"w": torch.ones(6, 2, dtype=torch.bfloat16)}}, [6])
    result = rb.update_if_present(batch, patch=patch, version_key="v", version=2.5)
    assert result.updated_count == len(set(batch["index"].tolist()))
    assert result.updated_count + result.version_rejected_count == 6
    assert (rb["n", "w"][batch["index"]] == 1).all()
    assert (rb["v"][batch["index"]] == 2.5).all()
    older = torch.tensor([2.484375] * 6, dtype=torch.bfloat16)
    assert rb.update_if_present(batch, patch=patch, version_key="v", version=older).stale_count == 0
    assert (rb["v"][batch["index"]] == 2.5).all()
    nan = torch.full((6,), float("nan"), dtype=torch.bfloat16)
    with pytest.raises(shmrb.RecordError, match="NaN"):
        rb.update_if_present(batch, patch=patch, version_key="v", version=nan)
    with pytest.raises(ValueError, match=r"got torch.float32, the storage holds torch.bfloat16"):
        rb.update_if_present(batch, patch={("n", "w"): torch.ones(6, 2)})


def test_submitted_values_may_change_at_once(rb: Any) -> None:
    batch = rb.sample()
    value = torch.full((6,), 9)
    future = rb.submit_update_if_present(batch, patch=TensorDict({"x": value}, [6]))
    value.zero_()
    assert future.result().updated.all()
    assert (rb["x"][batch["index"]] == 9).all()


def test_prioritized_learning_loop_of_the_readme(rb: Any) -> None:
    sampled = rb.sample()
    loss = (sampled["priority_weight"] * torch.ones(6)).mean()
    assert loss <= 1
    result = rb.update_priority(sampled, torch.rand(6) + 0.1)
    assert (result.updated_count, result.stale_count) == (6, 0)
