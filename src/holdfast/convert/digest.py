"""A checksum over all values of all samples in order, whatever format they come from and in whatever pieces they come.

Of each column the crc32c of its values (little-endian, all joined) and of the lengths of its strings and lists; then of
the rows, the columns and these, by the columns' names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._native import codec
from ..formats.schema_json import column_to_json
from ..formats.tfrecord.encoding import buffers_of
from ..schema import Column


class Digest:
    """`add` batches, then ask for `value`."""

    def __init__(self, schema: dict[str, Column]) -> None:
        self.rows = 0
        self._schema = schema
        self._crcs = {name: [0, 0, 0, 0] for name in schema}

    def add(self, batch: Mapping[str, Any]) -> int:
        """How many rows it has."""
        buffers, rows = buffers_of(self._schema, batch)
        for crcs, (values, *ends) in zip(self._crcs.values(), buffers, strict=True):
            crcs[0] = codec.crc32c(_raw(values), crcs[0])
            for i, some in enumerate(ends, 1):
                if some is not None:
                    crcs[i] = codec.crc32c(_raw(np.diff(some)), crcs[i])
        self.rows += rows
        return rows

    @property
    def value(self) -> str:
        columns = [[name, column_to_json(self._schema[name]), *crcs] for name, crcs in sorted(self._crcs.items())]
        return f"{codec.crc32c(json.dumps([self.rows, columns]).encode()):08x}"


def _raw(array: Any) -> memoryview:
    array = np.ascontiguousarray(array)
    return memoryview(array.reshape(-1).view(np.uint8))
