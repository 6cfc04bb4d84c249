"""The exit codes of `shmrb`, and which error ends with which; the help prints this table."""

from __future__ import annotations

from shmrb.errors import (
    AlreadyExistsError,
    AttachError,
    CapacityError,
    CorruptionError,
    DaemonError,
    DeadlineError,
    FileSystemError,
    FormatMismatchError,
    NoSuchBufferError,
    NotReadyError,
    PermissionDeniedError,
    ShmrbError,
    SpecError,
    UncleanError,
)

OK = 0
FAILED = 1
USAGE = 2
NO_SUCH_BUFFER = 3
TAKEN = 4
NO_DAEMON = 5
TIMED_OUT = 6
NO_ROOM = 7
NOT_PERMITTED = 8
UNREADABLE = 9

MEANINGS = {
    OK: "done",
    FAILED: "a check failed, or another error",
    USAGE: "wrong command line or description",
    NO_SUCH_BUFFER: "no buffer has this name",
    TAKEN: "the name, the root or the socket is taken, or the buffer is in use",
    NO_DAEMON: "no daemon answers, or it failed",
    TIMED_OUT: "a deadline passed",
    NO_ROOM: "no room for the buffer",
    NOT_PERMITTED: "not permitted",
    UNREADABLE: "another format, a damaged buffer, or an unfit file system",
}
EPILOGUE = "Exit codes: " + "; ".join(f"{code} {text}" for code, text in MEANINGS.items()) + "."

_CODES: tuple[tuple[type[ShmrbError], int], ...] = (
    (SpecError, USAGE),
    (NoSuchBufferError, NO_SUCH_BUFFER),
    (AlreadyExistsError, TAKEN),
    (DaemonError, NO_DAEMON),
    (DeadlineError, TIMED_OUT),
    (CapacityError, NO_ROOM),
    (PermissionDeniedError, NOT_PERMITTED),
    (FormatMismatchError, UNREADABLE),
    (CorruptionError, UNREADABLE),
    (FileSystemError, UNREADABLE),
    (UncleanError, UNREADABLE),
    (NotReadyError, FAILED),
    # Whatever else keeps a buffer from being attached or dropped: its members.
    (AttachError, TAKEN),
)


def code_of(error: ShmrbError) -> int:
    """The exit code for an error that ended a command."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
