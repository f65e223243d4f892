"""Parts in a store: commit once, whatever the store answers; what is there is what was written."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import holdfast as hold
from holdfast.data import remote_fs
from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.remote import object_store
from holdfast.data.writer.remote.remote_dataset import RemoteDatasetWriter, scratch_folder
from holdfast.errors import CorruptError, InputError, SchemaError, TargetExistsError, WriteError

URL = "memory://bucket/run.hold"
SCHEMA = {"x": hold.Int64(codec="gzip", chunk_rows=8), "s": hold.Bytes()}


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(remote_fs, "PAUSES_S", (0.0, 0.0, 0.0))
    yield tmp_path / "scratch"
    assert not [name for _, _, names in os.walk(tmp_path / "scratch") for name in names]


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    fs = fsspec.filesystem("memory")
    yield fs
    if fs.exists("/bucket"):
        fs.rm("/bucket", recursive=True)


@pytest.fixture
def out(memory: MemoryFileSystem) -> RemoteDatasetWriter:
    made = write(URL, SCHEMA)
    assert isinstance(made, RemoteDatasetWriter)
    return made


def rows(first: int, count: int = 20) -> dict[str, Any]:
    return {"x": np.arange(first, first + count), "s": [b"text %d" % i for i in range(first, first + count)]}


def put(out: Any, task: str | int, first: int = 0, kind: Any = "hdf5") -> None:
    with out.part(task, kind) as part:
        part.extend(rows(first))


def names(memory: MemoryFileSystem) -> list[str]:
    return sorted(name.removeprefix("/bucket/run.hold/") for name in memory.find("/bucket/run.hold"))


def test_what_goes_in_comes_out(out: RemoteDatasetWriter, tmp_path: Path) -> None:
    put(out, 0)
    put(out, 1, 20, "tfrecord")
    with out.part(2):
        pass
    assert out.rows == 40
    assert [(record.task, record.rows) for record in out.parts()] == [("0", 20), ("1", 20), ("2", 0)]
    assert str(out.verify()).endswith("all as committed")
    with hold.read(URL, SCHEMA, cache_folder=tmp_path / "cache").batch(40).iterate() as it:
        [batch] = list(it)
    assert batch["x"].tolist() == list(range(40))
    assert batch["s"].tolist() == rows(0, 40)["s"]


def test_a_task_is_done_once(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    put(out, "t")
    before = names(memory)
    [record] = out.parts()
    assert before == sorted(["schema.json", "parts/.t.json", f"parts/{record.file}", f"parts/t.{record.attempt}.json"])
    with write(URL).part("t") as again:
        assert again.done
        assert again.rows == 20
    assert names(memory) == before
    assert out.url_of(record) == f"{URL}/parts/{record.file}"


def test_of_two_attempts_the_first_to_commit_wins(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    first, second = out.part("t"), out.part("t", "tfrecord")
    with pytest.raises(TargetExistsError, match=r"'t' was committed meanwhile by attempt \d+ .*1 rows, process"):
        with second:
            second.append(x=2, s=b"")
            with first:
                first.append(x=1, s=b"")
    assert len(names(memory)) == 4
    assert first.done
    assert not second.done
    assert out.verify().leftovers == []


def test_threads_race_and_one_wins(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    outcomes: list[str] = []
    parts = [out.part("t") for _ in range(6)]
    all_there = threading.Barrier(6)

    def attempt(number: int) -> None:
        try:
            with parts[number] as part:
                part.append(x=number, s=b"")
                all_there.wait(60)
            outcomes.append("won")
        except TargetExistsError:
            outcomes.append("lost")

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 5 + ["won"]
    assert len(names(memory)) == 4


def test_nothing_after_an_exception(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    with pytest.raises(ZeroDivisionError):
        with out.part("t") as part:
            part.extend(rows(0))
            raise ZeroDivisionError
    assert names(memory) == ["schema.json"]


def test_reopening_and_what_is_refused(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    assert write(URL).schema == SCHEMA
    assert write(f"{URL}/", SCHEMA).schema["x"].codec == "gzip"
    assert pickle.loads(pickle.dumps(out)).url == URL
    with pytest.raises(SchemaError, match=f"{URL}: .*column 'x': the dataset has Int64.*, got Float32"):
        write(URL, {**SCHEMA, "x": hold.Float32()})
    with pytest.raises(InputError, match="there is none; pass a schema to create it"):
        write("memory://bucket/none")
    memory.pipe("/bucket/photos/cat.jpg", b"x")
    with pytest.raises(WriteError, match="expected an empty or new directory.* got one with 'cat.jpg'"):
        write("memory://bucket/photos", SCHEMA)
    with pytest.raises(WriteError, match=r"got hdfs://: pyarrow overwrites files, so use webhdfs://"):
        write("hdfs://host/run", SCHEMA)
    with pytest.raises(ValueError, match="attempt is only for local folders"):
        out.part("t", attempt=3)
    with pytest.raises(InputError, match=r"copy the dataset there with out.fetch\(FOLDER\)"):
        _ = out.folder


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    out = write(f"file://{tmp_path}/run", SCHEMA)
    put(out, "t")
    assert (tmp_path / "run" / "parts" / "t.0.json").exists()


# ---- a store that loses its answers


class Unreliable:
    """What a store does when it is asked to create a file: the ways of one answer after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ways: str) -> None:
        self.ways = list(ways)
        real = object_store._in_memory

        def create(fs: Any, path: str, data: bytes) -> None:
            way = self.ways.pop(0) if self.ways and "/parts/" in path else "good"
            if way not in ("nothing", "refused"):
                real(fs, path, data)
            if way != "good":
                raise PermissionError("no") if way == "refused" else ConnectionError("the line is dead")

        monkeypatch.setattr(object_store, "_in_memory", create)


