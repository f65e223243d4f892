"""The sealer process, which makes parts of closed segments. Started by sealer.py.

It loads the HDF5 library, which may crash: then the segment is still there, and another process starts over. Jobs come
as messages on stdin, and answers go to stdout.

Rows are grouped by producer, in order: first frames that fill a chunk, whose bytes are copied, then the rest, which is
encoded again. The part's record says which rows are where. A segment with a header gap is not copied but becomes the
part: its file is linked, and gets the metadata that HDF5 needs (formats/hdf5/inplace_writer.py).
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from array import array
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...._util.failpoints import failpoint
from ...._util.fds import take_stdout
from ...._util.framing import MessageReceiver, send_message
from ...._util.process import die_with_forker
from ....errors import HoldfastError, TargetExistsError, WriteError
from ....schema import schema_digest, schema_from_json
from ...formats.hdf5.inplace_writer import InplaceWriter, NoRoomError
from ...formats.hdf5.writer import FinishedFile, HDF5Writer
from ...formats.part_record import PartRecord, Run
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
    jobs = MessageReceiver(0)
    while (job := jobs.receive()) is not None:
        send_message(out, _answer(job.head))
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
    """Makes the part of a segment, unless it exists. Returns its rows. `in_place`: nobody else writes after its end or
    before its frames."""
    folder = path.parent.parent
    task = task_of(path.name)
    done = find_committed(folder / "parts", task)
    if done is not None:
        return done.rows
    with SegmentView(path) as segment:
        if segment.settings is None:
            raise WriteError(f"{path}: expected a segment of the journal, got another file")
        failpoint("sealer-begun")
        workspace = Workspace(folder / "tmp", task)
        try:
            work = _SealJob(segment, end, dict(before), path if in_place and segment.has_header_gap else None)
            return work.write(folder / "parts", workspace, task)
        except TargetExistsError:
            committed = find_committed(folder / "parts", task)
            if committed is None:
                raise
            return committed.rows  # by an older server that was still running
        finally:
            workspace.close()


class _SealJob:
    """One segment that becomes one part. `path`: of the segment, if it may be sealed in place."""

    def __init__(self, segment: SegmentView, end: int, watermarks: Watermarks, path: Path | None) -> None:
        assert segment.settings is not None
        self._segment, self._end, self._path = segment, end, path
        self._full_chunk_bytes = 0
        self._schema = schema_from_json(segment.settings["schema"])
        self._codec = segment.settings["codec"]
        self._layout = FrameLayout(self._schema, segment.settings["chunk_rows"], self._codec)
        self._full_chunks: dict[
            str, Any
        ] = {}  # frames that fill a chunk; only their offsets if they are small and many
        self._partial_chunks: dict[str, array[int]] = {}
        self._runs: list[Run] = []
        self._find(watermarks)

    def _find(self, watermarks: Watermarks) -> None:
        """Finds the frames whose rows are in no other segment."""
        at = self._segment.start
        while at < self._end:
            frame = self._segment.frame(at, self._end, check=False)
            producer = frame.meta.producer
            if frame.head.first >= watermarks.get(producer, 0):
                watermarks[producer] = frame.head.end
                if not frame.head.flags & FULL_CHUNK:
                    self._partial_chunks.setdefault(producer, array("Q")).append(at)
                else:
                    self._full_chunk_bytes += frame.head.payload_bytes
                    found = self._full_chunks.setdefault(producer, [])
                    found.append(frame if frame.head.payload_bytes > _LARGE_BYTES else at)
            at = frame.at + frame.head.payload_bytes

    def write(self, parts: Path, workspace: Workspace, task: str) -> int:
        file = self._file(workspace)
        try:
            for found in (self._full_chunks, self._partial_chunks):
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
        # In place, the bytes of all other frames stay in the file unused.
        if self._path is not None and 2 * self._full_chunk_bytes >= self._end - self._segment.start:
            os.link(self._path, path)
            try:
                return InplaceWriter(
                    path, self._schema, chunk_rows=chunk_rows, codec=codec, room_bytes=HEADER_GAP_BYTES, end=self._end
                )
            except NoRoomError:
                os.unlink(path)
        return HDF5Writer(path, self._schema, chunk_rows=chunk_rows, codec=codec)

    def _copy(self, file: HDF5Writer | InplaceWriter, producer: str, at: Placed | int) -> None:
        frame = self._segment.frame(at, self._end, check=False) if isinstance(at, int) else at
        rows, payload, sizes = frame.head.rows, self._segment.payload(frame), frame.meta.sizes
        frame.meta.check(payload)
        if not frame.head.flags & FULL_CHUNK:
            file.extend(self._layout.take(rows, payload, sizes), rows)
        elif isinstance(file, InplaceWriter):
            ends = accumulate(sizes, initial=frame.at)
            file.extend_in_place(list(zip(ends, sizes, frame.meta.crcs, strict=False)))
        else:
            chunks = self._layout.chunks(payload, frame.meta)
            has_others = any(chunk is None for chunk in chunks)
            buffers = self._layout.take(rows, payload, sizes) if has_others else [(None,) * 4] * len(chunks)
            file.extend_by_chunk(buffers, chunks)
        first = frame.head.first
        if self._runs and self._runs[-1][0] == producer and sum(self._runs[-1][1:]) == first:
            self._runs[-1] = (producer, self._runs[-1][1], self._runs[-1][2] + rows)
        else:
            self._runs.append((producer, first, rows))


class _SegmentFile:
    """A PartFile whose rows are complete."""

    def __init__(self, writer: HDF5Writer | InplaceWriter) -> None:
        self.path = writer.path
        self.finalize, self.discard, self.detach = writer.finalize, writer.discard, writer.detach

    def extend(self, columns: Any) -> int:
        raise NotImplementedError


class _Commit(Commit):
    """A commit whose record says which rows of which producers the part holds."""

    def __init__(self, parts: Path, workspace: Workspace, task: str, runs: list[Run]) -> None:
        super().__init__(parts, workspace, task, None)
        self._runs = runs

    def _record(self, at: tuple[int, str], finished: FinishedFile, kind: str, digest: str) -> PartRecord:
        return replace(super()._record(at, finished, kind, digest), runs=self._runs)


if __name__ == "__main__":
    sys.exit(main())
