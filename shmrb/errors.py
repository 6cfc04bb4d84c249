"""The errors that shmrb raises; floor F0, imports nothing.

A message says what was expected, what was found, where, and what to do. Staleness is not here: it
is a result (a mask), never an exception.

ShmrbError
├─ SpecError(ValueError)          the caller described something impossible
│  ├─ SpecTypeError(TypeError)    an argument of a description has the wrong type
│  ├─ NoTrajectoryError(RuntimeError)  an array in which no trajectory can lie
│  └─ RecordError                 data handed to a call does not match the schema
│     └─ UnknownKeyError(KeyError)  no field bears the key
├─ AttachError
│  ├─ NoSuchBufferError           name unknown; the message lists known names
│  ├─ AlreadyExistsError          the name is taken, by a buffer of another description
│  ├─ NotReadyError               the creator has not published the buffer yet
│  ├─ FormatMismatchError         expected and found format number or digest
│  ├─ PermissionDeniedError(PermissionError)
│  ├─ FileSystemError             the file system cannot hold a buffer
│  ├─ UncleanError                on a disk, and open when its machine stopped
│  └─ CapacityError               no room: bytes needed and available
├─ ClosedError(RuntimeError)      you closed it
├─ ReadOnlyError                  this role may not write
├─ EmptyBufferError(RuntimeError) there is no record to draw
│  └─ NoWindowError               there are records, and no window of the asked shape fits
├─ StaleAttachmentError           another buffer bears the name now
├─ DeadlineError(TimeoutError)    waited how long, for what, and who is in the way
│  ├─ LaneBusyError               no free lane; owners by name and pid
│  ├─ LockTimeoutError            a stopped process holds a lock or a slot
│  └─ LimiterTimeoutError         the limiter let nothing through
├─ CorruptionError                an invariant is broken; names region and offset
└─ DaemonError                    the control channel failed, with exit code or errno
"""

from __future__ import annotations


class ShmrbError(Exception):
    """Everything that shmrb raises on purpose."""


class SpecError(ShmrbError, ValueError):
    """The caller described something impossible."""


class SpecTypeError(SpecError, TypeError):
    """An argument of a description has the wrong type."""


class NoTrajectoryError(SpecError, RuntimeError):
    """No trajectory can lie in such an array."""


class RecordError(SpecError):
    """Data handed to a call does not match the schema: dtype, shape, missing or unknown key."""


class UnknownKeyError(RecordError, KeyError):
    """No field of the schema bears the key."""

    # KeyError would show the repr of the message.
    __str__ = Exception.__str__


class AttachError(ShmrbError):
    """A buffer could not be created or attached."""


class NoSuchBufferError(AttachError):
    """No buffer bears the name."""


class AlreadyExistsError(AttachError):
    """The name is taken, and the buffer under it cannot be used as asked."""


class NotReadyError(AttachError):
    """The name exists, but its buffer is not published yet."""


class FormatMismatchError(AttachError):
    """The bytes were laid out by a program with another idea of the format."""


class PermissionDeniedError(AttachError, PermissionError):
    """The files of the buffer are not open to this user."""


class FileSystemError(AttachError):
    """The file system lacks what a buffer needs, for example locks that a mapping holds."""


class UncleanError(AttachError):
    """A buffer on a disk was open when its machine stopped; what it holds cannot be trusted."""


class CapacityError(AttachError):
    """There is no room for the buffer.

    Attributes:
        needed_bytes: what the buffer takes.
        available_bytes: what the file system has.
    """

    def __init__(self, message: str, *, needed_bytes: int = 0, available_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ClosedError(ShmrbError, RuntimeError):
    """The handle was closed by its user."""


class ReadOnlyError(ShmrbError, RuntimeError):
    """The role of this attachment does not permit the call."""


class EmptyBufferError(ShmrbError, RuntimeError):
    """The buffer holds no record that may be drawn."""


class NoWindowError(EmptyBufferError):
    """There are records, but the window that was asked for fits nowhere."""


class StaleAttachmentError(ShmrbError):
    """Another buffer bears the name now; the one attached to is gone."""


class DeadlineError(ShmrbError, TimeoutError):
    """The wait is over before the call could be done.

    Attributes:
        written: rows that a long `extend` had already published when its time ran out; 0 for every
            other call, which then has changed nothing.
    """

    def __init__(self, message: str, *, written: int = 0) -> None:
        super().__init__(message)
        self.written = written


class LaneBusyError(DeadlineError):
    """No lane became free; the message names the owners."""


class LockTimeoutError(DeadlineError):
    """A living but stopped process holds a lock or a slot; the message names it."""


class LimiterTimeoutError(DeadlineError):
    """The rate limiter let nothing through; the message gives its numbers and who is blocked."""


class CorruptionError(ShmrbError):
    """An invariant of the segment is broken; the message names region and offset."""


class DaemonError(ShmrbError):
    """The control channel failed or the daemon refused.

    Attributes:
        code: the exit code or errno that goes with it, 0 if there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
