"""TFRecord keeps the contract of every format, plain and packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.schema import Column
from holdfast.testing import FormatContract

pytestmark = pytest.mark.formats


class TestPlain(FormatContract):
    suffix = ".tfrecord"

    def write(self, path: Path, schema: Mapping[str, Column], columns: Mapping[str, Any]) -> None:
        with hold.TFRecordWriter(path, schema) as writer:
            writer.extend(columns)

    def read(self, path: Path, schema: Mapping[str, Column], size: int) -> Iterator[Mapping[str, Any]]:
        with hold.TFRecordReader(path) as reader:
            yield from reader.batches(schema, size)


class TestGzip(TestPlain):
    suffix = ".tfrecord.gz"


class TestZlib(TestPlain):
    suffix = ".tfrecord.zlib"
