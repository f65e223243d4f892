"""Reads and writes `holdfast.manifest.json`: record counts and checksums of the files in a folder.

A TFRecord file that is cut between two records, emptied or replaced by another shard looks intact to every reader. Only
a count stored elsewhere reveals it. The manifest is written last, so a file that it does not list is unfinished.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...._util.atomic import FileStamp, PartialFile
from ....errors import InputError, WriterBusyError, cannot_open
from ..base import FileEntry

MANIFEST_NAME = "holdfast.manifest.json"
_VERSION = 1
_TIMEOUT_S = 30.0


class Manifest(NamedTuple):
    path: Path
    entries: dict[str, FileEntry]  # by file name


def write_manifest(folder: str | os.PathLike[str], entries: Iterable[FileEntry]) -> Path:
    """Writes, or adds to, the folder's manifest. The files must be finished."""
    path = Path(folder) / MANIFEST_NAME
    partial = _wait_for(path)  # holds the lock from here on
    try:
        known = read_manifest(path).entries if path.exists() else {}
        known.update({os.path.basename(entry.path): entry for entry in entries})
        files = [entry._replace(path=name).as_dict() for name, entry in sorted(known.items())]
        partial.write(json.dumps({"holdfast_manifest": _VERSION, "files": files}, indent=1).encode() + b"\n")
        partial.commit()
    finally:
        partial.discard()
    return path


def _wait_for(path: Path) -> PartialFile:
    """Waits for other writers, which need milliseconds."""
    give_up = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return PartialFile(path, overwrite=True)
        except WriterBusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    path = Path(path)
    try:
        content = json.loads(path.read_bytes())
        if content["holdfast_manifest"] != _VERSION:
            raise ValueError(f"version {content['holdfast_manifest']}")
        entries = {
            os.path.basename(item["path"]): FileEntry(
                item["path"], int(item["records"]), int(item["bytes"]), int(item["crc32c"], 16)
            )
            for item in content["files"]
        }
    except OSError as error:
        raise cannot_open(str(path), error) from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: not a holdfast manifest: {error!r}") from None
    return Manifest(path, entries)


def find_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """Returns the manifest beside a file, or None. Raises an InputError if there is one that cannot be read."""
    beside = Path(path).parent / MANIFEST_NAME
    if not os.path.lexists(beside):
        return None
    return _read_once(beside, FileStamp.of(beside))


@functools.lru_cache(maxsize=4)  # it may list 10,000 files, and is asked for each of them
def _read_once(path: Path, stamp: FileStamp) -> Manifest:
    return read_manifest(path)


def renew_in_manifest(entry: FileEntry) -> None:
    """Updates a replaced file's count and checksum if the manifest beside it lists the file."""
    try:
        manifest = find_manifest(entry.path)
    except InputError:
        return  # verify reports it; the file itself is fine
    if manifest is not None and os.path.basename(entry.path) in manifest.entries:
        write_manifest(manifest.path.parent, [entry])
