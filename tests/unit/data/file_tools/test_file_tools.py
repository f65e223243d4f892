"""hold.verify, inspect, salvage, merge and split return what their commands print."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.cli.app import run
from holdfast.errors import WriteError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good TFRecords, a corrupt one, an HDF5 file, a tar and a dataset directory."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        with hold.TFRecordWriter(f"part-{number}.tfrecord", {"x": hold.Int64()}) as writer:
            writer.extend({"x": range(10)})
    data = bytearray((tmp_path / "part-2.tfrecord").read_bytes())
    data[-6] ^= 1
    (tmp_path / "bad.tfrecord").write_bytes(data)
    (tmp_path / "part-2.tfrecord").unlink()
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(7)
    hold.convert("part-0.tfrecord", "a.tar")
    with hold.write("run.hold", {"x": hold.Int64()}).part("rank0") as part:
        part.extend({"x": range(5)})
    return tmp_path


def printed(capsys: Any, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    run([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def as_json(result: Any) -> Any:
    return json.loads(json.dumps(result.as_dict()))


def is_plain(result: Any) -> bool:
    """Whether it can be read, sent to another process, and not be changed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.files = []
    name = type(result).__name__
    assert re.match(rf"{name}\(", repr(result))
    assert getattr(hold, name) is type(result)
    return repr(pickle.loads(pickle.dumps(result))) == repr(result)


def test_verify_and_inspect(folder: Path, capsys: Any) -> None:
    checked = hold.verify(".")
    assert as_json(checked) == printed(capsys, "verify", ".")
    assert is_plain(checked)
    assert not checked.ok
    bad = [file for file in checked.files if not file.ok]
    assert [(file.path, file.problems[0].record) for file in bad] == [("./bad.tfrecord", 9)]
    assert [run.path for run in checked.runs] == ["./run.hold"]
    inspected = hold.inspect(["part-0.tfrecord", "a.h5", "a.tar", "run.hold"])
    assert as_json(inspected) == printed(capsys, "inspect", "part-0.tfrecord", "a.h5", "a.tar", "run.hold")
    assert is_plain(inspected)
    found = {file.path: (file.format, file.rows) for file in inspected.files}
    assert found["a.h5"] == ("hdf5", 7)
    assert (found["part-0.tfrecord"], found["a.tar"], found["run.hold"]) == (("tfrecord", 10), ("tar", 10), ("run", 5))


def test_salvage_and_split(folder: Path, capsys: Any) -> None:
    one = hold.salvage("bad.tfrecord", "good.tfrecord")
    assert as_json(one) == printed(capsys, "salvage", "bad.tfrecord", "other.tfrecord")
    assert is_plain(one)
    many = hold.salvage(["bad.tfrecord", "a.tar", "part-0.tfrecord"], "out/")
    document = printed(capsys, "salvage", "bad.tfrecord", "a.tar", "part-0.tfrecord", "out/", "--force")
    assert as_json(many) == document
    assert [file.out for file in many.files] == ["out/bad.tfrecord", None, "out/part-0.tfrecord"]
    assert isinstance(many.files[1].error, hold.errors.FormatError)
    shards = hold.split("part-*.tfrecord", "split", parts=2)
    assert is_plain(shards)
    document = printed(capsys, "split", "part-*.tfrecord", "-n", "2", "-o", "again")
    assert as_json(shards) == json.loads(json.dumps(document).replace("again/", "split/"))
    [replaced] = hold.salvage("*.tfrecord", in_place=True).files
    assert (replaced.path, replaced.backup) == ("bad.tfrecord", "bad.tfrecord.corrupt")
    assert hold.salvage("bad.tfrecord", in_place=True).files == []


