"""Writing: whole or not at all, one writer at a time, never from a forked child."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.errors import (
    ClosedWriterError,
    ForkedWriterError,
    SchemaError,
    TargetExistsError,
    WriteError,
    WriterBusyError,
)

pytestmark = pytest.mark.formats

SCHEMA = {"label": hold.Int64(), "emb": hold.Float32(3), "image": hold.Bytes(), "ids": hold.Ragged(hold.Int64())}


def rows(path: Path, schema: Any = SCHEMA) -> dict[str, list[Any]]:
    got: dict[str, list[Any]] = {name: [] for name in schema}
    with hold.TFRecordReader(path) as reader:
        for batch in reader.batches(schema, 100):
            for name, column in batch.items():
                got[name] += column.tolist()
    return got


@pytest.mark.parametrize("name", ["a" * 240 + ".tfrecord", "a" * 246 + ".tfrecord", "é" * 123 + ".tfrecord"])
def test_names_as_long_as_the_system_allows(tmp_path: Path, name: str) -> None:
    """Two that begin alike have unfinished files of their own."""
    paths = [tmp_path / name, tmp_path / f"{name[:-10]}b.tfrecord"]
    with (
        hold.TFRecordWriter(paths[0], {"n": hold.Int64()}) as a,
        hold.TFRecordWriter(paths[1], {"n": hold.Int64()}) as b,
    ):
        a.append(n=1)
        b.append(n=2)
        with pytest.raises(WriterBusyError):
            hold.TFRecordWriter(paths[0], {"n": hold.Int64()})
    assert [rows(path, {"n": hold.Int64()}) for path in paths] == [{"n": [1]}, {"n": [2]}]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_samples_and_columns_come_back(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.append(label=1, emb=[1, 2, 3], image=b"png", ids=[])
        writer.extend(
            {
                "label": np.array([2, -3]),
                "emb": np.ones((2, 3)),
                "image": ["text", bytearray(b"raw")],
                "ids": [[1], np.array([2, 3])],
            }
        )
        writer.append(label=np.int32(4), emb=np.zeros(3), image=memoryview(b"view"), ids=(7, 8))
    assert rows(path) == {
        "label": [1, 2, -3, 4],
        "emb": [[1, 2, 3], [1, 1, 1], [1, 1, 1], [0, 0, 0]],
        "image": [b"png", b"text", b"raw", b"view"],
        "ids": [[], [1], [2, 3], [7, 8]],
    }


def test_a_readers_batch_can_be_written_as_it_is(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with hold.TFRecordWriter(one, SCHEMA) as writer:
        for i in range(50):
            writer.append(label=i, emb=[i] * 3, image=b"x" * i, ids=range(i % 4))
    with hold.TFRecordReader(one) as reader, hold.TFRecordWriter(two, SCHEMA) as writer:
        for batch in reader.batches(SCHEMA, 7):
            writer.extend(batch)
    assert two.read_bytes() == one.read_bytes()


def test_the_entry_is_for_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with hold.TFRecordWriter(path) as writer:
        for i in range(3):
            writer.write(b"record %d" % i)
    entry = writer.close()
    assert entry == writer.entry
    assert entry.as_dict() == {
        "path": str(path),
        "records": 3,
        "bytes": path.stat().st_size,
        "crc32c": f"{codec.crc32c(path.read_bytes()):08x}",
    }


@pytest.mark.parametrize(
    ("name", "compression", "wbits"),
    [
        ("x.tfrecord.gz", "auto", 31),
        ("x.tfrecord.zlib", "auto", 15),
        ("x.gz", "none", None),
        ("x", "gzip", 31),
        ("x", "zlib", 15),
        ("x", "GZIP", 31),
        ("x.gz", None, None),
        ("x", "", None),
    ],
)
def test_compression_by_name_or_by_word(tmp_path: Path, name: str, compression: Any, wbits: int | None) -> None:
    with hold.TFRecordWriter(tmp_path / name, compression=compression) as writer:
        writer.write(b"hello")
    data = (tmp_path / name).read_bytes()
    assert (data if wbits is None else zlib.decompress(data, wbits)) == codec.frame(b"hello")
    assert writer.entry is not None
    assert writer.entry.crc32c == codec.crc32c(data)


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with hold.TFRecordWriter(path) as writer:
        for _ in range(100):
            writer.write(bytes(100_000))
        assert not path.exists()
        assert [entry.name for entry in tmp_path.iterdir()] == [".x.tfrecord.partial"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tfrecord"]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold.TFRecordWriter(tmp_path / "x") as writer:
        writer.write(b"one")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_lost_writer_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    writer = hold.TFRecordWriter(tmp_path / "x")
    writer.write(b"one")
    with pytest.warns(ResourceWarning, match="the writer was not closed"):
        del writer
        gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"precious")
    with pytest.raises(TargetExistsError, match="exists already"):
        hold.TFRecordWriter(path)
    with hold.TFRecordWriter(path, overwrite=True) as writer:
        writer.write(b"new")
        assert path.read_bytes() == b"precious"
    assert path.read_bytes() == codec.frame(b"new")


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = hold.TFRecordWriter(path)
    path.write_bytes(b"somebody else's")
    with pytest.raises(TargetExistsError, match="appeared"):
        writer.close()
    assert path.read_bytes() == b"somebody else's"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


WRITER = """
import sys, holdfast as hold
w = hold.TFRecordWriter(sys.argv[1])
for i in range(int(sys.argv[2])):
    w.write(b"x" * 100_000)
