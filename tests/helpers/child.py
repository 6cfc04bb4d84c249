"""What runs inside a child process of a test: events go out on stdout, orders come in on stdin.

Standard library only, so that a child's imports and memory are those of the code under test.
Children are started by `helpers.procs`; this file is also the script that an unrelated interpreter
runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EVENT = "@event "
_PR_SET_PDEATHSIG = 1


def emit(event: str, **values: Any) -> None:
    """Tells the test that something happened; the values travel as JSON."""
    line = EVENT + json.dumps({"event": event, **values}) + "\n"
    # One write on the descriptor: whole lines from any thread, no buffer that a fork would copy.
    os.write(1, line.encode())


def receive() -> str:
    """Waits for the next line that the test sends; an empty string means that it has gone."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            break
        line += byte
    return line.decode()


def load_function(file: str, name: str) -> Callable[..., None]:
    """The module-level function `name` of a file, loaded by path."""
    module_name = "child_of_" + os.path.basename(file).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function: Callable[..., None] = getattr(module, name)
    return function


def call(file: str, name: str, **kwargs: Any) -> None:
    """Runs a function of a test file where that file cannot be imported: children of children."""
    load_function(file, name)(**kwargs)


def prepare() -> None:
    """Dies with its parent, and writes its stacks to stderr when the watchdog asks."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def run_in_multiprocessing(
    orders: Connection,
    events: Connection,
    errors_file: str,
    environment: dict[str, str],
    target: Any,
    kwargs: dict[str, Any],
) -> None:
    """Entry of a multiprocessing child: `target` is a function (fork) or its (file, name)."""
    # A fork server has the environment of the first test that used it.
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(orders.fileno(), 0)
    os.dup2(events.fileno(), 1)
    errors = os.open(errors_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    orders.close()
    events.close()
    # A forked child inherits the streams of pytest's capture.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    prepare()
    function = target if callable(target) else load_function(*target)
    function(**kwargs)


def main() -> None:
    prepare()
    if sys.argv[1] == "--program":
        os.execvp(sys.argv[2], sys.argv[2:])
    from paths import arrange_import_path

    arrange_import_path()
    file, name, arguments = sys.argv[1:4]
    load_function(file, name)(**json.loads(arguments))


if __name__ == "__main__":
    main()
