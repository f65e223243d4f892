"""The compiled loops of a look say what their twins in Python say."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast._native.c_modules import fdscan
from holdfast.procfs import descriptors, peers, procfs
from holdfast.procfs.descriptors import Descriptor, Kind
from holdfast.procfs.peers import Answer, PipeEnd
from holdfast.procfs.procfs import UnixRow

pytestmark = pytest.mark.skipif(not fdscan, reason="the compiled module was not built, or not expected")

ME = os.getpid()
TARGETS = [
    "",
    "/",
    "/data/a.bin",
    "/data/a.bin (deleted)",
    " (deleted)",
    "(deleted)",
    "/dev/shm/torch_1 (deleted)",
    "/dev/shm",
    "/dev/null",
    "/devel/x",
    "/memfd:x (deleted)",
    "/memfd",
    "/dmabuf:",
    "/name that is no \udcff text",
    "\udcff",
    "(unreachable)/a",
    "pipe:[1]",
    "pipe:[18446744073709551615]",
    "pipe:[9999999999999999999]",
    "pipe:[123456789012345678901234567890]",
    "pipe:[",
    "pipe:[]",
    "pipe:[x]",
    "pipe:[-1]",
    "pipe:7",
    "socket:[99]",
    "socket:[]",
    "socket:[9x]",
    "anon_inode:[eventfd]",
    "anon_inode:inotify",
    "pidfd:[7]",
    "net:[4026531840]",
    "ä",
]


def test_the_text_of_a_link() -> None:
    fds = list(range(len(TARGETS)))
    assert _typed(descriptors._make_rows_compiled(fds, TARGETS)) == _typed(descriptors._make_rows(fds, TARGETS))


def _typed(rows: Sequence[Descriptor]) -> list[tuple[type, Descriptor, str]]:
    return [(type(row), row, repr(row)) for row in rows]


def test_rows_are_as_python_makes_them() -> None:
    (row,) = descriptors._make_rows_compiled(range(3, 4), ["pipe:[8]"])
    assert (row.fd, row.kind, row.target, row.inode, row.socket) == (3, Kind.PIPE, "pipe:[8]", 8, None)
    assert row._replace(fd=4) == Descriptor(4, Kind.PIPE, "pipe:[8]", 8)
    assert hash(row) == hash(tuple(row))


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Path]:
    """This process with some of everything; a folder with a strange name in it."""
    with ExitStack() as stack:
        strange = os.path.join(os.fsencode(tmp_path), b"strange \xff")
        for path in (strange, os.fsencode(tmp_path / "plain"), b"/dev/null"):
            fd = os.open(path, os.O_CREAT | os.O_RDWR)
            stack.callback(os.close, fd)
        os.unlink(strange)
        for number in range(300):
            ends = os.pipe()
            for end in ends:
                if ends.index(end) == number % 3:
                    os.close(end)
                else:
                    stack.callback(os.close, end)
        stack.callback(os.close, os.eventfd(0))
        stack.callback(os.close, os.memfd_create("m"))
        stack.enter_context(select.epoll())
        for one in (*socket.socketpair(), socket.socket()):
            stack.enter_context(one)
        yield tmp_path


def test_links_of_a_real_mixed_process(mixed: Path) -> None:
    folder = f"/proc/{ME}/fd"
    names = [str(fd) for fd in range(1000)]
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for prefix, at in (("", place), (folder + "/", -1)):
            found = fdscan.read_targets(prefix, names, at)
            assert found == procfs._read_links(prefix, names, at)
            assert fdscan.read_modes(prefix, names, at) == procfs._read_link_modes(prefix, names, at)
            assert any("\udcff" in target for target in found)
    finally:
        os.close(place)
    fds = list(range(1000))
    assert _typed(descriptors._make_rows_compiled(fds, found)) == _typed(descriptors._make_rows(fds, found))


def test_pairs_of_a_real_mixed_process(mixed: Path) -> None:
    table = descriptors.scan(procfs.REAL, ME)
    assert table is not None

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        return peers.read_access(procfs.REAL, pid, fds)

    def poll_own(_: int, fds: Sequence[int]) -> Mapping[int, Answer]:
        return peers.poll_own(fds)

    fast = peers._pair_compiled({ME: table}, access, poll_own)
    assert fast == peers._pair({ME: table}, access, poll_own)
    assert {end.peer_state for end in fast[ME]} >= {peers.PeerState.SELF, peers.PeerState.DEAD}
    assert all(type(end) is PipeEnd for end in fast[ME])


def test_polling_a_real_mixed_process(mixed: Path) -> None:
    fds = list(range(1000))
    fast = peers._ask_compiled(fds)
    assert fast == peers._ask(fds)
    assert set(fast.values()) >= {Answer("r", True), Answer("w", True), Answer("r", False)}


CHILD = """
import os, random
for n in range(200):
    ends = os.pipe()
    if n % 3: os.close(ends[n % 3 - 1])
