"""Users and groups as people know them (floor F3)."""

from __future__ import annotations

import grp
import pwd


def user_name(uid: int) -> str:
    """The user's name, or the number if nobody has it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The group's name, or the number if none has it."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
