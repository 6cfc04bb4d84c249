"""Every path and operating-system name that shmrb uses; floor F3. Nothing else spells one.

A root holds one directory a buffer. The entries of a root, and who else may look like them:

    exp42+replay          the buffer "exp42/replay"
    _5f0c…                a private buffer: a name no user can give
    .lock                 the administration lock of the root
    .daemon.lock          held by the daemon that serves the root
    .stamps/exp42+replay  the highest generation that a dropped buffer of this name had given
    .new.<id>  .gone.<id> a buffer being built, or being removed
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from shmrb.errors import FileSystemError, PermissionDeniedError, SpecError
from shmrb.segment.filesystem import file_system
from shmrb.wire import check_socket_path

MAX_PARTS = 4
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,61}")
_PRIVATE = re.compile(r"_[0-9a-f]{32}")
_UNFINISHED = re.compile(r"\.(new|gone)\.([0-9a-f]{32})")

ROOT_VARIABLE = "SHMRB_ROOT"
SOCKET_VARIABLE = "SHMRB_SOCKET"
CONFIGURATION_VARIABLE = "SHMRB_CONFIG"
SERVICE_ROOT = "/run/shmrb/segments"
SERVICE_SOCKET = "/run/shmrb/daemon.sock"
SERVICE_CONFIGURATION = "/etc/shmrb/shmrbd.toml"
SHARED_MEMORY = "/dev/shm"
# Where glibc and musl keep what sem_open makes.
_SEMAPHORE_FILE = "/dev/shm/sem."

ADMINISTRATION_LOCK = ".lock"
DAEMON_LOCK = ".daemon.lock"
# Beside a socket: held by the daemon that listens on it.
SOCKET_LOCK_SUFFIX = ".lock"
STAMPS = ".stamps"

# Files of a buffer's directory.
META = "meta"
CONTROL = "ctl"
SLOTS = "slots"
PRIORITIES = "prio"
CONSUMPTION = "consumption"
DATA = "data"
LIVE_LOCK = "live.lock"
DECLARATION = "declaration"
# Only of buffers on a disk: the mark, and in the root the way to their directory.
BOOT = "boot"
WHERE = "where"

# First uid that belongs to a person; below it are root and system users (login.defs, SYS_UID_MAX).
FIRST_PERSON_UID = 1000


def check_name(name: str) -> str:
    """`name`, if a buffer may bear it.

    Raises:
        SpecError: not one to four parts of the allowed characters.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not 1 <= len(parts) <= MAX_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise SpecError(
            f"buffer name: expected 1 to {MAX_PARTS} parts joined by '/', each a letter or digit "
            f"and up to 61 more of letters, digits, '.', '_' and '-', got {name!r}."
        )
    return name


def is_private(name: str) -> bool:
    """Was the name made by `private_name`?"""
    return _PRIVATE.fullmatch(name) is not None


def private_name(uuid_hex: str) -> str:
    """The name of a buffer whose creator gave none. It cannot collide: it is the buffer's uuid."""
    return f"_{uuid_hex}"


def directory_name(name: str) -> str:
    """The directory of a buffer inside its root.

    Raises:
        SpecError: no buffer may bear the name.
    """
    return name if is_private(name) else check_name(name).replace("/", "+")


def buffer_name(directory: str) -> str | None:
    """The buffer whose directory this is, or None: then it is not ours to touch."""
    if is_private(directory):
        return directory
    parts = directory.split("+")
    if len(parts) <= MAX_PARTS and all(_PART.fullmatch(part) for part in parts):
        return "/".join(parts)
    return None


def is_below(name: str, prefix: str) -> bool:
    """Is `name` the prefix itself, or below it part by part? The empty prefix covers every name."""
    return not prefix or name == prefix or name.startswith(prefix.rstrip("/") + "/")


def building_name(build: str) -> str:
    """The directory in which a buffer is built; `build` is 32 hexadecimal digits."""
    return f".new.{build}"


def leaving_name(build: str) -> str:
    """The directory that a dropped buffer is moved to before its files go."""
    return f".gone.{build}"


def unfinished_build(directory: str) -> str | None:
    """The id in a name made by `building_name` or `leaving_name`, else None."""
    match = _UNFINISHED.fullmatch(directory)
    return match.group(2) if match else None


def is_leaving(directory: str) -> bool:
    """Was the name made by `leaving_name`?"""
    return directory.startswith(".gone.") and unfinished_build(directory) is not None


def semaphore_names(uuid: bytes) -> tuple[str, str]:
    """The semaphores of the records bell and the room bell."""
    return f"/shmrb-{uuid.hex()[:16]}-r", f"/shmrb-{uuid.hex()[:16]}-w"


def semaphore_file(name: str) -> str:
    """The file behind a semaphore, for its mode: sem_open cuts it by the umask."""
    return _SEMAPHORE_FILE + name.lstrip("/")


def descriptor_path(descriptor: int, entry: str) -> str:
    """An entry of the directory that is open as `descriptor`, whatever its name is by now."""
    return f"/proc/self/fd/{descriptor}/{entry}"


