from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_proc import FakeProc

from holdfast.procfs.descriptors import Kind, count, count_kinds, describe, group_paths, kind_of, scan
from holdfast.procfs.procfs import REAL

LIBC = ctypes.CDLL(None, use_errno=True)
ME = os.getpid()


@pytest.mark.parametrize(
    ("target", "kind", "inode"),
    [
        ("pipe:[8123]", Kind.PIPE, 8123),
        ("socket:[99]", Kind.SOCKET, 99),
        ("anon_inode:[eventfd]", Kind.EVENTFD, None),
        ("anon_inode:[eventpoll]", Kind.EVENTPOLL, None),
        ("anon_inode:[timerfd]", Kind.TIMERFD, None),
        ("anon_inode:[signalfd]", Kind.SIGNALFD, None),
        ("anon_inode:inotify", Kind.INOTIFY, None),
        ("anon_inode:[pidfd]", Kind.PIDFD, None),
        ("pidfd:[7]", Kind.PIDFD, 7),
        ("anon_inode:[io_uring]", Kind.IO_URING, None),
        ("anon_inode:[perf_event]", Kind.OTHER, None),
        ("net:[4026531840]", Kind.OTHER, None),
        ("/dmabuf:", Kind.OTHER, None),
        ("/memfd:buffer (deleted)", Kind.MEMFD, None),
        ("/dev/shm/torch_1_2", Kind.SHM, None),
        ("/dev/shm/torch_1_2 (deleted)", Kind.SHM, None),
        ("/dev/nvidia0", Kind.DEVICE, None),
        ("/var/log/a.log (deleted)", Kind.DELETED, None),
        ("/var/log/a.log", Kind.FILE, None),
        ("(unreachable)/a", Kind.FILE, None),
        ("pipe:[?]", Kind.OTHER, None),
        ("", Kind.OTHER, None),
    ],
)
def test_the_text_of_a_link_gives_the_kind(target: str, kind: Kind, inode: int | None) -> None:
    assert kind_of(target) == (kind, inode)


def _libc(name: str, *arguments: object) -> int:
    fd = int(getattr(LIBC, name)(*arguments))
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def _deleted(folder: Path) -> int:
    fd = os.open(folder / "gone", os.O_CREAT | os.O_RDWR)
    os.unlink(folder / "gone")
    return fd


def _shm(folder: Path) -> int:
    path = f"/dev/shm/holdfast-test-{ME}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.unlink(path)
    return fd


def _epoll() -> int:
    with select.epoll() as epoll:
        return os.dup(epoll.fileno())


OPENERS: dict[Kind, Callable[[Path], int]] = {
    Kind.FILE: lambda folder: os.open(folder / "file", os.O_CREAT | os.O_RDWR),
    Kind.DELETED: _deleted,
    Kind.SHM: _shm,
    Kind.MEMFD: lambda _: os.memfd_create("buffer"),
    Kind.EVENTFD: lambda _: os.eventfd(0),
    Kind.EVENTPOLL: lambda _: _epoll(),
    Kind.TIMERFD: lambda _: _libc("timerfd_create", 1, 0),
    Kind.SIGNALFD: lambda _: _libc("signalfd", -1, ctypes.create_string_buffer(128), 0),
    Kind.INOTIFY: lambda _: _libc("inotify_init1", 0),
    Kind.PIDFD: lambda _: os.pidfd_open(ME),
    Kind.DEVICE: lambda _: os.open("/dev/null", os.O_RDONLY),
    Kind.SOCKET: lambda _: socket.socket().detach(),
}


@pytest.mark.parametrize("kind", OPENERS)
def test_real_descriptors_are_distinguished(kind: Kind, tmp_path: Path) -> None:
    fd = OPENERS[kind](tmp_path)
    try:
        found = describe(REAL, ME, fd)
    finally:
        os.close(fd)
    assert found is not None
    assert found.kind is kind
    assert found.deleted == (kind in (Kind.DELETED, Kind.SHM, Kind.MEMFD))


def test_io_uring() -> None:
    fd = int(LIBC.syscall(425, 2, ctypes.create_string_buffer(120)))
    if fd < 0:  # switched off on many machines; the text of its link is tested above
        assert ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.ENOMEM)
        return
    found = describe(REAL, ME, fd)
    os.close(fd)
    assert found is not None
    assert found.kind is Kind.IO_URING


def test_both_ends_of_a_pipe_have_its_inode() -> None:
    read_end, write_end = os.pipe()
    try:
        one, other = describe(REAL, ME, read_end), describe(REAL, ME, write_end)
        inode = os.fstat(read_end).st_ino
    finally:
        os.close(read_end)
        os.close(write_end)
    assert one is not None
    assert other is not None
    assert (one.kind, one.inode) == (other.kind, other.inode) == (Kind.PIPE, inode)


def test_a_scan_finds_what_was_opened_and_not_its_own_listing(tmp_path: Path) -> None:
    before = scan(REAL, ME)
    with open(tmp_path / "one", "w") as one, open(tmp_path / "one") as two:
        after = scan(REAL, ME)
        assert before is not None
        assert after is not None
        assert {each.fd for each in after} - {each.fd for each in before} == {one.fileno(), two.fileno()}
        groups = group_paths(after)
        mine = next(group for group in groups if group.path == str(tmp_path / "one"))
        assert mine.fds == tuple(sorted((one.fileno(), two.fileno())))
        assert sum(count_kinds(after).values()) == len(after)


