"""Lists what is in an HDF5 file, through a sandboxed process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from ...._util.text import counted, format_bytes
from ....errors import InputError
from ..sections import Section, as_text
from .file_state import State, read_state, state_problems
from .sandbox import Progress, RestartingSandbox

_MAX_CRASHES = 20
_SHOWN_OBJECTS = 200
_SHOWN_ATTRIBUTES = 40
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

    def sections(self) -> Iterator[Section]:
        facts = []
        if self.state is not None and self.state.is_hdf5:
            kinds = Counter(one["kind"] for one in self.objects)
            facts = [
                ("format", f"HDF5, {self.version}"),
                ("size", format_bytes(self.state.size)),
                ("holds", f"{counted(kinds['dataset'], 'dataset')} in {counted(kinds['group'], 'group')}"),
            ]
        yield Section(facts=facts + [("" if i else "problem", text) for i, text in enumerate(self.problems[:8])])
        listed = [one for one in self.objects if one["path"] != "/"]
        if listed:
            heads = ("~object", "shape", "~type", "chunks", "~filters", ">size")
            rows = [_row(one) for one in listed[:_SHOWN_OBJECTS]]
            yield Section(heads=heads, rows=rows, left=len(listed) - len(rows))
        attributes = [
            (f"{one['path'].lstrip('/')}@{name}", _value(value))
            for one in self.objects
            for name, value in one.get("attributes", {}).items()
        ]
        if attributes:
            left = len(attributes) - _SHOWN_ATTRIBUTES
            yield Section("attributes", facts=attributes[:_SHOWN_ATTRIBUTES], left=left)
        if self.objects and self.code:
            yield Section(f"as columns, {counted(self.rows, 'row')}", code=self.code)
        elif self.objects and self.no_schema:
            yield Section(f"not as columns: {self.no_schema}")

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


# ---- what is shown


def _row(one: dict[str, Any]) -> list[str]:
    path = one["path"]
    indent, name = "  " * (path.count("/") - 1), path.rpartition("/")[2]
    match one["kind"]:
        case "group":
            return [f"{indent}{name}/", "", "", "", "", ""]
        case "dataset" if "type" in one:
            return [f"{indent}{name}", _shape(one), one["type"], _sizes(one["chunks"]), _filters(one), _size(one)]
        case "soft" | "external" | "again":
            return [f"{indent}{name} → {one['target']}", "", "link", "", "", ""]
    return [f"{indent}{name}", "", one["kind"], "", "", ""]


def _shape(one: dict[str, Any]) -> str:
    if one["shape"] is None:
        return "empty"
    most = one["maxshape"] or []
    grows = [n is None for n in most] or [False] * len(one["shape"])
    sizes = [f"{n}{'+' if more else ''}" for n, more in zip(one["shape"], grows, strict=True)]
    return "×".join(sizes) or "scalar"


def _sizes(sizes: list[int] | None) -> str:
    return "" if sizes is None else "×".join(map(str, sizes))


def _filters(one: dict[str, Any]) -> str:
    if one["sources"] is not None:
        return f"virtual, {counted(one['sources'], 'source')}"
    if one["external"]:
        return f"values in {one['external'][0]}"
    return ", ".join(one["filters"])


def _size(one: dict[str, Any]) -> str:
    """`12 kB (3.1:1)`: the size in the file and the compression ratio."""
    stored = one["stored_bytes"]
    compressed = one["filters"] and stored and one["bytes"]
    return format_bytes(stored) + (f" ({one['bytes'] / stored:.1f}:1)" if compressed else "")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{as_text(value['values'])[:-1]}, …] ({value['length']:,} values)"
    if isinstance(value, list):
        values = [one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in value]
        return as_text(values) if values else "[]"
    return "empty" if value is None else repr(value) if isinstance(value, str) else str(value)
