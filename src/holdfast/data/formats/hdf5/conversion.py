"""Tells a conversion what of an HDF5 file it would round or drop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import h5py

from ....errors import SchemaError
from ....schema import Column, Ragged
from ..base import OR_CAST, Conversion, Shard
from ..columns import dtype_of
from .ragged_columns import PackedColumn
from .schema_layout import SCHEMA_ATTRIBUTE, key_of
from .shard import HDF5Shard


class HDF5Conversion(Conversion):
    may_drop = True

    def check(self, shard: Shard, path: str, read: dict[str, Column], cast: bool) -> Iterator[str]:
        assert isinstance(shard, HDF5Shard)
        for name, kind in _rounded(shard, read):
            if not cast:
                text = f"column {name!r} is {kind}, which {read[name]!r} holds only rounded"
                raise SchemaError(f"{path}: {text}. Leave it out with a schema, {OR_CAST}")
            yield f"{name!r} is rounded from {kind} to {read[name]!r}"
        yield from (f"{path}: {what}" for what in _dropped(shard))


def _rounded(shard: HDF5Shard, schema: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
    """Yields columns whose floats in the file are wider than in the schema, and their dtype in the file."""
    for name, column in schema.items():
        key = key_of(name, column)
        if key not in shard._file():
            continue  # the column has a default
        dataset = shard._dataset(key)
        value = column.value if isinstance(column, Ragged) else column
        if isinstance(dataset, PackedColumn):
            have = dataset.column
            dtype = dtype_of(have.value if isinstance(have, Ragged) else have)
        else:
            inner = h5py.check_vlen_dtype(dataset.dtype)
            dtype = inner if inner is not None and hasattr(inner, "kind") else dataset.dtype
        if dtype.kind == "f" and dtype.itemsize > dtype_of(value).itemsize:
            yield name, str(dtype)


def _dropped(shard: HDF5Shard) -> list[str]:
    """Describes what a conversion drops: attributes and scalar datasets."""
    attributes: list[str] = []
    values: list[str] = []

    def visit(name: str, node: Any) -> None:
        attributes.extend(f"{name}@{one}" for one in node.attrs if one != SCHEMA_ATTRIBUTE)
        if isinstance(node, h5py.Dataset) and not node.shape:
            values.append(name)

    file = shard._file()
    visit("", file)
    file.visititems(visit)
    found = [("attribute", attributes), ("scalar dataset", values)]
    return [_counted(what, names) for what, names in found if names]


def _counted(what: str, names: list[str]) -> str:
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} {what}{'s' * (len(names) != 1)} dropped: {some}"
