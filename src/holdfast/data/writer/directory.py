"""A dataset directory: its file names, its schema, what is committed in it, and cleaning up after dead attempts.

    schema.json                 the schema; later versions are added as further files
    parts/TASK.ATTEMPT.h5       the data of a part
    parts/.TASK.json            the commit marker of a task ("claim"): only one attempt can create it
    parts/TASK.ATTEMPT.json     the record that readers look for, a link to the marker
    tmp/                        workspaces of attempts
    manifest/, quarantine/      of consolidation and of the central writer

Any number of processes may create or open it at the same time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from ..._util.atomic import make_folder, sync_folder
from ..._util.rank import default_task
from ...errors import DataError, HoldfastError, InputError, MissingFileError, SchemaError, WriteError, cannot_open
from ...schema import Column, first_difference, schema_digest, schema_file_name, schema_from_json, schema_to_json
from ..formats.part_record import PartRecord, read_record
from ..formats.registry import FORMATS
from .workspace import Workspace, dead_workspace, remove_dead_workspace, workspaces

Format = Literal["hdf5", "tfrecord"]

SCHEMA_NAME = schema_file_name()
FOLDERS = ("parts", "tmp", "manifest", "quarantine")
_TASK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@,-]{0,179}")
_PART = re.compile(rf"({_TASK.pattern})\.(\d+)(\.[a-z0-9]+)")
_VERSION = 1
_OURS = {*FOLDERS, "journal", "spool", SCHEMA_NAME}
_CLAIM = re.compile(rf"\.({_TASK.pattern})\.json")


def check_task(task: Any) -> str:
    """Returns a task's name, which becomes part of file names. None: named after this process's rank."""
    task = default_task() if task is None else task
    if task is None:
        text = 'expected task=, a name for this piece of work that a retry uses again, such as "rank3-epoch0"'
        raise ValueError(f"{text}: no launcher tells the rank of this process")
    name = str(task) if isinstance(task, int) and not isinstance(task, bool) else task
    if not isinstance(name, str) or not _TASK.fullmatch(name):
        wanted = "a task's name of up to 180 of A-Z a-z 0-9 _ . = + @ , - that begins with a letter, a digit or _"
        raise ValueError(f"expected {wanted}, got {task!r}")
    return name


def check_attempt(attempt: Any) -> int | None:
    if attempt is not None and (isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 0):
        raise ValueError(f"expected an attempt number of 0 or more, got {attempt!r}")
    return attempt


def part_suffixes() -> dict[str, str]:
    """Returns the formats that parts can have, with the suffixes of their files."""
    return {one.name: one.written[0] for one in FORMATS.values() if one.part is not None}


def check_format(kind: Any) -> Format:
    if kind not in part_suffixes():
        known = " or ".join(f'"{name}"' for name in part_suffixes())
        raise ValueError(f"expected format to be {known}, got {kind!r}")
    found: Format = kind
    return found


def data_name(task: str, attempt: int, kind: str) -> str:
    return f"{task}.{attempt}{part_suffixes()[kind]}"


def record_name(task: str, attempt: int) -> str:
    return f"{task}.{attempt}.json"


def claim_name(task: str) -> str:
    """Returns the name of a task's commit marker: the attempt that creates it has committed. It is hidden, so that no
    reader takes it for a sample."""
    return f".{task}.json"


def parse_name(name: str) -> tuple[str, int, str] | None:
    """`rank3.0.h5` -> ("rank3", 0, ".h5"). None: not the name of a part."""
    found = _PART.fullmatch(name)
    if found is None or found[3] not in (".json", *part_suffixes().values()):
        return None
    return found[1], int(found[2]), found[3]


def parse_claim(name: str) -> str | None:
    found = _CLAIM.fullmatch(name)
    return found[1] if found else None


# ---- lists of names in `parts`


def records_in(names: Iterable[str]) -> list[str]:
    """Returns the names of the committed parts' records, sorted."""
    return sorted(name for name in names if (found := parse_name(name)) and found[2] == ".json")


def claims_in(names: Iterable[str]) -> list[str]:
    """Returns the committed tasks, visible or not."""
    return sorted(task for name in names if (task := parse_claim(name)) is not None)


