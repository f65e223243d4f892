"""A shard that another process changes while an epoch reads it: an error, never other data than at its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.errors import CorruptError

ROWS, WIDTH, STEP = 12_000, 64, 500
SCHEMA = {"x": hold.Int64(WIDTH)}


def values(rows: int, first: int = 1 << 50) -> np.ndarray:
    return np.arange(first, first + rows * WIDTH, dtype=np.int64).reshape(rows, WIDTH)


def write_hdf5(path: Path, x: np.ndarray, **options: object) -> None:
    with h5py.File(path, "x") as file:
        file.create_dataset("x", data=x, **options)


def write_tfrecord(path: Path, x: np.ndarray) -> None:
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend({"x": x})


def write_tar(path: Path, x: np.ndarray) -> None:
    source = path.with_suffix(".tfrecord")
    write_tfrecord(source, x)
    hold.convert(source, path, SCHEMA)


WRITE: dict[str, Callable[[Path, np.ndarray], None]] = {
    "contiguous.h5": write_hdf5,
    "chunked.h5": lambda path, x: write_hdf5(path, x, chunks=(200, WIDTH)),
    "checked.h5": lambda path, x: write_hdf5(path, x, chunks=(200, WIDTH), fletcher32=True),
    "a.tfrecord": write_tfrecord,
    "a.tar": write_tar,
}


def truncate(path: Path, other: Path) -> None:
    os.truncate(path, 3000)


def open_to_write(path: Path, other: Path) -> None:
    """As h5py does: it truncates the file, and then finds it locked."""
    subprocess.run([sys.executable, "-c", f"import h5py; h5py.File({str(path)!r}, 'w')"], capture_output=True)


def copy_over(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def rewrite_in_place(path: Path, other: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


CHANGES = [truncate, open_to_write, copy_over, rewrite_in_place]


@pytest.fixture(scope="module", params=WRITE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A shard, and another one with fewer rows."""
    folder = tmp_path_factory.mktemp("made")
    path, other = folder / request.param, folder / f"other-{request.param}"
    WRITE[request.param](path, values(ROWS))
    WRITE[request.param](other, values(STEP, first=1 << 51))
    return path, other


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_change_during_an_epoch_is_an_error(
    made: tuple[Path, Path], change: Callable[[Path, Path], None], shuffled: bool, tmp_path: Path
) -> None:
    path = shutil.copy(made[0], tmp_path)
    dataset = hold.read(path).batch(STEP).prefetch(1).limits(memory="8MB")
    if shuffled:
        dataset = dataset.shuffle(seed=1, window="2MB")
    delivered = 0
    with dataset.iterate() as iteration, pytest.raises(CorruptError, match="has changed since"):
        for batch in iteration:
            x = batch["x"]
            assert np.isin(x[:, 0], values(ROWS)[:, 0]).all()
            assert (x == x[:, :1] + np.arange(WIDTH)).all()
            delivered += len(x)
            if delivered == STEP:
                change(Path(path), made[1])
    assert delivered < ROWS


def test_a_hard_link_and_another_mode_are_no_change(tmp_path: Path) -> None:
    """Backups make hard links of files, and somebody may change their mode: the data are the same."""
    path = tmp_path / "a.h5"
    write_hdf5(path, values(ROWS))
    with hold.read(path).batch(STEP).prefetch(1).iterate() as iteration:
        first = next(iteration)
        os.link(path, tmp_path / "b.h5")
        path.chmod(0o600)
        assert len(first["x"]) + sum(len(batch["x"]) for batch in iteration) == ROWS
