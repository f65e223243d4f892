"""Datasets that do not grow with the rows, such as what stands along another axis: they must be the same everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ....schema import Ragged
from ..schema_layout import MARK
from .chunk_filters import Rows
from .model import Attribute, DatasetInfo, MergeError, MergeInput, MergeTarget, Node, codes_of


def check_kept(made: MergeSchema, rows: Rows) -> None:
    for target in made.targets.values():
        if not target.kept:
            continue
        first = target.sources[0]
        wanted = _digest(first, rows)
        for other in target.sources[1:]:
            if other.shape != first.shape or _digest(other, rows) != wanted:
                text = f"dataset {target.path!r} is the scale of an axis, and another than in {made.sources[0].path}"
                raise MergeError("schema", made.sources[other.file].path, text)


def _digest(dataset: DatasetInfo, rows: Rows) -> bytes:
    found = hashlib.sha256()
    for piece in rows.read(dataset, 0, dataset.rows):
        found.update(piece.tobytes())
    return found.digest()


# Do the sources fit together, and what becomes of each of their objects? Every refusal names both sides.


@dataclass(slots=True)
class MergeColumn:
    """What has a length: a dataset, or a packed group and all that is in it."""

    path: str
    rows: list[int]  # in each source
    mark: Any = None


@dataclass(slots=True)
class MergeSchema:
    """What the result will be made of. `columns` first in the order of the first source."""

    sources: list[MergeInput]
    groups: list[str] = field(default_factory=list)
    links: list[tuple[str, Node]] = field(default_factory=list)
    datatypes: list[tuple[str, Node]] = field(default_factory=list)
    attributes: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    targets: dict[str, MergeTarget] = field(default_factory=dict)
    columns: list[MergeColumn] = field(default_factory=list)
    single: list[str] = field(default_factory=list)  # datasets without rows
    notes: list[str] = field(default_factory=list)
    differing: list[dict[str, Any]] = field(default_factory=list)  # attributes that are not the same in all sources


def agree(sources: list[MergeInput], attributes: str = "same") -> MergeSchema:
    """`attributes`: of those that differ, "same" leaves out, "first" keeps the first source's, "error" refuses."""
    first, made = sources[0], MergeSchema(sources)
    for source in sources[1:]:
        _same_objects(first, source)
    axes = _axis_scales(first)
    for path, node in first.nodes.items():
        nodes = [source.nodes.get(path, node) for source in sources]
        made.attributes[path] = _attributes(path, nodes, made)
        match node.kind:
            case "group":
                made.groups.append(path)
            case "datatype":
                made.datatypes.append((path, node))
            case "dataset":
                _take_dataset(path, made, path in axes)
            case _:
                made.links.append((path, node))
    for source in sources[1:]:
        for path, node in source.nodes.items():
            if path not in first.nodes and path not in made.groups:  # only a group may be missing
                made.groups.append(path)
                made.attributes[path] = _attributes(path, [one.nodes.get(path, node) for one in sources], made)
    _settle_differing(made, attributes)
    _find_columns(made)
    return made


def _same_objects(first: MergeInput, other: MergeInput) -> None:
    for one, two in ((first, other), (other, first)):
        for path, node in one.nodes.items():
            there = two.nodes.get(path)
            if there is None and node.kind == "group":
                continue
            if there is None:
                raise MergeError("schema", two.path, f"{node.kind} {path!r} is missing, {one.path} has it")
            if (there.kind, there.target) != (node.kind, node.target) or there.mark != node.mark:
                text = f"{path!r} is {_said(there)}, in {one.path} it is {_said(node)}"
                raise MergeError("schema", two.path, text)
            if node.dataset is not None and there.dataset is not None and one is first:
                _same_dataset(first, other, node.dataset, there.dataset)


def _said(node: Node) -> str:
    if node.kind in ("soft", "again"):
        return f"a link to {node.target!r}"
    return f"a column {node.mark!r}" if node.mark is not None else f"a {node.kind}"


def _same_dataset(first: MergeInput, other: MergeInput, ours: DatasetInfo, theirs: DatasetInfo) -> None:
    def refuse(what: str, got: object, wanted: object) -> None:
        text = f"dataset {theirs.path!r} has {what} {got}, in {first.path} it has {wanted}"
        raise MergeError("schema", other.path, text)

    if h5py.h5t.decode(ours.type) != h5py.h5t.decode(theirs.type):
        refuse("the type", theirs.words, ours.words)
    if (ours.shape is None, len(ours.shape or ())) != (theirs.shape is None, len(theirs.shape or ())):
        refuse("the shape", theirs.shape, ours.shape)
    if ours.row_shape != theirs.row_shape:
        refuse("rows of the shape", theirs.row_shape, ours.row_shape)
    if _fill_said(ours) != _fill_said(theirs):
        refuse("the fill value", _fill_said(theirs), _fill_said(ours))


def _fill_said(dataset: DatasetInfo) -> str:
    """As a value: what lies between the fields of a compound is anything."""
    if dataset.fill is None:
        return "none"
    return repr(np.frombuffer(dataset.fill, h5py.h5t.decode(dataset.type).dtype)[0].tolist())


