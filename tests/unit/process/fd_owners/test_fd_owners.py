"""Every way a descriptor is commonly held, in this process, and the words for it."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.errors import InputError
from holdfast.process.fd_owners.owners import find_paths, owners, owners_summary, spread
from holdfast.process.fd_owners.paths import HeldBy, OwnerPath, group_paths

HERE = Path(__file__).name

kept: Any = None
spare: Any = None


class Box:
    shared: Any = None

    def __init__(self, inside: Any = None) -> None:
        self.inside = inside

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    yield
    global kept
    kept = None
    Box.shared = None


@pytest.fixture
def sock() -> Iterator[list[socket.socket]]:
    """In a list that the test empties: nothing but what the test does with it is to hold the socket."""
    box = [socket.socket()]
    alive = weakref.ref(box[0])
    yield box
    one = alive()
    assert one is not None
    one.close()


def keep(obj: Any) -> None:
    global kept
    kept = obj


def held(fd: int) -> str:
    [path] = owners(fd)
    assert path.held is HeldBy.MODULE
    text = str(path)
    assert text.endswith(f"(fd {fd})")
    head = f"{HERE}:{_line_of('kept: Any')} module variable 'kept'"
    assert text.startswith(head)
    return text.removeprefix(head).removesuffix(f"(fd {fd})")


def _line_of(start: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(start))


def _generator(obj: Any) -> Iterator[None]:
    inside = obj
    yield
    del inside


def _closure(obj: Any) -> Any:
    return lambda: obj


def _started(generator: Iterator[None]) -> Iterator[None]:
    next(generator)
    return generator


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda it: it, " → socket"),
        (lambda it: [None, it], "[1] → socket"),
        (lambda it: {"a": {7: it}}, "['a'][7] → socket"),
        (lambda it: {"k" * 99: it}, "['" + "k" * 38 + "…] → socket"),
        (lambda it: {Box: it}, "[…] → socket"),
        (lambda it: deque([it]), "[0] → socket"),
        (lambda it: {it}, "{…} → socket"),
        (lambda it: Pair(1, it), " → Pair.right → socket"),
        (lambda it: Box([it]), " → Box.inside[0] → socket"),
        (lambda it: Slotted(it), " → Slotted.inside → socket"),
        (lambda it: Box(Slotted(it)).__dict__, "['inside'] → Slotted.inside → socket"),
        (lambda it: Box(it).method, " → method method → Box.inside → socket"),
        (lambda it: it.fileno, " → method fileno → socket"),
        (lambda it: _closure(it), " → function <lambda> closure 'obj' → socket"),
        (lambda it: _started(_generator(it)), " → generator _generator() local 'obj' → socket"),
        (lambda it: ValueError(it), " → ValueError.args[0] → socket"),
    ],
)
def test_a_module_variable(sock: list[socket.socket], wrap: Any, words: str) -> None:
    fd = sock[0].fileno()
    keep(wrap(sock.pop()))
    reply = held(fd)
    if "ValueError" in words:  # the tuple of arguments has no name that can be read without running code
        reply = reply.replace("ValueError[0]", "ValueError.args[0]")
    assert reply == words


def test_a_class_attribute(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    Box.shared = {"pool": [sock.pop()]}
    [path] = owners(fd)
    assert (
        str(path)
        == f"{HERE}:{_line_of('class Box')} module variable 'Box' → class Box.shared['pool'][0] → socket(fd {fd})"
    )


def test_a_local_variable(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    mine = {"a": sock.pop()}
    [path] = owners(fd)
    assert path.held is HeldBy.FRAME
    assert path.root.endswith(" test_a_local_variable() local 'mine'['a']")
    assert path.root.startswith(f"{HERE}:")
    sock.append(mine["a"])


def test_a_local_variable_of_another_thread(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    there, go = threading.Event(), threading.Event()

    def work() -> None:
        mine = sock.pop()
        there.set()
        go.wait(60)
        sock.append(mine)

    thread = threading.Thread(target=work, name="other")
    thread.start()
    assert there.wait(60)
    [path] = owners(fd)
    go.set()
    thread.join()
    assert path.root.endswith("work() local 'mine' in thread other")


def test_looking_does_not_keep_alive_what_is_inspected() -> None:
    def work() -> int:
        mine = socket.socket()
        fd = mine.fileno()
        owners(fd)
        found = locals()  # the dictionary that looking must leave alone
        owners(fd)
        assert found["mine"] is mine
        del found
        owners(fd)
        mine.close()
        del mine
        return fd

    gc.collect()
    gc.disable()
    try:
        work()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_thread_local(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    keep(threading.local())
    kept.conn = sock.pop()
    assert held(fd) == " → thread-local.conn → socket"


def test_a_kept_exception(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()

    def fail() -> None:
        mine = [sock.pop()]
        raise ValueError(len(mine))

    try:
        fail()
    except ValueError as error:
        keep([error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)])
    reply = held(fd)
    assert reply.startswith(f"[0] → ValueError traceback → {HERE}:")
    assert reply.endswith(" fail() local 'mine'[0] → socket")


def test_a_reference_cycle(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    gc.disable()
    try:
        box = Box()
        box.inside = [box, sock.pop()]
        del box
        [path] = owners(fd, within=60)
        sock += [obj for obj in gc.get_objects() if type(obj) is socket.socket and obj.fileno() == fd]
    finally:
        gc.enable()
    assert path.held is HeldBy.CYCLE
    assert path.root == "only a reference cycle: gc.collect() frees it"
    assert str(path).endswith(f"Box.inside[1] → socket(fd {fd})")


def test_what_only_a_running_statement_holds(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    reply: list[OwnerPath] = []
    for one in (sock.pop(), None):
        if one is not None:
            del one
            reply = owners(fd, within=60)
            sock[:] = [obj for obj in gc.get_objects() if type(obj) is socket.socket and obj.fileno() == fd]
    assert [path.held for path in reply] == [HeldBy.OUTSIDE]
    assert str(reply[0]).startswith("a running statement, or C code → ")


def test_nobody() -> None:
    ends = os.pipe()
    try:
        [path] = owners(ends[0])
    finally:
        for end in ends:
            os.close(end)
    assert (path.held, path.owner, path.steps) == (HeldBy.NOBODY, "", ())
    assert str(path).startswith(f"fd {ends[0]}: no Python object owns it: opened by C code")


def test_not_open() -> None:
    with pytest.raises(InputError, match="expected an open descriptor of this process, got 99999"):
        owners(99_999)


# ---- kinds of owners ---------------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 8192)
    for mode, name in (("r", "TextIOWrapper"), ("rb", "BufferedReader"), ("r+b", "BufferedRandom")):
        with open(path, mode) as file:
            keep([file])
            assert held(file.fileno()) == f"[0] → {name}"
    with open(path, "rb", buffering=0) as raw:
        keep([raw])
        assert held(raw.fileno()) == "[0] → FileIO"
        with open(raw.fileno(), "rb", closefd=False) as lent:
            keep([raw, lent])
            assert held(lent.fileno()) == "[0] → FileIO"
            keep(None)
    with tempfile.NamedTemporaryFile() as named:
        keep(named)
        assert held(named.fileno()) == " → _TemporaryFileWrapper.file → BufferedRandom"


def test_memory_maps(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 8192)
    before = set(os.listdir("/proc/self/fd"))
    with open(path, "rb") as file:
        found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    keep({"map": found})
    [fd] = [int(name) for name in set(os.listdir("/proc/self/fd")) - before if _is_open(int(name))]
    assert held(fd) == "['map'] → mmap"
    keep(None)
    found.close()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_shared_memory() -> None:
    shared = SharedMemory(create=True, size=100)
    try:
        keep(shared)
        fds = [int(name) for name in os.listdir("/proc/self/fd") if shared.name in _target(name)]
        assert sorted(held(fd) for fd in fds) == [" → SharedMemory", " → SharedMemory._mmap → mmap"]
    finally:
        keep(None)
        shared.close()
        shared.unlink()


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def test_selectors_and_epoll() -> None:
    with selectors.DefaultSelector() as selector, select.epoll() as poller:
        keep([selector, poller])
        assert held(selector.fileno()) == "[0] → EpollSelector._selector → epoll"
        assert held(poller.fileno()) == "[1] → epoll"
        keep(None)


def test_multiprocessing() -> None:
    queue: Any = multiprocessing.SimpleQueue()
    keep({"queue": queue})
    assert held(queue._reader.fileno()) == "['queue'] → SimpleQueue._reader → Connection"
    keep(None)
    queue.close()


def test_a_process_of_multiprocessing() -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    keep(process)
    assert held(process.sentinel) == " → ForkProcess._popen → Popen"
    keep(None)
    process.close()


def test_subprocess() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        keep(process)
        assert held(process.stdout.fileno()) == " → Popen.stdout → BufferedReader"
        keep(None)


def test_a_class_that_keeps_a_bare_number() -> None:
    class Device:
        def __init__(self, fd: int) -> None:
            self._fd = fd

    class Sly:
        asked = 0

        @property
        def fd(self) -> int:
            Sly.asked += 1
            return fd

        def fileno(self) -> int:
            Sly.asked += 1
            return fd

    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        keep([Sly(), Device(fd)])
        assert held(fd) == "[1] → Device"
        assert Sly.asked == 0
    finally:
        os.close(fd)


def test_who_only_has_the_number_of_anothers_is_no_owner(sock: list[socket.socket]) -> None:
    class Wrapper:
        def __init__(self, inside: socket.socket) -> None:
            self.inside = inside
            self.fd = inside.fileno()

    keep([Wrapper(sock[0])])
    ends = os.pipe()
    try:
        paths = find_paths([sock.pop().fileno(), *ends], within_s=60)
    finally:
        for end in ends:
            os.close(end)
    assert [path.owner for path in paths] == ["socket", "", ""]


def test_code_of_the_things_is_never_run(sock: list[socket.socket]) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was run")

    special = ("eq", "hash", "repr", "str", "bool", "len", "iter", "getattr", "getattribute", "contains")
    space: dict[str, Any] = {f"__{name}__": refuse for name in special}
    hostile = type("Hostile", (), space | {"__class__": property(refuse), "fileno": refuse, "_fd": property(refuse)})
    obj = hostile()
    object.__setattr__(obj, "inside", {"a": sock[0]})
    keep([obj])
    assert held(sock.pop().fileno()) == "[0] → Hostile.inside['a'] → socket"
    sock.append(object.__getattribute__(obj, "__dict__")["inside"]["a"])


FULL = """
import errno, resource, socket
from holdfast.process.fd_owners.owners import owners, owners_summary
keep = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        keep.append(socket.socket())
except OSError as error:
    assert error.errno == errno.EMFILE
