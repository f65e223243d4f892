"""Lists of files keep the contract of shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.data.formats.base import Shard
from holdfast.data.formats.files import list_files
from holdfast.schema import Bytes, Column, Int64
from holdfast.testing import ShardContract

pytestmark = pytest.mark.formats

CLASSES = ("ant", "bee", "cat")


class TestFiles(ShardContract):
    schema: Mapping[str, Column] = {"data": Bytes(), "path": Bytes(), "label": Int64()}
    one_file = False

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        root = folder / "data"
        root.mkdir()
        files = []
        for i in range(rows):
            name = f"{CLASSES[i % 3]}/{i:05d}.png"
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(b"content %d" % i * (i % 7 + 1))
            files.append((name, i % 3))
        files.sort()
        return root, {
            "data": [(root / name).read_bytes() for name, _ in files],
            "path": [name.encode() for name, _ in files],
            "label": [label for _, label in files],
        }

    def open(self, path: Path) -> Shard:
        return list_files(path, classes_from_folder=True)
