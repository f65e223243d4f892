"""Is an HDF5 file whole? Every object is opened and every chunk decoded, in a process that may crash instead of us."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ...errors import InputError
from ..part_record import Record, check_record, find_record
from .file_state import State, look_at, troubles
from .sandbox import SandboxedProcess, SandboxMessage, WorkPosition

_LISTED = 1000
_MOST_CRASHES = 100
MOST_HANGS = 10
HANGS_OF_ONE = 2  # each takes its time: then the rest of that object is passed by
BLIND = (
    "no checksums in this file: flips in plain data cannot be seen; write with hold.write or fletcher32 to have them"
)
_HALF_BLIND = "no checksums in {}: flips in its data cannot be seen"
_UNSEEN = "damage that leaves it readable cannot be seen"
_TO_HAVE_THEM = "write with hold.write or h5py's libver='v110' to have them"
CLASSIC = {  # by the version of the superblock; into a file of version 3 the library writes no older structures
    0: f"no checksums in the metadata of this file: {_UNSEEN}; {_TO_HAVE_THEM}",
    1: f"no checksums in the metadata of this file: {_UNSEEN}; {_TO_HAVE_THEM}",
    2: f"no checksums in the index of chunks of this file: {_UNSEEN}; {_TO_HAVE_THEM}",
}

Progress = Callable[[int], None]


class Flaw(NamedTuple):
    """One thing that is wrong. `dataset` is an object's path; None: the file as a whole. `chunk`: where it begins."""

    dataset: str | None
    chunk: tuple[int, ...] | None
    offset: int | None
    reason: str

    def as_dict(self) -> dict[str, object]:
        chunk = None if self.chunk is None else list(self.chunk)
        return {"dataset": self.dataset, "chunk": chunk, "offset": self.offset, "reason": self.reason}


class HDF5Report(NamedTuple):
    path: str
    ok: bool
    datasets: int
    chunks: int
    bytes: int
    problems: list[Flaw]
    notes: list[str]  # what is no damage but should be known, and what could not be checked
    hint: str = ""
    readable: bool = True  # False: it could not be looked at, so nothing is known of it
    unchecked: tuple[str, ...] = ()  # those of the notes that say what could not be checked

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "hdf5",
            "datasets": self.datasets,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "problems": [flaw.as_dict() for flaw in self.problems],
            "notes": self.notes,
            "unchecked": list(self.unchecked),
        }


def verify_hdf5(
    path: str | os.PathLike[str], progress: Progress | None = None, *, spin_s: float | None = None
) -> HDF5Report:
    """Never raises for what is wrong with the file: that is in the report."""
    name = os.fsdecode(path)
    try:
        state = look_at(name)
    except InputError as error:
        reason = str(error).removeprefix(f"{name}: ")
        return HDF5Report(name, False, 0, 0, 0, [Flaw(None, None, None, reason)], [], readable=False)
    flaws = [Flaw(None, None, offset, reason) for offset, reason in troubles(state)]
    if state.writer is not None:
        return _report(state, flaws, None, None, "Wait for its writer to close it")
    if not state.is_hdf5:
        return _report(state, flaws, None, None, "Look at it with `file`, and at what wrote it")
    seen = _SeenObjects(state, progress, spin_s)
    seen.look()
    record = find_record(name)
    if record is not None:
        seen.flaws += _against(record, name, progress)
    hint = "The file is damaged: `holdfast salvage FILE OUT` gets back what can be read"
    return _report(state, flaws + list(dict.fromkeys(seen.flaws)), seen, record, hint)


def _against(record: Record, path: str, progress: Progress | None) -> list[Flaw]:
    found = check_record(path, record, progress)
    return [
        Flaw(None, None, None, reason) if chunk is None else Flaw(chunk.dataset, None, chunk.offset, reason)
        for chunk, reason in found
    ]


