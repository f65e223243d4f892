"""Every format's shards keep the same contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.schema import Column
from holdfast.testing import ShardContract

pytestmark = pytest.mark.formats


def sample(i: int) -> dict[str, Any]:
    return {"name": b"name %d" % i, "label": i * 3 - 7, "emb": [i + 0.5, -i, i * 0.25]}


def samples(rows: int) -> dict[str, list[Any]]:
    made = [sample(i) for i in range(rows)]
    return {name: [row[name] for row in made] for name in ("name", "label", "emb")}


class TestTFRecord(ShardContract):
    suffix = ".tfrecord"

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        path, columns = folder / f"data{self.suffix}", samples(rows)
        with hold.TFRecordWriter(path, self.schema) as writer:
            writer.extend(columns)
        return path, columns


class TestPackedTFRecord(TestTFRecord):
    suffix = ".tfrecord.gz"


class TestHDF5(ShardContract):
    schema: Mapping[str, Column] = {**ShardContract.schema, "label": hold.Array("int32")}

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        path, columns = folder / "data.h5", samples(rows)
        with h5py.File(path, "x") as file:
            file.create_dataset("name", data=columns["name"], shape=(rows,), dtype=h5py.string_dtype())
            file.create_dataset("label", data=np.array(columns["label"], np.int32))
            file.create_dataset("emb", data=np.array(columns["emb"], np.float32).reshape(rows, 3))
        return path, columns


class TestChunkedHDF5(ShardContract):
    schema: Mapping[str, Column] = {**ShardContract.schema, "emb": hold.Array("float64", 3)}

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        path, columns = folder / "data.h5", samples(rows)
        with h5py.File(path, "x") as file:
            file.create_dataset(
                "name", data=columns["name"], shape=(rows,), dtype="S16", maxshape=(None,), chunks=(10,)
            )
            file.create_dataset(
                "label", data=np.array(columns["label"], ">i8"), maxshape=(None,), chunks=(7,), compression="gzip"
            )
            emb = np.array(columns["emb"], np.float64).reshape(rows, 3)
            file.create_dataset("emb", data=emb, maxshape=(None, 3), chunks=(16, 2), fletcher32=True)
        return path, columns
