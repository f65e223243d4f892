"""What a folder of files should hold: counts and checksums kept apart from the files.

A TFRecord file cut on a record boundary, emptied or replaced by another shard looks whole to every reader. Only a count
kept elsewhere shows it. `holdfast.manifest.json` is that count: written last, so a file it does not list is unfinished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..._base.atomic import write_atomically
from ...errors import InputError

MANIFEST_NAME = "holdfast.manifest.json"
_VERSION = 1


class FileEntry(NamedTuple):
    """One finished file: what its writer counted."""

    path: str
    records: int
    bytes: int
    crc32c: int  # of the file's bytes as they are on disk

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "records": self.records, "bytes": self.bytes, "crc32c": f"{self.crc32c:08x}"}


class Manifest(NamedTuple):
    path: Path
    entries: dict[str, FileEntry]  # by file name


def write_manifest(folder: str | os.PathLike[str], entries: Iterable[FileEntry]) -> Path:
    """Writes, or adds to, the folder's manifest. The files must be finished."""
    path = Path(folder) / MANIFEST_NAME
    known = read_manifest(path).entries if path.exists() else {}
    known.update({os.path.basename(entry.path): entry for entry in entries})
    files = [entry._replace(path=name).as_dict() for name, entry in sorted(known.items())]
    text = json.dumps({"holdfast_manifest": _VERSION, "files": files}, indent=1)
    write_atomically(path, text.encode() + b"\n")
    return path


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
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a holdfast manifest: {error!r}") from None
    return Manifest(path, entries)


def find_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """The manifest beside a file, if there is a readable one."""
    try:
        return read_manifest(Path(path).parent / MANIFEST_NAME)
    except InputError:
        return None


def renew_in_manifest(entry: FileEntry) -> None:
    """The new count and checksum of a file that was replaced, where the manifest beside it lists it."""
    manifest = find_manifest(entry.path)
    if manifest is not None and os.path.basename(entry.path) in manifest.entries:
        write_manifest(manifest.path.parent, [entry])