def _report(state: State, flaws: list[Flaw], seen: _SeenObjects | None, record: Record | None, hint: str) -> HDF5Report:
    unchecked = [] if seen is None else _unchecked(seen, record)
    notes = [] if seen is None else [*seen.notes, *unchecked]
    datasets, chunks = (0, 0) if seen is None else (len(seen.pieces), sum(seen.pieces.values()))
    facts = state.path, not flaws, datasets, chunks, state.size, flaws, notes, hint if flaws else ""
    return HDF5Report(*facts, unchecked=tuple(unchecked))


def _unchecked(seen: _SeenObjects, record: Record | None) -> list[str]:
    """What cannot be known: said, so that nobody takes it for checked."""
    if record is not None and record.crc32c is not None:
        return []
    covered = set() if record is None else record.datasets
    blind = [path for path, size in seen.blind.items() if size and path not in covered]
    said = []
    if blind:
        few = ", ".join(blind[:4]) + (" …" if len(blind) > 4 else "")
        said.append(BLIND if len(blind) == len(seen.blind) else _HALF_BLIND.format(few))
    block = seen.state.block
    if block is not None and block.version in CLASSIC:
        said.append(CLASSIC[block.version])
    return said


class _SeenObjects:
    """What the children say. After a crash the next one goes on behind it."""

    def __init__(self, state: State, progress: Progress | None, spin_s: float | None) -> None:
        self.state, self.progress, self.spin_s = state, progress, spin_s
        self.flaws: list[Flaw] = []
        self.notes: list[str] = []
        self.pieces: dict[str, int] = {}
        self.blind: dict[str, int] = {}
        self._done: list[str] = []
        self._avoid: list[str] = []
        self._resume: dict[str, int] = {}
        self._hangs: Counter[str] = Counter()
        self._at = "/"
        self._told = 0

    def look(self) -> None:
        for _ in range(_MOST_CRASHES):
            if self._once():
                return
        self.flaws.append(Flaw(None, None, None, f"the HDF5 library crashed {_MOST_CRASHES} times; not read on"))

    def _once(self) -> bool:
        """Whether it came to the end."""
        job = {
            "work": "check",
            "path": self.state.path,
            "mend": self.state.mend,
            "avoid": self._avoid,
            "done": self._done,
            "resume": self._resume,
        }
        with SandboxedProcess(job, spin_s=self.spin_s) as child:
            child.no_more()
            for frame in child.frames(self._tick):
                self._take(frame)
                if len(self.flaws) >= _LISTED:
                    self.flaws.append(Flaw(None, None, None, f"more than {_LISTED:,} problems; not read on"))
                    return True
            self._told = 0
            if not child.fate:
                return True
            self._hangs[self._at] += child.hung
            self._crashed(child.fate, child.place)
            return self._at == "/" or self._hangs.total() >= MOST_HANGS

    def _crashed(self, fate: str, place: WorkPosition) -> None:
        if place.piece < 0:
            self.flaws.append(Flaw(self._at, None, None, fate))
            self._avoid.append(self._at)
        else:
            self.flaws.append(Flaw(self._at, place.start, place.offset if place.offset >= 0 else None, fate))
            self._resume[self._at] = place.piece + 1
            if self._hangs[self._at] >= HANGS_OF_ONE:
                self._avoid.append(self._at)

    def _take(self, frame: SandboxMessage) -> None:
        match frame.head:
            case {"at": path}:
                self._at = path
            case {"wrong": [path, chunk, offset, reason]}:
                self.flaws.append(Flaw(path, None if chunk is None else tuple(chunk), offset, reason))
            case {"dataset": path, "pieces": pieces, "blind_bytes": blind}:
                self.pieces[path], self.blind[path] = pieces, blind
            case {"done": path}:
                self._done.append(path)
            case {"note": text} if len(self.notes) < _LISTED and text not in self.notes:
                self.notes.append(text)

    def _tick(self, place: WorkPosition) -> None:
        if self.progress is not None:
            self.progress(max(0, place.done_bytes - self._told))
            self._told = max(self._told, place.done_bytes)
