"""Everything that can be got out of a damaged file, into a new one. The damaged file is never touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from ...errors import WriteError
from .problems import Problem
from .reader import TFRecordReader
from .writer import PackWith, TFRecordWriter


class Salvaged(NamedTuple):
    records_kept: int
    records_lost_at_least: int
    bytes_lost: int
    problems: list[Problem]

    def as_dict(self) -> dict[str, object]:
        problems = [{"offset": p.offset, "record": p.record, "reason": p.reason} for p in self.problems]
        return {
            "records_kept": self.records_kept,
            "records_lost_at_least": self.records_lost_at_least,
            "bytes_lost": self.bytes_lost,
            "problems": problems,
        }


def salvage_file(
    damaged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Salvaged:
    """Writes every intact record of `damaged` to `out`, in order. Nothing is invented."""
    if os.path.exists(out) and os.path.samefile(damaged, out):
        raise WriteError(f"{os.fspath(out)}: salvage never writes over the damaged file; name another one")
    with TFRecordReader(damaged, on_corrupt="salvage") as reader:
        with TFRecordWriter(out, compression=compression, overwrite=overwrite) as writer:
            for record in reader.records():
                writer.write(record)
                if progress:
                    progress(len(record))
        problems = reader.losses
    lost = sum(problem.records_lost for problem in problems)
    return Salvaged(writer.records, lost, sum(problem.bytes_lost for problem in problems), problems)
