"""One file of all parts: the rows of their records, in the order promised, and a manifest that says so."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.data.formats.hdf5.salvage import salvage_hdf5
from holdfast.data.formats.parts_manifest import deleted_parts, latest_manifest, read_manifests
from holdfast.data.formats.tfrecord.merge import merge_files
from holdfast.data.formats.tfrecord.salvage import salvage_file
from holdfast.data.writer.consolidate import exact_order
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.directory import claim_name, record_name
from holdfast.errors import CorruptError, InputError, SchemaError, TargetExistsError, WriteError

SCHEMA = {
    "label": hold.Int64(),
    "emb": hold.Float32(3),
    "text": hold.Bytes(),
    "boxes": hold.Ragged(hold.Float32(2)),
    "words": hold.Ragged(hold.Bytes()),
}
TASKS = {"rank10": 13, "rank2": 20, "rank1": 1, "rank9": 0, "rank3": 16}


def columns(first: int, rows: int) -> dict[str, Any]:
    labels = list(range(first, first + rows))
    return {
        "label": labels,
        "emb": [[n, n % 7, 0.5] for n in labels],
        "text": [b"%d" % n * (n % 4) for n in labels],
        "boxes": [[[n, 1]] * (n % 3) for n in labels],
        "words": [[b"w" * i for i in range(n % 3)] for n in labels],
    }


def fill(out: DatasetWriter, kind: Any = "hdf5", **options: Any) -> None:
    for task, rows in TASKS.items():
        with out.part(task, kind, **options) as part:
            if rows:
                part.extend(columns(1000 * int(task[4:]), rows))


def rows_of(path: str | Path) -> list[str]:
    found: list[str] = []
    with hold.read(str(path), SCHEMA).batch(7).iterate() as it:
        for batch in it:
            lists = {name: column.tolist() for name, column in batch.items()}
            found += [str({name: column[i] for name, column in lists.items()}) for i in range(len(lists["label"]))]
    return found


def wanted_rows(out: DatasetWriter) -> list[str]:
    records = {record.task: record for record in out.parts()}
    return [row for task in ("rank1", "rank2", "rank3", "rank10") for row in rows_of(out.path_of(records[task]))]


@pytest.mark.parametrize("order", ["exact", "any"])
@pytest.mark.parametrize("codec_name", [None, "gzip", "lzf"])
def test_hdf5_parts(tmp_path: Path, codec_name: Any, order: Any) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out, chunk_rows=4, codec=codec_name)
    planned = out.plan(order=order)
    made = out.consolidate(tmp_path / "train.h5", order=order)
    got, wanted = rows_of(made.path), wanted_rows(out)
    assert sorted(got) == sorted(wanted)
    assert order == "any" or got == wanted
    data = Path(made.path).read_bytes()
    assert (made.rows, made.parts, made.bytes, made.crc32c) == (50, 5, len(data), codec.crc32c(data))
    assert (planned.rows, planned.datasets, planned.manifest) == (50, made.datasets, None)
    assert made.notes == []
    with h5py.File(made.path) as file:
        assert file["label"].compression == codec_name
    assert out.verify().ok


def test_tfrecord_parts(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out, "tfrecord")
    assert out.plan().rows == 50
    seen: list[int] = []
    made = out.consolidate(tmp_path / "train.tfrecord", progress=seen.append)
    assert rows_of(made.path) == wanted_rows(out)
    assert (made.rows, made.parts, made.manifest) == (50, 5, 1)
    assert sum(seen) > 0
    with pytest.raises(TargetExistsError, match="exists already"):
        out.consolidate(tmp_path / "train.tfrecord")
    out.consolidate(tmp_path / "train.tfrecord", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["run", "train.tfrecord"]


def test_rows_of_several_producers_come_in_their_order(tmp_path: Path) -> None:
    """Parts as the central writer makes them: runs of several producers, cut anywhere."""
    out = write(tmp_path / "run", {"label": hold.Int64()})
    parts = {
        "server-1": [("rank10", 0, 3), ("rank2", 0, 5), ("rank10", 3, 2)],
        "server-2": [("rank2", 5, 4), ("rank10", 5, 6)],
    }
    for task, runs in parts.items():
        with out.part(task, chunk_rows=4, codec="gzip") as part:
            for producer, first, rows in runs:
                part.extend({"label": [1000 * int(producer[4:]) + first + n for n in range(rows)]})
        add_runs(out, task, runs)
    made = out.consolidate(tmp_path / "train.h5")
    with h5py.File(made.path) as file:
        assert file["label"][:].tolist() == [2000 + n for n in range(9)] + [10000 + n for n in range(11)]
    view = out.view(tmp_path / "view.h5")
    with h5py.File(view.path) as file, h5py.File(made.path) as other:
        assert np.array_equal(file["label"][:], other["label"][:])


def add_runs(out: DatasetWriter, task: str, runs: Any) -> None:
    [record] = [record for record in out.parts() if record.task == task]
    data = dataclasses.replace(record, runs=runs).to_json()
    for name in (claim_name(task), record_name(task, 0)):
        path = out.folder / "parts" / name
        path.unlink()
        path.write_bytes(data)


def test_runs_that_are_not_all_rows_are_refused(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"label": hold.Int64()})
    with out.part("a") as part:
        part.extend({"label": [1, 2, 3]})
    add_runs(out, "a", [("p", 0, 2)])
    with pytest.raises(CorruptError, match="runs of 2 rows, and 3 rows"):
        exact_order(out.parts())


# ---- manifests


def test_manifests(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out)
    one = out.consolidate(tmp_path / "one.h5")
    two = out.consolidate(tmp_path / "two.h5", order="any")
    assert (one.manifest, two.manifest) == (1, 2)
    latest = latest_manifest(out.folder)
    assert latest is not None
    assert (latest.number, latest.output, latest.order, latest.rows) == (2, two.path, "any", 50)
    assert {(part.task, part.rows) for part in latest.parts} == set(TASKS.items())
    assert {part.crc32c for part in latest.parts} == {record.crc32c for record in out.parts()}
    os.unlink(two.path)  # a manifest without its file does not hold
    assert (latest_manifest(out.folder) or latest).number == 1
    path = out.folder / "manifest" / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rows": 51}))
    assert [manifest.number for manifest in read_manifests(out.folder)] == [2]
    assert latest_manifest(out.folder) is None


def test_parts_go_only_on_request_and_their_tasks_stay_done(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out)
    wanted = wanted_rows(out)
    made = out.consolidate(tmp_path / "train.h5", delete_parts=True)
    assert rows_of(made.path) == wanted
    assert out.parts() == []
    again = write(tmp_path / "run", SCHEMA)
    assert all(again.part(task).done for task in TASKS)
    assert set(deleted_parts(out.folder)) == set(TASKS)
    assert all(name.startswith(".") for name in os.listdir(out.folder / "parts"))
    assert again.verify().ok
    os.unlink(made.path)
    assert len(again.verify().problems) == len(TASKS)  # now they are missing


def test_the_only_copy_is_not_replaced(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out)
    wanted = wanted_rows(out)
    made = out.consolidate(tmp_path / "train.h5", delete_parts=True)
    with out.part("late") as part:
        part.extend(columns(0, 3))
    with pytest.raises(TargetExistsError, match="has the only copy of"):
        out.consolidate(tmp_path / "train.h5", overwrite=True)
    assert rows_of(made.path) == wanted
    assert out.consolidate(tmp_path / "late.h5").rows == 3


DELETING = """
import sys
from holdfast.data.writer.dataset_writer import write
write(sys.argv[1]).consolidate(sys.argv[2], delete_parts=True)
"""


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_the_only_copy_is_not_replaced_after_a_kill_and_a_move(tmp_path: Path, kind: Any) -> None:
    """A moved file is known by its content, under any name, and by any way to write."""
    suffix = "h5" if kind == "hdf5" else "tfrecord"
    first = write(tmp_path / "first/run", SCHEMA)
    fill(first, kind)
    wanted = wanted_rows(first)
    command = [sys.executable, "-c", DELETING, str(first.folder), str(tmp_path / f"first/train.{suffix}")]
    done = subprocess.run(command, env=os.environ | {"HOLDFAST_FAILPOINT": "part-deleted"}, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    os.rename(tmp_path / "first", tmp_path / "moved")
    (tmp_path / "first").mkdir()
    target = tmp_path / f"moved/train.{suffix}"
    decoy = tmp_path / f"first/train.{suffix}"  # at the old place: only its size is right
    decoy.write_bytes(bytes(target.stat().st_size))
    (tmp_path / f"symlink.{suffix}").symlink_to(target)
    os.link(target, tmp_path / f"hardlink.{suffix}")

    out = write(tmp_path / "moved/run")
    [part, *_] = [out.path_of(record) for record in out.parts()]
    assert len(out.parts()) < len(TASKS)
    ways: dict[str, Any] = {
        "convert": lambda target: hold.convert(part, target, SCHEMA, overwrite=True),
        "salvage": lambda target: (salvage_hdf5 if kind == "hdf5" else salvage_file)(part, target, overwrite=True),
        "merge": lambda target: (merge_hdf5 if kind == "hdf5" else merge_files)([part], target, overwrite=True),
    }
    for name in (target, tmp_path / f"symlink.{suffix}", tmp_path / f"hardlink.{suffix}"):
        for way in ways.values():
            with pytest.raises(TargetExistsError, match=r"it has the only copy of 1 deleted parts, such as 'rank1'"):
                way(name)
    assert rows_of(target) == wanted

    with open(target, "ab") as file:
        file.write(bytes(8))  # it was changed: it may still have the rows
    with pytest.raises(TargetExistsError, match=r"it may have the only copy of 1 .*; name another file"):
        ways["merge"](target)
    os.truncate(target, target.stat().st_size - 8)

    shutil.copy(target, decoy)  # the second copy, where the manifest says
    ways["merge"](target)


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_the_same_call_goes_on_after_a_kill_while_parts_are_deleted(tmp_path: Path, kind: Any) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out, kind)
    wanted = wanted_rows(out)
    target = tmp_path / f"train.{'h5' if kind == 'hdf5' else 'tfrecord'}"
    command = [sys.executable, "-c", DELETING, str(out.folder), str(target)]
    done = subprocess.run(command, env=os.environ | {"HOLDFAST_FAILPOINT": "part-deleted"}, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert 0 < len(out.parts()) < len(TASKS)
    half_deleted = r"consolidate\('.*', order='exact', delete_parts=True\) has deleted 1 of 5 parts"
    for reads in (
        lambda: hold.read(out.folder),
        lambda: hold.convert(out.folder, tmp_path / "converted.tar"),
        lambda: hold.merge(out.folder, tmp_path / f"other{target.suffix}"),
        lambda: out.consolidate(target, overwrite=True),
        lambda: out.view(tmp_path / "view.h5"),
        out.plan,
    ):
        with pytest.raises(InputError, match=half_deleted):
            reads()
    assert re.search(half_deleted, str(out.verify().problems[0]))
    assert re.search(half_deleted, str(hold.inspect(out.folder).files[0].problem))

    made = out.consolidate(target, delete_parts=True)
    assert (made.rows, made.parts, out.parts()) == (len(wanted), len(TASKS), [])
    assert out.consolidate(target, delete_parts=True) == made
    assert rows_of(target) == wanted
    for reads in (lambda: hold.read(out.folder), lambda: out.consolidate(tmp_path / f"other{target.suffix}")):
        with pytest.raises(InputError, match=rf"consolidate\(\) had made {target}, with 50 rows: read that file"):
            reads()
    assert out.verify().ok
    with out.part("late", kind) as part:
        part.extend(columns(0, 3))
    assert len(hold.read(out.folder)) == 3
    with pytest.raises(TargetExistsError):
        out.consolidate(target, delete_parts=True)


def test_a_run_with_lost_parts_is_not_read(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out)
    [first, second, *_] = out.parts()
    out.path_of(first).unlink()
    out.path_of(second).unlink()
    (out.folder / "parts" / record_name(second.task, second.attempt)).unlink()
    with pytest.raises(CorruptError, match="expected all committed parts, 2 are gone, such as that of task 'rank1'"):
        hold.read(out.folder)


def test_a_file_whose_parts_are_there_is_replaced(tmp_path: Path) -> None:
    """Files that another manifest describes are not taken for the one with deleted parts."""
    out = write(tmp_path / "run", SCHEMA)
    fill(out)
    made = out.consolidate(tmp_path / "early.h5", delete_parts=True)
    os.rename(made.path, tmp_path / "away.h5")
    with out.part("late") as part:
        part.extend(columns(0, 3))
    out.consolidate(tmp_path / "late.h5")
    assert out.consolidate(tmp_path / "late.h5", overwrite=True).rows == 3


KILLED = """
import sys
from holdfast.data.writer.dataset_writer import write
write(sys.argv[1]).consolidate(sys.argv[2])
"""


@pytest.mark.parametrize("where", ["merge-made", "merge-result", "merge-linked"])
def test_killed_the_next_one_succeeds(tmp_path: Path, where: str) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out, chunk_rows=4, codec="gzip")
    target = tmp_path / "train.h5"
    command = [sys.executable, "-c", KILLED, str(out.folder), str(target)]
    done = subprocess.run(command, env=os.environ | {"HOLDFAST_FAILPOINT": where}, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.exists() == (where == "merge-linked")
    assert (latest_manifest(out.folder) is not None) == target.exists()  # it holds only with its file
    if where == "merge-linked":
        with pytest.raises(TargetExistsError):
            out.consolidate(target)
    else:
        assert out.consolidate(target).manifest == {"merge-made": 1, "merge-result": 2}[where]
    assert rows_of(target) == wanted_rows(out)
    assert sorted(os.listdir(tmp_path)) == ["run", "train.h5"]


# ---- refused


def test_refused(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    with pytest.raises(InputError, match="expected committed parts, this dataset directory has none yet"):
        out.consolidate(tmp_path / "train.h5")
    fill(out)
    with pytest.raises(ValueError, match="expected order"):
        out.consolidate(tmp_path / "train.h5", order="random")  # type: ignore[arg-type]
    with pytest.raises(WriteError, match=r"name it train\.h5"):
        out.consolidate(tmp_path / "train.tfrecord")
    with out.part("other", "tfrecord") as part:
        part.extend(columns(0, 2))
    with pytest.raises(SchemaError, match=r"other\.0\.tfrecord is tfrecord|rank1\.0\.h5 is hdf5"):
        out.consolidate(tmp_path / "train.h5")
    assert os.listdir(tmp_path) == ["run"]


def test_another_schema_is_named_with_part_and_field(tmp_path: Path) -> None:
    out, other = write(tmp_path / "run", SCHEMA), write(tmp_path / "other", SCHEMA | {"emb": hold.Float32(4)})
    fill(out)
    with other.part("alien") as part:
        part.extend(columns(0, 2) | {"emb": np.zeros((2, 4))})
    for name in os.listdir(other.folder / "parts"):
        os.link(other.folder / "parts" / name, out.folder / "parts" / name)
    with pytest.raises(SchemaError, match=r"alien\.0\.h5: column 'emb' is Float32\(4\) there, expected Float32\(3\)"):
        out.consolidate(tmp_path / "train.h5")


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_damaged_missing_and_cut_parts(tmp_path: Path, kind: Any) -> None:
    out = write(tmp_path / "run", SCHEMA)
    fill(out, kind)
    target = tmp_path / ("train.h5" if kind == "hdf5" else "train.tfrecord")
    [record] = [record for record in out.parts() if record.task == "rank2"]
    path = out.path_of(record)
    data = path.read_bytes()
    at = record.chunks["emb"][0][0] + 9 if kind == "hdf5" else len(data) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    with pytest.raises(CorruptError, match=r"rank2\.0\."):
        out.consolidate(target)
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptError, match="expected .* bytes, got"):
        out.consolidate(target)
    path.unlink()
    with pytest.raises(InputError, match="cannot open: No such file or directory; it has 20 rows"):
        out.consolidate(target)
    assert os.listdir(tmp_path) == ["run"]
    assert read_manifests(out.folder) == []
