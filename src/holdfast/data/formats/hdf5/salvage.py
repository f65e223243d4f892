"""Copies everything that can be read of a corrupt HDF5 file into a new one.

Two sandboxed processes do it: one reads the corrupt file and may crash, the other writes the new one. The corrupt file
is only read, through a PatchedView that repairs its superblock.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from ...._util.atomic import PartialFile, check_not_input, pwrite_all
from ...._util.framing import Message
from ...._util.text import counted
from ....errors import InputError, WriteError
from ..base import Problem
from ..parts_manifest import check_not_only_copy
from ..sections import Section
from .chunks import merge_ranges, subtract_ranges
from .file_state import State, read_state, state_problems
from .object_walk import NOT_LISTED, NOT_OPENED
from .salvage_rebuild import DOUBTFUL_ROWS, LOST_ROWS
from .sandbox import CRASHED, HANGS, Progress, RestartingSandbox, SandboxedProcess

_MAX_CRASHES = 200
_BASE_CRASHES = 8  # of any file, and one more for each _BYTES_PER_CRASH: each costs the start of a process
_BYTES_PER_CRASH = 100_000
_MAX_LISTED = 1000
_SHOWN_RANGES = 6
_CHECKSUM_VERSION = 2  # from this superblock version on the structure of a file has checksums


class SalvagedObject(NamedTuple):
    """One dataset: its number of rows, and the ranges [from, to) of lost rows.

    doubtful   rows that were kept but may be wrong: corruption could look the same
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
    """`notes`: what cannot be checked in this file."""

    objects_kept: int
    datasets: list[SalvagedObject]
    problems: list[Problem]
    notes: list[str]

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be kept, and so no file was written."""
        return not self.objects_kept

    def summary(self, out: str) -> str:
        """Describes the result in a line; `out`: the file that was written."""
        if not self.objects_kept:
            return f"nothing could be kept, {out} was not written"
        if not self.datasets and self.problems:
            return f"no dataset could be kept; {out} has only groups and attributes"
        kept = f"{counted(len(self.datasets), 'dataset')} in {out}"
        if not self.problems:
            return f"nothing was corrupt: kept all {kept}"
        lost = f"; {counted(self.rows_lost, 'row')} lost" if self.rows_lost else "; none of their rows are lost"
        doubtful = f", {counted(self.rows_doubtful, 'row')} doubtful" if self.rows_doubtful else ""
        return f"kept {kept}{lost}{doubtful}"

    @property
    def rows_lost(self) -> int:
        return sum(dataset.rows_lost for dataset in self.datasets)

    @property
    def rows_doubtful(self) -> int:
        return sum(dataset.rows_doubtful for dataset in self.datasets)

    def sections(self) -> Iterator[Section]:
        for what in ("lost", "doubtful"):
            rows = [
                (one.path, f"{getattr(one, f'rows_{what}'):,} of {one.rows:,}", _ranges(ranges))
                for one in self.datasets
                if (ranges := getattr(one, what))
            ]
            if rows:
                yield Section(heads=("dataset", f">rows {what}", "which"), rows=rows)

    def remarks(self, keep_doubtful: bool) -> list[str]:
        return self.notes if self.problems else []

    @staticmethod
    def total(reports: Sequence[SalvagedHDF5]) -> str:
        datasets = counted(sum(len(one.datasets) for one in reports), "dataset")
        return f"{datasets} kept, {sum(one.rows_lost for one in reports):,} rows lost"

    def as_dict(self) -> dict[str, object]:
        return {
            "format": "hdf5",
            "objects_kept": self.objects_kept,
            "datasets": [dataset.as_dict() for dataset in self.datasets],
            "problems": [problem.as_dict("dataset", "chunk", "offset", "reason") for problem in self.problems],
            "notes": self.notes,
        }


def _ranges(lost: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{low:,}–{high - 1:,}" if high - low > 1 else f"{low:,}" for low, high in lost[:_SHOWN_RANGES])
    return shown + (f" … ({len(lost)} ranges)" if len(lost) > _SHOWN_RANGES else "")


def salvage_hdf5(
    damaged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    live: bool = False,
    progress: Progress | None = None,
) -> SalvagedHDF5:
    """Writes what can be read of `damaged` to `out`, which is complete when it appears, or absent if nothing could be
    kept.

    live   read also while another process writes `damaged`; its changes may be missed

    The work is bounded by the size of the file, whatever shapes it claims: each chunk in an index is read and decoded
    once; if an index cannot be listed, one chunk position is tried for each 16 bytes of the file; a reader that crashes
    or hangs is restarted 8 times plus once for each 100 kB, at most 200 times; a reader hangs after 3 s of CPU time
    without progress plus 1 s for each MB, at most 20 s, and after half of that for each hang before, at least an
    eighth; a quarter of it is enough, but at least 0.4 s, if the reader touches no new memory.
    """
    source, target = os.fsdecode(damaged), os.fsdecode(out)
    state = read_state(source)
    check_not_input([source], [target])
    if overwrite:
        check_not_only_copy([source], [target])
    if state.writer is not None and not live:
        raise InputError(f"{source}: it is still being written {state.written_by}; wait until it is closed")
    problems = [Problem(offset, None, reason) for offset, reason in state_problems(state)]
    partial = PartialFile(target, overwrite=overwrite)
    try:
        if not state.size:
            return SalvagedHDF5(0, [], problems, [])
        made = os.fstat(partial.fd)
        job = {"work": "rebuild", "out": str(partial.path.absolute()), "identity": [made.st_dev, made.st_ino]}
        user_block = 0 if state.block is None else state.block.at
        with SandboxedProcess({**job, "user_block": user_block}) as writer:
            salvage = _Salvage(state, writer, progress, target)
            if state.block is not None:
                salvage.read()
                if state.block.end > state.size:
                    salvage.read_truncated()
            if salvage.structure_lost or state.block is None:
                salvage.read_orphans()
            kept = salvage.kept
            if kept:
                salvage.finish()
        if kept:
            _copy_user_block(source, partial.fd, user_block)
            partial.commit()
        return SalvagedHDF5(kept, salvage.salvaged(), problems + list(dict.fromkeys(salvage.problems)), salvage.notes())
    finally:
        partial.discard()


def _copy_user_block(source: str, fd: int, size: int) -> None:
    """Copies the bytes before the superblock, which are not HDF5's."""
    with open(source, "rb") as file:
        at = 0
        while at < size and (data := file.read(min(size - at, 1 << 20))):
            pwrite_all(fd, data, at)
            at += len(data)


