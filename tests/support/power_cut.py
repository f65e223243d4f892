"""Simulates power cuts: records the system calls of a program, and rebuilds what a disk may hold after any of them.

The model is POSIX's: an fsync keeps the content of a file, or the names in a folder, and nothing else. What was not
synced may be there or not, in the variants of `CUTS`. The names of one folder appear in the order of their calls, as a
journaling filesystem keeps it. A program acknowledges by writing "ack ..." to its standard output.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_CALLS = (
    "open openat lseek write pwrite64 writev pwritev pwritev2 truncate ftruncate fsync fdatasync"
    " rename renameat renameat2 link linkat unlink unlinkat mkdir mkdirat rmdir"
)
_STRACE = ["strace", "-f", "-y", "-xx", "-s", "10000000", "--seccomp-bpf", "-e", "signal=none", "-e"]
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (\d+)(?:<(.*)>)?$")
_HALF = re.compile(r"(\d+) +(?:(\w+\(.*) <unfinished \.\.\.>|<\.\.\. \w+ resumed>(.*))$")
_ARGUMENT = re.compile(r'(AT_FDCWD|\d+)<([^>]*)>(?:\(deleted\))?|"([^"]*)"')
_PAGE = 4096


class Call(NamedTuple):
    """One successful system call. `places`: what it names, as paths; `fd`: the descriptor it was given or made."""

    name: str
    places: list[str]
    data: bytes
    numbers: list[int]
    flags: str
    fd: str
    result: int


def record(command: Sequence[str]) -> list[Call]:
    """Runs a program and returns its system calls, in the order in which they ended."""
    read_fd, write_fd = os.pipe()
    with open(read_fd, encoding="ascii") as pipe:
        trace = f"trace={','.join(_CALLS.split())}"
        program = subprocess.Popen(
            [*_STRACE, trace, "-o", f"/proc/self/fd/{write_fd}", *command],
            stdout=subprocess.DEVNULL,
            pass_fds=[write_fd],
            env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
            cwd="/",
        )
        os.close(write_fd)
        with program:
            calls = list(_parse(pipe))
    assert program.returncode == 0, [*command]
    return calls


def _parse(lines: Iterator[str]) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in lines:
        line = line.rstrip("\n")
        if half := _HALF.match(line):
            if half[2]:
                begun[half[1]] = f"{half[1]} {half[2]}"
                continue
            line = begun.pop(half[1]) + half[3]
        if found := _LINE.match(line):
            yield _call(found)


def _call(found: re.Match[str]) -> Call:
    _, name, text, result, made = found.groups()
    places: list[str] = []
    strings: list[bytes] = []
    folder, fd, is_io = None, "", "write" in name
    for number, path, string in _ARGUMENT.findall(text):
        if string or not number:
            data = bytes.fromhex(string.replace("\\x", ""))
            strings.append(data)
            if not is_io:
                places.append(os.path.normpath(os.path.join(folder or "/", os.fsdecode(data))))
            folder = None
        else:
            folder = os.fsdecode(bytes.fromhex(path.replace("\\x", "")))
            fd = number
            if is_io or name in ("lseek", "fsync", "fdatasync", "ftruncate"):
                places.append(folder)
    rest = _ARGUMENT.sub("", text)
    numbers = [int(one) for one in re.findall(r"(?<![\w])\d+", rest)]
    data = b"".join(strings)[: int(result)] if is_io else b""
    return Call(name, places, data, numbers, rest, result if made else fd, int(result))


class Node:
    """A file or folder. `history`: its content, or its entries by name, at the last sync and after each call since."""

    def __init__(self, empty: Any) -> None:
        self.history: list[Any] = [empty]

    @property
    def is_folder(self) -> bool:
        return isinstance(self.history[0], dict)


class Disk:
    """Replays calls below `top`, which was empty when the program began. `syncs(node)`: whether a sync works."""

    def __init__(self, top: Path, syncs: Callable[[Node], bool] = lambda node: True) -> None:
        self._top, self._syncs = str(top), syncs
        self.root = Node({})
        self._last: dict[str, Node] = {"": self.root}  # by path, also of what was deleted
        self._offsets: dict[tuple[str, Node], int] = {}  # by descriptor; -1: at the end
        self.acks: list[str] = []

    def _below(self, path: str) -> str | None:
        """Returns a path relative to `top`; None: it is elsewhere."""
        return f"{path}/".removeprefix(self._top + "/")[:-1] if f"{path}/".startswith(self._top + "/") else None

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in filter(None, path.split("/")):
            node = node.history[-1].get(name) if node is not None else None
        return node

    def _set(self, path: str, node: Node | None) -> None:
        above, _, name = path.rpartition("/")
        folder = self._find(above)
        assert folder is not None, path
        folder.history.append({key: one for key, one in {**folder.history[-1], name: node}.items() if one is not None})
        if node is not None:
            self._last[path] = node

    def apply(self, call: Call) -> bool:
        """Returns whether the call may have changed what a power cut leaves."""
        if call.data.startswith(b"ack "):
            self.acks.append(call.data.decode()[4:].strip())
            return True
        paths = [self._below(place) for place in call.places]
        if not paths or paths[-1] is None:
            assert not any(paths), call  # nothing is moved out of the folder
            return False
        path, name = paths[-1], call.name
        if name.startswith("mkdir"):
            self._set(path, Node({}))
        elif name.startswith(("unlink", "rmdir")):
            self._set(path, None)
        elif name.startswith(("rename", "link")):
            assert paths[0] is not None, call
            self._set(path, self._find(paths[0]))
            if name.startswith("rename"):
                self._set(paths[0], None)
        elif name.startswith("open"):
            return self._open(path, call)
        else:
            return self._change(self._find(path) or self._last[path], call)
        return True

    def _open(self, path: str, call: Call) -> bool:
        is_new = self._find(path) is None
        if is_new:
            assert "O_CREAT" in call.flags, call
            self._set(path, Node(b""))
        node = self._last[path] = self._find(path)
        self._offsets[call.fd, node] = -1 if "O_APPEND" in call.flags else 0
        if "O_TRUNC" in call.flags and node.history[-1]:
            node.history.append(b"")
            return True
        return is_new

    def _change(self, node: Node, call: Call) -> bool:
        content, key = node.history[-1], (call.fd, node)
        at = self._offsets.get(key, 0)
        if "sync" in call.name:
            if self._syncs(node):
                del node.history[:-1]
        elif call.name == "lseek":
            self._offsets[key] = call.result
            return False
        elif "truncate" in call.name:
            size = call.numbers[-1]
            node.history.append(content[:size].ljust(size, b"\0"))
        else:
            if call.name.startswith("pwrite"):
                at = call.numbers[-2 if call.name == "pwritev2" else -1]
            elif at < 0:
                at = len(content)
            else:
                self._offsets[key] = at + len(call.data)
            end = at + len(call.data)
            node.history.append(content[:at].ljust(at, b"\0") + call.data + content[end:])
        return True


# What survives: of the names and of the data, given the history of a folder or file.
Pick = Callable[[random.Random, list[Any]], Any]
CUTS: dict[str, tuple[Pick, Pick]] = {
    "nothing unsynced": (lambda _, names: names[0], lambda _, data: data[0]),
    "names without data": (lambda _, names: names[-1], lambda _, data: data[0]),
    "data without names": (lambda _, names: names[0], lambda _, data: data[-1]),
    "everything": (lambda _, names: names[-1], lambda _, data: data[-1]),
    "a mixture": (lambda rng, names: rng.choice(names), lambda rng, data: _torn(rng, data[0], rng.choice(data))),
}


def _torn(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """Returns pages of both contents: the kernel may write those of a file in any order."""
    size = len(rng.choice([old, new]))
    pages = (rng.choice([old, new])[at : at + _PAGE].ljust(_PAGE, b"\0") for at in range(0, size, _PAGE))
    return b"".join(pages)[:size]


State = tuple[tuple[str, int, bytes | None], ...]  # path, number of the file, content (None: a folder)


def _survivors(disk: Disk, cut: str, rng: random.Random) -> State:
    pick_names, pick_data = CUTS[cut]
    found: list[tuple[str, int, bytes | None]] = []
    picked: dict[Node, tuple[int, bytes]] = {}

    def walk(folder: Node, above: str) -> None:
        for name, node in sorted(pick_names(rng, folder.history).items()):
            if node.is_folder:
                found.append((above + name, -1, None))
                walk(node, f"{above}{name}/")
            else:
                if node not in picked:
                    picked[node] = len(picked), pick_data(rng, node.history)
                found.append((above + name, *picked[node]))

    walk(disk.root, "")
    return tuple(found)


def rebuild(state: State, folder: Path) -> None:
    """Makes the files, and their hard links, in a new folder."""
    folder.mkdir()
    first: dict[int, Path] = {}
    for name, number, content in state:
        if content is None:
            (folder / name).mkdir()
        elif number in first:
            os.link(first[number], folder / name)
        else:
            (folder / name).write_bytes(content)
            first[number] = folder / name


def check_replay(calls: Sequence[Call], top: Path) -> None:
    """Checks that all calls together make the files that the program has left: no call was missed."""
    disk = Disk(top)
    for call in calls:
        disk.apply(call)
    made = {name: content for name, _, content in _survivors(disk, "everything", random.Random(0))}
    there = {str(path.relative_to(top)): None if path.is_dir() else path.read_bytes() for path in top.rglob("*")}
    assert made == there, sorted(name for name in made.keys() | there if made.get(name) != there.get(name))


class PowerCut(NamedTuple):
    what: str
    acks: tuple[str, ...]
    state: State


def power_cuts(
    calls: Sequence[Call],
    top: Path,
    syncs: Callable[[Node], bool] = lambda node: True,
    *,
    others: int = 0,
    cuts: Sequence[str] = tuple(CUTS),
) -> list[PowerCut]:
    """Returns what a power cut may leave after every acknowledgement, and of `others` more calls for each of `cuts`.

    The same files are returned once, with the most that was acknowledged until then.
    """
    rng, disk = random.Random(0), Disk(top, syncs)
    at_acks: dict[tuple[str, State], PowerCut] = {}
    at_others: dict[tuple[str, State], PowerCut] = {}
    for number, call in enumerate(calls):
        if not disk.apply(call):
            continue
        for cut in cuts:
            what = f"{cut} survives of call {number}, {call.name} {call.places[-1:]}, after {disk.acks}"
            one = PowerCut(what, tuple(disk.acks), _survivors(disk, cut, rng))
            into = at_acks if call.data.startswith(b"ack ") else at_others
            into[cut, one.state] = one
    for key in at_acks:
        at_others.pop(key, None)
    more = []
    for cut in cuts:
        found = [one for (kind, _), one in at_others.items() if kind == cut]
        more += rng.sample(found, min(others, len(found)))
    return [*at_acks.values(), *more]
