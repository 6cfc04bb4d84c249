"""What in a root is not a buffer of ours, or not whole: listed or refused, never touched."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from helpers.segments import uid_spec
from shmrb.errors import AttachError, ShmrbError
from shmrb.segment import names
from shmrb.segment.directory import Root
from shmrb.segment.member import Member

KILLED = -signal.SIGKILL


def test_what_is_foreign_is_listed_and_never_touched(root: Path) -> None:
    place = Root(root)
    entry = place.create(uid_spec(), "ring").entry
    meta = (Path(entry.path) / names.META).read_bytes()
    (root / "README").write_text("a file")
    (root / "not a name").mkdir()
    (root / "empty").mkdir()
    (root / "newer").mkdir()
    (root / "newer" / names.META).write_bytes(meta[:8] + b"\x02\x00\x00\x00" + meta[12:])
    (root / "link").symlink_to(entry.path)
    (root / ".new.mine").mkdir()
    (root / (".gone." + "0" * 32)).symlink_to(entry.path)
    before = sorted(os.listdir(root))
    assert place.reclaim() == ()
    assert sorted(os.listdir(root)) == before
    problems = {found.name: found.problem for found in place.list()}
    assert problems.pop("ring") == ""
    assert "got no directory" in problems["README"]
    assert "no name" in problems["not a name"]
    assert "neither" in problems["empty"]
    assert "expected format number 1, got 2" in problems["newer"]
    assert "got a link" in problems["link"]
    for name in ("empty", "newer", "link", "README"):
        for refuse in (
            lambda name=name: Member.join(place, name),
            lambda name=name: place.drop(name, force=True),
            lambda name=name: place.create(uid_spec(), name, exist="replace"),
        ):
            with pytest.raises(AttachError):
                refuse()
    assert sorted(os.listdir(root)) == before
    assert os.path.exists(entry.path)


PLANTED = [".lock", ".stamps", ".stamps/ring", ".stamps/.ring"]
FILES = ["meta", "ctl", "slots", "data", "live.lock"]


@pytest.mark.parametrize("planted", [*PLANTED, *(f"ring/{file}" for file in FILES)])
def test_links_in_the_root_lead_nowhere(root: Path, tmp_path: Path, planted: str) -> None:
    """Whoever may write in the root may not have us write, or read, what lies outside."""
    place = Root(root)
    if not planted.startswith("."):
        place.create(uid_spec(), "ring")
    victim = tmp_path / "victim"
    link = root / planted
    if planted == ".stamps":
        victim.mkdir()
        (victim / "ring").write_text("7" * 21)
    else:
        victim.write_bytes(link.read_bytes() if link.exists() else b"precious")
        link.parent.mkdir(exist_ok=True)
    before = _content(victim)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    for use in (
        lambda: place.create(uid_spec(), "ring"),
        lambda: Member.join(place, "ring").close(),
        lambda: place.create(uid_spec(), "ring", exist="replace"),
        lambda: place.drop("ring", force=True),
    ):
        with contextlib.suppress(ShmrbError):
            use()
        assert _content(victim) == before
    # What is only in the way of an unfinished stamp is replaced; anything else is told.
    if planted == ".stamps/.ring":
        assert not link.is_symlink()
        place.create(uid_spec(), "ring")
    else:
        with pytest.raises(ShmrbError, match=r"link|another kind|is missing|expected a plain file"):
            place.create(uid_spec(), "ring", exist="replace")
    assert _content(victim) == before


def _content(victim: Path) -> object:
    if victim.is_dir():
        return sorted((item.name, item.read_bytes()) for item in victim.iterdir())
    return victim.read_bytes(), victim.stat().st_mode


def test_a_shortened_file_is_refused(root: Path) -> None:
    place = Root(root)
    entry = place.create(uid_spec(), "ring").entry
    for name in (names.DATA, names.SLOTS, names.CONTROL, names.LIVE_LOCK):
        path = os.path.join(entry.path, name)
        whole = Path(path).read_bytes()
        os.truncate(path, len(whole) - 1)
        with pytest.raises(AttachError, match=f"'{name}': expected {len(whole)} bytes"):
            Member.join(place, "ring")
        Path(path).write_bytes(whole)
    Member.join(place, "ring").close()


def test_a_control_block_of_another_buffer_is_refused(root: Path) -> None:
    place = Root(root)
    one = place.create(uid_spec(), "one").entry
    other = place.create(uid_spec(), "other").entry
    os.replace(os.path.join(other.path, names.CONTROL), os.path.join(one.path, names.CONTROL))
    with pytest.raises(AttachError, match="control block: expected uuid"):
        Member.join(place, "one")
