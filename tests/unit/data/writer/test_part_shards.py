"""A part's file is a shard like any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.data.writer.dataset_writer import write
from holdfast.testing import ShardContract


class TestHDF5Part(ShardContract):
    codec: Any = None

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        columns: dict[str, list[Any]] = {
            "name": [b"name %d" % i for i in range(rows)],
            "label": [i * 3 - 7 for i in range(rows)],
            "emb": [[i + 0.5, -i, i * 0.25] for i in range(rows)],
        }
        out = write(folder / "run", self.schema)
        with out.part("t", codec=self.codec, chunk_rows=7) as part:
            part.extend(columns)
        assert part.record is not None
        return out.path_of(part.record), columns


class TestPackedHDF5Part(TestHDF5Part):
    codec = "gzip"
