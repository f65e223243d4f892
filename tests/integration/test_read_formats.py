"""hold.read over every format: the same samples, the same rules."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.errors import HoldfastError

SCHEMA = {"id": hold.Int64(), "name": hold.Bytes(), "emb": hold.Float32(3)}
N = 300


def columns(first: int, count: int) -> dict[str, Any]:
    ids = np.arange(first, first + count)
    return {
        "id": ids,
        "name": [f"s{i}".encode() for i in ids],
        "emb": np.repeat(ids, 3).reshape(-1, 3).astype(np.float32),
    }


def as_tfrecord(path: Path, some: dict[str, Any]) -> Path:
    path = path.with_suffix(".tfrecord")
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend(some)
    return path


def as_hdf5(path: Path, some: dict[str, Any]) -> Path:
    path = path.with_suffix(".h5")
    with h5py.File(path, "x") as file:
        rows = len(some["id"])
        file.create_dataset("id", data=some["id"], chunks=(min(rows, 16),))
        file.create_dataset("name", data=some["name"])
        file.create_dataset("emb", data=some["emb"], chunks=(min(rows, 8), 3), compression="gzip")
    return path


def as_tar(path: Path, some: dict[str, Any]) -> Path:
    path = path.with_suffix(".tar")
    with tarfile.open(path, "x") as tar:
        for number, name, emb in zip(some["id"], some["name"], some["emb"], strict=True):
            parts = {"id": str(number).encode(), "name": name, "emb": " ".join(map(str, emb)).encode()}
            for ending, data in parts.items():
                info = tarfile.TarInfo(f"{number:06}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


FORMATS = {"tfrecord": as_tfrecord, "hdf5": as_hdf5, "tar": as_tar}


@pytest.fixture(params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = FORMATS[request.param]
    for at, (first, count) in enumerate([(0, 100), (100, 1), (101, 199)]):
        write(tmp_path / f"part-{at}", columns(first, count))
    return tmp_path


def check(batch: Any) -> list[int]:
    ids: list[int] = batch["id"].tolist()
    assert [bytes(name) for name in batch["name"]] == [f"s{i}".encode() for i in ids]
    assert batch["emb"].tolist() == [[i, i, i] for i in ids]
    return ids


def test_every_sample_once_on_every_rank_and_after_a_resume(folder: Path) -> None:
    base = hold.read(folder, SCHEMA).shuffle(seed=3)
    alone = [i for batch in base.batch(32) for i in check(batch)]
    assert sorted(alone) == list(range(N))
    ranks = [[i for batch in base.shard((rank, 2)).batch(7) for i in check(batch)] for rank in range(2)]
    assert [i for pair in zip(*ranks, strict=True) for i in pair] == alone
    with base.batch(32).iterate() as it:
        seen = [i for _ in range(4) for i in check(next(it))]
        state = it.state_dict()
    with base.batch(11).iterate() as it:
        it.load_state_dict(state)
        assert seen + [i for batch in it for i in check(batch)] == alone


def test_little_memory_and_few_files(folder: Path) -> None:
    ds = hold.read(folder, SCHEMA).shuffle(seed=3).batch(32)
    want = [i for batch in ds for i in check(batch)]
    assert [i for batch in ds.limits(memory=1000, open_files=1) for i in check(batch)] == want


def test_by_number(folder: Path) -> None:
    ds = hold.read(folder, SCHEMA)
    assert [int(sample["id"]) for sample in ds[[250, 0, 100]]] == [250, 0, 100]


def test_formats_can_be_read_together(tmp_path: Path) -> None:
    paths = [
        as_tar(tmp_path / "a", columns(0, 100)),
        as_hdf5(tmp_path / "b", columns(100, 100)),
        as_tfrecord(tmp_path / "c", columns(200, 100)),
    ]
    assert [i for batch in hold.read(paths, SCHEMA).batch(64) for i in check(batch)] == list(range(N))


def test_small_files_with_their_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(20):
            (tmp_path / name / f"{i:02}.png").write_bytes(f"{name} {i}".encode())
    ds = hold.read(tmp_path, {"image": hold.Bytes(key="data"), "label": hold.Int64()}, labels_from_folders=True)
    seen = {
        (bytes(image), int(label))
        for b in ds.shuffle(seed=1).batch(7)
        for image, label in zip(*b.values(), strict=True)
    }
    assert seen == {(f"{name} {i}".encode(), at) for at, name in enumerate(("cat", "dog")) for i in range(20)}


def test_committed_parts_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run.hold"
    (run / "parts").mkdir(parents=True)
    (run / "schema.json").write_text("{}")
    as_tfrecord(run / "parts" / "done.1", columns(0, 10)).with_suffix(".json").write_text("{}")
    as_tfrecord(run / "parts" / "begun.1", columns(10, 10))
    assert [i for batch in hold.read(run, SCHEMA).batch(4) for i in check(batch)] == list(range(10))


HARMS = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nonsense": lambda path: path.write_bytes(b"\x55" * 5000),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_bad_file_is_named_before_the_first_batch(folder: Path, harm: str) -> None:
    bad = sorted(folder.iterdir())[2]
    planned = hold.read(sorted(folder.iterdir()), SCHEMA)
    HARMS[harm](bad)
    if harm == "emptied" and bad.suffix == ".tfrecord":
        assert planned.plan().samples == 101  # it is a whole TFRecord file, of no records
        return
    with pytest.raises(HoldfastError, match="part-2"):
        planned.batch(4).iterate()


def test_a_file_that_changes_after_the_plan_is_refused(folder: Path) -> None:
    planned = hold.read(folder, SCHEMA).plan()
    bad = sorted(folder.iterdir())[2]
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    with pytest.raises(HoldfastError, match="part-2"):
        list(planned.batch(4))
