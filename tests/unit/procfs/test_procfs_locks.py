from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from fake_proc import FakeProc

from holdfast.procfs.locks import Lock, LockKind, LockRow, locks_of, parse_locks
from python_child import ofd_lock, python, takes_lock

TABLE = """\
1: FLOCK  ADVISORY  WRITE 2450 fe:00:2146545 0 EOF
1: -> FLOCK  ADVISORY  READ 2451 fe:00:2146545 0 EOF
2: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128
3: OFDLCK ADVISORY  WRITE -1 08:06:7864612 0 EOF
4: LEASE  ACTIVE    READ  77 08:06:9 0 EOF
5: FLOCK  ADVISORY
6: NEWKIND ADVISORY WRITE 1 08:06:9 0 EOF
"""


def test_the_table_is_parsed_and_torn_lines_are_not_in_it() -> None:
    assert parse_locks(TABLE) == [
        LockRow(LockKind.FLOCK, True, 2450, (0xFE, 0), 2146545),
        LockRow(LockKind.FLOCK, False, 2451, (0xFE, 0), 2146545, waiting=True),
        LockRow(LockKind.POSIX, False, 5433, (8, 1), 7864448),
        LockRow(LockKind.OFD, True, -1, (8, 6), 7864612),
        LockRow(LockKind.LEASE, False, 77, (8, 6), 9),
    ]
    assert parse_locks("") == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.h5"
    path.write_bytes(b"x" * 100)
    return path


@pytest.mark.parametrize(
    ("call", "kind", "exclusive"),
    [
        ("fcntl.flock(file, fcntl.LOCK_EX)", LockKind.FLOCK, True),
        ("fcntl.flock(file, fcntl.LOCK_SH)", LockKind.FLOCK, False),
        ("fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)", LockKind.POSIX, True),
        (ofd_lock("F_WRLCK"), LockKind.OFD, True),
    ],
)
def test_the_holder_is_named(file: Path, call: str, kind: LockKind, exclusive: bool) -> None:
    with python(takes_lock(call), file) as child:
        [lock] = locks_of(file) or []
        assert (lock.pid, lock.kind, lock.exclusive) == (child.pid, kind, exclusive)
        assert (lock.waiting, lock.inherited) == (False, False)
        assert lock.command.startswith(sys.executable[:20])
    assert locks_of(file) == []


WAITS = """
import fcntl, os, sys, threading, time
file = open(sys.argv[1])
threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True).start()
until = time.monotonic() + 30
while f" WRITE {os.getpid()} " not in open("/proc/locks").read() and time.monotonic() < until:
    time.sleep(0.01)
print("ready", flush=True)
sys.stdin.read()
"""


def test_those_who_wait_come_after_the_holders(file: Path) -> None:
    with file.open() as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        with python(WAITS, file) as child:
            held, waits = locks_of(file) or []
            assert (held.pid, held.waiting) == (os.getpid(), False)
            assert (waits.pid, waits.waiting, waits.exclusive) == (child.pid, True, True)


LEAVES = """
import fcntl, os, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
read, write = os.pipe()
if os.fork():
    os._exit(0)  # who took the lock is gone, its child has it
os.close(write)
os.read(read, 1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_lock_whose_taker_is_gone_is_found_by_the_inherited_descriptor(file: Path) -> None:
    with python(LEAVES, file) as taker:
        taker.wait(60)
        [lock] = locks_of(file) or []
        assert lock.pid not in (None, taker.pid)
        assert lock.inherited
        assert taker.stdin is not None
        taker.stdin.close()
        wait_for_end(lock.pid or 0)


def wait_for_end(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        assert select.select([pidfd], [], [], 60)[0]
    finally:
        os.close(pidfd)


def test_both_parent_and_child_have_an_inherited_lock(file: Path) -> None:
    with file.open() as mine:
        fcntl.flock(mine, fcntl.LOCK_SH)
        os.set_inheritable(mine.fileno(), True)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
            assert {(one.pid, one.inherited) for one in locks_of(file) or []} == {
                (os.getpid(), False),
                (child.pid, True),
            }


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locks_of(tmp_path / "none")


def test_no_table_is_unknown_and_not_free(file: Path) -> None:
    assert locks_of(file, FakeProc()) is None


def row(file: Path, pid: int, device: str | None = None) -> str:
    found = file.stat()
    device = device or f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return f"1: FLOCK  ADVISORY  WRITE {pid} {device}:{found.st_ino} 0 EOF\n"


def test_a_process_of_another_user_or_namespace(file: Path) -> None:
    fake = FakeProc(files={"/proc/locks": row(file, 7) + row(file, 0)}, denied={"/proc/7/fd"})
    fake.add_process(7, comm="writer")
    assert locks_of(file, fake) == [
        Lock(7, "writer --flag", LockKind.FLOCK, True),
        Lock(None, "", LockKind.FLOCK, True),
    ]


def test_a_file_system_with_two_device_numbers(file: Path) -> None:
    mounts = "27 1 254:99 / / rw - ext4 /dev/root rw\n31 27 0:41 /vol {} rw - btrfs /dev/vdb rw\ntorn\n"
    fake = FakeProc(
        files={
            "/proc/locks": row(file, 7, "00:29") + row(file, 8, "00:30"),
            "/proc/self/mountinfo": mounts.format(file.parent),
        }
    )
    fake.add_process(7, comm="writer")
    fake.add_process(8)
    assert locks_of(file, fake) == [Lock(7, "writer --flag", LockKind.FLOCK, True)]


def test_each_holder_of_many_locks_is_named_once(file: Path) -> None:
    """The table has a row for each open file's lock, and none says whose it is; and one for each range of a process."""
    shared = ofd_lock("F_RDLCK")
    with (
        python(takes_lock(shared), file) as one,
        python(takes_lock(shared), file) as two,
    ):
        assert sorted(lock.pid or 0 for lock in locks_of(file) or []) == sorted([one.pid, two.pid])
    ranges = "fcntl.lockf(file, fcntl.LOCK_EX, 5, 0); fcntl.lockf(file, fcntl.LOCK_EX, 5, 20)"
    with python(takes_lock(ranges), file) as child:
        assert [lock.pid for lock in locks_of(file) or []] == [child.pid]
