"""The daemon's settings, each described in one place: name, unit, default, text.

The flags of `shmrbd`, the checks of a configuration file and the documented file that
`--print-config` writes are all made from the fields of `Config`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shmrb.errors import SpecError
from shmrb.segment import names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOG_LEVELS = ("debug", "info", "warning", "error")
# Others than owner and group get nothing: the group is the permission.
MODES = ("", "0600", "0640", "0660")


def _setting(default: Any, text: str, *, unit: str = "", reloads: bool = False) -> Any:
    metadata = {"text": text, "unit": unit, "reloads": reloads}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one daemon."""

    root: str = _setting(
        "",
        "Directory of the segments, on tmpfs. Empty: $SHMRB_ROOT, else /run/shmrb/segments if that "
        "is a tmpfs mount of its own, else /dev/shm/shmrb-<uid>.",
    )
    socket: str = _setting(
        "",
        "Path of the control socket. Empty: $SHMRB_SOCKET, else /run/shmrb/daemon.sock for root "
        "and system users, else $XDG_RUNTIME_DIR/shmrb/daemon.sock. A socket that the service "
        "manager passes is taken instead.",
    )
    mode: str = _setting(
        "",
        "Mode of the socket and of the files of buffers, whatever the umask: 0600 for the owner "
        "alone, 0660 for the group, 0640 for a group that only looks (it cannot use the socket). "
        "Directories get the matching search bits. Empty: as the root directory is; 0660 with a "
        "group.",
    )
    group: str = _setting(
        "",
        "Group of all that the daemon makes; its members may use every buffer. Empty: the group "
        "that the daemon was started with.",
    )
    memmap_directories: str = _setting(
        "",
        "Directories, joined by ':', in and below which the daemon may make buffers on a disk "
        "(MemmapStorage), and where it finds its own again when it starts. A unit must allow them "
        "too: ReadWritePaths=. Empty: none.",
        reloads=True,
    )
    max_bytes: int = _setting(
        0,
        "All buffers of the root together, those on a disk too; 0: what the file system holds.",
        unit="bytes",
        reloads=True,
    )
    max_buffers: int = _setting(
        0, "Buffers in the root; 0: no limit.", unit="buffers", reloads=True
    )
    max_clients: int = _setting(
        0,
        "Client slots that one buffer may be created with; 0: no limit.",
        unit="clients",
        reloads=True,
    )
    max_connections: int = _setting(
        400,
        "Control connections at a time; further ones queue. Each takes two descriptors.",
        unit="connections",
        reloads=True,
    )
    sweep_interval_s: float = _setting(
        0.5,
        "How often to look for clients that came, left or died. A look takes about a microsecond "
        "a client; the end of a connected process is noticed at once.",
        unit="seconds",
        reloads=True,
    )
    leftovers_interval_s: float = _setting(
        10.0,
        "How often to look for what dead creators left. That takes the root's administration lock.",
        unit="seconds",
        reloads=True,
    )
    metrics_port: int = _setting(
        0,
        "Port on 127.0.0.1 that serves Prometheus text over HTTP; 0: none. "
        "`shmrb stats --prometheus` works without.",
        unit="port",
    )
    log_level: str = _setting(
        "info", f"What goes to stderr: {', '.join(LOG_LEVELS)} and above.", reloads=True
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise _wrong(field.name, "a number of at least 0", value)
        if self.mode not in MODES:
            raise _wrong("mode", f"one of {', '.join(filter(None, MODES))}", self.mode)
        if self.log_level not in LOG_LEVELS:
            raise _wrong("log_level", f"one of {', '.join(LOG_LEVELS)}", self.log_level)
        if not all(map(os.path.isabs, self.memmap_places)):
            raise _wrong("memmap_directories", "absolute paths", self.memmap_directories)
        if self.max_connections < 1:
            raise _wrong("max_connections", "at least 1", self.max_connections)
        if self.metrics_port > 65535:
            raise _wrong("metrics_port", "at most 65535", self.metrics_port)

    @property
    def memmap_places(self) -> tuple[str, ...]:
        """The directories of `memmap_directories`."""
        return tuple(filter(None, self.memmap_directories.split(":")))

    @property
    def file_mode(self) -> int | None:
        """The mode of files, None where the root directory decides."""
        if self.mode:
            return int(self.mode, 8)
        return 0o660 if self.group else None


class Settings:
    """What a running daemon goes by; a reload changes it under everybody who looks at `now`."""

    def __init__(self, config: Config) -> None:
        self.now = config

    def take(self, new: Config) -> tuple[list[str], list[str]]:
        """Go by the new settings, as far as a running daemon can.

        Returns:
            The names of the settings that changed, and of those that wait for a restart.
        """
        changed: list[str] = []
        waiting: list[str] = []
        for field in dataclasses.fields(Config):
            if getattr(new, field.name) != getattr(self.now, field.name):
                (changed if field.metadata["reloads"] else waiting).append(field.name)
        values = {name: getattr(new, name) for name in changed}
        self.now = dataclasses.replace(self.now, **values)
        return changed, waiting


def flags() -> dict[str, dict[str, Any]]:
    """Each flag of the command line and how argparse shall read it."""
    found: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(Config):
        kind = type(field.default)
        text = f"{field.metadata['text']}{_default(field, ' ')}"
        found[f"--{field.name.replace('_', '-')}"] = {
            "dest": field.name,
            "type": kind,
            "metavar": (field.metadata["unit"] or field.name).upper(),
            "help": text.replace("%", "%%"),
        }
    return found


def resolve(
    given: Mapping[str, Any] | None = None,
    file: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """The settings of a daemon: flags, else the environment, else the file, else the defaults.

    Args:
        given: the flags that were used, by the setting's name.
        file: a configuration file that must be there; None: the user's, if there is one.
        environment: where variables are looked up.

    Raises:
        SpecError: a setting that is not known or makes no sense, or no socket can be named.
        DaemonError: the socket's path is too long.
    """
    values = _read(file, environment)
    for name, variable in (("root", names.ROOT_VARIABLE), ("socket", names.SOCKET_VARIABLE)):
        if environment.get(variable):
            values[name] = environment[variable]
    values |= {name: value for name, value in (given or {}).items() if value is not None}
    config = Config(**values)
    return dataclasses.replace(
        config,
        root=names.creation_root(config.root or None, environment=environment),
        socket=names.daemon_socket(config.socket or None, environment),
    )


def documented(config: Config) -> str:
    """A configuration file with these settings, every one explained."""
    lines = ["# Configuration of shmrbd. Flags and SHMRB_ROOT, SHMRB_SOCKET override what is here."]
    for field in dataclasses.fields(config):
        lines.append("")
        text = field.metadata["text"] + _default(field, " ")
        if field.metadata["reloads"]:
            text += " Taken over by a reload (SIGHUP)."
        lines += [f"# {line}" for line in _wrapped(text)]
        lines.append(f"{field.name} = {json.dumps(getattr(config, field.name))}")
    return "\n".join(lines) + "\n"


def _read(file: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """The values of a configuration file, of the right types."""
    path = file or names.daemon_configuration(environment)
    try:
        with open(path, "rb") as source:
            document = tomllib.load(source)
    except FileNotFoundError:
        if file is None and not environment.get(names.CONFIGURATION_VARIABLE):
            return {}
        raise SpecError(f"configuration: expected a TOML file, got none at {path}.") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"configuration: {path} cannot be read: {error}.") from None
    known = {field.name: field for field in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}."
            raise SpecError(f"configuration: {path} has an unknown setting {name!r}{hint}")
        kind = type(known[name].default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise SpecError(f"configuration: {path}: {_expected(name, kind.__name__, value)}")
        values[name] = value
    return values


def _default(field: dataclasses.Field[Any], before: str) -> str:
    if field.default == "":
        return ""
    unit = field.metadata["unit"]
    return f"{before}[{field.default}{f' {unit}' if unit else ''}]"


def _wrapped(text: str) -> list[str]:
    return [line.rstrip() for line in re.findall(r".{1,96}(?:\s+|$)", text)]


def _expected(name: str, expected: str, value: Any) -> str:
    return f"{name}: expected {expected}, got {value!r}."


def _wrong(name: str, expected: str, value: Any) -> SpecError:
    return SpecError(_expected(name, expected, value))
