"""One index a folder: what is known of its shards without opening them, in one file that is mapped into memory.

A row says what the shard was when it was looked at (size, mtime, inode, ctime), how many samples and which blocks it
has, which columns its first sample was read with, and where in it the samples are (`places`: whatever its format
needs to find them again). A row counts only for the file as it was then; so the folder's listing tells what is stale.

The index is `.holdfast.index` in the folder itself, if `holdfast index` made it, or a file in the user's cache, where
reading puts it. One beside the data is copied with them: there size and mtime alone decide.

The file is a JSON line, the rows, the ends of their names, the names in order, the blocks, and the places. The line has
the CRC of all but the places, and a row the CRC of its own. A file that is torn, or another program's, is built again.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import stat
import time
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._native import codec
from ..._util.atomic import PartialFile
from ...errors import WriteError
from ...procfs.processes import read_stat
from ...procfs.procfs import REAL
from .columns import Ints

Place = Literal["beside", "cache"]

BESIDE = ".holdfast.index"
COLUMNS = 4  # how many sets of columns a row remembers
ROW = np.dtype(
    [(name, "<i8") for name in ("size", "mtime_ns", "inode", "ctime_ns", "count", "blocks", "at", "bytes")]
    + [("flags", "<u4"), ("crc32c", "<u4"), ("columns", "<u8", (COLUMNS,))]
)
Rows = npt.NDArray[Any]  # of ROW
_KIND = "holdfast folder index 1"
_HEAD_BYTES = 256
_TICK_S = 0.02  # two versions of a file that are written within a tick of the clock may have the same ctime
_RECENT = 64  # indexes that stay mapped
_UNKNOWN_BUILDER_S = 60.0  # how long to wait for a builder of which nothing is known, such as one on another host
_MAX_POLL_S = 0.2
_MAX_SAMPLES = 2.0**62  # of all rows: their sums are int64


class FileKey(NamedTuple):
    """Identifies one version of a file on this machine, for what is stored about it.

    Nix, Bazel and `tar --mtime` give a rebuilt file the size and mtime of the one before. Nobody sets inode and ctime.
    """

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> FileKey:
        return cls(info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns)


NO_BLOCKS: Ints = np.zeros((3, 0), np.int64)


class Entry(NamedTuple):
    """A row to be stored. `blocks`: rows of first samples, counts and sizes. `places`: of its samples, or b""."""

    name: str
    key: FileKey
    samples: int = 0
    flags: int = 0
    columns: tuple[int, ...] = ()
    blocks: Ints = NO_BLOCKS
    places: bytes = b""


def index_path(folder: str | os.PathLike[str], place: Place) -> Path:
    if place == "beside":
        return Path(folder) / BESIDE
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache")
    return _path_in_cache(os.path.abspath(folder), root)


@lru_cache(maxsize=64)
def _path_in_cache(folder: str, root: str) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    return Path(root, "holdfast", "index", name)


class FolderIndex:
    """The rows of an index file, in the order of their names. Raises a ValueError for a file that is not one."""

    def __init__(self, data: Any, is_beside: bool) -> None:
        head = json.loads(bytes(data[:_HEAD_BYTES]))
        n, n_blocks, names_bytes = (int(head[name]) for name in ("shards", "blocks", "names_bytes"))
        sizes = [n * ROW.itemsize, 8 * n, -(-names_bytes // 8) * 8, 24 * n_blocks]
        ends = list(accumulate([_HEAD_BYTES, *sizes]))
        if head["kind"] != _KIND or ends[-1] > len(data) or min(sizes) < 0:
            raise ValueError("not an index, or cut short")
        if codec.crc32c(data[_HEAD_BYTES : ends[-1]]) != head["crc32c"]:
            raise ValueError("corrupt")
        self._data, self._places_at, self.is_beside = data, ends[-1], is_beside
        self.rows: Rows = np.frombuffer(data, ROW, n, ends[0])
        self._ends: Ints = np.frombuffer(data, "<i8", n, ends[1])
        self._names = bytes(data[ends[2] : ends[2] + names_bytes])
        self._blocks: Ints = np.frombuffer(data, "<i8", 3 * n_blocks, ends[3]).reshape(3, -1)
        self._block_ends: Ints = np.cumsum(self.rows["blocks"])
        if not self._is_consistent():
            raise ValueError("its rows contradict each other")

    def _is_consistent(self) -> bool:
        """Tells whether the numbers of all rows fit together: a writer with a bug computes good checksums too."""
        blocks, ends, (firsts, counts, sizes) = self.rows["blocks"], self._block_ends, self._blocks
        lengths = np.diff(self._ends, prepend=0)
        if any(numbers.min(initial=0) < 0 for numbers in (blocks, counts, sizes, self._ends, lengths)):
            return False
        if blocks.max(initial=0) > len(firsts) or counts.sum(dtype=float) > _MAX_SAMPLES:
            return False
        if blocks.sum() != len(firsts) or lengths.sum() != len(self._names):
            return False
        before = np.concatenate([[0], np.cumsum(counts)])  # samples in all blocks before each block
        first = before[ends - blocks]
        has_counts = np.array_equal(before[ends] - first, self.rows["count"])
        return bool(has_counts and np.array_equal(before[:-1] - np.repeat(first, blocks), firsts))

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> bytes:
        return self._names[int(self._ends[row - 1]) if row else 0 : int(self._ends[row])]

    def names(self) -> list[bytes]:
        begins = [0, *self._ends[:-1].tolist()]
        return [self._names[begin:end] for begin, end in zip(begins, self._ends.tolist(), strict=False)]

    def find(self, name: bytes, key: FileKey) -> int | None:
        """Returns the row of a file, if it is of this version."""
        row = bisect_left(range(len(self)), name, key=self.name)
        return row if row < len(self) and self.name(row) == name and self.is_of(row, key) else None

    def find_all(self, names: list[str]) -> Ints:
        """Returns the rows of these names, whatever their version; -1 for those that have none."""
        sizes = np.fromiter(map(len, names), np.int64, len(names))
        # All of them, as a rule. Names with other characters than ASCII are longer than their strings.
        if np.array_equal(np.cumsum(sizes), self._ends) and os.fsencode("".join(names)) == self._names:
            return np.arange(len(names))
        rows = {name: row for row, name in enumerate(self.names())}
        return np.array([rows.get(os.fsencode(name), -1) for name in names], np.int64)

    def is_of(self, row: int, key: FileKey) -> bool:
        one = self.rows[row]
        same = (one["size"], one["mtime_ns"]) == key[:2]
        return bool(same and (self.is_beside or (one["inode"], one["ctime_ns"]) == key[2:]))

    def blocks_of(self, rows: Ints) -> Ints:
        """Returns the blocks of these rows, one row after the other: their first samples, counts and sizes."""
        counts = self.rows["blocks"][rows]
        before = np.cumsum(counts) - counts
        at = np.repeat(self._block_ends[rows] - counts - before, counts) + np.arange(int(counts.sum()))
        return self._blocks[:, at]

    def places(self, row: int) -> memoryview | None:
        """Returns where the samples of a shard are; None: not known, or torn."""
        one = self.rows[row]
        begin = self._places_at + int(one["at"])
        found = self._data[begin : begin + int(one["bytes"])]
        return found if len(found) and codec.crc32c(found) == int(one["crc32c"]) else None

    def entry(self, row: int) -> Entry:
        one = self.rows[row]
        key = FileKey(*(int(one[name]) for name in FileKey._fields))
        columns = tuple(int(number) for number in one["columns"] if number)
        numbers = int(one["count"]), int(one["flags"]), columns
        places = bytes(self.places(row) or b"")
        return Entry(os.fsdecode(self.name(row)), key, *numbers, self.blocks_of(np.array([row])), places)


class _Recent:
    """Indexes that were mapped, by their path. An index that was replaced is mapped again. Threads may share it."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, tuple[FileKey, FolderIndex | None]] = OrderedDict()

    def load(self, path: str, is_beside: bool) -> FolderIndex | None:
        try:
            info = os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(info.st_mode):
            return None  # opening a FIFO would wait for its writer
        key = FileKey.of(info)
        known = self._indexes.get(path)
        if known is None or known[0] != key:
            known = self._indexes[path] = key, self._map(path, is_beside)
            if len(self._indexes) > _RECENT:
                with suppress(KeyError):  # another thread removed the last one
                    self._indexes.popitem(last=False)
        return known[1]

    def _map(self, path: str, is_beside: bool) -> FolderIndex | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                # One in the cache is only ever replaced. Others may write to one beside the data, or cut it: a process
                # that has it mapped would be killed.
                return FolderIndex(memoryview(file.read()) if is_beside else _mapped(file.fileno()), is_beside)
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return None  # absent, torn or of another program: it can be built again


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _mapped(fd: int) -> memoryview:
    """Maps a file. Python's own mmap keeps a descriptor open as long as the map is there."""
    size = os.fstat(fd).st_size
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0) if size else None
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "cannot map the index")
    data = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(data, _libc.munmap, address, size).atexit = False
    return memoryview(data).cast("B").toreadonly()


