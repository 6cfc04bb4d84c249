"""Names, roots and socket paths."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shmrb.errors import DaemonError, FileSystemError, SpecError
from shmrb.segment import filesystem, names


@pytest.mark.parametrize(
    "name", ["a", "exp42/replay", "a/b/c/d", "A.b-c_d", "0" * 62, "/".join(["x" * 62] * 4)]
)
def test_a_name_and_its_directory_are_one_to_one(name: str) -> None:
    directory = names.directory_name(name)
    assert "/" not in directory
    assert len(directory.encode()) <= 255
    assert names.buffer_name(directory) == name


BAD_NAMES = ["", "/", "a/", "/a", "a//b", "a/b/c/d/e", ".a", "-a", "_a", "a+b", "..", "a/..", "a b"]
BAD_NAMES += ["é", "a\n", "x" * 63, "a\x00b", "_" + "0" * 31]


@pytest.mark.parametrize("name", [*BAD_NAMES, 7, None])
def test_a_name_that_could_leave_the_root_or_meet_another_is_refused(name: object) -> None:
    with pytest.raises(SpecError, match="buffer name"):
        names.check_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "directory",
    [".lock", ".stamps", "a+b+c+d+e", "a++b", "_xyz", "lost+found ", ".new." + "0" * 32],
)
def test_what_is_not_ours_has_no_buffer_name(directory: str) -> None:
    assert names.buffer_name(directory) is None


def test_private_names_are_no_users_names() -> None:
    name = names.private_name("ab" * 16)
    assert names.is_private(name)
    assert names.buffer_name(names.directory_name(name)) == name
    with pytest.raises(SpecError):
        names.check_name(name)


def test_unfinished_directories_carry_their_build() -> None:
    build = "0f" * 16
    assert names.unfinished_build(names.building_name(build)) == build
    assert names.unfinished_build(names.leaving_name(build)) == build
    assert names.is_leaving(names.leaving_name(build))
    assert not names.is_leaving(names.building_name(build))
    assert names.unfinished_build(".new.something-else") is None


def test_prefixes_go_part_by_part() -> None:
    assert names.is_below("exp4/replay", "exp4")
    assert names.is_below("exp4/replay", "exp4/")
    assert names.is_below("exp4", "exp4")
    assert names.is_below("exp4", "")
    assert not names.is_below("exp42/replay", "exp4")


def test_the_semaphores_of_two_buffers_differ() -> None:
    first, second = (names.semaphore_names(bytes([i]) * 16) for i in (1, 2))
    assert len({*first, *second}) == 4
    assert first[0] == "/shmrb-0101010101010101-r"
    assert names.semaphore_file(first[1]) == "/dev/shm/sem.shmrb-0101010101010101-w"


def test_a_named_root_is_the_only_one_searched() -> None:
    assert names.search_roots("/x/y", "/daemon", {"SHMRB_ROOT": "/z"}) == ["/x/y"]
    assert names.search_roots(None, "/daemon", {"SHMRB_ROOT": "/z"}) == ["/z"]
    assert names.creation_root("relative", None, {}) == os.path.abspath("relative")


def test_without_a_named_root_all_places_are_searched_in_order() -> None:
    searched = names.search_roots(None, "/daemon", {})
    assert searched[0] == "/daemon"
    assert searched[-1] == f"/dev/shm/shmrb-{os.geteuid()}"
    assert len(names.search_roots(None, names.personal_root(), {})) == len(searched) - 1


def test_the_service_root_must_be_a_mount_of_its_own(tmp_path) -> None:
    assert not names.is_service_root(str(tmp_path))
    assert not names.is_service_root("/proc")
    assert not names.is_service_root(str(tmp_path / "missing"))
    assert names.is_service_root("/dev/shm")


def test_a_root_gets_its_mode_under_any_umask(tmp_path) -> None:
    for umask in (0o077, 0o000):
        root = tmp_path / f"root-{umask:o}"
        program = (
            f"import os; os.umask({umask}); from shmrb.segment import names; "
            f"names.make_root({os.fspath(root)!r}, 0o770)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
        assert root.stat().st_mode & 0o7777 == 0o770


def test_a_root_that_is_no_directory_is_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileSystemError, match="no directory"):
        names.make_root(os.fspath(tmp_path / "file"))
    with pytest.raises(FileSystemError, match="parent"):
        names.make_root(os.fspath(tmp_path / "a" / "b"))


def test_a_socket_path_that_is_too_long_is_refused_and_never_cut(tmp_path) -> None:
    runtime = "/run/" + "d" * 120
    for path in (names.client_sockets, names.daemon_socket):
        with pytest.raises(DaemonError) as caught:
            path(f"{runtime}/daemon.sock")
        message = str(caught.value)
        assert runtime in message
        assert str(len(f"{runtime}/daemon.sock")) in message
        assert "107" in message
    with pytest.raises(DaemonError, match="107"):
        names.client_sockets(None, {"XDG_RUNTIME_DIR": runtime})
    limit = "/" + "s" * 106
    assert names.client_sockets(limit) == [limit]


def test_a_client_tries_its_own_daemon_before_the_systems() -> None:
    assert names.client_sockets(None, {"XDG_RUNTIME_DIR": "/run/user/7"}) == [
        "/run/user/7/shmrb/daemon.sock",
        "/run/shmrb/daemon.sock",
    ]
    assert names.client_sockets(None, {}) == ["/run/shmrb/daemon.sock"]
    assert names.client_sockets(None, {"SHMRB_SOCKET": "/a"}) == ["/a"]


def test_a_daemons_socket_depends_on_who_runs_it(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 999)
    assert names.daemon_socket(None, {"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/shmrb/daemon.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert names.daemon_socket(None, {"XDG_RUNTIME_DIR": "/r"}) == "/r/shmrb/daemon.sock"
    with pytest.raises(SpecError, match="XDG_RUNTIME_DIR"):
        names.daemon_socket(None, {})
    assert names.daemon_socket(None, {"SHMRB_SOCKET": "/s"}) == "/s"


def test_file_systems_are_told_apart() -> None:
    assert filesystem.file_system("/dev/shm") == "tmpfs"
    assert filesystem.file_system("/proc/self") == "proc"
    assert filesystem.file_system("/dev/shm/no/such/entry") == "tmpfs"


def test_a_file_system_that_loses_locks_is_refused_by_name(monkeypatch) -> None:
    filesystem.check_file_system("/dev/shm")
    for kind in ("nfs4", "overlay", "fuse.sshfs"):
        monkeypatch.setattr(filesystem, "file_system", lambda path, kind=kind: kind)
        with pytest.raises(FileSystemError, match=kind):
            filesystem.check_file_system("/somewhere")
