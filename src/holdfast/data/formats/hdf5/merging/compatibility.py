"""Checks that the sources can be merged, and decides what becomes of each object. Every error names both files."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ..schema_layout import SCHEMA_ATTRIBUTE, describe, offsets_name, values_per_row
from .merge_model import Attribute, DatasetInfo, MergeError, MergeInput, MergeTarget, Node


@dataclass(slots=True)
class MergeColumn:
    """What has a number of rows: a dataset, or a group of values and offsets."""

    path: str
    rows: list[int]  # of each source
    column: Any = None


@dataclass(slots=True)
class MergeSchema:
    """What the result consists of. `columns` in the order of the first source."""

    sources: list[MergeInput]
    groups: list[str] = field(default_factory=list)
    links: list[tuple[str, Node]] = field(default_factory=list)
    datatypes: list[tuple[str, Node]] = field(default_factory=list)
    attributes: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    targets: dict[str, MergeTarget] = field(default_factory=dict)
    columns: list[MergeColumn] = field(default_factory=list)
    single: list[str] = field(default_factory=list)  # scalar datasets
    notes: list[str] = field(default_factory=list)
    differing: list[dict[str, Any]] = field(default_factory=list)  # attributes that differ between sources


def check_compatibility(sources: list[MergeInput], attributes: str = "same") -> MergeSchema:
    """`attributes`: of those that differ, "same" drops all, "first" keeps the first source's, "error" raises."""
    first, schema = sources[0], MergeSchema(sources)
    for source in sources[1:]:
        _check_objects(first, source)
    fixed = _fixed_scales(first)
    for path in dict.fromkeys(path for source in sources for path in source.nodes):
        node = first.nodes.get(path, Node("group"))  # only a group may be missing
        match node.kind:
            case "group":
                schema.groups.append(path)
            case "datatype":
                schema.datatypes.append((path, node))
            case "dataset":
                _add_dataset(path, schema, path in fixed)
            case _:
                schema.links.append((path, node))
        _add_attributes(path, schema, attributes)
    if attributes == "error" and schema.notes:
        more = f" ({len(schema.notes) - 1:,} more differ)" if len(schema.notes) > 1 else ""
        text = f"{schema.notes[0]}{more}: choose 'same' to drop them or 'first' to keep the first"
        raise MergeError("schema", schema.differing[0]["files"][1], text)
    _find_columns(schema)
    if first.ordered:
        few = ", ".join(map(repr, first.ordered[:4])) + (" …" if len(first.ordered) > 4 else "")
        schema.notes.append(
            f"the order in which the members of {few} were created is not kept: they are listed by name"
        )
    return schema


def _check_objects(first: MergeInput, other: MergeInput) -> None:
    for one, two in ((first, other), (other, first)):
        for path, node in one.nodes.items():
            there = two.nodes.get(path)
            if there is None and node.kind == "group":
                continue
            if there is None:
                raise MergeError("schema", two.path, f"{node.kind} {path!r} is missing, but {one.path} has it")
            if (there.kind, there.target, there.column) != (node.kind, node.target, node.column):
                text = f"{path!r} is {_describe(there)}, in {one.path} it is {_describe(node)}"
                raise MergeError("schema", two.path, text)
            if node.dataset is not None and there.dataset is not None and one is first:
                _check_dataset(first, other, node.dataset, there.dataset)


def _describe(node: Node) -> str:
    if node.kind in ("soft", "again"):
        return f"a link to {node.target!r}"
    return f"a column {node.column!r}" if node.column is not None else f"a {node.kind}"


def _check_dataset(first: MergeInput, other: MergeInput, ours: DatasetInfo, theirs: DatasetInfo) -> None:
    ranks = [None if one.shape is None else len(one.shape) for one in (ours, theirs)]
    for what, is_same, (expected, got) in (
        ("the type", ours.type == theirs.type, (type_name(ours), type_name(theirs))),
        ("the shape", ranks[0] == ranks[1], (ours.shape, theirs.shape)),
        ("rows of the shape", ours.row_shape == theirs.row_shape, (ours.row_shape, theirs.row_shape)),
        ("the fill value", _fill_value(ours) == _fill_value(theirs), (_fill_value(ours), _fill_value(theirs))),
    ):
        if not is_same:
            text = f"dataset {theirs.path!r} has {what} {got}, in {first.path} it has {expected}"
            raise MergeError("schema", other.path, text)


def type_name(dataset: DatasetInfo) -> str:
    return describe(dataset.dtype) if dataset.dtype.kind != "V" or dataset.dtype.names else str(dataset.dtype)


