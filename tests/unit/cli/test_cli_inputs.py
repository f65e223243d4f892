"""hold.read, hold.convert and every command take the same files, in the same order, for the same input."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast._util.text import natural_key
from holdfast.cli.app import run
from holdfast.cli.path_arguments import expand
from holdfast.cli.verify import suspicious
from holdfast.data.formats.tfrecord.verify import TFRecordReport
from holdfast.errors import FormatError, InputError

TFRECORDS = [
    *(f"g/{number}.tfrecord" for number in (1, 2, 9, 10, 11, 100)),
    *("g/a.tfrecord~", "g/b.tmp", "g/.hidden.tfrecord"),
    *("tree/b.tfrecord", "tree/a/1.tfrecord", "tree/a-1.tfrecord", "tree/.cache/x.tfrecord", "tree/z/y/x.tfrecord.gz"),
    *("plain/train-00000-of-00002", "plain/train-00001-of-00002"),
    *("bare/first", "bare/second", "Z[1].tfrecord", "part-{a}.tfrecord", "p-02.tfrec", "p-01.tfrec"),
    *("mixed/a.tfrecord", "wrong/a.h5", "only/x.tmp"),
]
HDF5 = ["mixed/b.h5", "h/2.h5", "h/10.hdf5", "h/block", "wrong/a.tfrecord"]
SORTED_G = [f"g/{number}.tfrecord" for number in (1, 10, 100, 11, 2, 9)]
TREE = ["tree/a-1.tfrecord", "tree/a/1.tfrecord", "tree/b.tfrecord", "tree/z/y/x.tfrecord.gz"]
RUN = [f"run.hold/parts/rank{number}.0.tfrecord" for number in (1, 2, 10)]

# What is given, and the files that it means, in order.
TABLE: dict[str, tuple[list[str], list[str]]] = {
    "a file": (["g/1.tfrecord"], ["g/1.tfrecord"]),
    "a list": (["g/9.tfrecord", "g/10.tfrecord", "g/1.tfrecord"], ["g/9.tfrecord", "g/10.tfrecord", "g/1.tfrecord"]),
    "a glob of all": (["g/*"], SORTED_G),
    "a glob of a suffix": (["g/*.tfrecord"], SORTED_G),
    "a glob of one character": (["g/?.tfrecord"], ["g/1.tfrecord", "g/2.tfrecord", "g/9.tfrecord"]),
    "a glob with a set": (["g/1[01].tfrecord"], ["g/10.tfrecord", "g/11.tfrecord"]),
    "two globs": (["g/2*", "g/1*.tfrecord"], ["g/2.tfrecord", *SORTED_G[:4]]),
    "a glob of folders": (["tree/[az]"], ["tree/a/1.tfrecord", "tree/z/y/x.tfrecord.gz"]),
    "a nested glob": (["tree/**/*.tfrecord*"], TREE),
    "a folder": (["g"], SORTED_G),
    "a folder with a slash": (["g/"], SORTED_G),
    "a folder with subfolders": (["tree"], TREE),
    "a folder and a file": (["tree/z", "g/1.tfrecord"], ["tree/z/y/x.tfrecord.gz", "g/1.tfrecord"]),
    "names without a suffix": (["plain"], TFRECORDS[14:16]),
    "a glob of names without a suffix": (["plain/train-*-of-*"], TFRECORDS[14:16]),
    "content without a suffix": (["bare"], ["bare/first", "bare/second"]),
    "brackets in a name": (["Z[1].tfrecord"], ["Z[1].tfrecord"]),
    "braces in a name": (["part-{a}.tfrecord"], ["part-{a}.tfrecord"]),
    "braces": (["g/{9,1}.tfrecord"], ["g/9.tfrecord", "g/1.tfrecord"]),
    "a range in braces": (["p-{01..02}.tfrec"], ["p-01.tfrec", "p-02.tfrec"]),
    "braces and a glob": (["{tree,g}/*.tfrecord"], ["tree/a-1.tfrecord", "tree/b.tfrecord", *SORTED_G]),
    "a file URL": (["file://HERE/g/2.tfrecord"], ["g/2.tfrecord"]),
    "a file URL of a glob": (["file://HERE/g/1?.tfrecord"], ["g/10.tfrecord", "g/11.tfrecord"]),
    "one unfinished file by its name": (["only/x.tmp"], ["only/x.tmp"]),
    "a hidden file by its name": (["g/.hidden.tfrecord"], ["g/.hidden.tfrecord"]),
    "a dataset directory": (["run.hold"], RUN),
    "a folder of a dataset directory": (["runs"], [f"runs/{name}" for name in RUN]),
    "HDF5 with a user block": (["h"], ["h/10.hdf5", "h/2.h5", "h/block"]),
    "an HDF5 file without a suffix": (["h/block"], ["h/block"]),
    "a folder of two formats": (["mixed"], ["mixed/a.tfrecord", "mixed/b.h5"]),
}
SCHEMA = {"x": hold.Int64()}
ENTRIES = ["read", "convert", "merge", "split", "salvage", "verify", "inspect", "index"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """Returns a folder, and the number that is the only value in each file."""
    folder = tmp_path_factory.mktemp("made")
    values = {name: number for number, name in enumerate([*TFRECORDS, *HDF5, *RUN])}
    for name in TFRECORDS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draft = folder / f"draft.tfrecord{'.gz' if name.endswith('.gz') else ''}"
        with hold.TFRecordWriter(draft, SCHEMA) as writer:
            writer.append(x=values[name])
        draft.rename(folder / name)
    for name in HDF5:
        (folder / name).parent.mkdir(exist_ok=True)
        with h5py.File(folder / name, "w", userblock_size=2048 if name == "h/block" else 0) as file:
            file["x"] = np.array([values[name]])
    writers = hold.write(folder / "run.hold", SCHEMA)
    for name in RUN[::-1]:
        with writers.part(Path(name).name.partition(".")[0], format="tfrecord") as part:
            part.append(x=values[name])
    shutil.copy(folder / RUN[0], folder / "run.hold/parts/uncommitted.0.tfrecord")
    for name in ("g/info.json", "plain/README", "tree/notes.txt", "g/.1.tfrecord.index"):
        (folder / name).write_text("{}")
    shutil.copytree(folder / "run.hold", folder / "runs/run.hold")
    return folder, values | {f"runs/{name}": values[name] for name in RUN}


def taken(entry: str, given: list[str], out: Path, values: dict[str, int], capsys: Any) -> list[int]:
    """Returns the values of the files that an entry point takes, in its order."""
    if entry == "read":
        return [int(x) for x in hold.read(given, SCHEMA).batch(1).map(lambda batch: batch["x"][0])]
    if entry == "convert":
        hold.convert(given, out / "all.h5", SCHEMA)
        return [int(x) for x in hold.read(out / "all.h5", SCHEMA).batch(1).map(lambda batch: batch["x"][0])]
    options = {"merge": ["-o", f"{out}/all"], "split": ["-n", "1", "-o", str(out)], "salvage": [f"{out}/"]}
    code = run([entry, "--json", *given, *options.get(entry, [])])
    found = json.loads(capsys.readouterr().out)
    if entry in ("merge", "split"):
        assert code == 0
        made = out / "all" if entry == "merge" else found["files"][0]["path"]
        return [int(x) for x in hold.read(made, SCHEMA).batch(1).map(lambda batch: batch["x"][0])]
    return [values[os.path.relpath(file["path"])] for file in found["files"]]


def is_taken(entry: str, case: str) -> bool:
    """merge and split take TFRecord files, and merge HDF5 files alone; the other entries take any."""
    is_hdf5 = any(name in HDF5 for name in TABLE[case][1])
    return not is_hdf5 or entry not in ("merge", "split") or (entry, case[:4]) == ("merge", "HDF5")


@pytest.mark.parametrize(
    ("entry", "case"), [(entry, case) for entry in ENTRIES for case in TABLE if is_taken(entry, case)]
)
def test_all_take_the_same_files_in_the_same_order(
    made: tuple[Path, dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    entry: str,
    case: str,
) -> None:
    folder, values = made
    given, files = TABLE[case]
    if entry in ("merge", "verify", "inspect") and "run.hold" in files[0]:
        files = ["run.hold"] if entry != "merge" else files  # as a whole: its parts are those of the writer's own list
        values = values | {"run.hold": -1, "runs/run.hold": -1}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    given = [one.replace("HERE", str(folder)) for one in given]
    extra = ["--cache"] if entry == "index" else []
    assert taken(entry, given + extra, tmp_path, values, capsys) == [values[name] for name in files]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_name_that_the_content_contradicts(
    made: tuple[Path, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, entry: str
) -> None:
    monkeypatch.chdir(made[0])
    for name, said in (
        ("wrong/a.h5", "expected HDF5 by its name, its content is TFRecord"),
        ("wrong/a.tfrecord", "expected TFRecord by its name, its content is HDF5"),
    ):
        if entry == "read":
            with pytest.raises(FormatError, match=said):
                list(hold.read(name, SCHEMA).batch(1))
            continue
        options = {"convert": ["-o", f"{tmp_path}/o.tar"], "merge": ["-o", f"{tmp_path}/o"], "index": ["--cache"]}
        options |= {"split": ["-n", "1", "-o", str(tmp_path)], "salvage": [f"{tmp_path}/o"]}
        assert run([entry, name, *options.get(entry, [])]) == 1
        told = capsys.readouterr()
        assert said in told.out + told.err


@pytest.mark.parametrize("name", ["g/info.json", "g/b.tmp", "g/a.tfrecord~", "g/.1.tfrecord.index"])
def test_what_is_never_data_is_refused_in_a_list(
    made: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(made[0])
    for find in (expand, hold.read):
        with pytest.raises(InputError, match="leave it out, or quote the glob"):
            find(["g/1.tfrecord", name])


def test_rows_of_a_dataset_directory_align_with_its_consolidated_file(
    made: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    folder, values = made
    hold.write(folder / "run.hold").consolidate(tmp_path / "all.tfrecord")
    for what in (folder / "run.hold", tmp_path / "all.tfrecord"):
        rows = [int(x) for x in hold.read(what, SCHEMA).batch(1).map(lambda batch: batch["x"][0])]
        assert rows == [values[name] for name in RUN]


def test_a_hard_link_hides_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d/deep").mkdir(parents=True)
    with h5py.File("d/a.h5", "w") as file:
        file["x"] = np.arange(3)
    Path("d/deep/b.tfrecord").write_bytes(b"damaged" * 10)
    os.link("d/deep/b.tfrecord", "d/deep/c.tfrecord")
    assert run(["verify", "d"]) == 1
    told = capsys.readouterr().out
    assert "1 of 2 files" in told
    assert "d/deep/c.tfrecord is the same as d/deep/b.tfrecord" in told
    assert run(["inspect", "d"]) == 1
    assert "d/deep/b.tfrecord" in capsys.readouterr().out
    assert run(["merge", "d", "-o", "out"]) == 3
    assert "got it twice: d/deep/b.tfrecord is the same file" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["nothing-*", "g/*.json", "no-{a,b}*"])
def test_what_matches_nothing_is_named(
    made: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.chdir(made[0])
    with pytest.raises(InputError, match=r": nothing matches"):
        expand([argument])


def test_a_missing_file_is_left_to_who_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("gone", "gone[1].tfrecord")
    assert expand(["gone[1].tfrecord", "missing"]) == ["gone[1].tfrecord", "missing"]


@pytest.mark.parametrize(
    ("counts", "odd"),
    [
        ([100] * 10 + [50], [10]),  # half of the others
        ([100] * 10 + [60], []),
        ([100] * 10 + [200], [10]),
        ([0, 100, 100], [0]),  # empty, whatever the others are
        ([100, 100, 10], []),  # too few to tell
        ([1, 10, 100, 1000, 10000], []),  # they vary
    ],
)
def test_suspicious_files(counts: list[int], odd: list[int]) -> None:
    reports: Any = [TFRecordReport(f"d/{number}", records=count) for number, count in enumerate(counts)]
    other = TFRecordReport("e/0", records=7)  # of another folder
    assert [note.split()[0] for note in suspicious([*reports, other])] == [f"d/{number}" for number in odd]


def test_an_empty_file_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tfrecord").touch()
    assert run(["verify", "a.tfrecord"]) == 0
    assert "Suspicious: a.tfrecord is intact, but has no records." in capsys.readouterr().out
    assert run(["salvage", "a.tfrecord", "b.tfrecord"]) == 0
    assert "nothing was corrupt, but the file has no records: b.tfrecord is empty too" in capsys.readouterr().out


def test_only_corrupt_files_of_a_folder_are_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    for number in range(30):
        with hold.TFRecordWriter(f"d/{number}.tfrecord", SCHEMA) as writer:
            writer.extend({"x": range(5)})
    assert run(["salvage", "d", "all/"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # that there are more, and the totals
    assert run(["salvage", "d", "none/", "--only-corrupt"]) == 0
    assert "nothing was corrupt: nothing was written" in capsys.readouterr().out
    assert not Path("none").exists()
    with open("d/7.tfrecord", "r+b") as file:
        file.seek(14)
        file.write(b"!")
    assert run(["salvage", "d", "rescued/", "--only-corrupt"]) == 0
    assert "d/7.tfrecord: kept 4 records in rescued/7.tfrecord" in capsys.readouterr().out
    assert os.listdir("rescued") == ["7.tfrecord"]


def test_natural_order() -> None:
    names = ["b", "a10", "a9", "a09b", "10", "9", ""]
    assert sorted(names, key=natural_key) == ["", "9", "10", "a9", "a09b", "a10", "b"]
