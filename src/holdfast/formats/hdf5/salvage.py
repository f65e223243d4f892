"""Everything that can be got out of a damaged HDF5 file, into a new one.

Two children do it: one reads the damaged file and may crash as often as it has to, the other writes the new one. The
damaged file is only read, through a mended superblock (overlay.py), never copied and never touched.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..._util.atomic import PartialFile, pwrite_all
from ...errors import InputError, WriteError
from .chunks import joined, without
from .file_state import State, look_at, troubles
from .object_walk import NOT_LISTED, NOT_OPENED
from .salvage_rebuild import DOUBTFUL_ROWS, LOST_ROWS
from .sandbox import CRASHED, HANGS, SPIN_S, SandboxedProcess, SandboxMessage, WorkPosition
from .verify import HANGS_OF_ONE, MOST_HANGS, Flaw

_MOST_CRASHES = 200
_CRASHES = 8  # of any file, and one more for each _BYTES_A_CRASH of it: each costs the start of a process
_BYTES_A_CRASH = 100_000
_SPIN_S = 3.0  # of any file, and a second more for each _BYTES_A_SECOND of it: then the library hangs
_BYTES_A_SECOND = 1_000_000
_LISTED = 1000
_CHECKED_VERSION = 2  # of a superblock: from here on its own structure has checksums

Progress = Callable[[int], None]


class SalvagedObject(NamedTuple):
    """One dataset: how many rows it has, and which of them are lost, as ranges [from, to).

    doubtful   rows that are kept, and may be wrong all the same: what was damaged would look as they do
    """

    path: str
    rows: int
    lost: list[tuple[int, int]]
    doubtful: list[tuple[int, int]]

    @property
    def rows_lost(self) -> int:
        return sum(high - low for low, high in self.lost)

    @property
    def rows_doubtful(self) -> int:
        return sum(high - low for low, high in self.doubtful)

    def as_dict(self) -> dict[str, object]:
        return {
            "dataset": self.path,
            "rows": self.rows,
            "rows_lost": self.rows_lost,
            "lost": [list(one) for one in self.lost],
            "rows_doubtful": self.rows_doubtful,
            "doubtful": [list(one) for one in self.doubtful],
        }


class SalvagedHDF5(NamedTuple):
    """`notes`: what cannot be known of this file, damaged or not."""

    objects_kept: int
    datasets: list[SalvagedObject]
    problems: list[Flaw]
    notes: list[str]

    @property
    def rows_lost(self) -> int:
        return sum(dataset.rows_lost for dataset in self.datasets)

    @property
    def rows_doubtful(self) -> int:
        return sum(dataset.rows_doubtful for dataset in self.datasets)

    def as_dict(self) -> dict[str, object]:
        return {
            "format": "hdf5",
            "objects_kept": self.objects_kept,
            "datasets": [dataset.as_dict() for dataset in self.datasets],
            "problems": [flaw.as_dict() for flaw in self.problems],
            "notes": self.notes,
        }


def salvage_hdf5(
    damaged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    live: bool = False,
    progress: Progress | None = None,
    spin_s: float | None = None,
) -> SalvagedHDF5:
    """Writes what can be read of `damaged` to `out`, which appears whole or, where nothing can be kept, not at all.

    live   also while another process has `damaged` open for writing; what it changes meanwhile may be missed

    The work is bounded by the size of the file, whatever a damage says of shapes: each chunk that an index has is read
    and decoded once; where an index cannot be listed, one place of a chunk is looked at for each 16 bytes of the file;
    a reading process that crashes or hangs is started again 8 times, and once more for each 100 kB, 200 times at most;
    it hangs when it works 3 s at one thing, and one more for each MB, 20 s at most.
    """
    source, target = os.fsdecode(damaged), os.fsdecode(out)
    state = look_at(source)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise WriteError(f"{target}: salvage never writes over the damaged file; name another one")
    if state.writer is not None and not live:
        raise InputError(f"{source}: it is still being written {state.written_by}; wait for that to end")
    flaws = [Flaw(None, None, offset, reason) for offset, reason in troubles(state)]
    partial = PartialFile(target, overwrite=overwrite)
    try:
        if not state.size:
            return SalvagedHDF5(0, [], flaws, [])
        made = os.fstat(partial.fd)
        job = {"work": "rebuild", "out": str(partial.path.absolute()), "identity": [made.st_dev, made.st_ino]}
        user_block = 0 if state.block is None else state.block.at
        with SandboxedProcess({**job, "user_block": user_block}) as writer:
            rescue = _Salvage(state, writer, progress, spin_s, target)
            if state.block is not None:
                rescue.read()
                if state.block.end > state.size:
                    rescue.read_cut()
            if rescue.structure_lost or state.block is None:
                rescue.read_orphans()
            kept = rescue.kept
            if kept:
                rescue.finish()
        if kept:
            _copy_user_block(source, partial.fd, user_block)
            partial.commit()
        return SalvagedHDF5(kept, rescue.rescued(), flaws + list(dict.fromkeys(rescue.flaws)), rescue.notes())
    finally:
        partial.discard()


def _copy_user_block(source: str, fd: int, size: int) -> None:
    """What is before the file proper is not HDF5's."""
    with open(source, "rb") as file:
        at = 0
        while at < size and (data := file.read(min(size - at, 1 << 20))):
            pwrite_all(fd, data, at)
            at += len(data)


