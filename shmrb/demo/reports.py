"""What a child process of the demo has in common with the others: it reports, and it stops.

Reports are lines of JSON on standard output, which the orchestrator reads. SIGTERM asks for the
end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Interpreters start slowly on a busy machine, torch more so, and everybody waits for the learner.
STARTUP_S = 60.0
REPORT_EVERY_S = 0.25


def report(kind: str, **values: Any) -> None:
    """Tell the orchestrator something."""
    line = json.dumps({"kind": kind, **values}) + "\n"
    # One write below PIPE_BUF: a reader never meets half a line of a process that was killed.
    os.write(sys.stdout.fileno(), line.encode())


class StopRequest:
    """SIGTERM, as an exit or as a flag.

    While a process waits for others to come up, the signal ends it at once. In its loop it is a
    flag, so that the loop can end between two steps and leave nothing unreported.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._is_deferred = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.is_made = True
        if not self._is_deferred:
            sys.exit(0)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block the signal only sets `is_made`."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
