"""Split and merge: every record, in its order, or nothing at all."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import TFRecordReader, TFRecordWriter
from holdfast._native import codec
from holdfast.data.formats import targets
from holdfast.data.formats.tfrecord import merge
from holdfast.data.formats.tfrecord.frame_stream import FrameBatches
from holdfast.data.formats.tfrecord.manifest import MANIFEST_NAME, FileEntry, read_manifest
from holdfast.data.formats.tfrecord.merge import merge_files
from holdfast.data.formats.tfrecord.split import split_files
from holdfast.data.formats.tfrecord.verify import verify_file
from holdfast.errors import CorruptError, DataError, InputError, TargetExistsError, WriteError

pytestmark = pytest.mark.formats

SUFFIXES = ["", ".gz", ".zlib"]


def write(path: Path, records: list[bytes]) -> Path:
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def read(*paths: str | Path) -> list[bytes]:
    records = []
    for path in paths:
        with TFRecordReader(path) as reader:
            records += list(reader)
    return records


def some_records(count: int, seed: int = 0, maximum: int = 300) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(maximum)) for _ in range(count)]


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


records = st.lists(st.binary(max_size=40), max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    inputs=st.lists(st.tuples(records, st.sampled_from(SUFFIXES)), min_size=1, max_size=4),
    how=st.one_of(
        st.fixed_dictionaries({"parts": st.integers(1, 9)}),
        st.fixed_dictionaries({"part_bytes": st.integers(1, 3000)}),
    ),
    compression=st.sampled_from(["none", "gzip", "zlib"]),
    jobs=st.integers(1, 4),
)
def test_split_then_merge_gives_the_same_records(
    inputs: list[tuple[list[bytes], str]], how: dict[str, int], compression: Any, jobs: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("x")
    files = [write(folder / f"{i}.tfrecord{suffix}", some) for i, (some, suffix) in enumerate(inputs)]
    written = [record for some, _ in inputs for record in some]
    entries = split_files(files, folder / "out", compression=compression, jobs=jobs, name="x", **how)
    assert read(*(entry.path for entry in entries)) == written
    assert [entry.records for entry in entries] == [len(read(entry.path)) for entry in entries]
    if "parts" in how:
        assert len(entries) == how["parts"]
        assert max(e.records for e in entries) - min(e.records for e in entries) <= 1
    elif compression == "none":
        assert all(e.bytes <= how["part_bytes"] or e.records == 1 for e in entries)
    manifest = read_manifest(folder / "out" / MANIFEST_NAME).entries
    assert manifest == {os.path.basename(e.path): e._replace(path=os.path.basename(e.path)) for e in entries}
    assert all(verify_file(entry.path).ok for entry in entries)
    entry = merge_files([entry.path for entry in entries], folder / "all.tfrecord")
    assert (folder / "all.tfrecord").read_bytes() == b"".join(map(codec.frame, written))
    assert entry.records == len(written)


def test_parts_are_as_large_as_they_may_be(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", [bytes(84)] * 95)  # frames of 100 bytes
    entries = split_files([file], tmp_path / "out", part_bytes=1099)
    assert [entry.records for entry in entries] == [10] * 9 + [5]


def test_records_beyond_one_buffer(tmp_path: Path) -> None:
    """Parts begin inside a run, and records are larger than the buffer."""
    some = [*some_records(400, maximum=9000), bytes(3_000_000), *some_records(300, seed=1)]
    files = [write(tmp_path / f"{i}.tfrecord", some[i::2]) for i in range(2)]
    entries = split_files(files, tmp_path / "out", parts=7, jobs=3)
    assert read(*(entry.path for entry in entries)) == some[0::2] + some[1::2]


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.tfrecord{suffix}", some_records(500, i)) for i, suffix in enumerate(SUFFIXES)]
    size = sum(file.stat().st_size for file in files)
    heard: list[float] = []
    split_files(files, tmp_path / "out", parts=1, progress=heard.append)
    assert sum(heard) == pytest.approx(size, rel=0.02)
    heard.clear()
    merge_files(files, tmp_path / "all.tfrecord.gz", progress=heard.append)
    assert sum(heard) == pytest.approx(size, rel=0.02)


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected either"),
        ({"parts": 2, "part_bytes": 2}, "expected either"),
        ({"parts": 0}, "from 1 to 99,999 parts, got 0"),
        ({"parts": 100_000}, "from 1 to 99,999 parts"),
        ({"part_bytes": 0}, "at least one byte"),
        ({"parts": 1, "name": "a/b"}, "without a folder, got 'a/b'"),
        ({"parts": 1, "name": ""}, "without a folder, got ''"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path: Path, options: Any, said: str) -> None:
    file = write(tmp_path / "x.tfrecord", [b"1"])
    with pytest.raises(ValueError, match=said):
        split_files([file], tmp_path / "out", **options)
    assert listing(tmp_path) == ["x.tfrecord"]


def test_too_many_parts_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MAX_SHARDS", 5)
    file = write(tmp_path / "x.tfrecord", [b"1"] * 6)
    with pytest.raises(ValueError, match="expected a size that gives at most 5 files"):
        split_files([file], tmp_path / "out", part_bytes=1)
    assert listing(tmp_path) == ["x.tfrecord"]


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("damage_at", [5, 700, -2])
def test_damaged_input_leaves_nothing(tmp_path: Path, jobs: int, damage_at: int) -> None:
    good, bad = (write(tmp_path / name, [bytes(100)] * 40) for name in ("good", "bad"))
    data = bytearray(bad.read_bytes())
    data[damage_at] ^= 1
    bad.write_bytes(data)
    for work in (
        lambda: split_files([good, bad], tmp_path / "new" / "out", parts=3, jobs=jobs),
        lambda: split_files([good, bad], tmp_path / "new" / "out", part_bytes=500, jobs=jobs),
        lambda: merge_files([good, bad], tmp_path / "all"),
    ):
        with pytest.raises(CorruptError) as caught:
            work()
        assert caught.value.path == str(bad)
        assert caught.value.record == (len(data) + damage_at if damage_at < 0 else damage_at) // 116
        assert listing(tmp_path) == ["bad", "good"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", some_records(9))
    out = tmp_path / "out"
    split_files([file], out, parts=2)
    before = {name: (out / name).read_bytes() for name in listing(out)}
    with pytest.raises(TargetExistsError, match="remove it, or choose another folder or name"):
        split_files([file], out, parts=2)
    assert {name: (out / name).read_bytes() for name in listing(out)} == before
    split_files([file], out, parts=3)
    assert len(read_manifest(out / MANIFEST_NAME).entries) == 5


def test_a_manifest_that_cannot_be_added_to_is_found_before_the_work(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", some_records(9))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST_NAME).write_text("not one")
    with pytest.raises(InputError, match="not a holdfast manifest"):
        split_files([file], tmp_path / "out", parts=2)
    assert listing(tmp_path / "out") == [MANIFEST_NAME]


def test_output_that_is_input(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", [b"1"])
    os.link(file, tmp_path / "y")
    with pytest.raises(WriteError, match="is also an input"):
        merge_files([file], tmp_path / "y", overwrite=True)
    assert read(file) == [b"1"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", [b"1"])
    with pytest.raises(WriteError, match="cannot make the folder"):
        split_files([file], file / "out", parts=1)


# ---- the proof ---------------------------------------------------------------------------------------------


class ForgetfulRuns(FrameBatches):
    """Reads a new file otherwise than it was written: swaps its first two records."""

    def next(self, put: Any, maximum: int = 1 << 16) -> int | None:
        def swap(frames: memoryview, starts: Any) -> None:
            a, b = int(starts[1]), int(starts[2])
            put(memoryview(bytes(frames[a:b]) + bytes(frames[:a]) + bytes(frames[b:])), starts)

        return super().next(swap if "out" in str(self.stream.source.path) else put, maximum)


def test_an_order_that_changed_on_disk_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "x.tfrecord", [b"first", b"second", b"third"])
    monkeypatch.setattr(merge, "FrameBatches", ForgetfulRuns)
    for work in (
        lambda: split_files([file], tmp_path / "out", parts=1),
        lambda: merge_files([file], tmp_path / "out.tfrecord"),
    ):
        with pytest.raises(DataError, match="expected the 3 records that were written, got 3 or others"):
            work()
        assert listing(tmp_path) == ["x.tfrecord"]


@pytest.mark.parametrize("work", ["split", "merge"])
def test_input_that_changes_meanwhile_is_noticed(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "x.tfrecord", [b"1", b"2"])
    prove = merge._verify_output

    def append_then_prove(*arguments: Any) -> None:
        with open(file, "ab") as more:
            more.write(codec.frame(b"3"))
        prove(*arguments)

    monkeypatch.setattr(merge, "_verify_output", append_then_prove)
    with pytest.raises(InputError, match="it changed while it was read"):
        if work == "split":
            split_files([file], tmp_path / "out", parts=1)
        else:
            merge_files([file], tmp_path / "out")
    assert listing(tmp_path) == ["x.tfrecord"]


def test_a_failure_while_giving_names_takes_all_of_them_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "x.tfrecord", some_records(9))

    def no_room(folder: Path, entries: list[FileEntry]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets, "write_manifest", no_room)
    with pytest.raises(WriteError, match="cannot write into .*: No space left on device"):
        split_files([file], tmp_path / "out", parts=3)
    assert listing(tmp_path) == ["x.tfrecord"]