_recent = _Recent()


def load(folder: str | os.PathLike[str]) -> list[FolderIndex]:
    """Returns the indexes of a folder: that in the cache, which knows more, then that beside the data."""
    places: tuple[Place, ...] = ("cache", "beside")
    found = []
    for place in places:
        with suppress(RuntimeError):  # there is no home
            found.append(_recent.load(str(index_path(folder, place)), place == "beside"))
    return [one for one in found if one is not None]


def find_places(path: str | os.PathLike[str], fd: int) -> Iterator[tuple[memoryview, bool]]:
    """Yields where the samples of an open file are, if an index knows this version of it; and whether that index is
    beside the file."""
    folder, name = os.path.split(path)
    key = FileKey.of(os.fstat(fd))
    for index in load(folder or "."):
        row = index.find(os.fsencode(name), key)
        places = None if row is None else index.places(row)
        if places is not None:
            yield places, index.is_beside


def note_places(path: str | os.PathLike[str], key: FileKey, places: bytes) -> None:
    """Stores where the samples of one file are in the user's cache, if that is possible: it only saves time."""
    folder, name = os.path.split(path)
    with building(folder or "."), suppress(OSError, RuntimeError, WriteError):
        save(folder or ".", [Entry(name, key, places=places)])


def await_tick(changed_ns: int) -> None:
    """Waits until a file that changed so recently that the clock may not have moved since can be told from its next
    version. Call it before the file is looked at."""
    wait_s = changed_ns / 1e9 + _TICK_S - time.time()
    if 0 < wait_s <= _TICK_S:
        time.sleep(wait_s)


