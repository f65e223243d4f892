"""Parts: what goes in comes out, a clean exit commits, all else leaves nothing."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_rows import SCHEMA, row, rows

import holdfast as hold
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import ClosedWriterError, SchemaError, TargetExistsError, WriteError

CODECS = [None, "gzip", ("gzip", 1), "lzf"]


def as_lists(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", SCHEMA)


def small(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "small", {"x": hold.Int64()})


def files(out: DatasetWriter) -> list[str]:
    return sorted(str(path.relative_to(out.folder)) for path in out.folder.rglob("*") if path.is_file())


# ---- in and out


@pytest.mark.parametrize(
    ("kind", "codec"), [*(("hdf5", codec) for codec in CODECS), ("tfrecord", None)], ids=lambda one: str(one)
)
def test_what_goes_in_comes_out(out: DatasetWriter, kind: Any, codec: Any) -> None:
    wanted = rows(0, 30)
    with out.part("t", kind, codec=codec, chunk_rows=4 if kind == "hdf5" else None) as part:
        assert part.rows == 0
        part.extend(rows(0, 7))
        for i in range(7, 12):
            assert part.rows == i
            part.append(**row(i))
        assert part.rows == 12
        part.extend(rows(12, 18))
        assert part.rows == 30
    assert part.done
    assert (part.record.rows, part.record.task, part.record.attempt) == (30, "t", 0)
    assert out.rows == 30
    [record] = out.parts()
    with open_shard(out.path_of(record), SCHEMA) as shard:
        assert as_lists(shard.read(0, 30, SCHEMA)) == wanted
        picked = [29, 3, 3, 0, 17]
        assert as_lists(shard.read_rows(picked, SCHEMA)) == {n: [c[i] for i in picked] for n, c in wanted.items()}
    assert out.verify().ok


def test_hold_read_takes_the_folder(out: DatasetWriter) -> None:
    for task in range(3):
        with out.part(task, "tfrecord" if task == 1 else "hdf5") as part:
            part.extend(rows(task * 10, 10))
    with hold.read(str(out.folder), SCHEMA).batch(30).iterate() as it:
        [got] = list(it)
    assert as_lists(got) == rows(0, 30)


def test_the_file_says_its_schema_and_plain_h5py_reads_it(out: DatasetWriter) -> None:
    with out.part("t", chunk_rows=4) as part:
        part.extend(rows(0, 10))
    path = out.path_of(part.record)
    with open_shard(path) as shard:
        assert shard.schema == SCHEMA
        assert shard.rows_per_chunk == 4
    with h5py.File(path) as file:
        assert file["seq"][:].tolist() == list(range(10))
        assert file["emb"].shape == (10, 2, 3)
        ends = file["text/offsets"][:]
        assert bytes(file["text/values"][ends[3] : ends[4]]) == b"ttt"
        assert file["boxes/row_splits"][:].tolist()[:4] == [0, 0, 1, 3]


def test_columns_are_found_without_the_files_own_word(out: DatasetWriter, tmp_path: Path) -> None:
    with out.part("t") as part:
        part.extend(rows(0, 5))
    path = shutil.copy(out.path_of(part.record), tmp_path / "copy.h5")
    with h5py.File(path, "r+") as file:
        del file.attrs["holdfast"]
    with open_shard(path) as shard:
        assert shard.schema == SCHEMA
        assert as_lists(shard.read(0, 5)) == {name: rows(0, 5)[name] for name in sorted(SCHEMA)}
        with pytest.raises(hold.errors.DecodeError, match=r"'text' holds Bytes\(\), expected Int64\(\)"):
            shard.read(0, 5, {"text": hold.Int64()})


def test_ends_that_lead_nowhere_are_found(out: DatasetWriter, tmp_path: Path) -> None:
    with out.part("t") as part:
        part.extend(rows(0, 5))
    for wrong in (10**9, -5):
        path = shutil.copy(out.path_of(part.record), tmp_path / "copy.h5")
        with h5py.File(path, "r+") as file:
            file["text/offsets"][5] = wrong
        with open_shard(path, SCHEMA) as shard, pytest.raises(hold.errors.CorruptError, match="'text' has offsets"):
            shard.read(0, 5)


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_a_part_without_samples(out: DatasetWriter, kind: Any) -> None:
    with out.part("empty", kind):
        pass
    with out.part("full", kind) as part:
        part.extend(rows(0, 3))
    assert [record.rows for record in out.parts()] == [0, 3]
    assert out.verify().ok
    with hold.read(str(out.folder), SCHEMA).batch(8).iterate() as it:
        assert [len(one["seq"]) for one in it] == [3]


def test_what_was_given_may_be_changed_afterwards(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"x": hold.Float32(2), "r": hold.Ragged(hold.Int64())})
    x, r = np.zeros(2, np.float32), np.zeros(1, np.int64)
    with out.part("t") as part:
        for i in range(3):
            x[:], r[:] = i, i
            part.append(x=x, r=r)
        x[:], r[:] = 9, 9
    with open_shard(out.path_of(part.record)) as shard:
        assert as_lists(shard.read(0, 3)) == {"x": [[i, i] for i in range(3)], "r": [[i] for i in range(3)]}


def test_threads_share_one(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.part("t", chunk_rows=64) as part:

        def work(first: int) -> None:
            for i in range(first, first + 1000):
                part.append(x=i)

        threads = [threading.Thread(target=work, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_shard(out.path_of(part.record)) as shard:
        assert sorted(shard.read(0, 4000)["x"].tolist()) == list(range(4000))


# ---- the schema


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seq": 1.5}, "column 'seq': expected Int64"),
        ({"seq": 2**64 - 1}, "column 'seq'"),
        ({"seq": 2**70}, "column 'seq'"),
        ({"seq": []}, "column 'seq'"),
        ({"emb": [1, 2]}, "column 'emb'"),
        ({"emb": np.full((2, 3), 1e300)}, "column 'emb'.* which float32 cannot hold"),
        ({"text": 3}, "column 'text'"),
        ({"pair": [b"a"]}, "column 'pair'"),
        ({"boxes": [[1, 2, 3]]}, "column 'boxes'"),
        ({"lists": [1]}, "column 'lists'"),
        ({"more": 1}, r"unknown \['more'\]"),
    ],
)
def test_a_sample_that_does_not_fit_is_named_at_once_and_is_not_in(out: DatasetWriter, wrong: Any, said: str) -> None:
    good = row(4)
    with out.part("t") as part:
        part.append(**good)
        with pytest.raises(SchemaError, match=said):
            part.append(**{**good, **wrong})
        with pytest.raises(SchemaError, match=f"{said}|different numbers of rows"):
            part.extend({name: [value] for name, value in {**good, **wrong}.items()})
        part.append(**good)
    assert part.record.rows == 2
    with open_shard(out.path_of(part.record), SCHEMA) as shard:
        assert as_lists(shard.read(0, 2)) == {name: [column[0]] * 2 for name, column in rows(4, 1).items()}


def test_columns_of_unequal_length_and_no_columns(out: DatasetWriter) -> None:
    with out.part("t") as part:
        with pytest.raises(SchemaError, match="different numbers of rows"):
            part.extend({**rows(0, 3), "seq": [1, 2]})
        with pytest.raises(SchemaError, match=r"missing \['boxes'"):
            part.extend({"seq": [1]})
        with pytest.raises(SchemaError, match="expected columns of samples by name, got list"):
            part.extend([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("a", "a/b"), ("/a",), ("a//b",), ("..",), ("",)])
def test_names_that_are_no_paths_in_a_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    out = write(tmp_path / "run", {name: hold.Int64() for name in names})
    with pytest.raises(SchemaError, match="column"):
        out.part("t")
    with out.part("t", "tfrecord") as part:
        part.append(**dict.fromkeys(names, 1))
    assert out.rows == 1


def test_keys_are_where_the_datasets_lie(tmp_path: Path) -> None:
    schema = {"y": hold.Int64(key="train/label"), "r": hold.Ragged(hold.Int64(), key="train/lists")}
    out = write(tmp_path / "run", schema)
    with out.part("t") as part:
        part.append(y=3, r=[1, 2])
    with h5py.File(out.path_of(part.record)) as file:
        assert file["train/label"][:].tolist() == [3]
    with open_shard(out.path_of(part.record)) as shard:
        assert shard.schema == schema
        assert as_lists(shard.read(0, 1)) == {"y": [3], "r": [[1, 2]]}


# ---- commit, and what comes in its way


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_nothing_is_visible_before_the_end_nor_after_an_exception(out: DatasetWriter, kind: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        with out.part("t", kind) as part:
            part.extend(rows(0, 600))
            assert os.listdir(out.folder / "parts") == []
            raise ZeroDivisionError
    assert not part.done
    assert files(out) == ["schema.json"]
    assert os.listdir(out.folder / "tmp") == []
    with pytest.raises(ClosedWriterError, match="task 't': this part is closed"):
        part.extend(rows(0, 1))


def test_a_task_is_done_once(out: DatasetWriter) -> None:
    with out.part("t") as part:
        part.extend(rows(0, 3))
    with pytest.raises(ClosedWriterError, match="task 't' is committed already by attempt 0"):
        part.extend(rows(0, 3))
    with write(out.folder).part("t", "tfrecord") as again:
        assert again.done
        assert again.rows == 3
        with pytest.raises(ClosedWriterError, match=r"committed already by attempt 0 .*3 rows.*look at .done"):
            again.append(seq=1)
    assert files(out) == ["parts/.t.json", "parts/t.0.h5", "parts/t.0.json", "schema.json"]


def test_of_two_attempts_at_once_the_first_to_commit_wins(tmp_path: Path) -> None:
    out = small(tmp_path)
    first, second, third = out.part("t"), out.part("t", "tfrecord"), out.part("t", attempt=7)
    with pytest.raises(TargetExistsError, match="'t' was committed meanwhile by attempt 0 .*1 rows, process"):
        with second:
            second.append(x=2)
            with pytest.raises(TargetExistsError, match="this attempt was discarded"):
                with third:
                    third.append(x=3)
                    with first:
                        first.append(x=1)
    assert files(out) == ["parts/.t.json", "parts/t.0.h5", "parts/t.0.json", "schema.json"]
    assert os.listdir(out.folder / "tmp") == []
    assert first.done
    with open_shard(out.path_of(out.parts()[0])) as shard:
        assert shard.read(0, 1)["x"].tolist() == [1]


def test_an_attempt_may_have_a_number(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.part("t", attempt=3) as part:
        part.append(x=1)
    assert part.record.file == "t.3.h5"
    (out.folder / "parts" / "u.0.h5").write_bytes(b"somebody's")
    with pytest.raises(TargetExistsError, match="u.0.h5 already exists; it was not touched"):
        with out.part("u", attempt=0) as part:
            part.append(x=1)
    with out.part("u") as part:
        part.append(x=1)
    assert part.record.file == "u.1.h5"


def test_a_part_is_entered_once(tmp_path: Path) -> None:
    out = small(tmp_path)
    part = out.part("t")
    with pytest.raises(ClosedWriterError, match="not open yet"):
        part.append(x=1)
    with part:
        part.append(x=1)
        with pytest.raises(ClosedWriterError, match="a part is entered once"):
            part.__enter__()
    with pytest.raises(ClosedWriterError, match="a part is entered once"):
        part.__enter__()
    assert out.rows == 1


def test_a_lost_part_is_dropped_with_a_warning(tmp_path: Path) -> None:
    out = small(tmp_path)
    part = out.part("t")
    part.__enter__()
    part.append(x=1)
    with pytest.warns(ResourceWarning, match="task 't': a part was lost"):
        del part
    assert files(out) == ["schema.json"]


def test_the_folder_is_removed_meanwhile(tmp_path: Path) -> None:
    out = small(tmp_path)
    with pytest.raises(WriteError, match="cannot commit task 't': No such file or directory"):
        with out.part("t") as part:
            part.append(x=1)
            shutil.rmtree(out.folder)
    (out.folder / "parts").mkdir(parents=True)
    with pytest.raises(WriteError, match="the directory was removed while the dataset was being written"):
        out.part("u").__enter__()


def test_the_living_are_not_swept(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.part("t") as part, out.part("u", "tfrecord") as other:
        part.append(x=1)
        other.append(x=1)
        write(out.folder)
        report = out.verify()
        assert len(report.at_work) == 2
        assert report.leftovers == []
    assert [record.task for record in out.parts()] == ["t", "u"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected task=, a name"),
        ({"task": "a/b"}, "expected a task's name"),
        ({"task": ".hidden"}, "expected a task's name"),
        ({"task": ""}, "expected a task's name"),
        ({"task": True}, "expected a task's name"),
        ({"task": "t", "format": "csv"}, "expected format to be"),
        ({"task": "t", "attempt": -1}, "expected an attempt number"),
        ({"task": "t", "chunk_rows": 0}, "chunk_rows must be a positive integer"),
        ({"task": "t", "codec": "zip"}, "expected codec"),
        ({"task": "t", "codec": ("gzip", 10)}, "expected codec"),
        ({"task": "t", "codec": ("lzf", 1)}, "expected codec"),
        ({"task": "t", "format": "tfrecord", "codec": "gzip"}, "are for HDF5"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(tmp_path).part(**given)
