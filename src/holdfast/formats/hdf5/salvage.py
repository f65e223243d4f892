"""Everything that can be got out of a damaged HDF5 file, into a new one.

Two children do it: one reads the damaged file and may crash as often as it has to, the other writes the new one. The
damaged file is only read, through a mended superblock (overlay.py), never copied and never touched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._base.atomic import PartialFile
from ...errors import InputError, WriteError
from .apart import CRASHED, HANGS, Apart
from .frames import Frame
from .place import Place
from .state import look_at, troubles
from .verify import HANGS_OF_ONE, MOST_HANGS, Flaw
from .walk import NOT_LISTED, NOT_OPENED

_MOST_CRASHES = 200
_LISTED = 1000

Progress = Callable[[int], None]


class Rescued(NamedTuple):
    """One dataset: how many rows it has, and which of them are lost, as ranges [from, to)."""

    path: str
    rows: int
    lost: list[tuple[int, int]]

    @property
    def rows_lost(self) -> int:
        return sum(high - low for low, high in self.lost)


class SalvagedHDF5(NamedTuple):
    objects_kept: int
    datasets: list[Rescued]
    problems: list[Flaw]

    @property
    def rows_lost(self) -> int:
        return sum(dataset.rows_lost for dataset in self.datasets)

    def as_dict(self) -> dict[str, object]:
        return {
            "format": "hdf5",
            "objects_kept": self.objects_kept,
            "datasets": [
                {"dataset": d.path, "rows": d.rows, "rows_lost": d.rows_lost, "lost": [list(r) for r in d.lost]}
                for d in self.datasets
            ],
            "problems": [flaw.as_dict() for flaw in self.problems],
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
            return SalvagedHDF5(0, [], flaws)
        made = os.fstat(partial.fd)
        job = {"work": "rebuild", "out": str(partial.path.absolute()), "identity": [made.st_dev, made.st_ino]}
        with Apart(job) as writer:
            rescue = _Rescue(source, state.mend or not state.is_hdf5, writer, progress, spin_s, target)
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
            partial.commit()
        return SalvagedHDF5(kept, rescue.rescued(), flaws + list(dict.fromkeys(rescue.flaws)))
    finally:
        partial.discard()


class _Rescue:
    """Readers one after the other, until one comes to the end; what they send goes on to the writer."""

    def __init__(
        self, path: str, mend: bool, writer: Apart, progress: Progress | None, spin_s: float | None, target: str
    ) -> None:
        self.path, self.mend, self.writer, self.progress, self.spin_s = path, mend, writer, progress, spin_s
        self.target = target
        self.flaws: list[Flaw] = []
        self._heads: dict[str, dict[str, Any]] = {}
        self._lost: dict[str, list[tuple[int, int]]] = {}
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
        for _ in range(_MOST_CRASHES):
            if self._once():
                return
        self._tell(Flaw(None, None, None, f"the HDF5 library crashed {_MOST_CRASHES} times; not read on"))

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
        with Apart(job, spin_s=self.spin_s) as reader:
            reader.no_more()
            for frame in reader.frames(self._tick):
                self._take(frame)
            self._told = 0
            if not reader.fate:
                return True
            self._hangs[self._at] += reader.hung
            return self._crashed(reader.fate, reader.place) or self._hangs.total() >= MOST_HANGS

    def _crashed(self, fate: str, place: Place) -> bool:
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

    def _take(self, frame: Frame) -> None:
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
        for path, ranges in self._lost.items():
            if path in self._heads and self._heads[path]["shape"]:
                self._send({"mark": path, "rows": joined(ranges)})
        self._send({"finish": True})
        ended = False
        for frame in self.writer.frames():
            match frame.head:
                case {"failed": why}:
                    raise WriteError(f"cannot write {self.target}: {why}")
                case {"wrong": [path, _, _, reason]}:
                    self._tell(Flaw(path, None, None, reason))
                case {"end": _}:
                    ended = True
        if not ended:
            raise WriteError(f"cannot write {self.target}: {self.writer.fate}")

    def rescued(self) -> list[Rescued]:
        return [
            Rescued(path, _rows(head), joined(self._lost.get(path, []))) for path, head in sorted(self._heads.items())
        ]

    def _tick(self, place: Place) -> None:
        if self.progress is not None:
            self.progress(max(0, place.done_bytes - self._told))
            self._told = max(self._told, place.done_bytes)


def _rows(head: dict[str, Any]) -> int:
    shape = head["shape"]
    return 0 if shape is None else shape[0] if shape else 1


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, and those that touch as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        elif low < high:
            found.append((low, high))
    return found