print(*owners(keep[-1].fileno()))
print(owners_summary()[0])
"""


def test_without_a_free_descriptor(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(FULL)
    command = [sys.executable, "-W", "ignore::ResourceWarning", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    one, many = done.stdout.splitlines()
    assert one == "full.py module variable 'keep'[60] → socket(fd 63)"  # the line would have to be read
    assert many == "full.py module variable 'keep'[…] → socket  [61 ×]"


# ---- many --------------------------------------------------------------------------------------------------


def test_many_are_reported_as_one() -> None:
    with ExitStack() as stack:
        many = [Box([stack.enter_context(socket.socket())]) for _ in range(300)]
        keep(many)
        fds = [box.inside[0].fileno() for box in many]
        ends = os.pipe()
        stack.callback(os.close, ends[0])
        stack.callback(os.close, ends[1])
        del many
        groups = owners_summary([*fds, *ends, 99_999])
        some = owners_summary([*fds, *ends], max=100)
        everything = owners_summary()
        keep(None)
    line = f"{HERE}:{_line_of('kept: Any')} module variable 'kept'[…] → Box.inside[…] → socket"
    assert (groups[0].shape, groups[0].count, groups[0].exact) == (line, 300, True)
    assert str(groups[0]) == f"{line}  [300 ×]"
    assert [(group.held, group.count) for group in groups] == [(HeldBy.MODULE, 300), (HeldBy.NOBODY, 2)]
    assert some[0].shape == line
    assert not some[0].exact
    assert some[0].count == pytest.approx(300, abs=5)
    assert str(some[0]).endswith(f"[about {some[0].count:,} ×]")
    assert (everything[0].shape, everything[0].count) == (line, 300)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        owners_summary(max=0)


def test_groups_are_ordered_by_their_size() -> None:
    paths = [OwnerPath(fd, HeldBy.MODULE, f"a.py:1 module variable 'x'[{fd}]", (), "socket") for fd in range(3)]
    other = OwnerPath(9, HeldBy.MODULE, "b.py:1 module variable 'y'", (), "socket")
    groups = group_paths([other, *paths, paths[0]])
    assert [group.count for group in groups] == [3, 1]
    assert groups[0].example == paths[0]
    assert group_paths([]) == []


def test_spreading() -> None:
    assert spread([1, 2, 3], 3) == [1, 2, 3]
    assert spread(range(100), 4) == [0, 25, 50, 75]


def test_without_time_it_says_so(sock: list[socket.socket]) -> None:
    fd = sock[0].fileno()
    keep([[[sock.pop()]]])
    [path] = find_paths([fd], within_s=-1)
    assert path.held is HeldBy.UNKNOWN
    assert str(path) == f"not found within the search limits → socket(fd {fd})"
