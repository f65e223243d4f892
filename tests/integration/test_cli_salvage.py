"""`holdfast salvage`: every intact record, in a new file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from cli_process import (
    document,
    everything_in,
    flip,
    frame_starts,
    holdfast,
    records_of,
    refused,
    write_shard,
    write_shards,
)

pytestmark = pytest.mark.formats


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_shards(tmp_path, shards=1)[0]


def test_json_has_its_keys(file: Path, tmp_path: Path) -> None:
    before = records_of(file)
    starts = frame_starts(file)
    flip(file, starts[7] + 20)
    said = document("salvage", file, tmp_path / "out.tfrecord")
    assert said == {
        "records_kept": 19,
        "records_lost_at_least": 1,
        "bytes_lost": starts[8] - starts[7],
        "records_doubtful": 0,
        "problems": [{"offset": starts[7], "record": 7, "reason": "bad data CRC"}],
    }
    assert records_of(tmp_path / "out.tfrecord") == before[:7] + before[8:]


def test_text_says_what_was_kept_and_lost(file: Path, tmp_path: Path) -> None:
    flip(file, frame_starts(file)[7] + 20)
    done = holdfast("salvage", file, tmp_path / "out.tfrecord")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split()[-3:] == ["bad", "data", "CRC"]
    out = tmp_path / "out.tfrecord"
    assert lines[-1].startswith(f"kept 19 records in {out}; lost at least 1 record (")


def test_a_whole_file_is_copied(file: Path, tmp_path: Path) -> None:
    done = holdfast("salvage", file, tmp_path / "out.tfrecord")
    assert done.stdout == f"nothing was corrupt: kept all 20 records in {tmp_path / 'out.tfrecord'}\n"
    assert (tmp_path / "out.tfrecord").read_bytes() == file.read_bytes()


def test_records_that_might_be_data_are_counted_and_kept_when_asked_for(file: Path, tmp_path: Path) -> None:
    before, starts = records_of(file), frame_starts(file)
    data = bytearray(file.read_bytes())
    for number in (5, 15):  # nothing tells any more how long these two were
        data[starts[number] : starts[number] + 30] = bytes(30)
    file.write_bytes(data)
    out = tmp_path / "out.tfrecord"
    done = holdfast("salvage", file, out)
    assert f"9 records in bytes {starts[6]:,}–{starts[15]:,} might be data of a corrupt record: left out" in done.stdout
    assert "9 records may be data of corrupt records: left out" in done.stdout
    assert "--keep-doubtful" in done.stdout
    assert records_of(out) == before[:5] + before[16:]
    said = document("salvage", file, out, "--force", "--keep-doubtful")
    assert (said["records_kept"], said["records_doubtful"]) == (18, 9)
    assert records_of(out) == before[:5] + before[6:15] + before[16:]


def test_where_nothing_can_be_kept_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "bad.tfrecord").write_bytes(bytes(range(1, 251)) * 9)
    done = holdfast("salvage", tmp_path / "bad.tfrecord", tmp_path / "out.tfrecord")
    assert done.returncode == 1
    assert "nothing could be kept" in done.stdout
    assert list(everything_in(tmp_path)) == ["bad.tfrecord"]


def test_it_replaces_a_file_only_when_asked_to(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tfrecord"
    out.write_text("precious")
    said = refused("salvage", file, out, code=3)
    assert said == f"{out} exists already; name another file or allow it to be replaced, with --force"
    assert out.read_text() == "precious"
    assert document("salvage", file, out, "--force")["records_kept"] == 20
    assert len(records_of(out)) == 20


def test_it_never_writes_over_the_damaged_file(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    (tmp_path / "other-name").symlink_to(file)
    for out in (file, tmp_path / "other-name"):
        assert "is also an input" in refused("salvage", file, out, "-f", code=3)
    assert file.read_bytes() == before


def test_a_missing_file_leaves_nothing(tmp_path: Path) -> None:
    said = refused("salvage", tmp_path / "nix", tmp_path / "out", code=3)
    assert said == f"{tmp_path / 'nix'}: cannot open: No such file or directory"
    assert list(everything_in(tmp_path)) == []


def test_packed_files_on_both_sides(file: Path, tmp_path: Path) -> None:
    before = records_of(file)
    assert holdfast("merge", file, "-o", tmp_path / "x.tfrecord.gz").returncode == 0
    document("salvage", tmp_path / "x.tfrecord.gz", tmp_path / "y.tfrecord.zlib")
    assert document("inspect", tmp_path / "y.tfrecord.zlib")["files"][0]["compression"] == "zlib"
    assert records_of(tmp_path / "y.tfrecord.zlib") == before


def test_many_files_go_to_a_folder(file: Path, tmp_path: Path) -> None:
    whole, nonsense, out = tmp_path / "whole.tfrecord", tmp_path / "nonsense.tfrecord", tmp_path / "out"
    write_shard(whole, 5)
    nonsense.write_bytes(b"nonsense" * 100)
    with h5py.File(tmp_path / "a.h5", "w") as made:
        made["x"] = np.arange(8)
    flip(file, frame_starts(file)[3] + 14)
    paths = [file, whole, tmp_path / "a.h5", tmp_path / "nix.tfrecord"]
    done = holdfast("salvage", *paths, f"{out}/")
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    kept = len(records_of(out / file.name))
    assert lines[0].startswith(f"{file}: kept {kept} records in {out / file.name}; lost at least 1 record (")
    assert lines[1] == f"{whole}: nothing was corrupt: kept all 5 records in {out / whole.name}"
    assert lines[2].startswith(f"{tmp_path / 'a.h5'}: nothing was corrupt: kept all 1 dataset in ")
    assert lines[3] == f"{tmp_path / 'nix.tfrecord'}: cannot open: No such file or directory"
    assert lines[4] == (f"3 of 4 files written; {kept + 5} records kept, at least 1 lost; 1 dataset kept, 0 rows lost")
    assert sorted(one.name for one in out.iterdir()) == sorted(["a.h5", file.name, whole.name])
    said = document("salvage", file, nonsense, whole, out, "--force", code=1)["files"]  # OUT is a folder by now
    assert [one["problem"] for one in said] == [None, None, None]
    assert [one["records_kept"] for one in said] == [kept, 0, 5]
    assert [one["out"] for one in said] == [str(out / file.name), None, str(out / whole.name)]


def test_two_files_of_one_name_are_refused_before_anything_is_written(file: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write_shard(tmp_path / "b" / file.name, 3)
    said = refused("salvage", file, tmp_path / "b" / file.name, f"{tmp_path / 'out'}/", code=2)
    assert "have the same name: salvage them to two directories" in said
    assert not (tmp_path / "out").exists()
