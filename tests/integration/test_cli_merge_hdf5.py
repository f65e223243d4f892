"""`holdfast merge` of HDF5 files and of folders made by hold.write."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from cli_process import (
    COMMAND,
    document,
    environment,
    everything_in,
    holdfast,
    on_terminal,
    refused,
    wait_for,
    write_shards,
)

import holdfast as hold
from holdfast.data.formats.parts_manifest import latest_manifest
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import HoldfastError

SCHEMA = {"label": hold.Int64(), "text": hold.Bytes()}


@pytest.fixture
def workers(tmp_path: Path) -> list[Path]:
    """Files nobody made with holdfast; the tenth sorts before the second unless one is careful."""
    folder = tmp_path / "out"
    folder.mkdir()
    paths = [folder / f"worker_{i}.h5" for i in (2, 10)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["train/x"] = np.arange(10) + 100 * number
            file.create_dataset("train/y", data=np.ones((10, 3)) * number, chunks=(4, 3), compression="gzip")
            file.attrs["rank"] = number
    return paths


@pytest.fixture
def run(tmp_path: Path) -> DatasetWriter:
    out = write(tmp_path / "run.hold", SCHEMA)
    for task in range(3):
        with out.part(f"rank{task}", chunk_rows=4) as part:
            part.extend({"label": [10 * task + n for n in range(5)], "text": [b"%d" % n for n in range(5)]})
    return out


def labels(path: Path) -> list[int]:
    with hold.read(str(path), {"label": hold.Int64()}).batch(100).iterate() as it:
        return [n for batch in it for n in batch["label"].tolist()]


def test_plain_files(workers: list[Path], tmp_path: Path) -> None:
    nine, ten = list(range(10)), list(range(100, 110))  # a folder and a glob are sorted by name: worker_10 comes first
    folder = workers[0].parent
    for sources, wanted in (([folder], ten + nine), (workers, nine + ten), ([folder / "worker_*.h5"], ten + nine)):
        said = document("merge", *sources, "-o", tmp_path / "train.h5", "--force")
        with h5py.File(tmp_path / "train.h5") as file:
            assert file["train/x"][:].tolist() == wanted
            assert file["train/y"].compression == "gzip"
        assert (said["format"], said["rows"], said["files"]) == ("hdf5", 20, 2)
        assert [one["dataset"] for one in said["datasets"]] == ["/train/x", "/train/y"]
        assert "attribute 'rank'" in said["notes"][0]
        assert [(one["object"], one["attribute"], one["kept"]) for one in said["attributes"]] == [("/", "rank", False)]
    done = holdfast("merge", *workers, "-o", tmp_path / "other.h5", "--order", "any", "--attributes", "first")
    assert done.returncode == 0
    assert "20 rows in 2 datasets of 2 files" in done.stdout
    assert "No checksums are beside the files: bits flipped before the merge in '/train/x'" in done.stdout
    assert "attribute 'rank' of '/' differs in" in done.stdout
    with h5py.File(workers[1], "r+") as file:
        at = file["train/y"].id.get_chunk_info(1).byte_offset
    with open(workers[1], "r+b") as raw:
        raw.seek(at + 12)
        raw.write(b"\xff\xff\xff")
    text = refused("merge", *workers, "-o", tmp_path / "bad.h5", code=1)
    assert f"worker_10.h5 at byte {at:,}: dataset '/train/y': a chunk cannot be decoded" in text
    assert not (tmp_path / "bad.h5").exists()


def test_a_run(run: DatasetWriter, tmp_path: Path) -> None:
    said = document("merge", run.folder, "-o", tmp_path / "train.h5")
    wanted = [10 * task + n for task in range(3) for n in range(5)]
    assert labels(tmp_path / "train.h5") == wanted
    assert (said["rows"], said["parts"], said["manifest"]) == (15, 3, 1)
    done = holdfast("merge", run.folder, "-o", tmp_path / "any.h5", "--order", "any")
    assert "15 rows of 3 parts" in done.stdout
    assert "(manifest 2)" in done.stdout
    assert sorted(labels(tmp_path / "any.h5")) == wanted
    manifest = latest_manifest(run.folder)
    assert manifest is not None
    assert manifest.order == "any"


def test_dry_run_and_view(run: DatasetWriter, workers: list[Path], tmp_path: Path) -> None:
    for source in (run.folder, workers[0].parent):
        out = tmp_path / "new.h5"
        before = list(everything_in(tmp_path))
        done = holdfast("merge", source, "-o", out, "--dry-run")
        assert (done.returncode, done.stderr) == (0, "")
        assert "would go to" in done.stdout
        assert "copy" in done.stdout
        assert document("merge", source, "-o", out, "-n")["path"] == str(out)
        assert list(everything_in(tmp_path)) == before
        done = holdfast("merge", source, "-o", out, "--virtual")
        assert done.returncode == 0, done
        assert "are shown by" in done.stdout
        with h5py.File(out) as file:
            shown = file["label" if source == run.folder else "train/x"]
            assert shown.is_virtual
            assert len(shown[:]) == (15 if source == run.folder else 20)
        out.unlink()


def test_tfrecord_parts(tmp_path: Path) -> None:
    out = write(tmp_path / "run.hold", SCHEMA)
    with out.part("a", "tfrecord") as part:
        part.extend({"label": [1, 2], "text": [b"", b"x"]})
    said = document("merge", out.folder, "-o", tmp_path / "train.tfrecord")
    assert (said["format"], said["rows"]) == ("tfrecord", 2)
    assert labels(tmp_path / "train.tfrecord") == [1, 2]


def test_wrong_use(run: DatasetWriter, workers: list[Path], tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 1)
    (tmp_path / "empty").mkdir()
    out = tmp_path / "x.h5"
    cases: list[tuple[tuple[str | Path, ...], int, str]] = [
        ((run.folder, workers[0], "-o", out), 2, "merge it alone"),
        ((workers[0], shards[0], "-o", out), 2, "expected files of one format"),
        ((*workers, "-o", tmp_path / "x.tfrecord"), 2, "is a name for TFRecord, these are HDF5 files"),
        ((*shards, "-o", out), 2, "is a name for HDF5, these are TFRecord files"),
        ((*shards, "-o", tmp_path / "x.tfrecord", "--virtual"), 2, "is for HDF5"),
        ((*workers, "-o", out, "--compression", "gzip"), 2, "--compression is for TFRecord"),
        ((*workers, "-o", out, "--virtual", "--no-verify-sources"), 2, "apply to copied rows"),
        ((*shards, "-o", tmp_path / "x.tfrecord", "--no-verify-sources"), 2, "is for HDF5"),
        ((run.folder, "-o", out, "--no-verify-sources"), 2, "for HDF5 files that are passed by name"),
        ((*workers, "-o", out, "--attributes", "error"), 2, "attribute 'rank' of '/' differs in"),
        ((*shards, "-o", tmp_path / "x.tfrecord", "--attributes", "first"), 2, "is for HDF5"),
        ((run.folder, "-o", out, "--attributes", "first"), 2, "for HDF5 files that are passed by name"),
        ((tmp_path / "empty", "-o", out), 3, "there are none"),
        ((tmp_path / "nix.h5", "-o", out), 3, "cannot open: No such file or directory"),
        ((*workers, "-o", workers[0]), 3, "is also an input"),
        ((run.folder, "-o", tmp_path / "x.tfrecord"), 3, "the parts are hdf5"),
        ((*workers, "-o", tmp_path / "nowhere" / "x.h5"), 3, "cannot write"),
    ]
    for arguments, code, said in cases:
        assert said in refused("merge", *arguments, code=code), arguments
    document("merge", *workers, "-o", out)
    assert refused("merge", *workers, "-o", out, code=3).endswith("allow it to be replaced, with --force")
    with h5py.File(workers[1], "a") as file:
        file["more"] = 1
    assert "is missing" in refused("merge", *workers, "-o", tmp_path / "y.h5", code=2)
    assert not (tmp_path / "y.h5").exists()


def test_damage_is_exit_code_one(run: DatasetWriter, tmp_path: Path) -> None:
    record = run.parts()[1]
    path = run.path_of(record)
    data = bytearray(path.read_bytes())
    data[record.chunks["label"][0][0]] ^= 1
    path.write_bytes(data)
    said = refused("merge", run.folder, "-o", tmp_path / "train.h5", code=1)
    assert "rank1.0.h5" in said
    assert "the crc32c of a chunk is" in said


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM, as from a cluster: the next run starts over."""
    files = [tmp_path / f"w{i}.h5" for i in range(2)]
    values = np.random.default_rng(0).integers(0, 200, (40_000, 64), np.uint8)
    for path in files:
        with h5py.File(path, "w") as file:  # not aligned: everything behind the first file is compressed again
            file.create_dataset("x", data=values[:-7], chunks=(1000, 64), compression="gzip", compression_opts=9)
    out, partial = tmp_path / "out.h5", tmp_path / ".out.h5.partial"
    command = [*COMMAND, "merge", *map(str, files), "-o", str(out)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: partial.exists() and partial.stat().st_size > 100_000, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"terminated by SIGTERM" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w0.h5", "w1.h5"]
    assert document("merge", *files, "-o", out)["rows"] == 2 * len(values[:-7])
    with h5py.File(out) as file:
        assert np.array_equal(file["x"][:], np.concatenate([values[:-7]] * 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.h5", "w0.h5", "w1.h5"]


def test_readers_meanwhile_see_all_or_nothing(run: DatasetWriter, tmp_path: Path) -> None:
    out = tmp_path / "train.h5"
    command = [*COMMAND, "merge", str(run.folder), "-o", str(out)]
    seen = set()
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                seen.add(len(labels(out)))
            except HoldfastError:
                seen.add(0)
            assert len(labels(run.folder)) == 15
    assert process.returncode == 0
    assert seen <= {0, 15}
    assert len(labels(out)) == 15


def test_a_bar_on_a_terminal(workers: list[Path], tmp_path: Path) -> None:
    written, code = on_terminal("merge", *workers, "-o", tmp_path / "train.h5")
    assert code == 0
    assert "20 rows in 2 datasets of 2 files" in written
