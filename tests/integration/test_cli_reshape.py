"""`holdfast split`, `merge` and `index`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import (
    document,
    everything_in,
    flip,
    frame_starts,
    holdfast,
    on_terminal,
    records_of,
    refused,
    without_styles,
    write_shard,
)

import holdfast as hold
from holdfast._native import codec

pytestmark = pytest.mark.formats


# ---- split -------------------------------------------------------------------------------------------------


def test_split_into_so_many(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    said = document("split", shards[0].parent, "-n", "4", "-o", out, "--name", "train")
    names = [f"train-{i:05d}-of-00004.tfrecord" for i in range(4)]
    assert said == {
        "records": 60,
        "files": [
            {
                "path": str(out / name),
                "records": 15,
                "bytes": (out / name).stat().st_size,
                "crc32c": f"{codec.crc32c((out / name).read_bytes()):08x}",
            }
            for name in names
        ],
    }
    assert list(everything_in(out)) == ["holdfast.manifest.json", *names]
    assert records_of(*(out / name for name in names)) == records_of(*shards)
    assert document("verify", out)["ok"] is True


def test_split_by_size(shards: list[Path], tmp_path: Path) -> None:
    said = document("split", *shards, "--size", "2kB", "-o", tmp_path / "out")
    assert all(file["bytes"] <= 2000 for file in said["files"])
    assert sum(file["bytes"] for file in said["files"]) == sum(path.stat().st_size for path in shards)
    assert records_of(*(file["path"] for file in said["files"])) == records_of(*shards)


def test_split_names_parts_after_the_first_file(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00001-of-00009.tfrecord", 4)
    said = document("split", tmp_path, "-n", "2", "-o", tmp_path / "out", "--compression", "gzip")
    assert [Path(file["path"]).name for file in said["files"]] == [
        f"train-0000{i}-of-00002.tfrecord.gz" for i in (0, 1)
    ]
    assert document("verify", tmp_path / "out")["ok"] is True


def test_split_says_when_files_stay_empty(tmp_path: Path) -> None:
    write_shard(tmp_path / "few.tfrecord", 2)
    done = holdfast("split", tmp_path / "few.tfrecord", "-n", "5", "-o", tmp_path / "out")
    assert done.returncode == 0
    assert "3 files are empty: there are only 2 records.\n" in done.stdout
    assert done.stdout.endswith(f"counts and checksums are in {tmp_path / 'out' / 'holdfast.manifest.json'}\n")


def test_split_on_80_columns(shards: list[Path], tmp_path: Path) -> None:
    shown, code = on_terminal("split", *shards, "-n", "3", "-o", tmp_path / "out")
    assert code == 0
    assert max(map(len, without_styles(shown).splitlines()[:-1])) <= 80


def test_split_refuses_names_that_are_taken_before_it_writes(shards: list[Path], tmp_path: Path) -> None:
    taken = tmp_path / "out" / "part-0-00001-of-00002.tfrecord"
    taken.parent.mkdir()
    taken.write_text("precious")
    said = refused("split", *shards, "-n", "2", "-o", tmp_path / "out", code=3)
    assert said == f"{taken} exists already; remove it, or choose another folder or name"
    assert list(everything_in(tmp_path / "out")) == [taken.name]


def test_split_of_damaged_input_leaves_nothing(shards: list[Path], tmp_path: Path) -> None:
    flip(shards[1], frame_starts(shards[1])[7] + 20)
    said = refused("split", *shards, "-n", "2", "-o", tmp_path / "out" / "deep", code=1)
    assert f"{shards[1]}, record 7 at byte " in said
    assert not (tmp_path / "out").exists()


def test_split_wants_a_name_not_a_path(shards: list[Path], tmp_path: Path) -> None:
    said = refused("split", *shards, "-n", "2", "-o", tmp_path / "out", "--name", "a/b", code=2)
    assert "expected a name for the parts, without a folder, got 'a/b'" in said
    assert not (tmp_path / "out").exists()


# ---- merge -------------------------------------------------------------------------------------------------


def test_merge_keeps_the_order_given(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "all.tfrecord"
    said = document("merge", shards[2], shards[0], shards[1], "-o", out)
    entry = {
        "path": str(out),
        "records": 60,
        "bytes": out.stat().st_size,
        "crc32c": f"{codec.crc32c(out.read_bytes()):08x}",
    }
    assert said == {"records": 60, "files": [entry]}
    assert records_of(out) == records_of(shards[2], shards[0], shards[1])
    assert out.read_bytes() == b"".join(shards[i].read_bytes() for i in (2, 0, 1))


def test_merge_says_what_it_did(shards: list[Path], tmp_path: Path) -> None:
    done = holdfast("merge", shards[0].parent, "-o", tmp_path / "all.tfrecord")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("60 records of 3 files, ")
    assert done.stdout.endswith(f"read back and compared: {tmp_path / 'all.tfrecord'}\n")


def test_merge_takes_and_makes_packed_files(shards: list[Path], tmp_path: Path) -> None:
    document("merge", *shards, "-o", tmp_path / "a.tfrecord.gz")
    document("merge", tmp_path / "a.tfrecord.gz", shards[0], "-o", tmp_path / "b.bin", "--compression", "zlib")
    assert records_of(tmp_path / "b.bin") == records_of(*shards, shards[0])
    said = document("verify", tmp_path / "a.tfrecord.gz", tmp_path / "b.bin")
    assert [file["records"] for file in said["files"]] == [60, 80]


def test_merge_replaces_only_when_asked_to(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "all.tfrecord"
    out.write_text("precious")
    assert refused("merge", *shards, "-o", out, code=3).endswith("allow it to be replaced, with --force")
    assert out.read_text() == "precious"
    document("merge", *shards, "-o", out, "-f")
    assert len(records_of(out)) == 60


def test_merge_does_not_write_over_its_input(shards: list[Path]) -> None:
    said = refused("merge", *shards, "-o", shards[1], "--force", code=3)
    assert said == f"{shards[1]} is also an input; name another output"
    assert len(records_of(shards[1])) == 20


def test_merge_of_damaged_or_missing_input_leaves_nothing(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out" / "all.tfrecord"
    out.parent.mkdir()
    assert (
        refused("merge", *shards, "nix.tfrecord", "-o", out, code=3)
        == "nix.tfrecord: cannot open: No such file or directory"
    )
    flip(shards[2], frame_starts(shards[2])[3] + 20)
    assert ": bad data CRC. The file is corrupt: " in refused("merge", *shards, "-o", out, code=1)
    assert list(everything_in(out.parent)) == []


def test_merging_over_a_listed_file_keeps_its_manifest_true(shards: list[Path], tmp_path: Path) -> None:
    document("split", *shards, "-n", "1", "-o", tmp_path / "out", "--name", "x")
    document("merge", shards[0], "-o", tmp_path / "out" / "x-00000-of-00001.tfrecord", "--force")
    assert document("verify", tmp_path / "out")["files"][0]["records"] == 20


# ---- index -------------------------------------------------------------------------------------------------


def test_index_beside_the_files(shards: list[Path]) -> None:
    said = document("index", shards[0].parent)
    assert said == {
        "files": [
            {"path": str(path), "index": str(path.with_name(".holdfast.index")), "records": 20, "problem": None}
            for path in shards
        ]
    }
    with hold.Records(shards[1]) as records:
        assert records[3] == records_of(shards[1])[3]


def test_index_in_the_cache(shards: list[Path], tmp_path: Path) -> None:
    done = holdfast("index", "--cache", *shards, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0
    assert f"the index is {tmp_path / 'cache' / 'holdfast' / 'index'}/" in done.stdout
    assert len(list((tmp_path / "cache" / "holdfast" / "index").iterdir())) == 1
    assert len(list(shards[0].parent.iterdir())) == 3


def test_index_finishes_all_files_before_it_fails(shards: list[Path], tmp_path: Path) -> None:
    flip(shards[0], 3)
    write_shard(tmp_path / "in" / "packed.tfrecord.gz", 3)
    done = holdfast("index", shards[0].parent, "nix")
    assert done.returncode == 1
    assert done.stdout.endswith(
        f"indexed 40 records of 2 of 5 files\nthe index is {shards[0].parent}/.holdfast.index\n"
    )
    said = {Path(file["path"]).name: file for file in document("index", shards[0].parent, "nix", code=1)["files"]}
    assert said["part-0.tfrecord"]["problem"].endswith("bad length CRC")
    assert "cannot be read by record number" in said["packed.tfrecord.gz"]["problem"]
    assert said["nix"] == {
        "path": "nix",
        "index": None,
        "records": None,
        "problem": "cannot open: No such file or directory",
    }
    assert document("index", "nix", shards[1], code=3)["files"][1]["problem"] is None
