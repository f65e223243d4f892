"""What a consolidation made, and of which parts: `manifest/NNNNNN.json`, each made once and never changed.

A manifest is written when its file is proven, just before that gets its name. So it holds only if the file is there
as it says; of those that do the highest number wins.
"""

from __future__ import annotations

import builtins
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .._base.atomic import sync_folder
from .._native import codec
from ..errors import WriteError
from .workspace import Workspace

_VERSION = 1
_NAME = re.compile(r"(\d{6,})\.json")


class ManifestPart(NamedTuple):
    task: str
    attempt: int
    rows: int
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`output`: the path of the file; `delete_parts`: they were to be taken away once it had its name."""

    number: int
    output: str
    format: str
    order: str
    rows: int
    bytes: int
    crc32c: int
    delete_parts: bool
    parts: list[ManifestPart]

    def to_json(self) -> builtins.bytes:
        content = {"holdfast_manifest": _VERSION, **asdict(self), "parts": [part._asdict() for part in self.parts]}
        return json.dumps({**content, "manifest_crc32c": _crc(content)}, indent=1).encode() + b"\n"

    @property
    def holds(self) -> bool:
        """Whether the file is there, of that size. Its checksum is for who wants to read all of it."""
        try:
            return os.path.getsize(self.output) == self.bytes
        except OSError:
            return False


def _crc(content: dict[str, Any]) -> int:
    return codec.crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def write_manifest(folder: Path, facts: dict[str, Any]) -> Manifest:
    """Under the first number that is free; others may write at the same time."""
    there = folder / "manifest"
    workspace = Workspace(folder / "tmp", "manifest")
    try:
        while True:
            manifest = Manifest(number=max(_numbers(there), default=0) + 1, **facts)
            draft = workspace.path(f"{manifest.number:06d}.json")
            with open(draft, "xb") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, there / draft.name)
            except FileExistsError:
                os.unlink(draft)
                continue
            sync_folder(there)
            return manifest
    except OSError as error:
        raise WriteError(f"cannot write into {there}: {error.strerror}") from error
    finally:
        workspace.close()


def read_manifests(folder: Path) -> list[Manifest]:
    """All that can be read, the lowest number first."""
    found = [_read(folder / "manifest" / f"{number:06d}.json") for number in sorted(_numbers(folder / "manifest"))]
    return [manifest for manifest in found if manifest is not None]


def latest_manifest(folder: Path) -> Manifest | None:
    """The highest that holds."""
    return next((manifest for manifest in reversed(read_manifests(folder)) if manifest.holds), None)


def deleted_parts(folder: Path) -> dict[str, Manifest]:
    """Tasks whose parts were taken away after they went into a file, and the manifest that says so."""
    return {part.task: one for one in read_manifests(folder) if one.delete_parts and one.holds for part in one.parts}


def _numbers(there: Path) -> list[int]:
    try:
        return [int(found[1]) for name in os.listdir(there) if (found := _NAME.fullmatch(name))]
    except OSError:
        return []


def _read(path: Path) -> Manifest | None:
    try:
        content = json.loads(path.read_bytes())
        crc = content.pop("manifest_crc32c")
        if content["holdfast_manifest"] != _VERSION or crc != _crc(content):
            return None
        del content["holdfast_manifest"]
        return Manifest(**content | {"parts": [ManifestPart(**part) for part in content["parts"]]})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