def test_merge(folder: Path, capsys: Any) -> None:
    merged = hold.merge("part-*.tfrecord", "all.tfrecord")
    assert (merged.rows, merged.files, is_plain(merged)) == (20, 2, True)
    assert as_json(merged) == printed(capsys, "merge", "part-*.tfrecord", "-o", "all.tfrecord", "--force")
    (folder / "b.h5").write_bytes((folder / "a.h5").read_bytes())
    datasets = hold.merge(["a.h5", "b.h5"], "all.h5", attributes="first")
    assert [one.rows for one in datasets.datasets] == [14]
    again = printed(capsys, "merge", "a.h5", "b.h5", "-o", "all.h5", "--force")
    assert as_json(datasets) == again | {"crc32c": as_json(datasets)["crc32c"]}  # HDF5 stores the time
    planned = hold.merge("run.hold", "run.h5", dry_run=True)
    assert as_json(planned) == printed(capsys, "merge", "run.hold", "-o", "run.h5", "--dry-run")
    assert (planned.rows, hold.merge("run.hold", "run.h5").manifest) == (5, 1)
    for options, said in (({"codec": "gzip"}, "codec= is for HDF5"), ({"order": "any"}, "order= is for HDF5")):
        with pytest.raises(ValueError, match=said):
            hold.merge("part-*.tfrecord", "x.tfrecord", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'x.tar' is a name for tar, these are TFRecord files"):
        hold.merge("part-*.tfrecord", "x.tar")


def test_wrong_arguments_are_named(folder: Path) -> None:
    for call, kind, said in (
        (
            lambda: hold.split("part-0.tfrecord", "d", parts="2"),
            ValueError,
            "parts must be a positive integer, got '2'",
        ),
        (lambda: hold.split("part-0.tfrecord", "d", parts=2, jobs="x"), ValueError, "jobs must be a positive .* 'x'"),
        (lambda: hold.split("part-0.tfrecord", None, parts=2), TypeError, "expected a path to write to, got None"),
        (lambda: hold.verify("a.h5", jobs=-1), ValueError, "jobs must be a positive integer, got -1"),
        (lambda: hold.inspect("a.h5", jobs="x"), ValueError, "jobs must be a positive integer, got 'x'"),
        (lambda: hold.merge("a.h5", None), TypeError, "expected a path to write to, got None"),
        (lambda: hold.merge(7, "b.h5"), TypeError, r"expected a path, a glob, .* got 7 \(int\)"),
        (lambda: hold.salvage("bad.tfrecord", 7), TypeError, "expected a path to write to, got 7"),
        (lambda: hold.salvage("bad.tfrecord", "out.h5"), ValueError, "'out.h5' is a .* HDF5.* name it out.tfrecord"),
        (lambda: hold.salvage("a.h5", "out.tfrecord.gz"), ValueError, "a name for TFRecord, .* name it out.h5"),
    ):
        with pytest.raises(kind, match=said):
            call()
    assert not list(folder.glob("out*"))


def test_a_manifest_says_what_its_file_holds_when_salvaging_in_place_fails(folder: Path) -> None:
    [shard, _] = [Path(file.path) for file in hold.split("part-0.tfrecord", "shards", parts=2).files]
    data = bytearray(shard.read_bytes())
    data[-6] ^= 1
    shard.write_bytes(data)
    manifest = (folder / "shards" / "holdfast.manifest.json").read_bytes()
    [failed] = hold.salvage(shard, in_place=True, progress=lambda n: shard.write_bytes(data)).files
    assert "changed while its replacement was being written" in str(failed.error)
    assert (folder / "shards" / "holdfast.manifest.json").read_bytes() == manifest
    assert hold.salvage(shard, in_place=True).files[0].backup == f"{shard}.corrupt"
    assert hold.verify("shards").ok


@pytest.mark.parametrize("only_corrupt", [False, True])
def test_salvage_into_a_folder_of_the_inputs_replaces_none_of_them(tmp_path: Path, only_corrupt: bool) -> None:
    inputs = [tmp_path / "a.tfrecord", tmp_path / "sub" / "a.tfrecord"]
    inputs[1].parent.mkdir()
    for number, path in enumerate(inputs):
        with hold.TFRecordWriter(path, {"x": hold.Int64()}) as writer:
            writer.append(x=number)
    data = bytearray(inputs[0].read_bytes())
    data[14] ^= 1
    inputs[0].write_bytes(data)
    before = [path.read_bytes() for path in inputs]
    with pytest.raises(WriteError, match="is also an input"):
        hold.salvage(tmp_path, f"{tmp_path / 'sub'}/", overwrite=True, only_corrupt=only_corrupt)
    assert [path.read_bytes() for path in inputs] == before


def test_a_folder_is_listed_as_often_for_many_files_as_for_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest of shards and the dataset directories beside a file are looked up once a folder."""
    listed = Counter[str]()
    scandir, read_bytes = os.scandir, Path.read_bytes
    monkeypatch.setattr(os, "scandir", lambda path: (listed.update(["scandir"]), scandir(path))[1])
    monkeypatch.setattr(Path, "read_bytes", lambda path: (listed.update([path.name]), read_bytes(path))[1])
    costs = []
    for count in (2, 50):
        folder = tmp_path / str(count)
        folder.mkdir()
        with hold.TFRecordWriter(folder / "all.tfrecord", {"x": hold.Int64()}) as writer:
            writer.extend({"x": range(count)})
        hold.split(folder / "all.tfrecord", folder, parts=count)
        listed.clear()
        found = hold.verify(folder, jobs=1)
        assert found.ok
        assert len(found.files) == count + 1
        costs.append((listed["scandir"], listed["holdfast.manifest.json"]))
    assert costs[0] == costs[1]
    assert costs[0][1] == 1