def _axis_scales(first: MergeInput) -> set[str]:
    """Datasets that say what stands along an axis that is not that of the rows: they do not grow with them."""
    found: set[str] = set()
    along: set[str] = set()
    for node in first.nodes.values():
        for axis, name in node.dataset.scales if node.dataset is not None else ():
            (found if axis else along).add(name)
    both = sorted(found & along)
    if both:
        text = f"dataset {both[0]!r} is the scale of rows and of another axis: it would have to grow, and not to"
        raise MergeError("schema", first.path, text)
    return found


def _attributes(path: str, nodes: list[Node], made: MergeSchema) -> dict[str, Attribute]:
    """Those that are the same in all; the others are noted in `made.differing`."""
    kept: dict[str, Attribute] = {}
    for name in dict.fromkeys(name for node in nodes for name in node.attributes):
        values = [node.attributes.get(name) for node in nodes]
        wanted = values[0]
        odd = next((n for n, v in enumerate(values) if v is None or wanted is None or v.plain != wanted.plain), None)
        if wanted is not None and (odd is None or (name == MARK and None not in values)):  # marks were compared already
            kept[name] = wanted
            continue
        with_it = next(n for n, v in enumerate(values) if v is not None)
        other = odd if odd is not None and odd != with_it else next(n for n, v in enumerate(values) if v is None)
        made.differing.append(
            {
                "object": path,
                "attribute": name,
                "reason": "missing" if values[other] is None else "differs",
                "files": [made.sources[with_it].path, made.sources[other].path],
                "kept": False,
                "value": values[with_it],
            }
        )
    return kept


def _settle_differing(made: MergeSchema, attributes: str) -> None:
    for one in made.differing:
        value, (here, there) = one.pop("value"), one["files"]
        how = f"is in {here} and not in {there}" if one["reason"] == "missing" else f"differs in {here} and {there}"
        text = f"attribute {one['attribute']!r} of {one['object']!r} {how}"
        if attributes == "error":
            more = f" ({len(made.differing) - 1:,} more differ)" if len(made.differing) > 1 else ""
            raise MergeError(
                "schema", there, f"{text}{more}: choose 'same' to leave them out or 'first' to keep the first"
            )
        one["kept"] = attributes == "first"
        if one["kept"]:
            made.attributes[one["object"]][one["attribute"]] = value
        made.notes.append(f"{text}: {'the first is kept' if one['kept'] else 'left out'}")


def _take_dataset(path: str, made: MergeSchema, is_axis: bool) -> None:
    found = [node.dataset for source in made.sources if (node := source.nodes[path]).dataset is not None]
    datasets = [one for one in found if one is not None]
    if not datasets[0].shape:
        odd = next((one for one in datasets if one.value != datasets[0].value), None)
        if odd is not None:
            text = f"dataset {path!r} is one value, without rows to join, and another than in {made.sources[0].path}"
            raise MergeError("schema", made.sources[odd.file].path, text)
        made.single.append(path)
        return
    target = MergeTarget(path, _like(datasets), datasets, kept=is_axis)
    made.targets[path] = target


def _like(datasets: list[DatasetInfo]) -> DatasetInfo:
    """The one whose chunks and filters most rows already have: a small source may have small chunks."""
    chunked = [one for one in datasets if one.chunks]
    if not chunked:
        return datasets[0]
    weights: Counter[tuple[Any, ...]] = Counter()
    for one in chunked:
        weights[one.chunks, codes_of(one)] += 1 + one.rows
    best = max(weights, key=lambda packing: (weights[packing], packing))
    return next(one for one in chunked if (one.chunks, codes_of(one)) == best)


# ---- columns


def _find_columns(made: MergeSchema) -> None:
    first = made.sources[0]
    inside: list[str] = []
    for path, node in first.nodes.items():
        if path.startswith(tuple(inside)):
            continue
        if node.mark is not None:
            made.columns.append(_packed_column(path, node, made))
            inside.append(f"{path}/")
        elif node.dataset is not None and path in made.targets and not made.targets[path].kept:
            made.columns.append(MergeColumn(path, [one.rows for one in made.targets[path].sources]))


def _packed_column(path: str, node: Node, made: MergeSchema) -> MergeColumn:
    """Its ends are one more than its values; those of what lies inside follow from them."""
    name = f"{path}/{'row_splits' if isinstance(node.mark, Ragged) else 'offsets'}"
    per_row = node.mark.count if not isinstance(node.mark, Ragged) else 1
    target = made.targets.get(name)
    if target is None or f"{path}/values" not in made.sources[0].nodes:
        raise MergeError("corrupt", made.sources[0].path, f"{path!r} is not the group of values and ends it says it is")
    rows = []
    for one in target.sources:
        if h5py.h5t.decode(one.type) != h5py.h5t.STD_I64LE or not one.rows or (one.rows - 1) % per_row:
            text = f"dataset {name!r} has {one.rows:,} ends of {one.words}, which cannot be those of {node.mark!r}"
            raise MergeError("corrupt", made.sources[one.file].path, text)
        rows.append((one.rows - 1) // per_row)
    return MergeColumn(path, rows, node.mark)
