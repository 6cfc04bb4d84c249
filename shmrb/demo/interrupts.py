"""Ctrl-C, SIGTERM and SIGHUP, taken where the run can be ended cleanly."""

from __future__ import annotations

import signal
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context in which these signals are noted; `check` raises KeyboardInterrupt for them.

    Raised between any two instructions, it could come between the start of a process and the line
    that remembers it. Whoever interrupts a second time has waited long enough and gets that.
    """

    def __init__(self) -> None:
        self._is_noted = False
        self._before: list[Any] = []

    def __enter__(self) -> Interrupts:
        self._before = [signal.signal(number, self._note) for number in _NUMBERS]
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in zip(_NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if one of the signals came."""
        if self._is_noted:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on they mean nothing: what is left to do takes moments and must be done."""
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, _number: int, _frame: object) -> None:
        if self._is_noted:
            raise KeyboardInterrupt
        self._is_noted = True