print("ready", flush=True)
sys.stdin.read()
w.close()
"""


def start_writer(path: Path, records: int = 30) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(records)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_second_live_writer_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with start_writer(path) as other:
        with pytest.raises(WriterBusyError, match=f"process {other.pid} "):
            hold.TFRecordWriter(path)
        other.communicate("")
    assert other.returncode == 0
    with hold.TFRecordReader(path) as reader:
        assert sum(1 for _ in reader) == 30


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "x"), pytest.raises(WriterBusyError, match="this process itself"):
        hold.TFRecordWriter(tmp_path / "x")


def test_a_killed_writers_leftover_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with start_writer(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert [entry.name for entry in tmp_path.iterdir()] == [".x.partial"]
    with hold.TFRecordWriter(path) as writer:
        writer.write(b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == codec.frame(b"new")


def test_a_forked_child_can_neither_write_nor_commit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = hold.TFRecordWriter(path, SCHEMA)
    writer.append(label=1, emb=[1, 2, 3], image=b"", ids=[])
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (
            lambda: writer.write(b"child"),
            lambda: writer.append(label=2),
            writer.close,
            lambda: writer.extend({}),
        ):
            try:
                use()
            except ForkedWriterError:
                refused += 1
            except Exception:  # noqa: BLE001 - in a child that must not go on
                os._exit(100)
        del writer
        gc.collect()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    writer.append(label=3, emb=[1, 2, 3], image=b"", ids=[])
    writer.close()
    assert rows(path)["label"] == [1, 3]


def test_a_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    # The parent dies while its forked child lives: the path must be free again.
    code = """
import os, sys, holdfast as hold
w = hold.TFRecordWriter(sys.argv[1])
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(tell, b"x")  # by now the hooks that run in a child have run
    sys.stdin.read()
    os._exit(0)
os.read(ready, 1)
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""
    path = tmp_path / "x"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        other.wait()
        with hold.TFRecordWriter(path) as writer:
            writer.write(b"free")


def test_use_after_close_and_after_failure(tmp_path: Path) -> None:
    writer = hold.TFRecordWriter(tmp_path / "x", SCHEMA)
    writer.close()
    writer.close()
    with pytest.raises(ClosedWriterError, match="is closed"):
        writer.write(b"late")
    discarded = hold.TFRecordWriter(tmp_path / "y", SCHEMA)
    discarded.discard()
    with pytest.raises(ClosedWriterError):
        discarded.append(label=1)
    assert not (tmp_path / "y").exists()


