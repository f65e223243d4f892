"""Watermarks: how many rows of each producer are in parts. They outlive the segments, which are deleted.

Each epoch has a file, `marks-N.json`, and the highest watermark of all files is valid: so an older server that does not
know yet that another has taken over can never lower one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...._native.checksum import json_crc32c
from ...._util.atomic import sync_folder
from ...formats.part_record import read_record
from ..directory import record_paths
from .segment import Watermarks, advance_watermark

_SEPARATORS = (", ", ": ")  # those of json.dumps by default


def read_watermarks(journal: Path) -> Watermarks | None:
    """Reads all files. None: there are none, or one is corrupt; then the parts' records must be read."""
    watermarks: Watermarks = {}
    paths = _paths(journal)
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            if content.pop("crc32c") != json_crc32c(content, _SEPARATORS):
                return None
            for producer, mark in content["marks"].items():
                advance_watermark(watermarks, producer, mark)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
    return watermarks if paths else None


def watermarks_of_parts(parts: Path) -> Watermarks:
    watermarks: Watermarks = {}
    for path in record_paths(parts):
        if path.name.startswith("server-"):
            advance_all(watermarks, watermarks_of_runs(read_record(path).runs or []))
    return watermarks


def watermarks_of_runs(runs: list[tuple[str, int, int]]) -> Watermarks:
    watermarks: Watermarks = {}
    for producer, first, rows in runs:
        advance_watermark(watermarks, producer, first + rows)
    return watermarks


def advance_all(watermarks: Watermarks, more: Watermarks) -> None:
    for producer, mark in more.items():
        advance_watermark(watermarks, producer, mark)


def write_watermarks(journal: Path, epoch: int, watermarks: Watermarks) -> None:
    """Writes the file durably: the segments that it covers are deleted next."""
    content: dict[str, Any] = {"marks": dict(sorted(watermarks.items()))}
    draft, target = journal / f".marks.json.{epoch}", journal / f"marks-{epoch}.json"
    with open(draft, "wb") as file:
        file.write(json.dumps({**content, "crc32c": json_crc32c(content, _SEPARATORS)}).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)
    sync_folder(journal)


def remove_older(journal: Path, epoch: int) -> None:
    """Removes the files of older epochs, which this epoch's file includes."""
    for path in _paths(journal):
        if int(path.stem.removeprefix("marks-")) < epoch:
            path.unlink(missing_ok=True)


def _paths(journal: Path) -> list[Path]:
    return sorted(path for path in journal.glob("marks-*.json") if path.stem.removeprefix("marks-").isdecimal())
