"""Commands and hold.read treat odd input alike: a table of input, command, exit code and wording."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.cli.app import run
from holdfast.errors import InputError

COMMANDS: dict[str, list[str]] = {
    "verify": [],
    "inspect": [],
    "index": ["--cache"],
    "split": ["-n", "2", "-o", "out"],
    "merge": ["-o", "out.EXT"],
    "convert": ["-o", "out.tar"],
}
MISSING = (3, "cannot open: No such file or directory")
TWICE = (3, "expected every file once, got it twice")
NONE = (3, "there are none")

# They only report, so they take each file once and say so.
ONCE = dict.fromkeys(("verify", "inspect", "index"), (0, "Given more than once and"))
NO_RUNS = ONCE | {"index": (1, "Given more than once and"), "merge": (2, "merge it alone")}

# What is given, what all commands and hold.read answer, and where that differs for a reason. 0 and "": it is done.
TABLE: dict[str, tuple[list[str], tuple[int, str], dict[str, tuple[int, str]]]] = {
    "the same TFRecord twice": (["a.tfrecord", "./a.tfrecord"], TWICE, ONCE),
    "the same HDF5 file twice": (["a.h5", "./a.h5"], TWICE, ONCE | {"index": (1, "Given more than once and")}),
    "a folder and a file of it": (["folder", "folder/a.tfrecord"], TWICE, ONCE),
    "a file and a link to it": (["a.tfrecord", "link.tfrecord"], TWICE, ONCE),
    "a file and a hard link to it": (["a.tfrecord", "hard.tfrecord"], TWICE, ONCE),
    "a file and a pattern that matches it": (["a.tfrecord", "a.tfrec*"], TWICE, ONCE),
    "the same run twice": (["run.hold", "./run.hold"], TWICE, NO_RUNS),
    "a run and a part of it": (["run.hold", "run.hold/parts/t.0.h5"], TWICE, NO_RUNS),
    "a folder": (["folder"], (0, ""), {}),
    "a folder without data": (["bare"], NONE, {}),
    "a missing TFRecord": (["no.tfrecord"], MISSING, {}),
    "a missing HDF5 file": (["no.h5"], MISSING, {}),
    "a missing tar": (["no.tar"], MISSING, {}),
    "a missing one among others": (["a.tfrecord", "no.tfrecord"], MISSING, {}),
    "a pattern that matches nothing": (["no-*.tfrecord"], (3, "no-*.tfrecord: nothing matches; this folder has"), {}),
    "an empty TFRecord": (
        ["empty.tfrecord"],
        (0, ""),
        {"read": (3, "expected samples, got none"), "convert": (2, "no records to take columns from; give a schema")},
    ),
    "an empty TFRecord among others": (["a.tfrecord", "empty.tfrecord"], (0, ""), {}),
    "TFRecords that are packed and not": (
        ["a.tfrecord", "c.tfrecord.gz"],
        (0, ""),
        {"index": (3, "indexed 3 records of 1 of 2 files")},
    ),
    "HDF5 files that are packed and not": (
        ["a.h5", "b.h5"],
        (0, ""),
        dict.fromkeys(["index", "split"], (1, "expected TFRecord, this is HDF5")),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name in ("a.tfrecord", "c.tfrecord.gz"):
        with hold.TFRecordWriter(folder / name, {"x": hold.Int64()}) as writer:
            writer.extend({"x": np.arange(3)})
    (folder / "empty.tfrecord").touch()
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(8)
    with h5py.File(folder / "b.h5", "w") as file:
        file.create_dataset("x", data=np.arange(8), chunks=(4,), compression="gzip")
    (folder / "folder").mkdir()
    shutil.copy(folder / "a.tfrecord", folder / "folder")
    (folder / "bare").mkdir()
    (folder / "link.tfrecord").symlink_to("a.tfrecord")
    (folder / "hard.tfrecord").hardlink_to(folder / "a.tfrecord")
    with hold.write(folder / "run.hold", {"x": hold.Int64()}).part("t") as part:
        part.extend({"x": np.arange(3)})
    return folder


@pytest.mark.parametrize("given", TABLE)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_agree(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, given: str, command: str
) -> None:
    files, same, others = TABLE[given]
    code, said = others.get(command, same)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(made)
    kind = "h5" if files[0].endswith("h5") else "tfrecord"
    options = [one.replace("out", str(tmp_path / "out")).replace("EXT", kind) for one in COMMANDS[command]]
    got = run([command, *files, *options])
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert got == code
    if code and command in ("split", "merge", "convert"):
        assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize("given", TABLE)
def test_reading_agrees_with_them(made: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    files, same, others = TABLE[given]
    code, said = others.get("read", same)
    monkeypatch.chdir(made)
    if code:
        with pytest.raises(InputError) as caught:
            list(hold.read(files).batch(8))
        assert said in str(caught.value)
    else:
        assert sum(len(batch["x"]) for batch in hold.read(files).batch(8)) in (3, 6, 16)


@pytest.mark.parametrize("given", [name for name, (_, same, _) in TABLE.items() if same == TWICE])
def test_salvage_agrees_where_one_is_given_twice(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, given: str
) -> None:
    monkeypatch.chdir(made)
    assert run(["salvage", *TABLE[given][0], f"{tmp_path}/out/"]) == TWICE[0]
    assert TWICE[1] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
