"""hold.read, hold.convert and every command take the same files, in the same order, for the same input."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast._util.text import natural_key
from holdfast.cli.app import run
from holdfast.data.file_tools.verify import suspicious
from holdfast.data.formats.tfrecord.manifest import FileEntry, write_manifest
from holdfast.data.formats.tfrecord.verify import TFRecordReport
from holdfast.data.inputs import expand
from holdfast.errors import FormatError, InputError

TFRECORDS = [
    *(f"g/{number}.tfrecord" for number in (1, 2, 9, 10, 11, 100)),
    *("g/a.tfrecord~", "g/b.tmp", "g/.hidden.tfrecord"),
    *("tree/b.tfrecord", "tree/a/1.tfrecord", "tree/a-1.tfrecord", "tree/.cache/x.tfrecord", "tree/z/y/x.tfrecord.gz"),
    *("plain/train-00000-of-00002", "plain/train-00001-of-00002"),
    *("bare/first", "bare/second", "Z[1].tfrecord", "part-{a}.tfrecord", "p-02.tfrec", "p-01.tfrec"),
    *("mixed/a.tfrecord", "wrong/a.h5", "only/x.tmp", "up/B.TFRECORD", "up/a.TfRecord", "far/1.tfrecord"),
    *("kept/a.tfrecord", "kept/a.tfrecord.corrupt", "kept/a.tfrecord.corrupt.1", "all/a.tfrecord"),
]
HDF5 = ["mixed/b.h5", "h/2.h5", "h/10.hdf5", "h/block", "wrong/a.tfrecord", "all/b.h5"]
HDF5 += ["hn/train-00000-of-00002", "hn/train-00001-of-00002"]
TARS = ["t/b.tar", "t/a.tar", "all/c.tar"]
LINKS = {"links/x.tfrecord": "../far/1.tfrecord", "links/far": "../far", "near": "far"}
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
    "a folder of three formats": (["all"], ["all/a.tfrecord", "all/b.h5", "all/c.tar"]),
    "HDF5 with numbered names": (["hn"], HDF5[-2:]),
    "tar": (["t"], ["t/a.tar", "t/b.tar"]),
    "a folder with links to a file and to a folder": (["links"], ["links/x.tfrecord"]),
    "a link to a folder": (["near"], ["near/1.tfrecord"]),
    "suffixes in capitals": (["up"], ["up/B.TFRECORD", "up/a.TfRecord"]),
    "backups of salvage in a glob": (["kept/*"], ["kept/a.tfrecord"]),
    "everything below": (["tree/z/**"], ["tree/z/y/x.tfrecord.gz"]),
    "braces of folders": (["{near,tree/z}"], ["near/1.tfrecord", "tree/z/y/x.tfrecord.gz"]),
    "a file URL of a folder": (["file://HERE/tree"], TREE),
    "a path through a parent": (["g/../near"], ["near/1.tfrecord"]),
}
SCHEMA = {"x": hold.Int64()}
ENTRIES = ["read", "convert", "merge", "split", "salvage", "verify", "inspect", "index"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """Returns a folder, and the number that is the only value in each file."""
    folder = tmp_path_factory.mktemp("made")
    values = {name: number for number, name in enumerate([*TFRECORDS, *HDF5, *TARS, *RUN])}
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
    for name in TARS:
        (folder / name).parent.mkdir(exist_ok=True)
        with hold.TFRecordWriter(folder / "draft.tfrecord", SCHEMA) as writer:
            writer.append(x=values[name])
        hold.convert(folder / "draft.tfrecord", folder / name, SCHEMA)
        (folder / "draft.tfrecord").unlink()
    for name, target in LINKS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(target)
    values |= dict.fromkeys(("links/x.tfrecord", "near/1.tfrecord"), values["far/1.tfrecord"])
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
    """merge and split take TFRecord files, and merge HDF5 files alone; the others take any, or report on each."""
    if all(name not in [*HDF5, *TARS] for name in TABLE[case][1]) or entry not in ("merge", "split"):
        return True
    return (entry, case[:4]) == ("merge", "HDF5")


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


def test_other_formats_are_named(made: tuple[Path, dict[str, int]], tmp_path: Path, capsys: Any) -> None:
    """Also HDF5 behind a user block, where a TFRecord reader sees only that no record begins."""
    for name, said in (("h/block", "HDF5"), ("t/a.tar", "tar")):
        for command in (["index", "--cache"], ["split", "-n", "1", "-o", str(tmp_path / "out")]):
            assert run([*command, str(made[0] / name)]) == 1
            told = capsys.readouterr()
            assert f"expected TFRecord, this is {said}" in " ".join((told.out + told.err).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["g/info.json", "g/b.tmp", "kept/a.tfrecord.corrupt.1", "g/a.tfrecord~", "g/.1.tfrecord.index"]
)
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


def test_files_of_few_rows_or_bytes_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        with hold.TFRecordWriter(f"{number}.tfrecord", {"b": hold.Bytes()}) as writer:
            writer.extend({"b": [b"" if number == 3 else b"data" * 100] * 10})
        with h5py.File(f"{number}.h5", "w") as file:  # most of its bytes are not rows
            file.create_dataset("x", data=np.arange({1: 0, 2: 40}.get(number, 100)), maxshape=(None,), chunks=(100,))
    assert run(["verify", ".", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["suspicious"]
    assert [note.partition(", the")[0] for note in notes] == [
        "./1.h5 is intact, but has no rows",
        "./2.h5 has 40 rows",
        f"./3.tfrecord has {os.path.getsize('3.tfrecord')} bytes",
    ]


def test_an_empty_file_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tfrecord").touch()
    assert run(["verify", "a.tfrecord"]) == 0
    assert "Suspicious: a.tfrecord is intact, but has no records." in capsys.readouterr().out
    assert run(["salvage", "a.tfrecord", "b.tfrecord"]) == 0
    assert "nothing was corrupt, but the file has no records: b.tfrecord is empty too" in capsys.readouterr().out


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(14)
        file.write(b"!")


def test_only_corrupt_files_of_a_folder_are_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("d", "d/a", "d/b"):
        Path(folder).mkdir()
        for number in range(10):
            with hold.TFRecordWriter(f"{folder}/{number}.tfrecord", SCHEMA) as writer:
                writer.extend({"x": range(5)})
    assert run(["salvage", "d", "all/"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # that there are more, and the totals
    assert run(["salvage", "d", "none/", "--only-corrupt"]) == 0
    assert "nothing was corrupt: nothing was written" in capsys.readouterr().out
    assert not Path("none").exists()
    corrupt = ["a/7.tfrecord", "b/7.tfrecord", *(f"{number}.tfrecord" for number in range(10))]
    for name in corrupt:
        damage(f"d/{name}")
    assert run(["verify", "d"]) == 1
    assert "`holdfast salvage d/ OUT/ --only-corrupt` does so for all corrupt files" in capsys.readouterr().out
    assert run(["salvage", "d", "rescued/", "--only-corrupt"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 12  # ten files, that there are two more, and the totals
    assert sorted(str(one.relative_to("rescued")) for one in Path("rescued").rglob("*.*")) == sorted(corrupt)
    assert run(["salvage", "d/[ab]/*.tfrecord", "glob/", "--only-corrupt"]) == 0
    assert "d/a/7.tfrecord: kept 4 records in glob/a/7.tfrecord" in capsys.readouterr().out
    assert run(["salvage", "d/a/7.tfrecord", "d/b/7.tfrecord", "glob/"]) == 2
    assert "have the same name" in capsys.readouterr().err


def test_corrupt_files_are_replaced_and_kept_as_backups(
    made: tuple[Path, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("d/a/x.tfrecord", "d/b/x.tfrecord", "d/whole.tfrecord", "d/cut.tfrecord"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with hold.TFRecordWriter(name, SCHEMA, compression="gzip" if "/b/" in name else "none") as writer:
            writer.extend({"x": range(5)})
    with h5py.File("d/x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(30), chunks=(10,), compression="gzip")
        at = file["x"].id.get_chunk_info(1).byte_offset
    with open("d/x.h5", "r+b") as opened:
        opened.seek(at)
        opened.write(bytes(8))
    damage("d/a/x.tfrecord")
    os.truncate("d/b/x.tfrecord", os.path.getsize("d/b/x.tfrecord") - 9)
    os.chmod("d/a/x.tfrecord", 0o640)
    Path("d/a/x.tfrecord.corrupt").write_text("precious")
    os.truncate("d/cut.tfrecord", os.path.getsize("d/cut.tfrecord") // 5 * 4)  # whole records: only a count tells
    write_manifest("d", [FileEntry("cut.tfrecord", 5, 1, 2)])
    write_manifest("d/a", [FileEntry("x.tfrecord", 5, 1, 2)])
    before = {str(one): one.read_bytes() for one in Path("d").rglob("*.*") if one.is_file()}
    assert run(["salvage", "--in-place", "d", "--json"]) == 1  # for cut.tfrecord
    found = {file["path"]: file for file in json.loads(capsys.readouterr().out)["files"]}
    backups = {"d/a/x.tfrecord": "d/a/x.tfrecord.corrupt.1"} | {
        name: f"{name}.corrupt" for name in ("d/b/x.tfrecord", "d/x.h5")
    }
    assert {path: file["backup"] for path, file in found.items() if file["backup"]} == backups
    assert "what is in the file is intact" in found["d/cut.tfrecord"]["problem"]
    kept = {name: data for name, data in before.items() if name not in backups and "manifest" not in name}
    for name, data in (kept | {backup: before[name] for name, backup in backups.items()}).items():
        assert Path(name).read_bytes() == data
    assert stat.S_IMODE(os.stat("d/a/x.tfrecord").st_mode) == 0o640
    assert Path("d/b/x.tfrecord").read_bytes()[:2] == b"\x1f\x8b"
    assert {one.name for one in Path("d").rglob("*") if one.name.startswith(".")} == set()
    Path("d/cut.tfrecord").unlink()
    assert run(["verify", "d"]) == 0  # also by the manifest; and no backup is data
    assert "4 files" in capsys.readouterr().out
    with h5py.File("d/x.h5") as file:
        assert list(file["x"][20:]) == list(range(20, 30))


def test_what_cannot_be_replaced_is_refused(
    made: tuple[Path, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shutil.copytree(made[0] / "run.hold", tmp_path / "run.hold")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "hard", "open", "half"):
        with hold.TFRecordWriter(f"{name}.tfrecord", SCHEMA) as writer:
            writer.extend({"x": range(5)})
        damage(f"{name}.tfrecord")
    damage(RUN[0])
    os.symlink("a.tfrecord", "link.tfrecord")
    os.link("hard.tfrecord", "other")
    os.link("half.tfrecord", "half.tfrecord.corrupt")  # a run was killed before it replaced the file
    Path("cut.tar").write_bytes(bytes(range(1, 256)) * 3)
    with tarfile.open("whole.tar", "w") as tar:
        tar.add("a.tfrecord")
    Path("cut.tar").write_bytes(Path("whole.tar").read_bytes()[:700])
    before = {name: Path(name).read_bytes() for name in os.listdir() if name != "run.hold"}
    with open("open.tfrecord", "r+b"):
        for name, said in {
            "link.tfrecord": "this is a link; give ",
            "hard.tfrecord": "it has 1 other hard link, which would keep the corrupt data",
            "open.tfrecord": "has it open for writing",
            "cut.tar": "expected TFRecord or HDF5 to salvage, this is a tar",
            RUN[0]: "run.hold records the checksums of its parts",
        }.items():
            assert run(["salvage", "--in-place", name]) in (1, 3)
            assert said in capsys.readouterr().out
    assert {name: Path(name).read_bytes() for name in os.listdir() if name != "run.hold"} == before
    assert run(["salvage", "--in-place", "half.tfrecord"]) == 0
    assert "; the corrupt file is half.tfrecord.corrupt" in capsys.readouterr().out
    assert not Path("half.tfrecord.corrupt.1").exists()
    for given in (["--in-place", "--force", "a.tfrecord"], ["a.tfrecord"]):
        assert run(["salvage", *given]) == 2
    assert Path("a.tfrecord").read_bytes() == before["a.tfrecord"]


def test_natural_order() -> None:
    names = ["b", "a10", "a9", "a09b", "10", "9", ""]
    assert sorted(names, key=natural_key) == ["", "9", "10", "a9", "a09b", "a10", "b"]