def unrecorded_in(names: Iterable[str]) -> list[str]:
    """Returns data files without a record: of an attempt that is committing, or that died while it did."""
    there = set(names)
    found = [(name, parse_name(name)) for name in sorted(there)]
    return [name for name, one in found if one and one[2] != ".json" and record_name(one[0], one[1]) not in there]


# ---- the directory and its schema


def open_folder(folder: Path, schema: dict[str, Column] | None) -> dict[str, Column]:
    """Creates a dataset directory, or opens one and checks its schema. Returns the schema it has."""
    try:
        if not _is_there(folder / SCHEMA_NAME):
            _make_directory(folder, schema)
        for name in FOLDERS:
            make_folder(folder / name)
    except MissingFileError:
        raise
    except NotADirectoryError:
        raise WriteError(f"{folder}: expected a directory, but this or a parent is a file") from None
    except OSError as error:
        raise WriteError(f"cannot create or open {folder}: {error.strerror}: {error.filename}") from error
    there = read_schema(folder)
    check_same_schema(str(folder), schema, there)
    return there


def _is_there(path: Path) -> bool:
    """Raises an OSError where it is unknown: no permission is not the same as no file."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_same_schema(shown: str, schema: dict[str, Column] | None, there: dict[str, Column]) -> None:
    difference = None if schema is None else first_difference(schema, there)
    if difference is not None:
        name, ours, theirs = difference
        raise SchemaError(f"{shown}: schema mismatch in column {name!r}: the dataset has {theirs}, got {ours}")


def _make_directory(folder: Path, schema: dict[str, Column] | None) -> None:
    if schema is None:
        text = f"{folder}: expected a dataset directory made by hold.write, there is none; pass a schema to create it"
        raise MissingFileError(text, str(folder))
    if os.path.lexists(folder) and not folder.is_dir():
        raise WriteError(f"{folder}: expected a directory, this is a file")
    make_folder(folder)
    check_only_ours(str(folder), os.listdir(folder))
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    sync_folder(folder)  # before others can open it, and commit into it
    _create_file(folder / "tmp", folder / SCHEMA_NAME, schema_file(schema))


def check_only_ours(shown: str, names: list[str]) -> None:
    """Checks that a directory without a schema is empty or half created."""
    strange = sorted(name for name in names if name not in _OURS)
    if strange:
        more = f" and {len(strange) - 1:,} more" if len(strange) > 1 else ""
        text = f"expected an empty or new directory, or one made by hold.write, got one with {strange[0]!r}{more}"
        raise WriteError(f"{shown}: {text}")


def schema_file(schema: dict[str, Column]) -> bytes:
    content = {"holdfast_write": _VERSION, "schema": schema_to_json(schema, stored=True)}
    return json.dumps(content, indent=1).encode() + b"\n"


def _create_file(tmp: Path, target: Path, data: bytes) -> None:
    """Creates a small file atomically, unless another process has created it meanwhile."""
    workspace = Workspace(tmp, target.name)
    try:
        draft = workspace.path(target.name)
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, target)
        sync_folder(target.parent)
    except FileExistsError:
        pass
    finally:
        workspace.close()


def read_schema(folder: Path) -> dict[str, Column]:
    """Returns the latest schema, which parts are read with."""
    return read_schemas(folder)[-1]


def read_schemas(folder: Path) -> list[dict[str, Column]]:
    """Returns all versions of the schema, the oldest first: each adds columns to the one before."""
    found: list[dict[str, Column]] = []
    while not found or _is_there(folder / schema_file_name(len(found))):
        path = folder / schema_file_name(len(found))
        try:
            found.append(parse_schema(path.read_bytes(), str(path)))
        except OSError as error:
            raise cannot_open(str(path), error) from error
    return found


def grow_schema(folder: Path, known: dict[str, Column], schema: dict[str, Column]) -> dict[str, Column]:
    """Makes `schema` the next version, if `known` is the latest. Returns the latest version afterwards.

    A version is a file that is created once and never changed: the second of two processes finds the first one's file.
    """
    versions = read_schemas(folder)
    if schema_digest(versions[-1]) == schema_digest(known):
        try:
            _create_file(folder / "tmp", folder / schema_file_name(len(versions)), schema_file(schema))
        except OSError as error:
            raise WriteError(f"cannot add columns to {folder}: {error.strerror}: {error.filename}") from error
        versions = read_schemas(folder)
    return versions[-1]


def parse_schema(data: bytes, path: str) -> dict[str, Column]:
    try:
        content = json.loads(data)
        if content["holdfast_write"] != _VERSION:
            raise ValueError(f"version {content['holdfast_write']}")
        return schema_from_json(content["schema"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SchemaError) as error:
        raise InputError(f"{path}: not the schema of a dataset made by hold.write: {error!r}") from None


# ---- what is committed


def find_committed(parts: Path, task: str) -> PartRecord | None:
    """Returns the record of the attempt that committed this task, and makes it visible if its writer died before."""
    try:
        record = read_record(parts / claim_name(task))
    except InputError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return None
    make_visible(parts, record)
    return record


def make_visible(parts: Path, record: PartRecord) -> None:
    """Gives a record the name that readers look for, unless it has it."""
    visible = parts / record_name(record.task, record.attempt)
    if os.path.lexists(visible) or not os.path.lexists(parts / record.file):
        return
    try:
        os.link(parts / claim_name(record.task), visible)
        sync_folder(parts)
    except FileExistsError:
        pass
    except OSError as error:
        text = f"task {record.task!r} is committed, but not visible to readers"
        raise WriteError(f"{text}: cannot create {visible}: {error.strerror}") from error


def next_attempt(parts: Path, task: str) -> int:
    """Returns the first number that no file of the task has."""
    attempt = 0
    while any(os.path.lexists(parts / name) for name in _names_of(task, attempt)):
        attempt += 1
    return attempt


def _names_of(task: str, attempt: int) -> list[str]:
    return [record_name(task, attempt), *(data_name(task, attempt, kind) for kind in part_suffixes())]


def record_paths(parts: Path) -> Iterator[Path]:
    """Yields the committed parts' records, sorted by name."""
    yield from (parts / name for name in records_in(list_names(parts)))


