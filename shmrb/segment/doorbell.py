"""Waiting for records or for room, and waking those who wait; floor F3, alone in using posix_ipc.

The words of a bell lie in the control block, and the native core changes them. What is here is the
sleep between two looks, on a semaphore or, for clients that cannot open it, on the futex word.
Nobody sleeps longer than `LONGEST_S`: whoever should ring may die before it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import posix_ipc

from shmrb import core
from shmrb.segment import names

LONGEST_S = 0.1
# A read-only attachment cannot count itself as waiting: it looks again this often.
_OBSERVER_POLL_S = 0.02


def create_semaphores(uuid: bytes, mode: int) -> None:
    """Make both semaphores of a buffer, or none: then everybody waits on the futex words.

    They can be missing for good reasons (no /dev/shm here, or a full one), and nothing but speed
    hangs on them. Semaphores that a killed creator of the same buffer left are taken over: what
    they count only causes wake-ups for nothing.
    """
    try:
        for name in names.semaphore_names(uuid):
            posix_ipc.Semaphore(name, posix_ipc.O_CREAT, mode=mode, initial_value=0).close()
            # sem_open cuts the mode by the umask, and there is no call that changes it afterwards.
            with contextlib.suppress(FileNotFoundError):
                os.chmod(names.semaphore_file(name), mode)
    except (posix_ipc.Error, OSError):
        unlink_semaphores(uuid)


def open_semaphore(name: str) -> posix_ipc.Semaphore | None:
    """One of a buffer's semaphores, None if this process cannot use it."""
    try:
        return posix_ipc.Semaphore(name)
    except (posix_ipc.Error, OSError):
        return None


def unlink_semaphores(uuid: bytes) -> None:
    """Remove both; whoever has them open goes on using them."""
    for name in names.semaphore_names(uuid):
        with contextlib.suppress(posix_ipc.Error, OSError):
            posix_ipc.unlink_semaphore(name)


class Bell:
    """One wait class of one attachment. Threads may share it.

    Args:
        segment: the attachment's.
        which: the class.
        semaphore: its name; None: only the futex word is waited on.
    """

    def __init__(self, segment: core.Segment, which: core.Bell, semaphore: str | None) -> None:
        self._segment = segment
        self._which = int(which)
        # Opened when it is needed: each takes a mapping, and most bells never ring.
        self._name = semaphore
        self._semaphore: posix_ipc.Semaphore | None = None
        # Whether somebody rings who cannot post semaphores, and what tells: the event at which a
        # sleep on ours ended unrung.
        self._is_for_futex = False
        self._unrung: int | None = None
        # Closing a semaphore unmaps it: that has to wait for the threads that use it.
        self._users = 0
        self._no_user = threading.Condition()

    def wait(self, is_over: Callable[[], bool], seconds: float = LONGEST_S) -> bool:
        """Sleep until somebody rings, at most `seconds` and never longer than `LONGEST_S`.

        Args:
            is_over: looks whether there is anything left to wait for. It is called once this client
                counts as waiting, so that a change between the caller's look and the sleep is seen.
            seconds: the slice.

        Returns:
            False when the slice passed and nobody rang; True when it is time to look again.
        """
        seconds = max(0.0, min(seconds, LONGEST_S))
        with self._no_user:
            on_futex = self._is_for_futex or self._open() is None
        status, event, *_ = self._segment.bell_enter(self._which, on_futex)
        if status == core.Status.READ_ONLY:
            time.sleep(min(seconds, _OBSERVER_POLL_S))
            return False
        if status != core.Status.OK:
            return True
        if not on_futex:
            self._notice_lost_posts(event)
        rung = False
        try:
            rung = is_over() or self._sleep(event, seconds, on_futex)
        finally:
            self._segment.bell_leave(self._which, on_futex, event)
            self._unrung = None if rung or on_futex else event
        return rung

    def _notice_lost_posts(self, event: int) -> None:
        """Wait on the futex word from now on if a ring moved the event and no post came.

        Whoever rang sees no semaphores (in a container), was killed, or is about to post: then
        nothing is lost by it. Everybody can ring the futex word.
        """
        if self._unrung is not None and event != self._unrung:
            self._is_for_futex = True

    def post(self, count: int) -> None:
        """Wake `count` waiters, as a native call said is owed."""
        with self._using() as semaphore:
            if semaphore is not None:
                for _ in range(count):
                    semaphore.release()

    def close(self) -> None:
        """Give the semaphore back, once nobody sleeps on it. Again: nothing."""
        with self._no_user:
            semaphore, self._semaphore = self._semaphore, None
            self._name = None
            self._no_user.wait_for(lambda: self._users == 0)
        if semaphore is not None:
            semaphore.close()

    def abandon(self) -> None:
        """In a forked child, where none of the parent's threads lives: give the semaphore back."""
        self._name = None
        if self._semaphore is not None:
            self._semaphore.close()
            self._semaphore = None

    def _open(self) -> posix_ipc.Semaphore | None:
        """REQUIRES: `_no_user` is held."""
        if self._semaphore is None and self._name is not None:
            self._semaphore = open_semaphore(self._name)
            # Once without it, always: where a client waits must not change while it does.
            if self._semaphore is None:
                self._name = None
        return self._semaphore

    def _sleep(self, event: int, seconds: float, on_futex: bool) -> bool:
        if on_futex:
            _, woken, *_ = self._segment.bell_sleep(self._which, event, int(seconds * 1e9))
            return bool(woken)
        with self._using() as semaphore, _handlers_put_off():
            try:
                if semaphore is not None:
                    semaphore.acquire(seconds)
            except posix_ipc.BusyError:
                return False
            except posix_ipc.SignalError:
                return True
        return True

    @contextlib.contextmanager
    def _using(self) -> Iterator[posix_ipc.Semaphore | None]:
        with self._no_user:
            semaphore = self._open()
            self._users += 1
        try:
            yield semaphore
        finally:
            with self._no_user:
                self._users -= 1
                self._no_user.notify_all()


@contextlib.contextmanager
def _handlers_put_off() -> Iterator[None]:
    """Block the signals that have a Python handler until the sleep is over.

    posix_ipc runs handlers while it waits and swallows what they raise, SystemExit included (only
    KeyboardInterrupt comes through): a process could not be ended by its own SIGTERM handler. A
    blocked signal is handled by the interpreter when the sleep ends, `LONGEST_S` later at the most.
    """
    handled = {
        number
        for number in signal.valid_signals()
        if callable(handler := signal.getsignal(number))
        and handler is not signal.default_int_handler
    }
    if not handled:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