class _Salvage:
    """Readers one after the other, until one comes to the end; what they send goes on to the writer."""

    def __init__(
        self, state: State, writer: SandboxedProcess, progress: Progress | None, spin_s: float | None, target: str
    ) -> None:
        self.path, self.state = state.path, state
        self.mend = state.mend or not state.is_hdf5
        self.writer, self.progress, self.target = writer, progress, target
        self.spin_s = min(SPIN_S, _SPIN_S + state.size / _BYTES_A_SECOND) if spin_s is None else spin_s
        self.most_crashes = min(_MOST_CRASHES, _CRASHES + state.size // _BYTES_A_CRASH)
        self.flaws: list[Flaw] = []
        self._heads: dict[str, dict[str, Any]] = {}
        self._lost: dict[str, list[tuple[int, int]]] = {}
        self._doubtful: dict[str, list[tuple[int, int]]] = {}
        self._chunks: dict[str, array[int]] = {}  # offset, end, first row, last row + 1; and so on
        self._blind: list[str] = []
        self._behind: dict[str, int] = {}  # the row from which on nothing was read yet
        self._things: set[str] = set()
        self._done: list[str] = []
        self._avoid: list[str] = []
        self._resume: dict[str, int] = {}
        self._stretch = self._orphans = False
        self._known: list[int] = []
        self._hangs: Counter[str] = Counter()
        self._at = "/"
        self._told = 0

    @property
    def kept(self) -> int:
        """Objects and attributes; the root group alone is nothing."""
        return len(self._things)

    def read(self) -> None:
        while self.most_crashes > 0:
            if self._once():
                return
            self.most_crashes -= 1
        self._tell(Flaw(None, None, None, "the HDF5 library crashed too often; not read on"))

    def read_cut(self) -> None:
        """Once more, for what can be opened only as if the file were not cut."""
        self._stretch = True
        self.read()
        made = set(self._heads)
        self.flaws = [f for f in self.flaws if f.dataset not in made or not f.reason.startswith(NOT_OPENED)]

    @property
    def structure_lost(self) -> bool:
        """Whether there may be objects that no group leads to any more. A sound file has such of old: deleted ones."""
        lost = (NOT_OPENED, NOT_LISTED, CRASHED, HANGS)
        return any(flaw.chunk is None and flaw.reason.startswith(lost) for flaw in self.flaws)

    def read_orphans(self) -> None:
        """What can be found without its group goes to a group of its own."""
        self._orphans = True
        self.read()

    def _once(self) -> bool:
        job = {
            "work": "rescue",
            "path": self.path,
            "mend": self.mend,
            "stretch": self._stretch,
            "orphans": self._orphans,
            "known": self._known,
            "avoid": self._avoid,
            "done": self._done,
            "resume": self._resume,
        }
        with SandboxedProcess(job, spin_s=self.spin_s) as reader:
            reader.no_more()
            for frame in reader.frames(self._tick):
                self._take(frame)
            self._told = 0
            if not reader.fate:
                return True
            self._hangs[self._at] += reader.hung
            return self._crashed(reader.fate, reader.place) or self._hangs.total() >= MOST_HANGS

    def _crashed(self, fate: str, place: WorkPosition) -> bool:
        """Whether there is no way on."""
        path, head = self._at, self._heads.get(self._at)
        if place.piece < 0:
            self._tell(Flaw(path, None, None, fate))
            self._avoid.append(path)
            if head is not None:
                self._lose(path, 0, _rows(head))
            return path == "/" and not self._orphans
        self._tell(Flaw(path, place.start, place.offset if place.offset >= 0 else None, fate))
        self._resume[path] = place.piece + 1
        given_up = self._hangs[path] >= HANGS_OF_ONE
        if given_up:
            self._avoid.append(path)
        if head is not None:
            low = place.start[0] if place.start else 0
            step = head["chunks"][0] if head["chunks"] and not given_up else _rows(head)
            self._lose(path, low, min(low + step, _rows(head)))
        return False

    def _take(self, frame: SandboxMessage) -> None:
        head = frame.head
        match head:
            case {"at": path}:
                self._at = path
                return
            case {"done": path, "address": address}:
                self._done.append(path)
                if not self._orphans:
                    self._known.append(address)
                return
            case {"wrong": [path, chunk, offset, reason]}:
                if self._stretch and (path is None or path in self._done):
                    return  # told of the first time
                self._tell(Flaw(path, None if chunk is None else tuple(chunk), offset, reason))
                return
            case {"lost": path, "rows": [low, high]}:
                self._lose(path, low, high)
                return
            case {"doubt": path, "rows": [low, high]}:
                self._doubtful.setdefault(path, []).append((low, high))
                return
            case {"blind": path}:
                self._blind.append(path)
                return
            case {"chunk": path, "offset": offset, "stored": stored, "rows": [low, high]}:
                self._chunks.setdefault(path, array("q")).extend((offset, offset + stored, low, high))
                self._behind[path] = low
            case {"values": path, "start": [low, *_]}:
                self._behind[path] = low
            case {"make": "dataset", "path": path}:
                self._heads[path] = head
        if "end" in head:
            return
        name = head.get("path", "/")
        if name != "/" or "attribute" in head:
            self._things.add(name + ("\0" + head["attribute"] if "attribute" in head else ""))
        self._send(head, frame.body)

    def _tell(self, flaw: Flaw) -> None:
        if len(self.flaws) < _LISTED:
            self.flaws.append(flaw)

    def _lose(self, path: str, low: int, high: int) -> None:
        self._lost.setdefault(path, []).append((low, high))

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        if not self.writer.send(head, body):
            self._failed()

    def _failed(self) -> None:
        why = [frame.head["failed"] for frame in self.writer.frames() if "failed" in frame.head]
        raise WriteError(f"cannot write {self.target}: {why[0] if why else self.writer.fate}")

    def finish(self) -> None:
        for path in self._heads.keys() - set(self._done):  # not read to its end
            self._lose(path, self._behind.get(path, 0), _rows(self._heads[path]))
        self._doubt_shared()
        self._doubt_moved()
        for dataset in self.rescued():
            for name, ranges in ((LOST_ROWS, dataset.lost), (DOUBTFUL_ROWS, dataset.doubtful)):
                if ranges and self._heads[dataset.path]["shape"]:
                    self._send({"mark": dataset.path, "name": name, "rows": ranges})
        self._send({"finish": True})
        ended = False
        for frame in self.writer.frames():
            match frame.head:
                case {"failed": why}:
                    raise WriteError(f"cannot write {self.target}: {why}")
                case {"wrong": [path, _, _, reason]}:
                    self._tell(Flaw(path, None, None, reason))
                case {"lost": path, "rows": [low, high]}:
                    self._lose(path, low, high)
                case {"end": _}:
                    ended = True
        if not ended:
            raise WriteError(f"cannot write {self.target}: {self.writer.fate}")

    def _doubt_shared(self) -> None:
        """Chunks that have bytes in common: at most one of them is right."""
        everything = [(*row, path) for path, table in self._chunks.items() for row in _rows_of(table)]
        end, last = -1, None
        for one in sorted(everything):
            offset, stop = one[:2]
            if last is not None and offset < end and one != last:
                for begin, _, low, high, name in (last, one):
                    self._doubt(name, low, high, begin, "its bytes are another chunk's, too")
            if stop > end:
                end, last = stop, one

    def _doubt_moved(self) -> None:
        """Bytes that were put in or taken out move all that is behind them, and a chunk that is where another one
        should be is a whole chunk. The file's length tells that this may be so; what was found damaged tells from where
        on."""
        block = self.state.block
        damaged = [flaw.offset for flaw in self.flaws if flaw.chunk is not None and flaw.offset is not None]
        if block is None or block.end == self.state.size or not damaged:
            return
        first = min(damaged)
        for path, table in self._chunks.items():
            behind = [(low, high) for offset, _, low, high in _rows_of(table) if offset > first]
            if behind:
                self._doubtful.setdefault(path, []).extend(behind)
                reason = f"the file is longer or shorter than it says, and {len(behind):,} chunks lie behind a damage"
                self._tell(Flaw(path, None, first, f"kept, but in doubt: {reason}"))

    def _doubt(self, path: str, low: int, high: int, offset: int, reason: str) -> None:
        self._doubtful.setdefault(path, []).append((low, high))
        chunk = (low, *[0] * (len(self._heads[path]["shape"]) - 1))
        self._tell(Flaw(path, chunk, offset, f"kept, but in doubt: {reason}"))

    def rescued(self) -> list[SalvagedObject]:
        found = []
        for path, head in sorted(self._heads.items()):
            lost = joined(self._lost.get(path, []))
            doubtful = without(joined(self._doubtful.get(path, [])), lost)
            found.append(SalvagedObject(path, _rows(head), lost, doubtful))
        return found

    def notes(self) -> list[str]:
        """What cannot be known."""
        found = []
        blind = sorted(set(self._blind))
        if blind:
            names = ", ".join(blind[:4]) + (" …" if len(blind) > 4 else "")
            found.append(f"no checksums in {names}: whether values there were changed cannot be seen")
        if self.state.block is not None and self.state.block.version < _CHECKED_VERSION:
            found.append("no checksums in the structure of this file: names, types and shapes are taken as they are")
        return found

    def _tick(self, place: WorkPosition) -> None:
        if self.progress is not None:
            self.progress(max(0, place.done_bytes - self._told))
            self._told = max(self._told, place.done_bytes)


def _rows_of(table: array[int]) -> Iterator[tuple[int, int, int, int]]:
    return zip(table[0::4], table[1::4], table[2::4], table[3::4], strict=True)


def _rows(head: dict[str, Any]) -> int:
    shape = head["shape"]
    return 0 if shape is None else shape[0] if shape else 1
