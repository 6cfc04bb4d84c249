"""Schedules of the exponents: TorchRL's numbers, set for every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmrb
from helpers.draws import numbered, prioritized

New = Callable[..., Any]

RECORDED = json.loads((Path(__file__).parents[1] / "oracle" / "schedules.json").read_text())


def factor(step: int) -> float:
    """As in oracle/schedules.py."""
    return 1 + step / 8


def scheduler(buffer: Any, kind: str, name: str, **arguments: Any) -> Any:
    extra = {"lambda_fn": factor} if kind == "LambdaScheduler" else {}
    return getattr(shmrb, kind)(buffer, name, **extra, **arguments)


def steps(schedule: Any, buffer: Any, name: str, count: int) -> list[float]:
    found = []
    for _ in range(count):
        schedule.step()
        found.append(getattr(buffer.sampler, name))
    return found


@pytest.mark.parametrize(
    "case", RECORDED["cases"], ids=lambda case: f"{case['kind']}{case['name']}"
)
def test_values_are_torchrls(new: New, case: dict[str, Any]) -> None:
    rb = prioritized(new, 4, name="shared", alpha=0.6, beta=0.4)
    other = shmrb.attach("shared", format="numpy")
    schedule = scheduler(rb, case["kind"], case["name"], **case["arguments"])
    count = len(case["values"])
    assert steps(schedule, other, case["name"], count) == pytest.approx(case["values"], abs=1e-12)
    other.close()


@pytest.mark.parametrize("kind", ["LinearScheduler", "StepScheduler", "LambdaScheduler"])
def test_goes_on_from_its_state(new: New, kind: str) -> None:
    arguments = {"final_value": 1.0, "num_steps": 9} if kind == "LinearScheduler" else {}
    whole = prioritized(new, 4, alpha=0.6, beta=0.4)
    expected = steps(scheduler(whole, kind, "beta", **arguments), whole, "beta", 8)
    rb = prioritized(new, 4, alpha=0.6, beta=0.4)
    first = scheduler(rb, kind, "beta", **arguments)
    found = steps(first, rb, "beta", 5)
    state = json.loads(json.dumps(first.state_dict()))
    second = scheduler(rb.sampler, kind, "beta", **arguments)
    second.load_state_dict(state)
    assert found + steps(second, rb, "beta", 3) == expected


def test_several_step_together(new: New) -> None:
    rb = prioritized(new, 4, alpha=0.5, beta=0.5)
    both = shmrb.SchedulerList(shmrb.LinearScheduler(rb, "beta", 1.0, 5))
    both.append(shmrb.StepScheduler(rb, "alpha", gamma=0.5))
    both.step()
    assert (rb.sampler.alpha, rb.sampler.beta) == (0.25, 0.6)


def test_a_scheduled_alpha_changes_what_is_drawn(new: New) -> None:
    rb = prioritized(new, 4)
    rb.extend(numbered(0, 2), priority=[1, 3])
    shmrb.LinearScheduler(rb, "alpha", 0.0, 1).step()
    info = rb.statistics().priorities
    assert info is not None
    assert (info.alpha, info.total_mass) == (0, 2)


def test_what_cannot_be_scheduled(new: New) -> None:
    rb = prioritized(new, 4)
    uniform = new(schema={"x": "int64"})
    with pytest.raises(TypeError, match="ParameterScheduler only supports"):
        shmrb.LinearScheduler(object(), "beta", 1.0, 5)  # type: ignore[arg-type]
    for buffer, name in ((rb, "gamma"), (uniform, "beta")):
        with pytest.raises(ValueError, match=f"does not have an attribute {name}"):
            shmrb.StepScheduler(buffer, name)
    with pytest.raises(ValueError, match="Invalid mode"):
        shmrb.StepScheduler(rb, "beta", mode="squared")
    with pytest.raises(ValueError, match="num_steps"):
        shmrb.LinearScheduler(rb, "beta", 1.0, 0)
    linear = shmrb.LinearScheduler(rb, "beta", 1.0, 5)
    with pytest.raises(ValueError, match="not the state of a LinearScheduler"):
        linear.load_state_dict(shmrb.StepScheduler(rb, "beta").state_dict())
