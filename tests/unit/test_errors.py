"""The error tree: what may be caught as what, and that errors cross processes."""

from __future__ import annotations

import pickle

import pytest

from shmrb import errors
from shmrb.errors import (
    AttachError,
    CapacityError,
    ClosedError,
    DaemonError,
    DeadlineError,
    EmptyBufferError,
    LaneBusyError,
    PermissionDeniedError,
    RecordError,
    ShmrbError,
    SpecError,
    SpecTypeError,
    UnknownKeyError,
)

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", ALL)
def test_each_is_ours_is_drawn_and_keeps_its_message(kind: type[ShmrbError]) -> None:
    assert issubclass(kind, ShmrbError)
    assert kind.__name__ in (errors.__doc__ or "")
    sent = pickle.loads(pickle.dumps(kind("expected 1, got 2")))
    assert type(sent) is kind
    assert str(sent) == "expected 1, got 2"


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (SpecError, ValueError),
        (SpecTypeError, TypeError),
        (UnknownKeyError, KeyError),
        (UnknownKeyError, RecordError),
        (PermissionDeniedError, PermissionError),
        (ClosedError, RuntimeError),
        (EmptyBufferError, RuntimeError),
        (DeadlineError, TimeoutError),
        (CapacityError, AttachError),
    ],
)
def test_each_is_also_the_builtin_that_callers_expect(
    kind: type[Exception], also: type[Exception]
) -> None:
    assert issubclass(kind, also)


def test_numbers_travel_with_the_error() -> None:
    sent = pickle.loads(pickle.dumps(CapacityError("no", needed_bytes=5, available_bytes=3)))
    assert (sent.needed_bytes, sent.available_bytes) == (5, 3)
    assert pickle.loads(pickle.dumps(LaneBusyError("busy", written=7))).written == 7
    assert pickle.loads(pickle.dumps(DaemonError("gone", code=4))).code == 4