class _Salvage:
    """Forwards what the readers send to the writer."""

    def __init__(self, state: State, writer: SandboxedProcess, progress: Progress | None, target: str) -> None:
        self.path, self.state = state.path, state
        self.repair = state.needs_repair or not state.is_hdf5
        self.writer, self.progress, self.target = writer, progress, target
        maximum = min(_MAX_CRASHES, _BASE_CRASHES + state.size // _BYTES_PER_CRASH)
        self._sandbox = RestartingSandbox(maximum, state.size)
        self.problems: list[Problem] = []
        self._heads: dict[str, dict[str, Any]] = {}
        self._lost: dict[str, list[tuple[int, int]]] = {}
        self._doubtful: dict[str, list[tuple[int, int]]] = {}
        self._chunks: dict[str, array[int]] = {}  # offset, end, first row, last row + 1; and so on
        self._unprotected: list[str] = []
        self._unread_from: dict[str, int] = {}  # the first row that was not read yet
        self._kept: set[str] = set()
        self._full_length = self._orphans = False
        self._known: list[int] = []

    @property
    def kept(self) -> int:
        """Returns the number of objects and attributes; the root group alone does not count."""
        return len(self._kept)

    def read(self) -> None:
        job = {
            "work": "salvage",
            "path": self.path,
            "repair": self.repair,
            "full_length": self._full_length,
            "orphans": self._orphans,
            "known": self._known,
        }
        with closing(self._sandbox.messages(job, self.progress, stop_at_root=not self._orphans)) as messages:
            for message in messages:
                self._handle(message)
        if self._sandbox.used_up:
            self._add_problem(Problem(None, None, "the HDF5 library crashed too often; reading stopped"))

    def read_truncated(self) -> None:
        """Reads again, for what can be opened only as if the file were not truncated."""
        self._full_length = True
        self.read()
        made = set(self._heads)
        self.problems = [p for p in self.problems if p.dataset not in made or not p.reason.startswith(NOT_OPENED)]

    @property
    def structure_lost(self) -> bool:
        """Returns whether there may be objects that no group leads to any more. Only then: an intact file has deleted
        ones."""
        lost = (NOT_OPENED, NOT_LISTED, CRASHED, HANGS)
        return any(problem.chunk is None and problem.reason.startswith(lost) for problem in self.problems)

    def read_orphans(self) -> None:
        """Salvages objects that are found without their group into a group of their own."""
        self._orphans = True
        self.read()

    def _handle(self, message: Message) -> None:
        head = message.head
        match head:
            case {"done": _, "address": address}:
                if not self._orphans:
                    self._known.append(address)
                return
            case {"problem": [path, chunk, offset, reason]}:
                crashed = "skipped" in head
                if self._full_length and not crashed and (path is None or path in self._sandbox.done):
                    return  # reported the first time
                if crashed and path in self._heads:
                    self._lose_crashed(path, chunk, rest=head["skipped"])
                start = None if chunk is None else tuple(chunk)
                self._add_problem(Problem(offset, None, reason, dataset=path, chunk=start))
                return
            case {"lost": path, "rows": [low, high]}:
                self._add_lost(path, low, high)
                return
            case {"doubt": path, "rows": [low, high]}:
                self._doubtful.setdefault(path, []).append((low, high))
                return
            case {"unprotected": path}:
                self._unprotected.append(path)
                return
            case {"chunk": path, "offset": offset, "stored": stored, "rows": [low, high]}:
                self._chunks.setdefault(path, array("q")).extend((offset, offset + stored, low, high))
                self._unread_from[path] = low
            case {"values": path, "start": [low, *_]}:
                self._unread_from[path] = low
            case {"make": "dataset", "path": path}:
                self._heads[path] = head
        if "end" in head:
            return
        name = head.get("path", "/")
        if name != "/" or "attribute" in head:
            self._kept.add(name + ("\0" + head["attribute"] if "attribute" in head else ""))
        self._send(head, message.body)

    def _add_problem(self, problem: Problem) -> None:
        if len(self.problems) < _MAX_LISTED:
            self.problems.append(problem)

    def _lose_crashed(self, path: str, chunk: list[int] | None, *, rest: bool) -> None:
        head = self._heads[path]
        low, rows = chunk[0] if chunk else 0, _rows(head)
        self._add_lost(path, low, rows if rest or not head["chunks"] else min(low + head["chunks"][0], rows))

    def _add_lost(self, path: str, low: int, high: int) -> None:
        self._lost.setdefault(path, []).append((low, high))

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        if not self.writer.send(head, body):
            self._raise_write_error()

    def _raise_write_error(self) -> None:
        why = [message.head["failed"] for message in self.writer.messages() if "failed" in message.head]
        raise WriteError(f"cannot write {self.target}: {why[0] if why else self.writer.exit_reason}")

    def finish(self) -> None:
        for path in self._heads.keys() - set(self._sandbox.done):  # not read to the end
            self._add_lost(path, self._unread_from.get(path, 0), _rows(self._heads[path]))
        self._doubt_overlapping()
        self._doubt_moved()
        for dataset in self.salvaged():
            for name, ranges in ((LOST_ROWS, dataset.lost), (DOUBTFUL_ROWS, dataset.doubtful)):
                if ranges and self._heads[dataset.path]["shape"]:
                    self._send({"mark": dataset.path, "name": name, "rows": ranges})
        self._send({"finish": True})
        ended = False
        for message in self.writer.messages():
            match message.head:
                case {"failed": why}:
                    raise WriteError(f"cannot write {self.target}: {why}")
                case {"problem": [path, _, _, reason]}:
                    self._add_problem(Problem(None, None, reason, dataset=path))
                case {"lost": path, "rows": [low, high]}:
                    self._add_lost(path, low, high)
                case {"end": _}:
                    ended = True
        if not ended:
            raise WriteError(f"cannot write {self.target}: {self.writer.exit_reason}")

    def _doubt_overlapping(self) -> None:
        """Marks chunks that share bytes: at most one of them is right."""
        everything = [(*row, path) for path, table in self._chunks.items() for row in _rows_of(table)]
        end, last = -1, None
        for one in sorted(everything):
            offset, stop = one[:2]
            if last is not None and offset < end and one != last:
                for begin, _, low, high, name in (last, one):
                    self._doubt(name, low, high, begin, "it shares bytes with another chunk")
            if stop > end:
                end, last = stop, one

    def _doubt_moved(self) -> None:
        """Inserted or removed bytes move everything after them, and a chunk that lies where another one should be still
        decodes. The size of the file tells that this may be the case, the first corrupt chunk from where on."""
        block = self.state.block
        corrupt = [one.offset for one in self.problems if one.chunk is not None and one.offset is not None]
        if block is None or block.end == self.state.size or not corrupt:
            return
        first = min(corrupt)
        for path, table in self._chunks.items():
            after = [(low, high) for offset, _, low, high in _rows_of(table) if offset > first]
            if after:
                self._doubtful.setdefault(path, []).extend(after)
                reason = f"the file has not the size it records, and {len(after):,} chunks lie after a corrupt one"
                self._add_problem(Problem(first, None, f"kept, but doubtful: {reason}", dataset=path))

    def _doubt(self, path: str, low: int, high: int, offset: int, reason: str) -> None:
        self._doubtful.setdefault(path, []).append((low, high))
        chunk = (low, *[0] * (len(self._heads[path]["shape"]) - 1))
        self._add_problem(Problem(offset, None, f"kept, but doubtful: {reason}", dataset=path, chunk=chunk))

    def salvaged(self) -> list[SalvagedObject]:
        found = []
        for path, head in sorted(self._heads.items()):
            lost = merge_ranges(self._lost.get(path, []))
            doubtful = subtract_ranges(merge_ranges(self._doubtful.get(path, [])), lost)
            found.append(SalvagedObject(path, _rows(head), lost, doubtful))
        return found

    def notes(self) -> list[str]:
        """Returns what cannot be checked."""
        found = []
        unprotected = sorted(set(self._unprotected))
        if unprotected:
            names = ", ".join(unprotected[:4]) + (" …" if len(unprotected) > 4 else "")
            found.append(f"no checksums in {names}: changed values there cannot be detected")
        if self.state.block is not None and self.state.block.version < _CHECKSUM_VERSION:
            found.append("no checksums in the structure of this file: names, types and shapes could not be checked")
        return found


def _rows_of(table: array[int]) -> Iterator[tuple[int, int, int, int]]:
    return zip(table[0::4], table[1::4], table[2::4], table[3::4], strict=True)


def _rows(head: dict[str, Any]) -> int:
    shape = head["shape"]
    return 0 if shape is None else shape[0] if shape else 1
