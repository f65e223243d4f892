"""Verifies an HDF5 file: opens every object and decodes every chunk, in a sandboxed process."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from ...._util.framing import Message
from ....errors import InputError
from ..base import Problem, VerifiedFile
from ..part_record import FileChecksums, check_record, find_record
from .file_state import State, read_state, state_problems
from .sandbox import Progress, RestartingSandbox

_MAX_LISTED = 1000
_MAX_CRASHES = 100
NO_DATA_CHECKSUMS = (
    "no checksums in this file: bit flips in its data cannot be detected; write with hold.write or fletcher32"
)
_SOME_DATA_CHECKSUMS = "no checksums in {}: bit flips in its data cannot be detected"
_UNDETECTED = "corruption that leaves it readable cannot be detected"
_HOW_TO_GET_THEM = "write with hold.write or h5py's libver='v110'"
NO_METADATA_CHECKSUMS = {  # by superblock version; in a file of version 3 the library writes no older structures
    0: f"no checksums in the metadata of this file: {_UNDETECTED}; {_HOW_TO_GET_THEM}",
    1: f"no checksums in the metadata of this file: {_UNDETECTED}; {_HOW_TO_GET_THEM}",
    2: f"no checksums in the index of chunks of this file: {_UNDETECTED}; {_HOW_TO_GET_THEM}",
}


@dataclass(frozen=True, slots=True)
class HDF5Report(VerifiedFile):
    datasets: int = 0
    chunks: int = 0
    rows: int = 0  # of the longest dataset

    @property
    def content(self) -> tuple[int, str]:
        return (self.rows, "row") if self.datasets else (0, "dataset")

    @property
    def summed(self) -> tuple[int, str]:
        return self.datasets, "dataset"

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "hdf5",
            "datasets": self.datasets,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "problems": [problem.as_dict("dataset", "chunk", "offset", "reason") for problem in self.problems],
            "notes": self.notes,
            "unchecked": list(self.unchecked),
        }


def verify_hdf5(path: str | os.PathLike[str], progress: Progress | None = None) -> HDF5Report:
    """Never raises for a corrupt file: its problems are in the report."""
    name = os.fsdecode(path)
    try:
        state = read_state(name)
    except InputError as error:
        reason = str(error).removeprefix(f"{name}: ")
        return HDF5Report(name, problems=[Problem(None, None, reason)], readable=False)
    problems = [Problem(offset, None, reason) for offset, reason in state_problems(state)]
    if state.writer is not None:
        return _report(state, problems, None, None, "Wait for its writer to close it")
    if not state.is_hdf5:
        return _report(state, problems, None, None, "Check with `file` what it is, and which program wrote it")
    found = _VerifyRun(state)
    found.run(progress)
    record = find_record(name)
    if record is not None:
        found.problems += _check_record(record, name, progress)
    hint = "The file is corrupt: `holdfast salvage FILE OUT` copies what can be read"
    return _report(state, problems + list(dict.fromkeys(found.problems)), found, record, hint)


def _check_record(record: FileChecksums, path: str, progress: Progress | None) -> list[Problem]:
    problems = check_record(path, record, progress)
    return [
        Problem(None, None, reason) if chunk is None else Problem(chunk.offset, None, reason, dataset=chunk.dataset)
        for chunk, reason in problems
    ]


def _report(
    state: State, problems: list[Problem], found: _VerifyRun | None, record: FileChecksums | None, hint: str
) -> HDF5Report:
    unchecked = [] if found is None else _unchecked(found, record)
    notes = [] if found is None else [*found.notes, *unchecked]
    datasets, chunks = (0, 0) if found is None else (len(found.pieces), sum(found.pieces.values()))
    return HDF5Report(
        state.path,
        state.size,
        problems,
        notes,
        hint if problems else "",
        unchecked=tuple(unchecked),
        datasets=datasets,
        chunks=chunks,
        rows=0 if found is None else found.rows,
    )


def _unchecked(found: _VerifyRun, record: FileChecksums | None) -> list[str]:
    """Says what could not be checked."""
    if record is not None and record.crc32c is not None:
        return []
    covered = set() if record is None else record.datasets
    unprotected = [path for path, size in found.unprotected.items() if size and path not in covered]
    notes = []
    if unprotected:
        few = ", ".join(unprotected[:4]) + (" …" if len(unprotected) > 4 else "")
        notes.append(
            NO_DATA_CHECKSUMS if len(unprotected) == len(found.unprotected) else _SOME_DATA_CHECKSUMS.format(few)
        )
    block = found.state.block
    if block is not None and block.version in NO_METADATA_CHECKSUMS:
        notes.append(NO_METADATA_CHECKSUMS[block.version])
    return notes


class _VerifyRun:
    """Collects the messages of the children."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.pieces: dict[str, int] = {}
        self.rows = 0
        self.unprotected: dict[str, int] = {}

    def run(self, progress: Progress | None) -> None:
        sandbox = RestartingSandbox(_MAX_CRASHES, self.state.size)
        job = {"work": "verify", "path": self.state.path, "repair": self.state.needs_repair}
        with closing(sandbox.messages(job, progress)) as messages:
            for message in messages:
                self._handle(message)
                if len(self.problems) >= _MAX_LISTED:
                    self._stop(f"more than {_MAX_LISTED:,} problems")
                    return
        if sandbox.used_up:
            self._stop(f"the HDF5 library crashed {_MAX_CRASHES} times")

    def _stop(self, why: str) -> None:
        self.problems.append(Problem(None, None, f"{why}; verification stopped"))

    def _handle(self, message: Message) -> None:
        match message.head:
            case {"problem": [path, chunk, offset, reason]}:
                start = None if chunk is None else tuple(chunk)
                self.problems.append(Problem(offset, None, reason, dataset=path, chunk=start))
            case {"dataset": path, "pieces": pieces, "unprotected_bytes": unprotected, "rows": rows}:
                self.rows = max(self.rows, rows)
                self.pieces[path], self.unprotected[path] = pieces, unprotected
            case {"note": text} if len(self.notes) < _MAX_LISTED and text not in self.notes:
                self.notes.append(text)
