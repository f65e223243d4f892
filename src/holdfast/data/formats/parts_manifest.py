"""The manifests of a dataset directory: `manifest/NNNNNN.json` lists the parts that went into a consolidated file.

A manifest is created just before its file gets its name, and never changed. So a manifest is valid only if the file
exists with that size; the valid one with the highest number is current.
"""

from __future__ import annotations

import builtins
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ..._native.checksum import crc32c_of_file, json_crc32c
from ...errors import CorruptError, InputError, TargetExistsError

_VERSION = 1
_NAME = re.compile(r"(\d{6,})\.json")


class ManifestPart(NamedTuple):
    task: str
    attempt: int
    rows: int
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsManifest:
    """Describes a consolidated file. `output` is its path; `delete_parts` tells whether its parts were deleted."""

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
        return json.dumps({**content, "manifest_crc32c": json_crc32c(content)}, indent=1).encode() + b"\n"

    @property
    def holds(self) -> bool:
        """Whether the file exists with that size. Checking its checksum would need to read all of it."""
        try:
            return os.path.getsize(self.output) == self.bytes
        except OSError:
            return False

    def describes(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file has the size and the checksum of the consolidated one, wherever it is."""
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                return size == self.bytes and crc32c_of_file(file.fileno())[0] == self.crc32c
        except OSError:
            return False


def read_manifests(folder: Path) -> list[PartsManifest]:
    """Returns all valid manifests, the lowest number first."""
    found = [
        _read(folder / "manifest" / f"{number:06d}.json") for number in sorted(manifest_numbers(folder / "manifest"))
    ]
    return [manifest for manifest in found if manifest is not None]


def latest_manifest(folder: Path) -> PartsManifest | None:
    """Returns the manifest with the highest number whose file exists."""
    return next((manifest for manifest in reversed(read_manifests(folder)) if manifest.holds), None)


def deleted_parts(folder: Path) -> dict[str, PartsManifest]:
    """Returns the tasks whose parts were deleted after consolidation, with the manifest that says so."""
    return {part.task: one for one in read_manifests(folder) if one.delete_parts and one.holds for part in one.parts}


def manifest_numbers(there: Path) -> list[int]:
    try:
        return [int(found[1]) for name in os.listdir(there) if (found := _NAME.fullmatch(name))]
    except OSError:
        return []


def _read(path: Path) -> PartsManifest | None:
    try:
        content = json.loads(path.read_bytes())
        crc = content.pop("manifest_crc32c")
        if content["holdfast_manifest"] != _VERSION or crc != json_crc32c(content):
            return None
        del content["holdfast_manifest"]
        return PartsManifest(**content | {"parts": [ManifestPart(**part) for part in content["parts"]]})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


# ---- parts that are gone


def check_parts(folder: str, names: Iterable[str]) -> None:
    """Raises a CorruptError if committed parts are gone, unless consolidate() has deleted all that it merged, and an
    InputError if it was stopped while it did.

    names: of the files in `parts`
    """
    marked, recorded, data = _tasks(names)
    visible = recorded & data
    gone = (marked | recorded) - visible
    for one in reversed(read_manifests(Path(folder))) if gone else ():
        tasks = {part.task for part in one.parts} if one.delete_parts else set()
        if tasks & gone and tasks & visible:
            call = f"consolidate({one.output!r}, order={one.order!r}, delete_parts=True)"
            text = f"{call} has deleted {len(tasks & gone):,} of {len(tasks):,} parts: it is running, or was stopped"
            rest = "That file has all of their rows: read it, or repeat the call, which deletes the rest"
            raise InputError(f"{folder}: {text}. {rest}")
        gone -= tasks
    if gone:
        # A listing is not atomic: a part that was committed meanwhile may show its marker, but not its data.
        marked, recorded, data = _tasks(os.listdir(os.path.join(folder, "parts")))
        if lost := ((marked | recorded) & gone) - data:
            raise _lost(folder, lost, f"`holdfast verify {folder}` lists them")


def check_remote_parts(url: str, names: Iterable[str], list_again: Callable[[], Iterable[str]]) -> None:
    """Raises a CorruptError if a dataset directory in a store has records without data."""
    _, recorded, data = _tasks(names)
    if recorded - data:
        _, again, data = _tasks(list_again())
        if lost := (recorded & again) - data:
            raise _lost(url, lost, "verify() of hold.write(URL) lists them")


def _lost(where: str, tasks: set[str], hint: str) -> CorruptError:
    text = f"expected all committed parts, {len(tasks):,} are gone, such as that of task {min(tasks)!r}"
    return CorruptError(where, None, None, text, hint)


def _tasks(names: Iterable[str]) -> tuple[set[str], set[str], set[str]]:
    """Returns the tasks with a commit marker, those with a record, and those with data."""
    marked, recorded, data = set[str](), set[str](), set[str]()
    for name in names:
        task, _, number = name.rpartition(".")[0].rpartition(".")
        if not name.endswith(".json"):
            data.add(task)
        elif name.startswith("."):
            marked.add(name[1:-5])
        elif number.isdecimal():
            recorded.add(task)
    return marked, recorded, data


def no_parts(folder: str) -> InputError:
    """Returns the error for a dataset directory without parts, which names the file that they were merged into."""
    deleted = [one for one in read_manifests(Path(folder)) if one.delete_parts]
    if not deleted:
        return InputError(f"{folder}: expected committed parts, this dataset directory has none yet")
    last = deleted[-1]
    text = f"they were deleted after consolidate() had made {last.output}, with {last.rows:,} rows: read that file"
    return InputError(f"{folder}: expected committed parts, there are none: {text}")


# ---- files that hold the only copy of rows


def check_not_only_copy(inputs: Iterable[str | os.PathLike[str]], targets: Iterable[str | os.PathLike[str]]) -> None:
    """Refuses to replace a file that may hold the only copy of parts that were deleted after consolidation.

    Inputs in a dataset directory lead to its manifests. A file is known by its content, since it and the directory may
    have moved. A file that no manifest describes may be a consolidated one that was changed.
    """
    existing = [Path(target) for target in targets if os.path.exists(target)]
    for parts in {os.path.realpath(os.path.dirname(path)) for path in inputs} if existing else ():
        if os.path.basename(parts) == "parts":
            manifests = read_manifests(Path(parts).parent)
            for target in existing:
                _check_not_only_copy(Path(parts), manifests, target)


def _check_not_only_copy(parts: Path, manifests: list[PartsManifest], target: Path) -> None:
    there = {name.rpartition(".")[0] for name in os.listdir(parts) if not name.endswith(".json")}
    gone = {
        (part.task, part.attempt): manifest.output
        for manifest in manifests
        if manifest.delete_parts
        for part in manifest.parts
        if f"{part.task}.{part.attempt}" not in there
    }
    if not gone:
        return
    known = [one for one in manifests if one.describes(target)]
    elsewhere = [one for one in manifests if not _is_same(one.output, target) and one.describes(one.output)]
    safe = {(part.task, part.attempt) for one in elsewhere for part in one.parts}
    lost = [
        key
        for one in known or manifests
        for part in one.parts
        if (key := (part.task, part.attempt)) in gone and key not in safe
    ]
    if lost:
        has = "has" if known else "may have"
        text = f"it {has} the only copy of {len(set(lost)):,} deleted parts, such as {lost[0][0]!r}"
        raise TargetExistsError(
            f"{target} is not replaced: {text}, consolidated into {gone[lost[0]]}; name another file"
        )


def _is_same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
