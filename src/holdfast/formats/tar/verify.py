"""Verifies a tar: checks every header and that every member is there. The members' data have no checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from ...errors import DataError, InputError
from .shard import TarShard

BLIND = "tar has no checksums of what its members hold: flips in there cannot be seen"


class Wrong(NamedTuple):
    """One problem. `sample` is the number of the sample from 0; None: it concerns the file."""

    offset: int | None
    sample: int | None
    reason: str

    def as_dict(self) -> dict[str, object]:
        return self._asdict()


class TarReport(NamedTuple):
    path: str
    ok: bool
    samples: int
    bytes: int
    problems: list[Wrong]
    notes: list[str]
    hint: str = ""
    readable: bool = True  # False: it could not be read, so nothing is known of it

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "tar",
            "samples": self.samples,
            "bytes": self.bytes,
            "problems": [wrong.as_dict() for wrong in self.problems],
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
        return TarReport(name, False, 0, 0, [Wrong(error.offset, error.record, error.reason)], [], error.hint)
    except (InputError, OSError) as error:
        reason = str(error) if isinstance(error, InputError) else f"cannot check: {error.strerror}"
        return TarReport(name, False, 0, 0, [Wrong(None, None, reason.removeprefix(f"{name}: "))], [], readable=False)
    if progress is not None:
        progress(size)
    problems = []
    if incomplete is not None:
        problems.append(Wrong(None, incomplete, "the sample lacks a member of the tar's own schema"))
    return TarReport(name, not problems, samples, size, problems, notes)
