"""The process that makes parts of closed segments. Started by sealing.py, not by people.

It loads the HDF5 library, which may crash: then the segment is still there, and another one begins anew. Jobs come as
JSON lines on stdin, answers go as such to stdout.

Rows are grouped by producer, in their order: first those that fill whole chunks, which are copied as they are, then the
rest, which is packed anew. The part's record says whose rows lie where. A segment that was made for it is not copied
but becomes the part: its file gets another name, and all that HDF5 needs besides the chunks (formats/hdf5/around.py).
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from array import array
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..._util.failpoints import failpoint
from ..._util.fds import take_stdout
from ..._util.process import die_with_forker
from ...errors import HoldfastError, TargetExistsError, WriteError
from ...formats.hdf5.inplace_writer import InplaceWriter, NoRoomError
from ...formats.hdf5.writer import FinishedFile, HDF5Writer
from ...formats.part_record import PartRecord, Run
from ...schema import schema_digest, schema_from_json
from ..commit import Commit
from ..directory import find_committed
from ..workspace import Workspace
from .protocol import FULL_CHUNK, FrameError, FrameLayout
from .segment import HEADER_GAP_BYTES, Placed, SegmentView, Watermarks, task_of

_LARGE_BYTES = 1 << 14


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_forker(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = take_stdout()
    for line in sys.stdin.buffer:
        os.write(out, json.dumps(_answer(json.loads(line))).encode() + b"\n")
    return 0


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"rows": seal(Path(job["path"]), job["end"], job["before"], in_place=job["in_place"])}
    except (HoldfastError, FrameError) as error:
        return {"error": str(error), "full": _is_full(error)}
    except OSError as error:
        return {"error": f"{error.strerror}: {error.filename}", "full": error.errno in _FULL}


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _is_full(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and (cause.errno in _FULL or os.strerror(errno.ENOSPC) in str(cause))


def seal(path: Path, end: int, before: Watermarks, *, in_place: bool = False) -> int:
    """Makes the part of a segment, if there is none yet; how many rows it has. `in_place`: nobody else writes behind
    its end, or before its frames."""
    folder = path.parent.parent
    task = task_of(path.name)
    done = find_committed(folder / "parts", task)
    if done is not None:
        return done.rows
    with SegmentView(path) as segment:
        if segment.settings is None:
            raise WriteError(f"{path}: expected a segment of the journal, got something else")
        failpoint("sealer-begun")
        workspace = Workspace(folder / "tmp", task)
        try:
            work = _SealJob(segment, end, dict(before), path if in_place and segment.has_header_gap else None)
            return work.write(folder / "parts", workspace, task)
        except TargetExistsError:
            committed = find_committed(folder / "parts", task)
            if committed is None:
                raise
            return committed.rows  # by an older server that was still at work
        finally:
            workspace.close()


class _SealJob:
    """One segment on its way into one part. `path`: of the segment, if it may become the part."""

    def __init__(self, segment: SegmentView, end: int, marks: Watermarks, path: Path | None) -> None:
        assert segment.settings is not None
        self._segment, self._end, self._path = segment, end, path
        self._whole_bytes = 0
        self._schema = schema_from_json(segment.settings["schema"])
        self._codec = segment.settings["codec"]
        self._layout = FrameLayout(self._schema, segment.settings["chunk_rows"], self._codec)
        self._whole: dict[str, Any] = {}  # lists of frames; of where they are, if they are small and many
        self._short_name: dict[str, array[int]] = {}
        self._runs: list[Run] = []
        self._find(marks)

    def _find(self, marks: Watermarks) -> None:
        """Where the frames are whose rows are in no other segment."""
        at = self._segment.start
        while at < self._end:
            placed = self._segment.frame(at, self._end, check=False)
            producer = placed.meta.producer
            if placed.head.first >= marks.get(producer, 0):
                marks[producer] = placed.head.end
                if not placed.head.flags & FULL_CHUNK:
                    self._short_name.setdefault(producer, array("Q")).append(at)
                else:
                    self._whole_bytes += placed.head.payload_bytes
                    found = self._whole.setdefault(producer, [])
                    found.append(placed if placed.head.payload_bytes > _LARGE_BYTES else at)
            at = placed.at + placed.head.payload_bytes

    def write(self, parts: Path, workspace: Workspace, task: str) -> int:
        file = self._file(workspace)
        try:
            for found in (self._whole, self._short_name):
                for producer, places in found.items():
                    for at in places:
                        self._copy(file, producer, at)
                failpoint("sealer-half")
            record = _Commit(parts, workspace, task, self._runs).run(
                _SegmentFile(file), "hdf5", schema_digest(self._schema)
            )
        finally:
            file.discard()
        failpoint("sealer-done")
        return record.rows

    def _file(self, workspace: Workspace) -> HDF5Writer | InplaceWriter:
        codec = tuple(self._codec) if isinstance(self._codec, list) else self._codec
        path, chunk_rows = workspace.path("data.h5"), self._layout.chunk_rows
        # What is not whole chunks would stay in the file for nothing.
        if self._path is not None and 2 * self._whole_bytes >= self._end - self._segment.start:
            os.link(self._path, path)
            try:
                return InplaceWriter(
                    path, self._schema, chunk_rows=chunk_rows, codec=codec, room_bytes=HEADER_GAP_BYTES, end=self._end
                )
            except NoRoomError:
                os.unlink(path)
        return HDF5Writer(path, self._schema, chunk_rows=chunk_rows, codec=codec)

    def _copy(self, file: HDF5Writer | InplaceWriter, producer: str, at: Placed | int) -> None:
        placed = self._segment.frame(at, self._end, check=False) if isinstance(at, int) else at
        rows, payload, sizes = placed.head.rows, self._segment.payload(placed), placed.meta.sizes
        placed.meta.check(payload)
        if not placed.head.flags & FULL_CHUNK:
            file.extend(self._layout.take(rows, payload, sizes), rows)
        elif isinstance(file, InplaceWriter):
            ends = accumulate(sizes, initial=placed.at)
            file.extend_in_place(list(zip(ends, sizes, placed.meta.crcs, strict=False)))
        else:
            chunks = self._layout.chunks(payload, placed.meta)
            has_others = any(chunk is None for chunk in chunks)
            buffers = self._layout.take(rows, payload, sizes) if has_others else [(None,) * 4] * len(chunks)
            file.extend_by_chunk(buffers, chunks)
        first = placed.head.first
        if self._runs and self._runs[-1][0] == producer and sum(self._runs[-1][1:]) == first:
            self._runs[-1] = (producer, self._runs[-1][1], self._runs[-1][2] + rows)
        else:
            self._runs.append((producer, first, rows))


class _SegmentFile:
    """The file of a part as a commit wants it."""

    def __init__(self, writer: HDF5Writer | InplaceWriter) -> None:
        self.path = writer.path
        self.finalize, self.discard, self.detach = writer.finalize, writer.discard, writer.detach

    def extend(self, columns: Any) -> int:
        raise NotImplementedError


class _Commit(Commit):
    """With whose rows they are in the record."""

    def __init__(self, parts: Path, workspace: Workspace, task: str, runs: list[Run]) -> None:
        super().__init__(parts, workspace, task, None)
        self._runs = runs

    def _record(self, at: tuple[int, str], finished: FinishedFile, kind: str, digest: str) -> PartRecord:
        return replace(super()._record(at, finished, kind, digest), runs=self._runs)


if __name__ == "__main__":
    sys.exit(main())
