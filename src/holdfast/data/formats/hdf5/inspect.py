"""Lists what is in an HDF5 file, through a sandboxed process."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any, NamedTuple

from ....errors import InputError
from .file_state import State, read_state, state_problems
from .sandbox import Progress, RestartingSandbox

_MAX_CRASHES = 20
_READABLE_BY = {
    0: "superblock 0 (any version of HDF5 reads it)",
    1: "superblock 1 (any version of HDF5 reads it)",
    2: "superblock 2 (HDF5 1.8 or later)",
    3: "superblock 3 (HDF5 1.10 or later)",
}


class HDF5Survey(NamedTuple):
    path: str
    state: State | None  # None: the file cannot be read
    objects: list[dict[str, Any]]
    schema: dict[str, str] | None
    code: str  # the schema as Python source
    rows: int
    no_schema: str  # why the file has none
    problems: list[str]

    @property
    def readable(self) -> bool:
        return self.state is not None

    @property
    def format(self) -> str | None:
        return None if self.state is None or self.state.block is None else "hdf5"

    @property
    def bytes(self) -> int:
        return self.state.size if self.state else 0

    @property
    def problem(self) -> str | None:
        return self.problems[0] if self.problems else None

    @property
    def version(self) -> str:
        block = self.state.block if self.state else None
        return "" if block is None else _READABLE_BY[block.version]

    def as_dict(self) -> dict[str, object]:
        block = self.state.block if self.state else None
        return {
            "path": self.path,
            "format": self.format,
            "bytes": self.bytes,
            "superblock": None if block is None else block.version,
            "open_for_write": None if block is None else block.open_for_write,
            "objects": self.objects,
            "rows": self.rows,
            "schema": self.schema,
            "no_schema": self.no_schema or None,
            "problems": self.problems,
        }


def inspect_hdf5(path: str | os.PathLike[str], progress: Progress | None = None) -> HDF5Survey:
    """Never raises for a corrupt file: its problems are in the result."""
    name = os.fsdecode(path)
    try:
        state = read_state(name)
    except InputError as error:
        return HDF5Survey(name, None, [], None, "", 0, "", [str(error).removeprefix(f"{name}: ")])
    problems = [reason for _, reason in state_problems(state)]
    if not state.is_hdf5:
        return HDF5Survey(name, state, [], None, "", 0, "", problems)
    objects: dict[str, dict[str, Any]] = {}
    schema: dict[str, Any] = {}
    job = {"work": "inspect", "path": name, "repair": state.needs_repair}
    with closing(RestartingSandbox(_MAX_CRASHES, state.size).messages(job, progress)) as messages:
        for message in messages:
            match message.head:
                case {"object": facts}:
                    objects[facts["path"]] = facts
                case {"problem": [where, _, _, reason]}:
                    problems.append(f"{where}: {reason}" if where else reason)
                case {"schema": _} | {"no_schema": _}:
                    schema = message.head
    return HDF5Survey(
        name,
        state,
        [objects[key] for key in sorted(objects)],
        schema.get("schema"),
        schema.get("code", ""),
        schema.get("rows", 0),
        schema.get("no_schema", ""),
        list(dict.fromkeys(problems)),
    )
