from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.process.doctor.fd_profile import grown, profile_of, profiles_of
from holdfast.process.doctor.model import FdProfile, PathCount
from holdfast.procfs.descriptors import Descriptor, Kind, kind_of
from holdfast.procfs.processes import Process
from holdfast.procfs.snapshot import ProcessSnapshot, take_snapshot
from holdfast.procfs.sockets import SocketInfo

ME = os.getpid()


def look_at(*descriptors: Descriptor, fds: int | None = None, threads: int | None = 1) -> ProcessSnapshot:
    return ProcessSnapshot(
        process=Process(pid=7, threads=threads),
        fd_count=len(descriptors) if fds is None else fds,
        descriptors=descriptors,
        ends=(),
        limits=(),
    )


def files(*targets: str) -> list[Descriptor]:
    return [Descriptor(fd=fd, kind=kind_of(target)[0], target=target) for fd, target in enumerate(targets)]


def look_here() -> FdProfile:
    return profile_of(take_snapshot(tree=False).root)


# ---- real descriptors --------------------------------------------------------------------------------------


def test_the_ends_of_pipes() -> None:
    before = look_here()
    with ExitStack() as stack:
        for closed in (1, 0, None, None):
            ends = os.pipe()
            for at, fd in enumerate(ends):
                if at == closed:
                    os.close(fd)
                else:
                    stack.callback(os.close, fd)
        more = grown(before, look_here())
    assert (more.hup, more.err, more.self_pairs, more.live, more.unknown) == (1, 1, 2, 0, 0)
    assert more.dead_pipes == 2
    assert (more.fds, more.kinds) == (6, {Kind.PIPE: 6})


def test_a_pipe_to_a_child_lives() -> None:
    before = profiles_of(take_snapshot())[ME]  # other tests' helpers are its children as well
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        more = grown(before, profiles_of(take_snapshot())[ME])
        child.communicate()
    assert (more.live, more.dead_pipes, more.self_pairs) == (2, 0, 0)
    assert (more.children, more.zombies) == (1, 0)


def test_sockets_by_their_state() -> None:
    before = look_here()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(3):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        left = [stack.enter_context(listener.accept()[0]) for _ in range(3)]
        left[0].close()
        for one in socket.socketpair():
            stack.enter_context(one)
        more = grown(before, look_here())
        port = listener.getsockname()[1]
    assert (more.close_wait, more.established, more.unix_sockets) == (1, 4, 2)
    assert more.established_to == PathCount(path=f"127.0.0.1:{port}", times=2)
    assert more.kinds == {Kind.SOCKET: 8}


def test_files_by_their_names(tmp_path: Path) -> None:
    often = tmp_path / "often"
    often.touch()
    shm = f"/dev/shm/torch_{uuid.uuid4().hex}"
    before = look_here()
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(often.open())
        stack.enter_context((tmp_path / "once").open("w"))
        stack.enter_context(tempfile.TemporaryFile(dir=tmp_path))
        stack.callback(os.close, os.memfd_create("one"))
        stack.enter_context(open(shm, "w"))
        os.unlink(shm)
        more = grown(before, look_here())
    assert (more.torch_shm, more.shm, more.deleted) == (1, 1, 1)
    assert more.kinds == {Kind.FILE: 51, Kind.DELETED: 1, Kind.MEMFD: 1, Kind.SHM: 1}
    assert more.most_opened is not None
    assert more.most_opened.path == str(often)


def test_a_child_that_ended_is_a_child_and_a_zombie() -> None:
    before = profiles_of(take_snapshot())[ME]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        more = grown(before, profiles_of(take_snapshot())[ME])
    finally:
        os.waitpid(pid, 0)
    assert (more.children, more.zombies) == (1, 1)


# ---- made by hand ------------------------------------------------------------------------------------------


def test_handles_of_a_gpu() -> None:
    """There is none in most machines: by the names that its driver gives."""
    seen = profile_of(look_at(*files("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0", "/dmabuf:", "/dev/null")))
    assert seen.nvidia == 4
    assert seen.most_opened == PathCount(path="/dev/null", times=1)


def test_files_with_no_name_or_a_shared_one_are_not_one_path() -> None:
    targets = ["/memfd:x (deleted)"] * 5 + ["/tmp/log (deleted)"] * 4 + ["/dev/shm/a"] * 4 + ["/b"] * 2 + ["/a"] * 2
    assert profile_of(look_at(*files(*targets))).most_opened == PathCount(path="/a", times=2)


def test_only_tcp_is_established() -> None:
    """A datagram socket with a fixed peer is called so by the kernel too, and costs the peer nothing."""
    info = SocketInfo("udp", "ESTABLISHED", "1.1.1.1:1", "2.2.2.2:2")
    udp = Descriptor(fd=3, kind=Kind.SOCKET, target="socket:[1]", inode=1, socket=info)
    unnamed = Descriptor(fd=4, kind=Kind.SOCKET, target="socket:[2]", inode=2)
    seen = profile_of(look_at(udp, unnamed))
    assert (seen.established, seen.established_to, seen.kinds) == (0, None, {Kind.SOCKET: 2})


def test_what_may_not_be_seen_is_counted_only() -> None:
    proc = ProcessSnapshot(process=Process(pid=7), fd_count=4000, descriptors=None, ends=(), limits=())
    assert profile_of(proc) == FdProfile(fds=4000)


def test_nothing_at_all_may_be_seen() -> None:
    proc = ProcessSnapshot(process=Process(pid=7), fd_count=None, descriptors=None, ends=(), limits=())
    assert profile_of(proc, children=3, zombies=1) == FdProfile(fds=0, children=3, zombies=1)


# ---- what grew ---------------------------------------------------------------------------------------------


def test_another_path_is_the_one_opened_most_now() -> None:
    """It had at most five before, so it grew by seven at least."""
    before = FdProfile(fds=9, most_opened=PathCount(path="/dev/null", times=5))
    after = FdProfile(fds=20, most_opened=PathCount(path="/data/a.h5", times=12))
    assert grown(before, after).most_opened == PathCount(path="/data/a.h5", times=7)
    assert grown(after, before).most_opened is None


def test_what_became_less_did_not_grow() -> None:
    before = FdProfile(fds=90, kinds={Kind.PIPE: 80, Kind.FILE: 10}, hup=40, err=40, threads=9)
    after = FdProfile(fds=50, kinds={Kind.PIPE: 20, Kind.FILE: 30}, hup=10, err=10, threads=4)
    assert grown(before, after) == FdProfile(fds=0, kinds={Kind.FILE: 20})


counts = st.integers(0, 1000)
profiles = st.builds(
    FdProfile,
    fds=counts,
    kinds=st.dictionaries(st.sampled_from(Kind), counts),
    self_pairs=counts,
    hup=counts,
    live=counts,
    close_wait=counts,
    established_to=st.none() | st.builds(PathCount, path=st.sampled_from(["a:1", "b:2"]), times=counts),
    zombies=counts,
    threads=counts,
)


@given(profiles, profiles)
def test_growth_is_never_negative(before: FdProfile, after: FdProfile) -> None:
    more = grown(before, after)
    assert all(times > 0 for times in more.kinds.values())
    assert all(getattr(more, name) >= 0 for name in ("fds", "self_pairs", "hup", "live", "close_wait", "threads"))
    assert more.established_to is None or more.established_to.times > 0


@given(profiles)
def test_nothing_grew_between_two_equal_snapshots(seen: FdProfile) -> None:
    assert grown(seen, seen) == FdProfile(fds=0)