os.open("/proc/self/fd/%d" % os.pipe()[0], os.O_RDWR)
print(flush=True)
input()
"""


def test_polling_another_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        pidfd = os.pidfd_open(child.pid)
        try:
            fds = list(range(600))
            fast = peers._ask_other_compiled(pidfd, fds)
            assert fast == peers._ask_other(pidfd, fds)
            assert len(fast) > 200
            assert Answer("rw", False) in fast.values()
        finally:
            os.close(pidfd)
        child.communicate(b"\n")
    assert fdscan.ask_other(pidfd, [0], 64) == b"\0"  # that number is closed by now


def _made_tree(chance: random.Random) -> tuple[dict[int, list[Descriptor]], dict[int, dict[int, str]]]:
    """Processes with ends of a few pipes, and how each was opened."""
    tables: dict[int, list[Descriptor]] = {}
    ways: dict[int, dict[int, str]] = {}
    for pid in chance.sample(range(2, 1000), chance.randint(0, 5)):
        fds = sorted(chance.sample(range(100), chance.randint(0, 30)))
        inodes = [chance.choice([None, *range(12), 2**64 - 1]) for _ in fds]
        kinds = [chance.choice([Kind.PIPE, Kind.PIPE, Kind.FILE]) for _ in fds]
        tables[pid] = [Descriptor(*row) for row in zip(fds, kinds, map(str, inodes), inodes, strict=True)]
        ways[pid] = {fd: chance.choice(["r", "w", "r", "w", "rw", ""]) for fd in fds}
    return tables, ways


def test_pairs_of_made_trees() -> None:
    """Some ends cannot be asked at first, or ever; poll answers for some of the others."""
    for seed in range(500):
        tables, ways = _made_tree(random.Random(seed))
        fast, slow = _pair_made(peers._pair_compiled, seed, tables, ways), _pair_made(peers._pair, seed, tables, ways)
        assert fast == slow, f"seed {seed}"


def _pair_made(
    pair: Any, seed: int, tables: Mapping[int, Sequence[Descriptor]], ways: Mapping[int, Mapping[int, str]]
) -> tuple[Any, list[Any]]:
    """What was found, and what was asked for it."""
    chance = random.Random(seed)
    asked: list[Any] = []

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        asked.append(("access", pid, list(fds)))
        return {fd: ways[pid][fd] for fd in fds if chance.random() < 0.8}

    def poll(pid: int, fds: Sequence[int]) -> Mapping[int, Answer]:
        asked.append(("poll", pid, list(fds)))
        return {fd: Answer(chance.choice(["r", "w", "rw"]), chance.random() < 0.5) for fd in fds if fd % 3}

    return pair(tables, access, poll if seed % 4 else None), asked


def test_a_pipe_that_twenty_thousand_ends_share() -> None:
    tables = {pid: [Descriptor(fd, Kind.PIPE, "pipe:[5]", 5) for fd in range(10_000)] for pid in (1, 2)}

    def access(pid: int, fds: Sequence[int]) -> Mapping[int, str]:
        return dict.fromkeys(fds, "r" if pid == 1 else "w")

    found = peers._pair_compiled(tables, access, None)
    assert {end[3:] for end in found[1]} == {("r", peers.PeerState.ALIVE, (2,))}
    assert {end[3:] for end in found[2]} == {("w", peers.PeerState.ALIVE, (1,))}


def test_more_processes_than_a_few_have_the_far_end() -> None:
    tables = {pid: [Descriptor(3, Kind.PIPE, "pipe:[5]", 5)] for pid in range(99, 0, -1)}
    found = peers._pair_compiled(tables, lambda pid, fds: dict.fromkeys(fds, "w" if pid == 7 else "r"), None)
    assert found[7][0].peers == tuple(pid for pid in range(1, 100) if pid != 7)
    assert list(found) == list(tables)


def test_what_is_asked_may_raise() -> None:
    def fail(*_: object) -> Any:
        raise LookupError("as it may")

    table = {1: [Descriptor(3, Kind.PIPE, "pipe:[5]", 5)]}
    with pytest.raises(LookupError, match="as it may"):
        peers._pair_compiled(table, fail, None)
    with pytest.raises(LookupError, match="as it may"):
        peers._pair_compiled(table, lambda *_: {}, fail)
    with pytest.raises(LookupError, match="as it may"):
        fdscan.describe([1], ["anon_inode:[x]"], Descriptor, descriptors._COMPILED_KINDS, fail)


def test_messages_of_the_kernel() -> None:
    chance = random.Random(7)

    def message(inode: int) -> bytes:
        odd = chance.random() < 0.2
        row = struct.pack("=BBBBI8s", 1, chance.choice([1, 2, 5]), chance.choice([1, 7, 10]), 0, inode, bytes(8))
        end = struct.pack("=HHIHHB3x", 8, 0 if odd else 2, inode ^ 1, 5, 6, chance.choice([0, 3]))
        return struct.pack("=IHHII", 16 + len(row) + len(end), 20, 2, 1, 0) + row + end

    data = b"".join(message(inode) for inode in [0, 1, 2**32 - 1, *range(10, 200)])
    for cut in (len(data), len(data) - 1, 43, 0):
        at = 0
        while at < cut:
            fast: list[UnixRow] = []
            slow: list[UnixRow] = []
            end = procfs._parse_common_compiled(data[:cut], at, fast)
            assert end == procfs._parse_common(data[:cut], at, slow)
            assert [(type(row), row) for row in fast] == [(type(row), row) for row in slow]
            at = end + 44


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("read_targets", ("x" * 5000, [], -1)),
        ("read_targets", ("", [7], -1)),
        ("read_targets", ("", ["\udcff"], -1)),
        ("read_targets", ("", 7, -1)),
        ("read_modes", ("", [None], -1)),
        ("describe", ([1, 2], ["x"], Descriptor, descriptors._COMPILED_KINDS, print)),
        ("describe", ([1], [7], Descriptor, descriptors._COMPILED_KINDS, print)),
        ("describe", ([1], ["x"], Descriptor, (), print)),
        ("describe", ([1], ["x"], int, descriptors._COMPILED_KINDS, print)),
        ("describe", ([1], ["x"], Descriptor, descriptors._COMPILED_KINDS, len)),
        ("ask", ((1, 2),)),
        ("ask", ([-1],)),
        ("ask", ([2**40],)),
        ("ask", (["x"],)),
        ("ask_other", (-1, [0], 0)),
        ("ask_other", (-1, [0], 1000)),
        ("ask_other", (-1, ["x"], 64)),
        ("pair_pipes", ({1: [()]}, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState))),
        (
            "pair_pipes",
            ({1: [Descriptor(1, Kind.PIPE, "", -1)]}, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState)),
        ),
        (
            "pair_pipes",
            ({1: [Descriptor(1, Kind.PIPE, "", 1)]}, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState)),
        ),
        ("pair_pipes", ({"x": []}, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState))),
        ("pair_pipes", ({1: 7}, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState))),
        ("pair_pipes", (7, print, None, Kind.PIPE, PipeEnd, tuple(peers.PeerState))),
        ("pair_pipes", ({}, print, None, Kind.PIPE, PipeEnd, ())),
        ("parse_unix", (b"", -1, UnixRow, [])),
        ("parse_unix", (b"", 0, int, [])),
        ("parse_unix", ("", 0, UnixRow, [])),
    ],
)
def test_what_is_not_wanted_is_an_error(call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        getattr(fdscan, call)(*arguments)


def test_a_name_that_is_too_long_is_not_there() -> None:
    names = ["x" * 5000, "self"]
    assert fdscan.read_targets("/proc/", names, -1) == ["", str(ME)]
    assert fdscan.read_modes("/proc/", names, -1)[0] == 0


def test_targets_longer_than_one_stretch_holds(tmp_path: Path) -> None:
    """The buffer has room for sixteen of the longest."""
    want = []
    for number in range(150):
        want.append("/" + f"{number:03}" * 1300)
        os.symlink(want[-1], tmp_path / str(number))
    names = [str(number) for number in range(150)]
    assert fdscan.read_targets(f"{tmp_path}/", names, -1) == want
