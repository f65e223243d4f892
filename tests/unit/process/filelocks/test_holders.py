from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from holdfast.errors import InputError
from holdfast.process.filelocks.holders import find_locks, locks
from holdfast.procfs.locks import LockKind
from holdfast.procfs.procfs import RealProcFS
from python_child import ofd_lock, python, takes_lock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.h5"
    path.write_bytes(b"x" * 100)
    return path


@pytest.mark.parametrize(
    ("call", "kind", "exclusive", "span"),
    [
        ("fcntl.flock(file, fcntl.LOCK_EX)", LockKind.FLOCK, True, (0, None)),
        ("fcntl.flock(file, fcntl.LOCK_SH)", LockKind.FLOCK, False, (0, None)),
        ("fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)", LockKind.POSIX, True, (20, 29)),
        ("fcntl.lockf(file, fcntl.LOCK_SH, 0, 50)", LockKind.POSIX, False, (50, None)),
        (ofd_lock("F_WRLCK", 7, 3), LockKind.OFD, True, (7, 9)),
    ],
)
def test_who_holds_which_lock_where(
    file: Path, call: str, kind: LockKind, exclusive: bool, span: tuple[int, int | None]
) -> None:
    with python(takes_lock(call), file) as child:
        found = locks(file)
        [lock] = found
        assert (lock.pid, lock.kind, lock.exclusive, (lock.start, lock.end)) == (child.pid, kind, exclusive, span)
        assert lock.since is None
        assert [one.pid for one in found.writers] == [child.pid]
        assert f"process {child.pid} (" in str(lock)
        assert str(child.pid) in str(found)
    assert not locks(file)


def test_two_ranges_of_one_process_and_two_holders_of_open_file_locks(file: Path) -> None:
    shared = ofd_lock("F_RDLCK")
    part = ofd_lock("F_RDLCK", 5, 5)
    with python(takes_lock(shared), file) as first, python(takes_lock(part), file) as second:
        assert {(one.pid, one.start, one.end) for one in locks(file)} == {(first.pid, 0, None), (second.pid, 5, 9)}
        assert len(locks(file)) == 2
    call = "fcntl.lockf(file, fcntl.LOCK_EX, 2, 0); fcntl.lockf(file, fcntl.LOCK_EX, 2, 10)"
    with python(takes_lock(call), file):
        assert sorted((one.start, one.end) for one in locks(file)) == [(0, 1), (10, 11)]


def test_the_table_reads_well(file: Path) -> None:
    with python(takes_lock("fcntl.flock(file, fcntl.LOCK_EX)"), file) as child:
        name, heads, row, writers, *unknown = str(locks(file)).splitlines()
    assert name == str(file)
    assert heads.split() == ["pid", "command", "lock", "bytes", "state", "since", "on"]
    assert row.split()[0] == str(child.pid)
    assert row.endswith("flock exclusive  all    holds  unknown  data.h5")
    assert writers.startswith(f"  open for writing: {child.pid} ({sys.executable[:10]}")
    assert all(line.endswith("processes of other users") for line in unknown)


def test_a_command_cannot_break_out_of_its_line(file: Path) -> None:
    program = "# \x1b[31m\n" + takes_lock("fcntl.flock(file, fcntl.LOCK_EX)")
    with python(program, file):
        text = str(locks(file))
    assert "\x1b" not in text
    assert " -c # [31m import" in text


def test_nobody_has_it(file: Path) -> None:
    found = locks(file)
    assert (bool(found), len(found), found.writers) == (False, 0, ())
    assert str(found).splitlines()[:3] == [str(file), "  no lock", "  open for writing: by no visible process"]


def test_looking_does_not_drop_the_locks_of_this_process(file: Path) -> None:
    with file.open("r+") as mine:
        fcntl.lockf(mine, fcntl.LOCK_EX)
        assert [one.pid for one in locks(file)] == [os.getpid()]
        assert [one.kind for one in locks(file)] == [LockKind.POSIX]


class Denied(RealProcFS):
    """One process is another user's."""

    def __init__(self, pid: int) -> None:
        self._folder = f"/proc/{pid}/fd"

    def listdir(self, path: str) -> list[str]:
        if path.startswith(self._folder):
            raise PermissionError(13, "Permission denied", path)
        return super().listdir(path)


def test_what_cannot_be_seen_is_unknown_and_not_nothing(file: Path) -> None:
    with python(takes_lock(ofd_lock("F_WRLCK")), file) as child:
        found = find_locks(file, Denied(child.pid))
        [lock] = found
        assert lock.pid is None
        assert found.unseen >= 1
        assert "unknown" in str(found).splitlines()[2]
        assert str(lock) == "an unknown process holds an exclusive OFD lock"


class Tableless(RealProcFS):
    def read_text(self, path: str) -> str:
        if path == "/proc/locks":
            raise PermissionError(13, "Permission denied", path)
        return super().read_text(path)


def test_errors_say_what_is_wrong(tmp_path: Path, file: Path) -> None:
    with pytest.raises(InputError, match="none.h5: cannot inspect its locks: No such file"):
        locks(tmp_path / "none.h5")
    with pytest.raises(InputError, match="/proc/locks cannot be read"):
        find_locks(file, Tableless())
