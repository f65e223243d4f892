"""What of an HDF5 file its columns do not hold: for who must not lose it without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import h5py

from ...schema import Column, Ragged
from ..dtypes import dtype_of
from .layout import MARK, key_of
from .packed import PackedColumn
from .shard import HDF5Shard


def rounded(shard: HDF5Shard, schema: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
    """Columns whose numbers have more digits than the column does, and the type they have."""
    for name, column in schema.items():
        key = key_of(name, column)
        if key not in shard._file():
            continue  # it has a default
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


def left_behind(shard: HDF5Shard) -> list[str]:
    """Attributes and single values, which no sample has."""
    attributes: list[str] = []
    values: list[str] = []

    def see(name: str, thing: Any) -> None:
        attributes.extend(f"{name}@{one}" for one in thing.attrs if one != MARK)
        if isinstance(thing, h5py.Dataset) and not thing.shape:
            values.append(name)

    file = shard._file()
    see("", file)
    file.visititems(see)
    found = [("attribute", attributes), ("single value", values)]
    return [_counted(what, names) for what, names in found if names]


def _counted(what: str, names: list[str]) -> str:
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} {what}{'s' * (len(names) != 1)} left behind: {some}"
