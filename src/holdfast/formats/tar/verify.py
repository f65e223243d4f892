"""Is a tar whole? Every header is checked and every member reached; what members hold has no checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from ...errors import DataError, InputError
from .shard import TarShard

BLIND = "tar has no checksums of what its members hold: flips in there cannot be seen"


class Wrong(NamedTuple):
    """One thing that is wrong. `sample` is its number from 0; None: the file as a whole."""

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
    readable: bool = True  # False: it could not be looked at, so nothing is known of it

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
    """Never raises for what is wrong with the file: that is in the report."""
    name = os.fsdecode(path)
    try:
        with TarShard(name, cache=False) as shard:
            size = os.path.getsize(name)
            samples, odd = len(shard), shard.first_odd() if shard.marked else None
            notes = [BLIND] if shard.seekable else []  # what packs a tar has checksums
    except DataError as error:
        return TarReport(name, False, 0, 0, [Wrong(error.offset, error.record, error.reason)], [], error.hint)
    except (InputError, OSError) as error:
        reason = str(error) if isinstance(error, InputError) else f"cannot check: {error.strerror}"
        return TarReport(name, False, 0, 0, [Wrong(None, None, reason.removeprefix(f"{name}: "))], [], readable=False)
    if progress is not None:
        progress(size)
    problems = [] if odd is None else [Wrong(None, odd, "the sample lacks a member that the tar's own schema names")]
    return TarReport(name, not problems, samples, size, problems, notes)
