"""Views show the rows of the parts; where they cannot, somebody is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.verify import verify_hdf5
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import DataError, SchemaError

SCHEMA = {"label": hold.Int64(), "emb": hold.Float32(2), "text": hold.Bytes(), "tags": hold.Ragged(hold.Bytes())}


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    made = write(tmp_path / "50%/run", SCHEMA)
    for task in range(3):
        with made.part(task, chunk_rows=4, codec="gzip") as part:
            labels = [100 * task + n for n in range(5 + task)]
            part.extend(
                {
                    "label": labels,
                    "emb": [[n, -n] for n in labels],
                    "text": [b"%d" % n for n in labels],
                    "tags": [[b"x"] * (n % 3) for n in labels],
                }
            )
    return made


def values(path: str | Path) -> dict[str, bytes]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, one: found.update({name: one[:].tobytes()}) if hasattr(one, "shape") else None)
    return found


def test_a_view_is_what_consolidate_makes(out: DatasetWriter, tmp_path: Path) -> None:
    folder = out.folder.parent
    view = out.view(folder / "view.h5")
    made = out.consolidate(tmp_path / "train.h5")
    assert values(view.path) == values(made.path)
    assert (view.rows, view.files) == (18, 3)
    with h5py.File(view.path) as file:
        assert file["label"].is_virtual
        assert not file["text/offsets"].is_virtual  # they must be moved: a view cannot do that
        assert file["label"].virtual_sources()[0].file_name == "run/parts/0.0.h5"
    assert os.path.getsize(view.path) < 40_000
    moved = tmp_path / "moved"
    shutil.move(folder, moved)  # all together: names are relative
    assert values(moved / "view.h5") == values(made.path)
    assert verify_hdf5(moved / "view.h5").ok


def test_missing_sources_are_found(out: DatasetWriter, tmp_path: Path) -> None:
    view = out.view(tmp_path / "view.h5").path
    with pytest.raises(DataError, match="a source that cannot be opened would silently read as fill values"):
        list(hold.read(view).batch(4))
    os.unlink(out.path_of(out.parts()[1]))
    report = verify_hdf5(view)
    assert not report.ok
    assert "does not exist: it reads as fill values" in report.problems[0].reason
    with pytest.raises(Exception, match="cannot open"):
        out.view(tmp_path / "again.h5")
    assert not (tmp_path / "again.h5").exists()


def test_tfrecord_parts_have_no_view(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"label": hold.Int64()})
    with out.part("a", "tfrecord") as part:
        part.extend({"label": [1]})
    with pytest.raises(SchemaError, match="expected HDF5 parts for a view, these are TFRecord"):
        out.view(tmp_path / "view.h5")


MANY = """
import resource, sys
import h5py
import holdfast as hold
from holdfast.errors import HoldfastError
from holdfast.data.writer.dataset_writer import write
soft, hard, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
out = write(folder + "/run")
try:
    view = out.view(folder + "/view.h5")
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300, end=" ")
    with h5py.File(view.path) as file:
        print(file["label"][:].tolist() == list(range(600)))
except HoldfastError as error:
    print(error)
"""
READ = """
import resource, sys
import holdfast as hold
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    rows = [n for batch in hold.read(sys.argv[1]).batch(50) for n in batch["label"].tolist()]
    print(sorted(rows) == list(range(600)))
except hold.errors.HoldfastError as error:
    print(type(error).__name__)
"""


def said(program: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def test_three_hundred_parts_and_a_hundred_descriptors(tmp_path: Path) -> None:
    """Right data or an error, never fill values."""
    out = write(tmp_path / "run", {"label": hold.Int64()})
    for task in range(300):
        with out.part(task) as part:
            part.extend({"label": np.arange(2) + 2 * task})
    assert "a view of 300 files: reading it needs" in said(MANY, 100, 100, tmp_path)
    assert not (tmp_path / "view.h5").exists()
    assert said(MANY, 100, 4096, tmp_path) == "True True"
    assert said(READ, tmp_path / "view.h5") in ("True", "FormatError")
    assert said(READ, tmp_path / "run") == "True"
