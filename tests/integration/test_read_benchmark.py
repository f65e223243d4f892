"""The benchmark of reading runs to its end and tells all its rows. How fast anything is, is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import holdfast as hold

TOP = Path(__file__).resolve().parents[2]

# Work, and whom it is compared with.
ROWS = {
    ("examples", "tf.data"),
    ("examples-torch", "DataLoader(2), PyPI tfrecord (no CRC)"),
    ("examples-torch", "DataLoader(2), by hand with google-crc32c"),
    ("examples-torch", "DataLoader(2), PyPI MultiTFRecordDataset (no CRC)"),
    ("png", "tf.data, decode_png"),
    ("png", "DataLoader(2), Pillow"),
    ("jpeg", "tf.data, decode_jpeg"),
    ("jpeg", "DataLoader(2), Pillow"),
    ("png-pillow", "tf.data, decode_png"),
    ("png-pillow", "DataLoader(2), Pillow"),
    ("jpeg-pillow", "tf.data, decode_jpeg"),
    ("jpeg-pillow", "DataLoader(2), Pillow"),
    ("files", "DataLoader(2), a Dataset as ImageFolder"),
    ("files", "tf.data, read_file + decode_jpeg"),
    ("starts", "DataLoader(2)"),
    ("hdf5", "DataLoader(2), h5py row by row"),
    ("hdf5", "the same, all rows shuffled"),
}


def run_benchmark(*arguments: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOP / "benchmarks" / "read.py"), *arguments]
    tmp.mkdir(exist_ok=True)
    # TensorFlow compiles what it writes there, and leaves that.
    env = {**os.environ, "TMPDIR": str(tmp), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs the Python packages {', '.join(missing)}")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@needs("tensorflow", "torch", "h5py", "PIL", "google_crc32c", "matplotlib")
def test_a_quick_run_tells_every_row(tmp_path: Path) -> None:
    out, tmp = tmp_path / "out", tmp_path / "tmp"
    done = run_benchmark("--quick", "--rounds", "1", "--out", str(out), tmp=tmp)
    assert done.returncode == 0, done.stderr

    report = json.loads((out / "read.json").read_text())
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5", "6"}
    for row in report["rows"]:
        took_part = "theirs" in row
        assert took_part or "PyPI" in row["peer"], (row, done.stderr)
        if "read" in hold.__all__ and took_part:
            assert "ratio" in row, (row, done.stderr)
            assert "met" in row or "wanted" not in row, row

    lives = {(one["loader"], one["scenario"]): one["descriptors"] for one in report["leaks"]}
    assert len(lives) == 2 * 6
    assert lives["torch", "iterator_kept"][-1] > lives["torch", "iterator_kept"][0]
    for scenario in ("iterator_kept", "loaders_error_kept", "batches_kept"):
        assert len(set(lives["holdfast", scenario])) == 1, scenario

    page = (out / "read.md").read_text()
    for row in report["rows"]:
        assert row["work"] in done.stdout
        assert row["work"] in page
        assert row["peer"] in page
    for name in ("read.png", "read_leaks.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    # Only the data stays, for the next run; all of it whole.
    [kept] = tmp.iterdir()
    assert all((made / "made.json").is_file() for made in kept.iterdir())


@needs("h5py", "PIL")
def test_data_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from read_data import QUICK, data_folder, data_set\n"
        "folder = data_folder(Path(sys.argv[1]))\n"
        "print(data_set(folder, 'files', QUICK, print).records)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    env = {**os.environ, "PYTHONPATH": str(TOP / "benchmarks")}
    said = [subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout for _ in range(2)]
    assert said == ["making 200 samples of files data\n200\n", "200\n"]


@needs("h5py", "PIL")
def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    done = run_benchmark("--only", "1,9", tmp=tmp_path)
    assert done.returncode == 2
    assert "wanted rows from 1 to 7, got 9" in done.stderr
