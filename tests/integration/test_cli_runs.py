"""`holdfast verify` and `inspect` of runs, tars, and folders with all kinds of files."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest
from cli_process import document, environment, flip, holdfast, on_terminal, refused, without_styles, write_shard

import holdfast as hold
from holdfast.data.formats.tar.writer import TarWriter
from holdfast.data.writer.dataset_writer import DatasetWriter

SCHEMA = {"label": hold.Int64(), "emb": hold.Float32(8)}


@pytest.fixture
def run(tmp_path: Path) -> DatasetWriter:
    run = hold.write(tmp_path / "run.hold", SCHEMA)
    kinds: list[Literal["hdf5", "tfrecord"]] = ["hdf5", "tfrecord", "hdf5"]
    for i, kind in enumerate(kinds):
        with run.part(f"rank{i}", format=kind, chunk_rows=10 if kind == "hdf5" else None) as part:
            part.extend({"label": np.arange(25), "emb": np.ones((25, 8))})
    return run


def test_a_whole_run(run: DatasetWriter) -> None:
    size = sum(part.bytes for part in run.parts())
    assert document("verify", run.folder) == {
        "ok": True,
        "files": [
            {
                "path": str(run.folder),
                "ok": True,
                "format": "run",
                "parts": 3,
                "rows": 75,
                "bytes": size,
                "problems": [],
                "leftovers": [],
                "at_work": [],
            }
        ],
        "suspicious": [],
    }
    done = holdfast("verify", "run.hold", cwd=run.folder.parent)
    assert done.stdout.startswith("run.hold: 3 parts, 75 rows, ")
    assert done.stdout.endswith(" kB: all as committed\n")


def test_damage_is_named_to_the_chunk(run: DatasetWriter) -> None:
    first, _, last = run.parts()
    offset, _, _ = first.chunks["emb"][1]
    flip(run.path_of(first), offset + 5)
    os.unlink(run.path_of(last))
    [said] = document("verify", run.folder, code=1)["files"]
    assert [(one["dataset"], one["chunk"], one["offset"]) for one in said["problems"]] == [
        ("emb", 1, offset),
        (None, None, None),
    ]
    done = holdfast("verify", "run.hold", cwd=run.folder.parent)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "run.hold"
    assert lines[1].split() == ["part", "dataset", "chunk", "at", "byte", "what", "is", "wrong"]
    assert lines[2].split()[:4] == ["parts/rank0.0.h5", "emb", "1", f"{offset:,}"]
    assert lines[3].split()[0] == "parts/rank2.0.h5"
    assert lines[-1].endswith(": 2 problems")
    text, code = on_terminal("verify", run.folder)
    assert code == 1
    assert all(len(line) <= 80 for line in without_styles(text).splitlines())


DIES = """
import os, sys
import holdfast as hold
with hold.write(sys.argv[1]).part("dead") as part:
    part.append(label=1, emb=[0.0] * 8)
    os._exit(1)
