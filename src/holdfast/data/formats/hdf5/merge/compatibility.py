"""Checks that the sources can be merged, and decides what becomes of each object. Every error names both files."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ..schema_layout import SCHEMA_ATTRIBUTE, offsets_name, values_per_row
from .input_rows import Rows
from .merge_model import Attribute, DatasetInfo, MergeError, MergeInput, MergeTarget, Node, codes_of


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
    axes = _fixed_scales(first)
    for path, node in first.nodes.items():
        nodes = [source.nodes.get(path, node) for source in sources]
        schema.attributes[path] = _attributes(path, nodes, schema)
        match node.kind:
            case "group":
                schema.groups.append(path)
            case "datatype":
                schema.datatypes.append((path, node))
            case "dataset":
                _add_dataset(path, schema, path in axes)
            case _:
                schema.links.append((path, node))
    for source in sources[1:]:
        for path, node in source.nodes.items():
            if path not in first.nodes and path not in schema.groups:  # only a group may be missing
                schema.groups.append(path)
                schema.attributes[path] = _attributes(path, [one.nodes.get(path, node) for one in sources], schema)
    _resolve_differing(schema, attributes)
    _find_columns(schema)
    return schema


def _check_objects(first: MergeInput, other: MergeInput) -> None:
    for one, two in ((first, other), (other, first)):
        for path, node in one.nodes.items():
            there = two.nodes.get(path)
            if there is None and node.kind == "group":
                continue
            if there is None:
                raise MergeError("schema", two.path, f"{node.kind} {path!r} is missing, but {one.path} has it")
            if (there.kind, there.target) != (node.kind, node.target) or there.column != node.column:
                text = f"{path!r} is {_describe(there)}, in {one.path} it is {_describe(node)}"
                raise MergeError("schema", two.path, text)
            if node.dataset is not None and there.dataset is not None and one is first:
                _check_dataset(first, other, node.dataset, there.dataset)


def _describe(node: Node) -> str:
    if node.kind in ("soft", "again"):
        return f"a link to {node.target!r}"
    return f"a column {node.column!r}" if node.column is not None else f"a {node.kind}"


def _check_dataset(first: MergeInput, other: MergeInput, ours: DatasetInfo, theirs: DatasetInfo) -> None:
    def mismatch(what: str, got: object, expected: object) -> None:
        text = f"dataset {theirs.path!r} has {what} {got}, in {first.path} it has {expected}"
        raise MergeError("schema", other.path, text)

    if h5py.h5t.decode(ours.type) != h5py.h5t.decode(theirs.type):
        mismatch("the type", theirs.type_name, ours.type_name)
    if (ours.shape is None, len(ours.shape or ())) != (theirs.shape is None, len(theirs.shape or ())):
        mismatch("the shape", theirs.shape, ours.shape)
    if ours.row_shape != theirs.row_shape:
        mismatch("rows of the shape", theirs.row_shape, ours.row_shape)
    if _describe_fill(ours) != _describe_fill(theirs):
        mismatch("the fill value", _describe_fill(theirs), _describe_fill(ours))


def _describe_fill(dataset: DatasetInfo) -> str:
    """Compares fill values as values: the padding between the fields of a compound is arbitrary."""
    if dataset.fill is None:
        return "none"
    return repr(np.frombuffer(dataset.fill, h5py.h5t.decode(dataset.type).dtype)[0].tolist())


def _fixed_scales(first: MergeInput) -> set[str]:
    """Returns the dimension scales of axes other than the rows, which must be the same in all sources."""
    found: set[str] = set()
    along: set[str] = set()
    for node in first.nodes.values():
        for axis, name in node.dataset.scales if node.dataset is not None else ():
            (found if axis else along).add(name)
    both = sorted(found & along)
    if both:
        text = f"dataset {both[0]!r} is the dimension scale of the rows and of another axis: it cannot be merged"
        raise MergeError("schema", first.path, text)
    return found


def _attributes(path: str, nodes: list[Node], schema: MergeSchema) -> dict[str, Attribute]:
    """Returns those that are the same in all sources; the others are added to `schema.differing`."""
    kept: dict[str, Attribute] = {}
    for name in dict.fromkeys(name for node in nodes for name in node.attributes):
        values = [node.attributes.get(name) for node in nodes]
        expected = values[0]
        same = [v is not None and expected is not None and v.plain == expected.plain for v in values]
        odd = None if all(same) else same.index(False)
        # The schema attributes were compared already.
        if expected is not None and (odd is None or (name == SCHEMA_ATTRIBUTE and None not in values)):
            kept[name] = expected
            continue
        present = next(n for n, v in enumerate(values) if v is not None)
        other = odd if odd is not None and odd != present else next(n for n, v in enumerate(values) if v is None)
        schema.differing.append(
            {
                "object": path,
                "attribute": name,
                "reason": "missing" if values[other] is None else "differs",
                "files": [schema.sources[present].path, schema.sources[other].path],
                "kept": False,
                "value": values[present],
            }
        )
    return kept


def _resolve_differing(schema: MergeSchema, attributes: str) -> None:
    for one in schema.differing:
        value, (here, there) = one.pop("value"), one["files"]
        how = f"is in {here} and not in {there}" if one["reason"] == "missing" else f"differs in {here} and {there}"
        text = f"attribute {one['attribute']!r} of {one['object']!r} {how}"
        if attributes == "error":
            more = f" ({len(schema.differing) - 1:,} more differ)" if len(schema.differing) > 1 else ""
            raise MergeError("schema", there, f"{text}{more}: choose 'same' to drop them or 'first' to keep the first")
        one["kept"] = attributes == "first"
        if one["kept"]:
            schema.attributes[one["object"]][one["attribute"]] = value
        schema.notes.append(f"{text}: {'the first is kept' if one['kept'] else 'dropped'}")


def _add_dataset(path: str, schema: MergeSchema, is_shared: bool) -> None:
    found = [node.dataset for source in schema.sources if (node := source.nodes[path]).dataset is not None]
    datasets = [one for one in found if one is not None]
    if not datasets[0].shape:
        odd = next((one for one in datasets if one.value != datasets[0].value), None)
        if odd is not None:
            text = f"dataset {path!r} is a scalar, and differs from that in {schema.sources[0].path}"
            raise MergeError("schema", schema.sources[odd.file].path, text)
        schema.single.append(path)
        return
    target = MergeTarget(path, _like(datasets), datasets, shared=is_shared)
    schema.targets[path] = target


def _like(datasets: list[DatasetInfo]) -> DatasetInfo:
    """Returns the dataset whose chunks and filters most rows have: a small source may have small chunks."""
    chunked = [one for one in datasets if one.chunks]
    if not chunked:
        return datasets[0]
    weights: Counter[tuple[Any, ...]] = Counter()
    for one in chunked:
        weights[one.chunks, codes_of(one)] += 1 + one.rows
    best = max(weights, key=lambda packing: (weights[packing], packing))
    return next(one for one in chunked if (one.chunks, codes_of(one)) == best)


def _find_columns(schema: MergeSchema) -> None:
    first = schema.sources[0]
    inside: list[str] = []
    for path, node in first.nodes.items():
        if path.startswith(tuple(inside)):
            continue
        if node.column is not None:
            schema.columns.append(_packed_column(path, node, schema))
            inside.append(f"{path}/")
        elif node.dataset is not None and path in schema.targets and not schema.targets[path].shared:
            schema.columns.append(MergeColumn(path, [one.rows for one in schema.targets[path].sources]))


def _packed_column(path: str, node: Node, schema: MergeSchema) -> MergeColumn:
    """Offsets are one more than rows. Those of nested groups follow from them."""
    name, per_row = f"{path}/{offsets_name(node.column)}", values_per_row(node.column)
    target = schema.targets.get(name)
    if target is None or f"{path}/values" not in schema.sources[0].nodes:
        raise MergeError(
            "corrupt", schema.sources[0].path, f"{path!r} is not a group of values and offsets, as its attribute says"
        )
    rows = []
    for one in target.sources:
        if h5py.h5t.decode(one.type) != h5py.h5t.STD_I64LE or not one.rows or (one.rows - 1) % per_row:
            text = f"dataset {name!r} has {one.rows:,} offsets of {one.type_name}, which do not fit {node.column!r}"
            raise MergeError("corrupt", schema.sources[one.file].path, text)
        rows.append((one.rows - 1) // per_row)
    return MergeColumn(path, rows, node.column)


def check_shared_datasets(schema: MergeSchema, rows: Rows) -> None:
    """Raises if a dimension scale of another axis differs between sources."""
    for target in schema.targets.values():
        if not target.shared:
            continue
        first = target.sources[0]
        expected = _digest(first, rows)
        for other in target.sources[1:]:
            if other.shape != first.shape or _digest(other, rows) != expected:
                text = f"dataset {target.path!r}, a dimension scale, differs from that in {schema.sources[0].path}"
                raise MergeError("schema", schema.sources[other.file].path, text)


def _digest(dataset: DatasetInfo, rows: Rows) -> bytes:
    found = hashlib.sha256()
    for piece in rows.read(dataset, 0, dataset.rows):
        found.update(piece.tobytes())
    return found.digest()
