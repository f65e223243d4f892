"""What `holdfast inspect` shows of an HDF5 file: its tree, its attributes, and the schema to read it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._base.units import format_bytes
from ..report.values import as_text
from ..report.words import counted, printable
from .facts import show_facts
from .screen import Screen

if TYPE_CHECKING:  # h5py takes a while to load
    from ..formats.hdf5.inspect import HDF5Survey

_SHOWN_OBJECTS = 200
_SHOWN_ATTRIBUTES = 40
_PIPE_WIDTH = 1 << 14


def show_hdf5(screen: Screen, survey: HDF5Survey) -> None:
    """Nothing is shown where nobody looks."""
    if not screen.talks:
        return
    facts = []
    if survey.state is not None and survey.state.is_hdf5:
        datasets = [one for one in survey.objects if one["kind"] == "dataset"]
        holds = f"{counted(len(datasets), 'dataset')} in {counted(_groups(survey), 'group')}"
        facts = [
            ("format", f"HDF5, {survey.version}"),
            ("size", format_bytes(survey.state.size)),
            ("holds", holds),
        ]
    facts += [("problem" if i == 0 else "", problem) for i, problem in enumerate(survey.problems[:8])]
    show_facts(screen, facts)
    if survey.objects:
        _show_tree(screen, survey)
        _show_attributes(screen, survey)
        _show_schema(screen, survey)


def _groups(survey: HDF5Survey) -> int:
    return sum(one["kind"] == "group" for one in survey.objects)


def _show_tree(screen: Screen, survey: HDF5Survey) -> None:
    from rich.text import Text

    from ..report.columns import Column, lay_out

    heads = ["object", "shape", "type", "chunks", "filters", "size"]
    columns = [Column(head, right=head == "size", cut=head in ("object", "type", "filters")) for head in heads]
    shown = [one for one in survey.objects if one["path"] != "/"][:_SHOWN_OBJECTS]
    rows = [[Text(printable(cell)) for cell in _row(one)] for one in shown]
    if not rows:
        return
    screen.print()
    width = 80 if screen.terminal else _PIPE_WIDTH
    for line in lay_out(columns, rows, width - 2):
        screen.print(Text("  ") + line)
    left = len(survey.objects) - 1 - len(shown)
    if left > 0:
        screen.print(f"  … and {left:,} more (--json lists all)")


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
    return "×".join(sizes) or "one value"


def _sizes(sizes: list[int] | None) -> str:
    return "" if sizes is None else "×".join(map(str, sizes))


def _filters(one: dict[str, Any]) -> str:
    if one["sources"] is not None:
        return f"virtual, {counted(one['sources'], 'source')}"
    return ", ".join(one["filters"])


def _size(one: dict[str, Any]) -> str:
    """`12 kB (3.1:1)`: what it takes in the file, and how much smaller that is than its values."""
    stored = one["stored_bytes"]
    packed = one["filters"] and stored and one["bytes"]
    return format_bytes(stored) + (f" ({one['bytes'] / stored:.1f}:1)" if packed else "")


def _show_attributes(screen: Screen, survey: HDF5Survey) -> None:
    facts = [
        (f"{one['path'].lstrip('/')}@{name}", _value(value))
        for one in survey.objects
        for name, value in one.get("attributes", {}).items()
    ]
    if facts:
        screen.print("\n  attributes\n")
        show_facts(screen, facts[:_SHOWN_ATTRIBUTES])
        if len(facts) > _SHOWN_ATTRIBUTES:
            screen.print(f"  … and {len(facts) - _SHOWN_ATTRIBUTES:,} more (--json lists all)")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{as_text(value['values'])[:-1]}, …] ({value['length']:,} values)"
    if isinstance(value, list):
        return as_text([_bytes(one) if isinstance(one, str) else one for one in value]) if value else "[]"
    return "empty" if value is None else repr(value) if isinstance(value, str) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _show_schema(screen: Screen, survey: HDF5Survey) -> None:
    if survey.code:
        screen.print(f"\n  as columns, {counted(survey.rows, 'row')}\n")
        for line in f"schema = {survey.code}".splitlines():
            screen.print(f"    {printable(line)}")
    elif survey.no_schema:
        screen.print(f"\n  not as columns: {printable(survey.no_schema)}")
