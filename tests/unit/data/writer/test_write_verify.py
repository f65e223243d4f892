"""verify: every flipped bit, every missing or doubled file is found; what is whole is not accused."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast.data.writer.dataset_writer import DatasetWriter, write

SCHEMA = {"x": hold.Int64(), "s": hold.Bytes()}


def made(folder: Path, kind: Any = "hdf5", codec: Any = None, tasks: int = 1) -> DatasetWriter:
    out = write(folder / "run", SCHEMA)
    for task in range(tasks):
        with out.part(f"t{task}", kind, codec=codec, chunk_rows=8 if kind == "hdf5" else None) as part:
            part.extend({"x": np.arange(20), "s": [b"some text %d" % i for i in range(20)]})
    return out


@pytest.mark.parametrize(("kind", "codec"), [("hdf5", None), ("hdf5", "lzf"), ("tfrecord", None)])
def test_a_flip_of_any_byte_is_found(tmp_path: Path, kind: Any, codec: Any) -> None:
    out = made(tmp_path, kind, codec)
    assert out.verify().ok
    path = out.path_of(out.parts()[0])
    chance = np.random.default_rng(7)
    for target in (path, path.with_suffix(".json")):
        whole = target.read_bytes()
        fd = os.open(target, os.O_RDWR)
        try:
            for at, byte in enumerate(whole):
                os.pwrite(fd, bytes([byte ^ (1 << int(chance.integers(8)))]), at)
                assert not out.verify().ok, (target, at)
                os.pwrite(fd, whole[at : at + 1], at)
        finally:
            os.close(fd)
    assert out.verify().ok


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    out = made(tmp_path)
    [record] = out.parts()
    offset, size, _ = record.chunks["x"][1]
    path = out.path_of(record)
    data = bytearray(path.read_bytes())
    data[offset + size - 1] ^= 1
    path.write_bytes(data)
    [problem] = out.verify().problems
    assert (problem.dataset, problem.chunk, problem.offset) == ("x", 1, offset)
    assert str(problem) == f"{path}, dataset 'x', chunk 1 at byte {offset:,}: the checksum of the chunk is wrong"


def test_what_is_missing_cut_or_doubled_is_reported(tmp_path: Path) -> None:
    out = made(tmp_path, tasks=4)
    parts = out.folder / "parts"
    (parts / "t0.0.h5").unlink()
    os.truncate(parts / "t1.0.h5", 900)
    (parts / "t2.0.h5").unlink()
    (parts / "t2.0.json").unlink()
    shutil.copy(parts / "t3.0.h5", parts / "t3.1.h5")
    shutil.copy(parts / "t3.0.json", parts / "t3.1.json")
    said = str(out.verify())
    assert "t0.0.h5: it is missing, with 20 rows" in said
    assert "t1.0.h5: expected" in said
    assert "t2.0.h5: it is missing, and so is its record: attempt 0 of task 't2' (20 rows" in said
    assert "t3.1.json: its name does not match its content, the record of attempt 0 of task 't3'" in said
    assert "expected one record of task 't3', got 2" in said


def test_a_part_of_another_schema_is_reported(tmp_path: Path) -> None:
    out = made(tmp_path)
    other = write(tmp_path / "other", {"y": hold.Int64()})
    with other.part("t9") as part:
        part.append(y=1)
    for name in os.listdir(other.folder / "parts"):
        shutil.copy(other.folder / "parts" / name, out.folder / "parts" / name)
    assert "expected the dataset's schema" in str(out.verify())


def test_progress_and_what_it_says(tmp_path: Path) -> None:
    out = made(tmp_path, tasks=3)
    told: list[tuple[int, int]] = []
    report = out.verify(lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert (report.parts, report.rows, report.ok) == (3, 60, True)
    assert str(report) == f"3 parts, 60 rows, {report.bytes:,} bytes: all as committed"


def test_leftovers_are_reported_and_left(tmp_path: Path) -> None:
    out = made(tmp_path)
    name = f"{socket.gethostname()}-1-abc"
    dead = out.folder / "tmp" / name
    dead.mkdir()
    (dead / "lock").write_text("t7\nt7.0.h5\n")
    (dead / "data.h5").write_bytes(b"x")
    os.link(dead / "data.h5", out.folder / "parts" / "t7.0.h5")
    report = out.verify()
    assert (report.ok, report.leftovers) == (True, ["parts/t7.0.h5: it has no record", f"tmp/{name}"])
    write(out.folder)
    assert os.listdir(out.folder / "tmp") == []
    assert out.verify().leftovers == []


def test_what_is_of_another_machine_is_left_until_it_is_old(tmp_path: Path) -> None:
    out = made(tmp_path)
    other = out.folder / "tmp" / "elsewhere-1-abc"
    other.mkdir()
    (other / "lock").write_text("t7\n")
    write(out.folder)
    assert other.exists()
    os.utime(other / "lock", (0, 0))
    write(out.folder)
    assert not other.exists()
