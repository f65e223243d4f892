"""Whether columns fit a schema. Without HDF5: what only sends its samples elsewhere asks here, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..formats.tfrecord.encoding import buffers_of
from ..schema import Column


def checked(schema: dict[str, Column], columns: Mapping[str, Any]) -> tuple[list[Any], int]:
    """The columns as buffers; a SchemaError names the one that does not fit."""
    try:
        with np.errstate(over="raise"):
            return buffers_of(schema, columns)
    except FloatingPointError:
        raise SchemaError(f"{_too_large(schema, columns)}: got a number that is more than Float32 can hold") from None


def _too_large(schema: dict[str, Column], columns: Mapping[str, Any]) -> str:
    for name, column in schema.items():
        try:
            with np.errstate(over="raise"):
                buffers_of({name: column}, {name: columns[name]})
        except FloatingPointError:
            return f"column {name!r}: wanted {column!r}"
    return "a column"
