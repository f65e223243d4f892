"""Verifies a tar: checks every header and that every member is there. The members' data have no checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ....errors import DataError, DecodeError, InputError
from ..base import Problem, VerifiedFile
from .shard import TarShard

BLIND = "tar has no checksums of what its members hold: flips in there cannot be seen"


@dataclass(frozen=True, slots=True)
class TarReport(VerifiedFile):
    samples: int = 0

    @property
    def content(self) -> tuple[int, str]:
        return self.samples, "sample"

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "tar",
            "samples": self.samples,
            "bytes": self.bytes,
            "problems": [problem.as_dict("offset", "sample", "reason") for problem in self.problems],
            "notes": self.notes,
        }


def verify_tar(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> TarReport:
    """Verifies a tar. Problems with the file are not raised, but part of the report."""
    name = os.fsdecode(path)
    try:
        with TarShard(name, cache=False) as shard:
            size = os.path.getsize(name)
            samples, incomplete = len(shard), shard.first_incomplete() if shard.marked else None
            notes = [BLIND] if shard.seekable else []  # compressed files have checksums
    except DataError as error:
        return TarReport(
            name, problems=[Problem(error.offset, error.record, error.reason)], hint=error.hint, error=error
        )
    except (InputError, OSError) as error:
        reason = str(error) if isinstance(error, InputError) else f"cannot check: {error.strerror}"
        return TarReport(name, problems=[Problem(None, None, reason.removeprefix(f"{name}: "))], readable=False)
    if progress is not None:
        progress(size)
    if incomplete is None:
        return TarReport(name, size, [], notes, unchecked=tuple(notes), samples=samples)
    lacking = DecodeError(name, incomplete, None, "the sample lacks a member of the tar's own schema")
    problems = [Problem(None, incomplete, lacking.reason)]
    return TarReport(name, size, problems, notes, unchecked=tuple(notes), error=lacking, samples=samples)
