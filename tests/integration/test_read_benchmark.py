"""The benchmark of reading runs to its end and reports all its rows. No speed is tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_process import TOP, check_unknown_row, is_png, needs, run_quickly

# Work, and the peer it is compared with.
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
    ("resize", "tf.data"),
    ("crop", "tf.data, decode_and_crop_jpeg"),
    *((kind, "DataLoader(2), Pillow") for kind in ("resize", "crop")),
}
# Those that have an environment of their own may be missing.
ELSEWHERE = {
    "two threads, cv2",
    "two threads, simplejpeg + cv2.resize",
    "grain, simplejpeg + cv2.resize",
    "SPDL, simplejpeg + cv2.resize",
    "DALI, CPU",
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@needs("tensorflow", "torch", "h5py", "PIL", "google_crc32c", "matplotlib")
@pytest.mark.may_leave("shm", "torch's own loader ends its workers by SIGTERM, also between shm_open and shm_unlink")
def test_a_quick_run_reports_every_row(tmp_path: Path) -> None:
    report, done = run_quickly("read", tmp_path)
    elsewhere = {(kind, peer) for kind in ("resize", "crop") for peer in ELSEWHERE}
    assert {(row["key"], row["peer"]) for row in report["rows"]} == ROWS | elsewhere
    assert {row["row"] for row in report["rows"]} == {"1", "2", "3", "4", "5", "6", "7"}
    for row in report["rows"]:
        took_part = "theirs" in row
        assert took_part or "PyPI" in row["peer"] or row["peer"] in ELSEWHERE, (row, done.stderr)
        if took_part:
            assert "ratio" in row, (row, done.stderr)
            assert "met" in row or "target" not in row, row

    leaks = {(one["loader"], one["scenario"]): one["descriptors"] for one in report["leaks"]}
    assert len(leaks) == 2 * 6
    assert leaks["torch", "iterator_kept"][-1] > leaks["torch", "iterator_kept"][0]
    for scenario in ("iterator_kept", "loaders_error_kept", "batches_kept"):
        assert len(set(leaks["holdfast", scenario])) == 1, scenario
    assert is_png(tmp_path / "out" / "read_leaks.png")

    # Only complete data sets stay, for the next run.
    [kept] = (tmp_path / "tmp").iterdir()
    assert all((made / "made.json").is_file() for made in kept.iterdir())


@needs("h5py", "PIL")
def test_existing_data_are_not_made_again(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from benchmarks.read.data import QUICK, data_set\n"
        "folder = Path(sys.argv[1])\n"
        "print(data_set(folder, 'files', QUICK, print).records)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True, cwd=TOP).stdout for _ in range(2)]
    assert lines == ["making 200 samples of files data\n200\n", "200\n"]


@needs("h5py", "PIL")
def test_an_unknown_row_is_an_error(tmp_path: Path) -> None:
    check_unknown_row("read", tmp_path, "1,2,3,4,5,6,7,8")