def test_the_old_and_the_new_way_of_counting_agree() -> None:
    class Old(type(REAL)):  # type: ignore[misc]
        def stat(self, path: str, *, follow: bool = True) -> object:
            real = super().stat(path, follow=follow)
            return os.stat_result((*real[:6], 0, *real[7:10])) if path.endswith("/fd") else real

    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(open(os.devnull))
        old = count(Old(), ME)
        listed = scan(REAL, ME)
        assert listed is not None
        assert old == len(listed)
        if os.stat("/proc/self/fd").st_size:
            assert count(REAL, ME) == old


def test_another_process_is_counted() -> None:
    text = "import os; [os.pipe() for _ in range(7)]; print(len(os.listdir('/proc/self/fd')) - 1, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        said = int(child.stdout.readline())
        assert count(REAL, child.pid) == said
        found = scan(REAL, child.pid)
        assert found is not None
        assert len(found) == said
        child.communicate("\n")
    assert count(REAL, child.pid) is None
    assert scan(REAL, child.pid) is None


def test_an_old_kernel_is_counted_by_listing() -> None:
    fake = FakeProc(modern=False)
    for fd in range(9):
        fake.add_fd(7, fd, "/dev/null")
    assert count(fake, 7) == 9
    fake.own = 7
    assert count(fake, 7) == 8  # the listing's own


def test_another_users_process_is_counted_but_not_described() -> None:
    fake = FakeProc()
    for fd in range(4):
        fake.add_fd(7, fd, "/dev/null")
    fake.denied.add("/proc/7/fd")
    assert count(fake, 7) == 4
    assert scan(fake, 7) is None
    fake.modern = False
    assert count(fake, 7) is None


def test_a_descriptor_that_vanishes_is_left_out() -> None:
    fake = FakeProc(shown={"/proc/7/fd": ["0", "1", "2"]})
    fake.add_fd(7, 0, "/dev/null")
    fake.add_fd(7, 2, "/dev/null")
    assert [one.fd for one in scan(fake, 7) or []] == [0, 2]


def _listed() -> tuple[FakeProc, list[str]]:
    class Listed(FakeProc):
        def listdir(self, path: str) -> list[str]:
            asked.append(path)
            return super().listdir(path)

    asked: list[str] = []
    return Listed(), asked


def test_a_table_without_gaps_needs_no_listing() -> None:
    fake, asked = _listed()
    for fd in range(600):
        fake.add_fd(7, fd, f"pipe:[{fd}]")
    assert [one.fd for one in scan(fake, 7) or []] == list(range(600))
    assert asked == []


@pytest.mark.parametrize("gap", [{5}, {0, 1, 2, 300}, {599}, set(range(100, 599))])
def test_a_table_with_gaps_is_listed(gap: set[int]) -> None:
    fake, asked = _listed()
    want = sorted({*range(600), *range(9000, 9600)} - gap)
    for fd in want:
        fake.add_fd(7, fd, "/dev/null")
    assert [one.fd for one in scan(fake, 7) or []] == want
    assert asked


def test_a_large_table_of_this_process(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, first)
        for _ in range(700):
            stack.callback(os.close, os.dup(first))
        complete = scan(REAL, ME)
        os.close(os.dup(first))
        gap = os.open(tmp_path, os.O_RDONLY)
        stack.callback(os.close, os.dup(gap))
        os.close(gap)  # a number below others is free: what the look itself opens will get it
        gapped = scan(REAL, ME)
        assert count(REAL, ME) == len(gapped or ())
    assert complete is not None
    assert gapped is not None
    assert [one.fd for one in complete] == sorted({one.fd for one in complete})
    assert {one.fd for one in gapped} - {one.fd for one in complete} == {gap + 1}


def test_without_a_free_descriptor_numbers_are_tried() -> None:
    fake = FakeProc(full=True, rlimits={7: (16, 8192)})
    for fd in (0, 3, 15, 5000):  # the last one is from before the limit was lowered
        fake.add_fd(7, fd, "/dev/null")
    assert [one.fd for one in scan(fake, 7) or []] == [0, 3, 15, 5000]
    fake.modern = False
    assert [one.fd for one in scan(fake, 7) or []] == [0, 3, 15]
    assert count(fake, 7) == 3


def test_numbers_are_not_tried_in_vain() -> None:
    fake = FakeProc(full=True, modern=False)
    fake.add_fd(7, 3, "/dev/null")
    assert scan(fake, 7) is None  # its limits are another user's
    fake.rlimits[7] = fake.rlimits[8] = (16, 16)
    assert [one.fd for one in scan(fake, 7) or []] == [3]
    assert scan(fake, 8) is None  # gone
    fake.denied.add("/proc/7/fd")
    assert scan(fake, 7) is None
    assert count(fake, 7) is None


def test_a_mapping_is_no_descriptor() -> None:
    before = count(REAL, ME)
    with mmap.mmap(-1, 4096):
        assert count(REAL, ME) == before


def test_descriptors_that_can_be_counted_but_not_read_are_unknown_not_none() -> None:
    """As root without CAP_SYS_PTRACE one may list another process's numbers, but follow none of them."""
    proc = FakeProc()
    proc.add_process(7)
    for fd in range(3):
        proc.add_fd(7, fd, "pipe:[5]")
        proc.denied.add(f"/proc/7/fd/{fd}")
    assert scan(proc, 7) is None
    assert count(proc, 7) == 3
