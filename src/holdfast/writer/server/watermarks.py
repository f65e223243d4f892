"""How many rows of each producer are in parts: what is left of a segment's frames when it is deleted.

One file for each epoch, `marks-N.json`, and the highest number of all of them holds: an older server that does not know
yet that it is one can so never take a mark back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..._native.codec import crc32c
from ..._util.atomic import sync_folder
from ...formats.part_record import read_record
from ..directory import record_paths
from .segment import Marks, raise_mark


def read_marks(journal: Path) -> Marks | None:
    """None: there are none, or they cannot be trusted, and the parts themselves must be asked."""
    marks: Marks = {}
    paths = _paths(journal)
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            if content.pop("crc32c") != _crc(content):
                return None
            for producer, mark in content["marks"].items():
                raise_mark(marks, producer, mark)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
    return marks if paths else None


def marks_of_parts(parts: Path) -> Marks:
    marks: Marks = {}
    for path in record_paths(parts):
        if path.name.startswith("server-"):
            merge(marks, marks_of_runs(read_record(path).runs or []))
    return marks


def marks_of_runs(runs: list[tuple[str, int, int]]) -> Marks:
    marks: Marks = {}
    for producer, first, rows in runs:
        raise_mark(marks, producer, first + rows)
    return marks


def merge(marks: Marks, more: Marks) -> None:
    for producer, mark in more.items():
        raise_mark(marks, producer, mark)


def write_marks(journal: Path, epoch: int, marks: Marks) -> None:
    """On disk for good when this returns: what it speaks of is deleted next."""
    content: dict[str, Any] = {"marks": dict(sorted(marks.items()))}
    draft, target = journal / f".marks.json.{epoch}", journal / f"marks-{epoch}.json"
    with open(draft, "wb") as file:
        file.write(json.dumps({**content, "crc32c": _crc(content)}).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)
    sync_folder(journal)


def drop_older(journal: Path, epoch: int) -> None:
    """What the marks of this epoch hold as well."""
    for path in _paths(journal):
        if int(path.stem.removeprefix("marks-")) < epoch:
            path.unlink(missing_ok=True)


def _paths(journal: Path) -> list[Path]:
    return sorted(path for path in journal.glob("marks-*.json") if path.stem.removeprefix("marks-").isdecimal())


def _crc(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())
