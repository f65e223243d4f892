"""Tars, plain and packed, keep the contract of shards."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import ShardContract

pytestmark = pytest.mark.formats


def columns_of(rows: int) -> dict[str, list[Any]]:
    return {
        "name": [b"name %d" % i for i in range(rows)],
        "label": [i * 3 - 7 for i in range(rows)],
        "emb": [[i + 0.5, -i, i * 0.25] for i in range(rows)],
    }


def members_of(columns: Mapping[str, list[Any]]) -> list[tuple[str, bytes]]:
    members = []
    for i, (name, label, emb) in enumerate(zip(*columns.values(), strict=True)):
        texts = {"name": name, "label": b"%d" % label, "emb": " ".join(map(str, emb)).encode()}
        members += [(f"a/{i:05d}.{kind}", text) for kind, text in texts.items()]
    return members


class TestTar(ShardContract):
    knows_types = False
    suffix, mode = ".tar", "w"

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        path, columns = folder / f"data{self.suffix}", columns_of(rows)
        with tarfile.open(path, self.mode) as tar:  # type: ignore[call-overload]
            for name, data in members_of(columns):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path, columns


class TestGzipTar(TestTar):
    suffix, mode = ".tar.gz", "w:gz"


class TestXzTar(TestTar):
    suffix, mode = ".tar.xz", "w:xz"


class TestBzip2Tar(TestTar):
    suffix, mode = ".tar.bz2", "w:bz2"
