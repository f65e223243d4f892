"""Everything that can be got out of a damaged file, into a new one. The damaged file is never touched."""

from __future__ import annotations

import os
from typing import NamedTuple

from ...errors import WriteError, cannot_open
from ..columns import Ints
from .manifest import renew_in_manifest
from .problems import Problem
from .runs import Progress, Runs
from .verify import explain
from .writer import PackWith, TFRecordWriter


class Salvaged(NamedTuple):
    records_kept: int
    records_lost_at_least: int
    bytes_lost: int
    records_doubtful: int  # that might be data of a damaged record: left out, unless they were to be kept
    problems: list[Problem]

    def as_dict(self) -> dict[str, object]:
        problems = [{"offset": p.offset, "record": p.record, "reason": p.reason} for p in self.problems]
        return {
            "records_kept": self.records_kept,
            "records_lost_at_least": self.records_lost_at_least,
            "bytes_lost": self.bytes_lost,
            "records_doubtful": self.records_doubtful,
            "problems": problems,
        }


def salvage_file(
    damaged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    keep_empty: bool = True,
    keep_doubtful: bool = False,
    progress: Progress | None = None,
) -> Salvaged:
    """Writes every intact record of `damaged` to `out`, in order. Nothing is invented.

    keep_empty      False: where nothing at all could be kept of a damaged file, `out` is not written
    keep_doubtful   True: also what might be data of a damaged record; right for files whose records hold no TFRecords
    """
    _refuse_same(damaged, out)
    writer = TFRecordWriter(out, compression=compression, overwrite=overwrite)
    try:

        def put(frames: memoryview, starts: Ints) -> None:
            writer.write_frames(frames, len(starts))

        with Runs(damaged, on_corrupt="salvage", keep_doubtful=keep_doubtful, progress=progress) as runs:
            while runs.next(put) is not None:
                pass
            explain(runs.stream)  # says "not a TFRecord" of what is none
            problems = runs.problems
        if writer.records or keep_empty or not problems:
            renew_in_manifest(writer.close())
    finally:
        writer.discard()
    lost = sum(problem.records_lost for problem in problems)
    doubtful = sum(problem.records_doubtful for problem in problems)
    return Salvaged(writer.records, lost, sum(problem.bytes_lost for problem in problems), doubtful, problems)


def _refuse_same(damaged: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    try:
        same = os.path.exists(out) and os.path.samefile(damaged, out)
    except OSError as error:
        raise cannot_open(os.fspath(damaged), error) from error
    if same:
        raise WriteError(f"{os.fspath(out)}: salvage never writes over the damaged file; name another one")