"""


def test_the_dead_and_the_living_are_reported_and_nothing_is_touched(run: DatasetWriter) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(run.folder)], check=False, env=environment())
    with run.part("alive") as part:
        part.append(label=1, emb=[0.0] * 8)
        before = sorted(run.folder.rglob("*"))
        [said] = document("verify", run.folder)["files"]
        assert (said["ok"], len(said["leftovers"]), len(said["at_work"])) == (True, 1, 1)
        text = holdfast("verify", run.folder).stdout
        assert text.endswith("all as committed; 1 leftover of dead writers; 1 writer at work\n")
        assert document("inspect", run.folder)["files"][0]["at_work"] == 1
        assert sorted(run.folder.rglob("*")) == before


def test_a_run_without_its_schema(run: DatasetWriter) -> None:
    (run.folder / "schema.json").unlink()
    [said] = document("verify", run.folder, code=1)["files"]
    assert "schema.json: cannot open" in said["problems"][0]["reason"]
    assert holdfast("inspect", run.folder).returncode == 1


def test_inspect_a_run(run: DatasetWriter) -> None:
    [said] = document("inspect", run.folder)["files"]
    assert (said["format"], said["parts"], said["rows"]) == ("run", 3, 75)
    assert said["formats"] == {"hdf5": 2, "tfrecord": 1}
    assert said["schema"] == {"label": "Int64()", "emb": "Float32(8)"}
    text = holdfast("inspect", "run.hold", cwd=run.folder.parent).stdout
    assert "  parts      3 committed (2 HDF5, 1 TFRecord)\n" in text
    assert "        'emb': hold.Float32(8),\n" in text
    assert "'emb': hold.Float32(8)," in holdfast("inspect", "--schema", run.folder).stdout


def test_a_folder_of_everything(run: DatasetWriter) -> None:
    folder = run.folder.parent
    write_shard(folder / "a.tfrecord", 5)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(3)
    with TarWriter(folder / "a.tar", {"x": hold.Bytes()}) as writer:
        writer.extend({"x": [b"1", b"2"]})
    (folder / "notes.txt").write_text("not data")
    said = document("verify", folder)
    assert [(Path(one["path"]).name, one["ok"]) for one in said["files"]] == [
        ("a.h5", True),
        ("a.tar", True),
        ("a.tfrecord", True),
        ("run.hold", True),
    ]
    text = holdfast("verify", folder).stdout
    assert "3 files, 1 dataset, 2 samples, 5 records, " in text
    assert "tar has no checksums of what its members hold: flips in there cannot be seen.\n" in text
    packed = folder / "a.tar.gz"
    packed.write_bytes(gzip.compress((folder / "a.tar").read_bytes()))
    assert document("verify", packed)["files"][0]["notes"] == []  # GZIP has checksums
    flip(packed, packed.stat().st_size - 6)
    assert "gzip data are corrupt" in holdfast("verify", packed).stdout
    packed.unlink()
    flip(folder / "a.tar", 600)
    assert document("verify", folder)["ok"]  # a flip in the data of a member
    flip(folder / "a.tar", 1024 + 3)
    [bad] = [one for one in document("verify", folder, code=1)["files"] if not one["ok"]]
    assert (bad["format"], bad["problems"][0]["offset"]) == ("tar", 1024)
    assert "  at byte 1,024: the tar header is corrupt: its checksum is wrong\n" in holdfast("verify", folder).stdout


def test_a_folder_with_runs_alone(run: DatasetWriter, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not data")
    assert document("verify", tmp_path)["files"][0]["format"] == "run"
    (tmp_path / "empty").mkdir()
    assert "there are none" in refused("verify", tmp_path / "empty", code=3)


def test_a_tar_that_is_not_there(tmp_path: Path) -> None:
    [said] = document("verify", tmp_path / "a.tar", code=3)["files"]
    assert said["problems"] == [{"offset": None, "sample": None, "reason": "cannot open: No such file or directory"}]


def test_a_consolidated_file_is_checked_against_the_manifest(tmp_path: Path) -> None:
    run = hold.write(tmp_path / "run.hold", {"x": hold.Int64()})
    with run.part("a") as part:
        part.extend({"x": range(100)})
    made, elsewhere = tmp_path / "train.h5", tmp_path / "elsewhere" / "train.h5"
    run.consolidate(made)
    assert holdfast("verify", made).stdout.endswith(": all intact\n")
    elsewhere.parent.mkdir()
    made.rename(elsewhere)
    assert "could be checked" in holdfast("verify", elsewhere).stdout
    assert holdfast("verify", elsewhere, "--run", run.folder).stdout.endswith(": all intact\n")
    data = bytearray(elsewhere.read_bytes())
    data[-1] ^= 1  # nothing in the file itself need show it
    elsewhere.write_bytes(data)
    [said] = document("verify", elsewhere, "--run", run.folder, code=1)["files"]
    assert "000001.json has checksum " in said["problems"][-1]["reason"]
    elsewhere.write_bytes(data + b"x")
    [said] = document("verify", elsewhere, "--run", run.folder, code=1)["files"]
    assert any("000001.json says " in problem["reason"] for problem in said["problems"])
    assert "expected a dataset directory of hold.write" in refused("verify", elsewhere, "--run", tmp_path, code=3)