def test_samples_that_do_not_fit(tmp_path: Path) -> None:
    good: dict[str, Any] = {"label": 1, "emb": [1, 2, 3], "image": b"", "ids": []}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**good, "extra": 1}, r"unknown \['extra'\]"),
        ({"label": 1}, r"missing \['emb', 'ids', 'image'\]"),
        ({**good, "label": 1.5}, r"'label': expected Int64\(\), got float64"),
        ({**good, "label": "one"}, "'label'"),
        ({**good, "label": 2**63}, "'label'"),
        ({**good, "label": [1]}, r"shape \(1,\)"),
        ({**good, "emb": [1, 2]}, r"expected Float32\(3\), got items of shape \(2,\)"),
        ({**good, "image": 7}, "got int, not bytes"),
        ({**good, "ids": 3}, "expected a list, got 3"),
        ({**good, "ids": ["a"]}, "'ids'"),
    ]
    for i, (sample, text) in enumerate(wrong):
        with pytest.raises(SchemaError, match=text), hold.TFRecordWriter(tmp_path / str(i), SCHEMA) as writer:
            writer.append(**good)
            writer.append(**sample)
    with (
        pytest.raises(SchemaError, match="different numbers of rows"),
        hold.TFRecordWriter(tmp_path / "z", SCHEMA) as writer,
    ):
        writer.extend({"label": [1, 2], "emb": [[1, 2, 3]], "image": [b""], "ids": [[]]})
    with pytest.raises(SchemaError, match="without a schema"), hold.TFRecordWriter(tmp_path / "z") as writer:
        writer.append(label=1)
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No such file"):
        hold.TFRecordWriter(tmp_path / "no" / "folder")
    with pytest.raises(WriteError):
        hold.TFRecordWriter(tmp_path)
    with pytest.raises(ValueError, match="compression"):
        hold.TFRecordWriter(tmp_path / "x", compression="bz2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="level"):
        hold.TFRecordWriter(tmp_path / "x", compression="gzip", level=77)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_clearly_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import os, resource, signal, sys, holdfast as hold
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    with hold.TFRecordWriter(sys.argv[1]) as w:
        for i in range(100):
            w.write(bytes(100_000))
except hold.errors.WriteError as error:
    print(error)
try:
    w.write(b"more")
except hold.errors.ClosedWriterError as error:
    print(error)
"""
    path = tmp_path / "x"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "cannot write" in first
    assert "nothing of it was left behind" in first
    assert "failed earlier" in second
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_vanishes_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = hold.TFRecordWriter(folder / "x")
    (folder / ".x.partial").unlink()
    folder.rmdir()
    with pytest.raises(WriteError, match="cannot finish"):
        writer.close()


@pytest.mark.needs("strace")
def test_the_order_on_disk_is_data_name_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys, holdfast as hold\nwith hold.TFRecordWriter(sys.argv[1]) as w: w.write(b'x')"
    subprocess.run(
        [
            "strace",
            "-f",
            "-y",
            "-e",
            "trace=write,fsync,link,linkat,rename,renameat,renameat2,unlink,unlinkat",
            "-o",
            str(log),
            sys.executable,
            "-c",
            code,
            str(tmp_path / "x.tfrecord"),
        ],
        check=True,
    )
    mine = [
        line.split(maxsplit=1)[1]
        for line in log.read_text().splitlines()
        if "x.tfrecord" in line or f"<{tmp_path}>" in line
    ]
    calls = [line.split("(")[0] for line in mine]
    assert calls == ["write", "fsync", "linkat", "unlinkat", "fsync"]


def test_a_file_is_finished_with_no_descriptor_left(tmp_path: Path) -> None:
    code = """
import os, resource, sys, holdfast as hold
writer = hold.TFRecordWriter(sys.argv[1])
writer.write(b"hours of work")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.dup(0)
except OSError as error:
    print(error.errno)
try:
    hold.TFRecordWriter(sys.argv[1] + ".other")
except hold.errors.WriteError as error:
    print(error)
try:
    hold.TFRecordReader(sys.argv[0])
except hold.errors.InputError as error:
    print(error)
print(writer.close().records)
"""
    path = tmp_path / "x"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    full, refused, unread, written = done.stdout.splitlines()
    assert (full, written) == ("24", "1")
    assert "Too many open files" in refused
    assert "Too many open files" in unread
    assert path.read_bytes() == codec.frame(b"hours of work")


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with hold.TFRecordWriter("x") as writer:
        writer.write(b"here")
        monkeypatch.chdir(tmp_path / "other")
    assert (tmp_path / "x").read_bytes() == codec.frame(b"here")


def test_a_writer_costs_two_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with hold.TFRecordWriter(tmp_path / "x") as writer:
        writer.write(bytes(3 << 20))
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_lists_of_lists_need_a_sequence_example(tmp_path: Path) -> None:
    schema = {"n": hold.Ragged(hold.Ragged(hold.Float32(1000)))}
    with pytest.raises(SchemaError, match="sequence=True"):
        hold.TFRecordWriter(tmp_path / "x", schema)
    with hold.TFRecordWriter(tmp_path / "x", schema, sequence=True) as writer:
        writer.extend({"n": [[[] for _ in range(2000)]]})
    assert [len(row) for row in rows(tmp_path / "x", schema)["n"]] == [2000]


def test_a_sample_is_what_it_was_when_it_was_given(tmp_path: Path) -> None:
    array, text, numbers = np.zeros(3, np.float32), bytearray(b"0"), [0]
    with hold.TFRecordWriter(tmp_path / "x", SCHEMA) as writer:
        for i in range(3):
            array[:], text[:], numbers[0] = i, b"%d" % i, i
            writer.append(label=i, emb=array, image=text, ids=numbers)
    got = rows(tmp_path / "x")
    assert got["emb"] == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert got["image"] == [b"0", b"1", b"2"]
    assert got["ids"] == [[0], [1], [2]]


def test_a_kill_between_the_two_names_costs_nothing(tmp_path: Path) -> None:
    code = """
import os, signal, sys, holdfast as hold
os.unlink = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
with hold.TFRecordWriter(sys.argv[1]) as writer:
    writer.write(b"committed")
"""
    path = tmp_path / "x"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.stat().st_nlink == 2
    other = hold.TFRecordWriter(path, overwrite=True)
    assert path.read_bytes() == codec.frame(b"committed"), "the next writer must not empty it"
    other.discard()
    assert path.read_bytes() == codec.frame(b"committed")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_partial_file_that_was_taken_away_is_not_committed(tmp_path: Path) -> None:
    first = hold.TFRecordWriter(tmp_path / "x")
    first.write(b"first")
    (tmp_path / ".x.partial").unlink()
    second = hold.TFRecordWriter(tmp_path / "x")
    with pytest.raises(WriteError, match="another process replaced"):
        first.close()
    assert not (tmp_path / "x").exists()
    second.write(b"second")
    second.close()
    assert (tmp_path / "x").read_bytes() == codec.frame(b"second")


def test_names_that_cannot_be(tmp_path: Path) -> None:
    for name in ("n" * 256, "n" * 300):
        with pytest.raises(WriteError, match="File name too long"):
            hold.TFRecordWriter(tmp_path / name)


@pytest.mark.parametrize("default", [2**63, -(2**63) - 1, 1.5])
def test_defaults_out_of_range_are_refused(tmp_path: Path, default: float) -> None:
    with pytest.raises(SchemaError, match="does not fit"):
        hold.TFRecordWriter(tmp_path / "x", {"a": hold.Int64(default=default)})
    with pytest.raises(SchemaError, match="does not fit"):
        hold.TFRecordWriter(tmp_path / "x", {"a": hold.Float32(default=1e300)})


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "shared.tfrecord"
    with hold.TFRecordWriter(path, {"x": hold.Int64()}) as writer:

        def work(first: int) -> None:
            for i in range(first, first + 2000):
                if i % 3:
                    writer.append(x=i)
                else:
                    writer.extend({"x": [i]})

        threads = [threading.Thread(target=work, args=(k * 2000,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with hold.TFRecordReader(path) as reader:
        seen = np.concatenate([batch["x"] for batch in reader.batches({"x": hold.Int64()}, 100)])
    assert sorted(seen.tolist()) == list(range(8000))
    assert writer.entry is not None
    assert (writer.entry.records, writer.entry.crc32c) == (8000, codec.crc32c(path.read_bytes()))