def _fill_value(dataset: DatasetInfo) -> str:
    """Compares fill values as values: the padding between the fields of a compound is arbitrary."""
    if dataset.fill is None:
        return "none"
    raw, pointed = pickle.loads(dataset.fill)
    return repr(pointed if dataset.dtype.hasobject else np.frombuffer(raw, dataset.type.dtype)[0].tolist())


def _fixed_scales(first: MergeInput) -> set[str]:
    """Returns the dimension scales of axes other than the rows, which must be the same in all sources."""
    scales = [one for node in first.nodes.values() if node.dataset is not None for one in node.dataset.scales]
    fixed = {name for axis, name in scales if axis}
    both = sorted(fixed & {name for axis, name in scales if not axis})
    if both:
        text = f"dataset {both[0]!r} is the dimension scale of the rows and of another axis: it cannot be merged"
        raise MergeError("schema", first.path, text)
    return fixed


def _add_attributes(path: str, schema: MergeSchema, choice: str) -> None:
    """Keeps those that are the same in all sources that have the object, and of the others what `choice` says."""
    files = [source.path for source in schema.sources if path in source.nodes]
    nodes = [source.nodes[path] for source in schema.sources if path in source.nodes]
    schema.attributes[path] = {}
    for name in dict.fromkeys(name for node in nodes for name in node.attributes):
        values = [node.attributes.get(name) for node in nodes]
        here, first = next((number, one) for number, one in enumerate(values) if one is not None)
        # Schema attributes were compared already.
        odd = [None if one is None else one.plain != first.plain and name != SCHEMA_ATTRIBUTE for one in values]
        there = next((number for number, one in enumerate(odd) if one is not False), None)
        if there is None or choice == "first":
            schema.attributes[path][name] = first
        if there is None:
            continue
        missing = odd[there] is None
        how = "is in {} and not in {}" if missing else "differs in {} and {}"
        text = f"attribute {name!r} of {path!r} {how.format(files[here], files[there])}"
        result = {"error": "", "first": ": the first is kept", "same": ": dropped"}[choice]
        schema.notes.append(text + result)
        schema.differing.append(
            {
                "object": path,
                "attribute": name,
                "reason": "missing" if missing else "differs",
                "files": [files[here], files[there]],
                "kept": choice == "first",
            }
        )


def _add_dataset(path: str, schema: MergeSchema, is_shared: bool) -> None:
    datasets = [one for source in schema.sources if (one := source.nodes[path].dataset) is not None]
    if datasets[0].shape:
        schema.targets[path] = MergeTarget(path, _like(datasets), datasets, shared=is_shared)
        return
    schema.single.append(path)
    for one in datasets:
        if one.value != datasets[0].value:
            text = f"dataset {path!r} is a scalar, and differs from that in {schema.sources[0].path}"
            raise MergeError("schema", schema.sources[one.file].path, text)


def _like(datasets: list[DatasetInfo]) -> DatasetInfo:
    """Returns the dataset whose chunks and filters most rows have: a small source may have small chunks."""
    chunked = [one for one in datasets if one.chunks]
    weights: Counter[tuple[Any, ...]] = Counter()
    for one in chunked:
        weights[one.chunks, one.codes] += 1 + one.rows
    best = max(weights, key=lambda packing: (weights[packing], packing), default=None)
    return next((one for one in chunked if (one.chunks, one.codes) == best), datasets[0])


def _find_columns(schema: MergeSchema) -> None:
    inside: tuple[str, ...] = ()
    for path, node in schema.sources[0].nodes.items():
        if path.startswith(inside or "\0"):
            continue
        if node.column is not None:
            schema.columns.append(_packed_column(path, node, schema))
            inside += (f"{path}/",)
        elif path in schema.targets and not schema.targets[path].shared:
            schema.columns.append(MergeColumn(path, [one.rows for one in schema.targets[path].sources]))


def _packed_column(path: str, node: Node, schema: MergeSchema) -> MergeColumn:
    """Offsets are one more than rows. Those of nested groups follow from them."""
    name, per_row = f"{path}/{offsets_name(node.column)}", values_per_row(node.column)
    target = schema.targets.get(name)
    if target is None or f"{path}/values" not in schema.sources[0].nodes:
        text = f"{path!r} is not a group of values and offsets, as its attribute says"
        raise MergeError("corrupt", schema.sources[0].path, text)
    for one in target.sources:
        if one.type != h5py.h5t.STD_I64LE or not one.rows or (one.rows - 1) % per_row:
            text = f"dataset {name!r} has {one.rows:,} offsets of {type_name(one)}, which do not fit {node.column!r}"
            raise MergeError("corrupt", schema.sources[one.file].path, text)
    return MergeColumn(path, [(one.rows - 1) // per_row for one in target.sources], node.column)
