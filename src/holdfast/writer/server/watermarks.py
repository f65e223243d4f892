"""How many rows of each producer are in parts: what is left of a segment's frames when it is deleted.

One file for each epoch, `marks-N.json`, and the highest number of all of them holds: an older server that does not know
yet that it is one can so never take a mark back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..._native.checksum import json_crc32c
from ..._util.atomic import sync_folder
from ...formats.part_record import read_record
from ..directory import record_paths
from .segment import Watermarks, advance_watermark

_SEPARATORS = (", ", ": ")  # those of json.dumps by default


def read_watermarks(journal: Path) -> Watermarks | None:
    """None: there are none, or they cannot be trusted, and the parts themselves must be asked."""
    marks: Watermarks = {}
    paths = _paths(journal)
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            if content.pop("crc32c") != json_crc32c(content, _SEPARATORS):
                return None
            for producer, mark in content["marks"].items():
                advance_watermark(marks, producer, mark)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
    return marks if paths else None


def watermarks_of_parts(parts: Path) -> Watermarks:
    marks: Watermarks = {}
    for path in record_paths(parts):
        if path.name.startswith("server-"):
            merge(marks, watermarks_of_runs(read_record(path).runs or []))
    return marks


def watermarks_of_runs(runs: list[tuple[str, int, int]]) -> Watermarks:
    marks: Watermarks = {}
    for producer, first, rows in runs:
        advance_watermark(marks, producer, first + rows)
    return marks


def merge(marks: Watermarks, more: Watermarks) -> None:
    for producer, mark in more.items():
        advance_watermark(marks, producer, mark)


def write_watermarks(journal: Path, epoch: int, marks: Watermarks) -> None:
    """On disk for good when this returns: what it speaks of is deleted next."""
    content: dict[str, Any] = {"marks": dict(sorted(marks.items()))}
    draft, target = journal / f".marks.json.{epoch}", journal / f"marks-{epoch}.json"
    with open(draft, "wb") as file:
        file.write(json.dumps({**content, "crc32c": json_crc32c(content, _SEPARATORS)}).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)
    sync_folder(journal)


def remove_older(journal: Path, epoch: int) -> None:
    """What the marks of this epoch hold as well."""
    for path in _paths(journal):
        if int(path.stem.removeprefix("marks-")) < epoch:
            path.unlink(missing_ok=True)


def _paths(journal: Path) -> list[Path]:
    return sorted(path for path in journal.glob("marks-*.json") if path.stem.removeprefix("marks-").isdecimal())