@contextmanager
def building(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lets one process at a time look at the shards of a folder: the others wait, and then find its index. The kernel
    releases the lock of one that is killed. Nobody waits for one that is stopped, nor without a cache that can be
    written: then each looks at the shards itself."""
    fd = -1
    try:
        path = index_path(folder, "cache")
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _await_lock(fd)
    except (OSError, RuntimeError):
        pass
    try:
        yield
    finally:
        if fd >= 0:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
            os.close(fd)


def _await_lock(fd: int) -> None:
    """Takes the lock, or returns without it if the process that has it is stopped, or after a time if that process is
    not known here."""
    end, wait_s = time.monotonic() + _UNKNOWN_BUILDER_S, _TICK_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(fd, _identity(os.getpid())[0].ljust(64), 0)
            return
        found = os.pread(fd, 64, 0).split()
        identity, state = _identity(int(found[0])) if found and found[0].isdigit() else (b"", "")
        is_known = identity.split() == found != []
        if (is_known and state in "Tt") or (not is_known and time.monotonic() > end):
            return
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _MAX_POLL_S)


def _identity(pid: int) -> tuple[bytes, str]:
    """Returns what identifies a process of this machine, and its state."""
    one = read_stat(REAL, pid)
    return (b"", "") if one is None else (b"%d %d" % (pid, one.start_ticks), one.state)


def save(folder: str | os.PathLike[str], entries: Iterable[Entry], place: Place = "cache") -> Path:
    """Adds rows to the index of a folder, or replaces them, and leaves out those of files that are gone or changed.

    The file is replaced as a whole. Raises an OSError or a WriteError if that is not possible.
    """
    new = {os.fsencode(entry.name): entry for entry in entries}
    path = index_path(folder, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = _recent.load(str(path), place == "beside")
    if old is not None and len(old):
        with os.scandir(folder) as listed:
            there = {os.fsencode(one.name): one for one in listed}
        for row, name in enumerate(old.names()):
            if name in new:
                new[name] = _joined(new[name], old.entry(row))
            elif name in there:
                with suppress(OSError):
                    if old.is_of(row, FileKey.of(there[name].stat())):
                        new[name] = old.entry(row)
    _write(path, [new[name] for name in sorted(new)])
    return path


def _joined(new: Entry, old: Entry) -> Entry:
    """Adds what an older row of the same file knows: columns that are read in turn with the new ones."""
    if old.key != new.key or not new.columns:
        return new if old.key != new.key else old._replace(places=new.places)
    facts = [(one.samples, one.flags, one.blocks.tolist()) for one in (new, old)]
    others = [one for one in old.columns if one not in new.columns] if facts[0] == facts[1] else []
    return new._replace(columns=(*new.columns, *others)[:COLUMNS])


def _write(path: Path, entries: list[Entry]) -> None:
    rows = np.zeros(len(entries), ROW)
    names = [os.fsencode(entry.name) for entry in entries]
    for column, name in enumerate(FileKey._fields):
        rows[name] = [entry.key[column] for entry in entries]
    rows["count"], rows["flags"] = [entry.samples for entry in entries], [entry.flags for entry in entries]
    rows["blocks"], rows["bytes"] = zip(*((entry.blocks.shape[1], len(entry.places)) for entry in entries), strict=True)
    rows["columns"] = [(*entry.columns, *(0,) * COLUMNS)[:COLUMNS] for entry in entries]
    rows["crc32c"] = [codec.crc32c(entry.places) for entry in entries]
    padded = -(-rows["bytes"] // 8) * 8
    rows["at"] = np.cumsum(padded) - padded
    joined = b"".join(names)
    blocks = np.concatenate([entry.blocks for entry in entries], axis=1)
    parts = [rows.tobytes(), np.cumsum([len(name) for name in names], dtype="<i8").tobytes()]
    parts += [joined.ljust(-(-len(joined) // 8) * 8, b"\0"), blocks.astype("<i8").tobytes()]
    body = b"".join(parts)
    head = {"kind": _KIND, "shards": len(rows), "blocks": blocks.shape[1], "names_bytes": len(joined)}
    line = json.dumps(head | {"crc32c": codec.crc32c(body)}).encode()
    partial = PartialFile(path, overwrite=True)
    try:
        partial.write(line.ljust(_HEAD_BYTES - 1) + b"\n" + body)
        for at in range(0, len(entries), 4096):
            some = zip(entries[at : at + 4096], padded[at : at + 4096].tolist(), strict=True)
            partial.write(b"".join(entry.places.ljust(size, b"\0") for entry, size in some))
        partial.commit()
    finally:
        partial.discard()
