"""Who may come in: the group, the modes of the root, and sockets that the manager made.

The group is the permission. Whatever is configured is set by chmod or inherited from the root's
setgid bit, never by changing the umask, which would change under other threads too.
"""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from shmrb.errors import DaemonError, PermissionDeniedError, SpecError
from shmrb.segment.directory import Root

# The first descriptor that a manager passes (sd_listen_fds).
_FIRST_PASSED = 3


@dataclass(frozen=True)
class Passed:
    """Listening sockets that were open when the daemon started."""

    control: socket.socket | None = None
    metrics: socket.socket | None = None


def take_group(name: str) -> None:
    """Become a process of this group, so that everything it makes belongs to it.

    Semaphores have no other way to get a group, and files need no race with chown.

    Raises:
        SpecError: there is no such group, or only root may take it.
    """
    try:
        wanted = grp.getgrnam(name).gr_gid
    except KeyError:
        raise SpecError(
            f"group: expected a group of this system, got {name!r}. Make it (groupadd --system "
            f"{name}), or name another."
        ) from None
    if wanted == os.getegid():
        return
    try:
        os.setgid(wanted)
    except PermissionError:
        raise SpecError(
            f"group: expected {name!r} (gid {wanted}) as the group of this process, got gid "
            f"{os.getegid()}. Start the daemon in it: Group={name} in the unit, or sg {name}."
        ) from None


def open_root(root: Root, *, is_configured: bool) -> None:
    """Make the root; with a configured mode or group, see to it that they are the root's.

    The setgid bit makes what others create in it belong to the group too.

    Raises:
        PermissionDeniedError: another user made it, or it has another mode or group and is not
            ours to change.
        FileSystemError: nobody could prove there that a client lives.
    """
    root.make()
    found = os.stat(root.path)
    if found.st_uid not in (os.geteuid(), 0):
        # In /dev/shm anybody can make a directory under the name that is configured here.
        raise PermissionDeniedError(
            f"Root {root.path}: expected a directory of uid {os.geteuid()} or of root, got one of "
            f"uid {found.st_uid}. Run the daemon as that user, or name another root (--root)."
        )
    if not is_configured:
        return
    wanted = root.directory_mode | (stat.S_ISGID if root.mode & 0o070 else 0)
    if (found.st_gid, stat.S_IMODE(found.st_mode)) == (os.getegid(), wanted):
        return
    try:
        os.chown(root.path, -1, os.getegid())
        # After chown, which clears the bit.
        os.chmod(root.path, wanted)
    except PermissionError:
        raise PermissionDeniedError(
            f"Root {root.path}: expected mode {wanted:04o} and gid {os.getegid()} as configured, "
            f"got {stat.S_IMODE(found.st_mode):04o} and gid {found.st_gid} of uid {found.st_uid}. "
            "Change them, or the settings mode and group."
        ) from None


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> Passed:
    """The sockets that the service manager passes by LISTEN_FDS; what names them is removed.

    A SOCK_SEQPACKET Unix socket is the control socket; a TCP socket on a loopback address serves
    metrics.

    Raises:
        DaemonError: another kind of socket, or two of one kind.
    """
    count = _passed_count(environment)
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(variable, None)
    found: dict[str, socket.socket] = {}
    for descriptor in range(_FIRST_PASSED, _FIRST_PASSED + count):
        os.set_inheritable(descriptor, False)
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            raise _wrong(descriptor, "something else") from None
        use = _use_of(sock)
        if use is None or use in found:
            what = f"{sock.family.name} {sock.type.name} at {sock.getsockname()!r}"
            for each in (sock, *found.values()):
                each.close()
            raise _wrong(descriptor, f"another {what}" if use else what)
        sock.setblocking(False)
        found[use] = sock
    return Passed(**found)


def _wrong(descriptor: int, got: str) -> DaemonError:
    return DaemonError(
        f"Passed descriptor {descriptor}: expected one listening SOCK_SEQPACKET Unix socket and at "
        f"most one TCP socket on a loopback address, got {got}. See the socket unit."
    )


def _passed_count(environment: Mapping[str, str]) -> int:
    try:
        is_ours = int(environment.get("LISTEN_PID", "0")) == os.getpid()
        return int(environment.get("LISTEN_FDS", "0")) if is_ours else 0
    except ValueError:
        raise DaemonError(
            "LISTEN_PID or LISTEN_FDS: expected numbers, got "
            f"{environment.get('LISTEN_PID')!r} and {environment.get('LISTEN_FDS')!r}."
        ) from None


def _use_of(sock: socket.socket) -> str | None:
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return None
    if sock.family == socket.AF_UNIX:
        return "control" if sock.type == socket.SOCK_SEQPACKET else None
    if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
        return "metrics" if _is_loopback(sock.getsockname()[0]) else None
    return None


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