def test_a_lost_answer_is_no_lost_task(out: RemoteDatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    part = out.part("t")
    Unreliable(monkeypatch, "done, but not said")
    with part:
        part.extend(rows(0))
    assert part.done
    assert out.verify().ok
    assert out.rows == 20


def test_what_fails_for_a_moment_is_tried_again(out: RemoteDatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    Unreliable(monkeypatch, "nothing", "nothing")
    put(out, "t")
    assert out.rows == 20


def test_without_the_right_to_commit(
    out: RemoteDatasetWriter, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreliable = Unreliable(monkeypatch, "refused")
    with pytest.raises(WriteError, match=rf"{URL}/parts/.t.json: no permission: no"):
        put(out, "t")
    assert unreliable.ways == []  # asked once
    assert names(memory) == ["schema.json"]


def test_in_doubt_the_data_stay(
    out: RemoteDatasetWriter, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unreliable(monkeypatch, *["nothing"] * 4)
    with pytest.raises(WriteError, match=r"it is unknown whether task 't' is committed: .*the line is dead.*\.done"):
        put(out, "t")
    assert len(names(memory)) == 2
    assert out.verify().ok
    [left] = out.verify().leftovers
    assert left.endswith("its attempt is still writing, or died")
    put(out, "t")
    assert out.rows == 20
    assert out.sweep() == []  # it is not old
    assert len(out.sweep(older_than=0)) == 1
    assert len(names(memory)) == 4
    assert out.verify().leftovers == []


def test_killed_between_claim_and_record(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    put(out, "t")
    [record] = out.parts()
    memory.rm_file(f"/bucket/run.hold/parts/t.{record.attempt}.json")
    assert out.rows == 0
    assert "committed; the next hold.write of this folder makes it visible" in out.verify().leftovers[0]
    assert out.sweep(older_than=0) == []
    assert write(URL).rows == 20


def test_a_store_that_ignores_the_condition(out: RemoteDatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_in_memory", lambda fs, path, data: fs.pipe_file(path, data))
    with pytest.raises(WriteError, match="expected a store that refuses to create a file that exists"):
        out.part("t")


def test_an_upload_that_is_not_all_there(
    out: RemoteDatasetWriter, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = MemoryFileSystem.info
    monkeypatch.setattr(MemoryFileSystem, "info", lambda fs, path, **more: {**info(fs, path, **more), "size": 7})
    with pytest.raises(WriteError, match=r"expected [\d,]+ bytes in the store, got 7"):
        put(out, "t")
    monkeypatch.undo()
    assert names(memory) == ["schema.json"]


# ---- checking, and bringing it here


def test_damage_is_named(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    for task in range(3):
        put(out, task)
    first, second, third = out.parts()
    offset, size, _ = first.chunks["x"][1]
    data = bytearray(memory.cat_file(f"/bucket/run.hold/parts/{first.file}"))
    data[offset + size - 1] ^= 1
    memory.pipe_file(f"/bucket/run.hold/parts/{first.file}", bytes(data))
    memory.rm_file(f"/bucket/run.hold/parts/{second.file}")
    memory.pipe_file(f"/bucket/run.hold/parts/2.{third.attempt}.json", b"{}")
    damaged, missing, record = out.verify().problems
    assert (damaged.dataset, damaged.chunk, damaged.offset) == ("x", 1, offset)
    assert str(missing) == f"{out.url_of(second)}: it is missing, with 20 rows"
    assert "the part's record is corrupt" in str(record)


def test_a_copy_on_this_machine(out: RemoteDatasetWriter, memory: MemoryFileSystem, tmp_path: Path) -> None:
    put(out, 0)
    put(out, 1, 20, "tfrecord")
    told: list[tuple[int, int]] = []
    copy = out.fetch(tmp_path / "run", lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    assert copy.verify().ok
    assert copy.parts() == out.parts()
    put(out, 2, 40)
    assert out.fetch(tmp_path / "run").rows == 60
    shutil.rmtree(tmp_path / "run")
    name = f"/bucket/run.hold/parts/{out.parts()[0].file}"
    memory.pipe_file(name, memory.cat_file(name) + b"more")
    with pytest.raises(CorruptError, match="it is not what was committed"):
        out.fetch(tmp_path / "run")
    assert write(tmp_path / "run").rows == 0


def test_somebody_elses_scratch_folder(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scratch_folder().stat().st_mode & 0o777 == 0o700
    shutil.rmtree(scratch_folder())
    (scratch / f"holdfast-{os.getuid()}").symlink_to(scratch)
    with pytest.raises(WriteError, match="another user owns it; set TMPDIR"):
        scratch_folder()


def test_a_part_without_data_is_not_done(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    put(out, "a")
    memory.rm_file(f"/bucket/run.hold/parts/{out.parts()[0].file}")
    with pytest.raises(CorruptError, match="it is missing: attempt .* of task 'a' .* has committed it"):
        write(URL).part("a")
    put(out, "b")
    with pytest.raises(CorruptError, match="expected all committed parts, 1 are gone, such as that of task 'a'"):
        hold.read(URL)


def test_a_damaged_claim_is_a_finding_and_keeps_its_data(out: RemoteDatasetWriter, memory: MemoryFileSystem) -> None:
    put(out, "a")
    record = out.parts()[0]
    memory.rm_file(f"/bucket/run.hold/parts/a.{record.attempt}.json")
    claim = memory.cat_file("/bucket/run.hold/parts/.a.json")
    memory.pipe_file("/bucket/run.hold/parts/.a.json", claim.replace(b'"rows":20', b'"rows":21'))
    assert "corrupt" in str(out.verify().problems)
    assert out.sweep(older_than=0) == []
    assert f"parts/{record.file}" in names(memory)


def test_a_record_leads_nowhere_else(out: RemoteDatasetWriter, memory: MemoryFileSystem, tmp_path: Path) -> None:
    """Somebody who may write there says what a part's file is called."""
    put(out, "a")
    record = out.parts()[0]
    evil = replace(record, file="../../../evil.h5")
    memory.pipe_file(f"/bucket/run.hold/parts/a.{record.attempt}.json", evil.to_json())
    memory.pipe_file("/bucket/run.hold/parts/../../../evil.h5", b"evil")
    memory.pipe_file("/evil.h5", b"evil")
    try:
        assert not out.verify().ok
    finally:
        for path in memory.glob("**/evil.h5"):
            memory.rm_file(path)
    assert list(tmp_path.rglob("evil*")) == []


def test_a_part_of_no_bytes(out: RemoteDatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    whole = MemoryFileSystem.open

    def noted(*given: Any, **more: Any) -> Any:
        sizes.append(more.get("block_size", 0))
        return whole(*given, **more)

    monkeypatch.setattr(MemoryFileSystem, "open", noted)
    with out.part("empty", "tfrecord"):
        pass
    assert max(sizes) >= 5 << 20  # S3 takes no smaller ones
    assert (out.part("empty").done, out.rows, out.verify().ok) == (True, 0, True)