def claims(parts: Path) -> list[str]:
    """Returns the committed tasks, visible or not."""
    return claims_in(list_names(parts))


def list_names(parts: Path) -> list[str]:
    try:
        return os.listdir(parts)
    except OSError as error:
        raise InputError(f"{parts}: cannot list its files: {error.strerror}") from error


# ---- after dead attempts


def remove_stale_files(folder: Path) -> list[str]:
    """Finishes the commits of writers that died while committing, and removes the workspaces of dead attempts.

    Files of live attempts are not touched. Returns the names of the removed workspaces.
    """
    parts = folder / "parts"
    shown = {path.name.rsplit(".", 2)[0] for path in record_paths(parts)}
    for task in claims(parts):
        if task not in shown:
            try:
                find_committed(parts, task)
            except (DataError, WriteError):
                pass  # verify reports corruption, and a read-only user cannot repair it: others must be able to work
    removed = []
    for workspace in workspaces(folder / "tmp"):
        with dead_workspace(workspace) as note:
            if note is not None:
                _roll_back(parts, workspace, note.splitlines())
                remove_dead_workspace(workspace, note)
                removed.append(workspace.name)
    return removed


def _roll_back(parts: Path, workspace: Path, note: list[str]) -> None:
    """Removes the name that a dead attempt gave its data, unless they are committed or that is unknown."""
    if len(note) < 2:
        return
    task, name = note[0], note[-1]
    try:
        committed = find_committed(parts, task)
        if (committed is None or committed.file != name) and _is_in_workspace(parts / name, workspace):
            os.unlink(parts / name)
    except (HoldfastError, OSError):
        pass


def _is_in_workspace(path: Path, workspace: Path) -> bool:
    """Returns whether a file is a link to one in the workspace."""
    try:
        info = os.stat(path, follow_symlinks=False)
        here: list[Any] = [os.stat(workspace / name, follow_symlinks=False) for name in os.listdir(workspace)]
    except OSError:
        return False
    return any((info.st_dev, info.st_ino) == (one.st_dev, one.st_ino) for one in here)