def personal_root(uid: int | None = None) -> str:
    """The root of a user who has set up nothing."""
    return f"{SHARED_MEMORY}/shmrb-{os.geteuid() if uid is None else uid}"


def creation_root(
    explicit: str | os.PathLike[str] | None = None,
    reported: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Where a new buffer goes: the first root of `search_roots`."""
    return search_roots(explicit, reported, environment)[0]


def search_roots(
    explicit: str | os.PathLike[str] | None = None,
    reported: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """The roots that attach looks into, in order, all absolute.

    A root that the caller or `$SHMRB_ROOT` names is the only one: who names one wants to meet
    nobody else's buffer. Otherwise what a daemon reports, the service's mount, the user's own root.

    Args:
        explicit: the caller's choice, if any.
        reported: what a daemon that answered says, if one did.
        environment: where `SHMRB_ROOT` is looked up.
    """
    named = explicit if explicit is not None else environment.get(ROOT_VARIABLE)
    if named:
        return [os.path.abspath(os.fspath(named))]
    found = [os.path.abspath(reported)] if reported else []
    if is_service_root(SERVICE_ROOT):
        found.append(SERVICE_ROOT)
    found.append(personal_root())
    return list(dict.fromkeys(found))


def is_service_root(path: str) -> bool:
    """Is it a tmpfs mount point of its own, open to the caller?

    A plain directory there would lie on /run, which is small and not meant for payload.
    """
    return (
        os.path.ismount(path)
        and file_system(path) == "tmpfs"
        and os.access(path, os.R_OK | os.W_OK | os.X_OK)
    )


def make_root(path: str, mode: int = 0o700) -> None:
    """Make a root directory with this mode whatever the umask; one that is there stays as it is.

    Raises:
        PermissionDeniedError: not permitted, or the directory belongs to somebody who set a trap:
            in the world-writable /dev/shm anybody can make a directory under our name.
    """
    try:
        os.mkdir(path, mode)
        os.chmod(path, mode)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise FileSystemError(
            f"Root {path}: its parent directory does not exist. Make it, or name another root "
            f"({ROOT_VARIABLE})."
        ) from None
    except PermissionError as error:
        raise PermissionDeniedError(
            f"Root {path} cannot be made: {error.strerror}. Name another root ({ROOT_VARIABLE})."
        ) from None
    check_root(path)


def check_root(path: str) -> None:
    """Refuse a root that is no directory, or a personal one that another user made.

    Raises:
        FileSystemError: not a directory, or a link.
        PermissionDeniedError: another user owns it.
    """
    found = os.lstat(path)
    if os.path.dirname(path) == SHARED_MEMORY and stat.S_ISLNK(found.st_mode):
        raise FileSystemError(f"Root {path} is a link, which anybody could have made: remove it.")
    if not os.path.isdir(path):
        raise FileSystemError(f"Root {path} is no directory: remove it or name another root.")
    if path == personal_root() and found.st_uid != os.geteuid():
        raise PermissionDeniedError(
            f"Root {path} belongs to user {found.st_uid}, expected {os.geteuid()}: it was made by "
            f"somebody else. Name another root ({ROOT_VARIABLE})."
        )


def daemon_socket(
    explicit: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
) -> str:
    """The socket that a daemon of this user listens on.

    Raises:
        DaemonError: the path is longer than a socket's can be.
        SpecError: the user has no runtime directory.
    """
    named = explicit if explicit is not None else environment.get(SOCKET_VARIABLE)
    if named:
        return check_socket_path(os.path.abspath(os.fspath(named)))
    if os.geteuid() < FIRST_PERSON_UID:
        return SERVICE_SOCKET
    runtime = environment.get("XDG_RUNTIME_DIR")
    if not runtime:
        raise SpecError(
            f"socket: expected {SOCKET_VARIABLE} or XDG_RUNTIME_DIR in the environment, got "
            "neither. Name a socket (--socket)."
        )
    return check_socket_path(_personal_socket(runtime))


def daemon_configuration(environment: Mapping[str, str] = os.environ) -> str:
    """The configuration file of a daemon of this user; it need not be there."""
    named = environment.get(CONFIGURATION_VARIABLE)
    if named:
        return os.path.abspath(named)
    if os.geteuid() < FIRST_PERSON_UID:
        return SERVICE_CONFIGURATION
    personal = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(personal, "shmrb", "shmrbd.toml")


def client_sockets(
    explicit: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """The sockets that a client tries, in order; the first that exists is its daemon's.

    Raises:
        DaemonError: the path is longer than a socket's can be.
    """
    named = explicit if explicit is not None else environment.get(SOCKET_VARIABLE)
    if named:
        return [check_socket_path(os.path.abspath(os.fspath(named)))]
    runtime = environment.get("XDG_RUNTIME_DIR")
    personal = [check_socket_path(_personal_socket(runtime))] if runtime else []
    return [*personal, SERVICE_SOCKET]


def _personal_socket(runtime: str) -> str:
    return os.path.join(runtime, "shmrb", "daemon.sock")
