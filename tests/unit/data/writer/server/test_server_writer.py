"""The central writer in peace: what producers put in is in parts, in their order, once."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_central import SMALL, by_producer, small
from unit.data.writer.factories_rows import SCHEMA, row, rows

import holdfast as hold
from holdfast._native.codec import crc32c
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.server.client import connect
from holdfast.errors import (
    ClosedWriterError,
    ForkedWriterError,
    InputError,
    RefusedError,
    SchemaError,
    ServerLostError,
    WriteError,
)


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", SCHEMA)


def files_of(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(("EPOCH", "marks")))


@pytest.mark.parametrize("codec", [None, "gzip", ("gzip", 1), "lzf"], ids=str)
def test_what_producers_put_in_is_in_parts(out: DatasetWriter, codec: Any) -> None:
    with out.server(chunk_rows=8, codec=codec, segment_bytes=1000) as server:
        with connect(server.address, "a") as a, connect(out.folder, "b") as b:
            a.extend(rows(0, 20))
            for number in range(30):
                b.append(**row(number))
            assert b.commit() == 30
            a.extend(rows(20, 45))
            assert a.next_seq == 65
        assert (a.acked, b.acked) == (65, 30)
        assert server.stats()["marks"] == {"a": 65, "b": 30}
    assert by_producer(out) == {"a": rows(0, 65), "b": rows(0, 30)}
    assert len(out.parts()) > 1
    assert out.verify().ok
    assert files_of(out.folder / "journal") == os.listdir(out.folder / "tmp") == []


def test_codecs_of_columns_are_the_schemas(tmp_path: Path) -> None:
    schema = {"x": hold.Float32(64, codec="gzip", chunk_rows=8), "y": hold.Int64()}
    out = write(tmp_path / "run", schema)
    x = np.arange(40 * 64, dtype=np.float32).reshape(40, 64)
    with out.server() as server, connect(server.address, "p") as producer:
        producer.extend({"x": x, "y": range(40)})
    [record] = out.parts()
    with h5py.File(out.path_of(record)) as file:
        assert (file["x"].compression, file["y"].compression, file["x"].chunks) == ("gzip", None, (8, 64))
        assert (file["x"][:] == x).all()
    assert out.verify().ok


def test_chunks_are_in_the_part_as_they_were_packed_by_the_producer(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"x": hold.Float32(16)})
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    with out.server(chunk_rows=4, codec="gzip") as server, connect(server.address, "p") as producer:
        producer.extend({"x": x})
    [record] = out.parts()
    with h5py.File(out.path_of(record)) as file:
        stored = [file["x"].id.read_direct_chunk((at, 0))[1] for at in (0, 4)]
    assert stored == [zlib.compress(x[at : at + 4].tobytes(), 4) for at in (0, 4)]
    assert [(size, crc) for _, size, crc in record.chunks["x"]] == [(len(data), crc32c(data)) for data in stored]


def test_a_producer_goes_on_where_it_was_acknowledged(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(chunk_rows=4) as server:
        first = connect(server.address, "p")
        first.extend({"x": range(10)})
        first.commit()
        first.extend({"x": [10, 11]})  # in no frame yet
        assert first.next_seq == 12
        first.close()
        with pytest.raises(ClosedWriterError, match="producer 'p' is closed"):
            first.append(x=1)
        with connect(server.address, "p") as second:
            assert second.next_seq == second.acked == 10
            second.extend({"x": range(10, 15)})
    with out.server() as server, connect(server.address, "p") as third:
        assert third.next_seq == 15
    assert by_producer(out)["p"]["x"] == list(range(15))


def test_an_exception_in_the_block_sends_nothing_more(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(chunk_rows=4) as server:
        with pytest.raises(ZeroDivisionError):
            with connect(server.address, "p") as producer:
                producer.append(x=1)
                raise ZeroDivisionError
        with connect(server.address, "p") as producer:
            assert producer.next_seq == 0
    assert out.parts() == []


def test_a_sample_that_does_not_fit_is_named_and_not_in(out: DatasetWriter) -> None:
    with out.server(chunk_rows=4) as server, connect(server.address, "p") as producer:
        producer.append(**row(0))
        with pytest.raises(SchemaError, match="column 'seq'"):
            producer.append(**{**row(1), "seq": 1.5})
        with pytest.raises(SchemaError, match="expected columns"):
            producer.extend([1])  # type: ignore[arg-type]
        assert producer.next_seq == 1
        producer.append(**row(1))
    assert by_producer(out)["p"] == rows(0, 2)


def test_what_was_given_may_be_changed_afterwards(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"x": hold.Float32(4)})
    x = np.zeros((8, 4), np.float32)
    with out.server(chunk_rows=8) as server, connect(server.address, "p") as producer:
        for number in range(50):
            x[:] = number
            producer.extend({"x": x})
    got = np.array(by_producer(out)["p"]["x"])
    assert (got == np.repeat(np.arange(50), 8)[:, None]).all()


def test_time_makes_a_part_too(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(seal_after="0.05s") as server, connect(server.address, "p", timeout="1min") as producer:
        producer.append(x=1)
        producer.commit()
        deadline = time.monotonic() + 30
        while not out.parts() and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert out.rows == 1


def test_without_sealing_the_journal_is_kept_for_the_next(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(seal=False, segment_bytes=500) as server, connect(server.address, "p") as producer:
        for number in range(40):
            producer.append(x=number)
            producer.commit()
    assert out.parts() == []
    assert len(files_of(out.folder / "journal")) > 2
    with out.server():
        pass
    assert by_producer(out)["p"]["x"] == list(range(40))
    assert files_of(out.folder / "journal") == []


# ---- descriptors, processes, fork


def test_a_producer_needs_no_h5py_and_three_descriptors(tmp_path: Path) -> None:
    out = small(tmp_path)
    program = """
import os, sys
sys.modules["h5py"] = None
before = len(os.listdir("/proc/self/fd"))
from holdfast.data.writer.server.client import connect
with connect(sys.argv[1], "p") as producer:
    producer.extend({"x": range(100)})
    held = len(os.listdir("/proc/self/fd")) - before
    producer.commit()
print(held, "h5py" in [name for name, one in sys.modules.items() if one is not None])
"""
    with out.server() as server:
        command = [sys.executable, "-W", "error", "-c", program, server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("1 False\n", "")
    assert out.rows == 100


def test_a_server_has_a_descriptor_for_each_producer_and_few_more(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(segment_bytes=200) as server:
        producers = [connect(server.address, f"p{number}") for number in range(40)]
        for producer in producers:
            producer.append(x=1)
            producer.commit()
        assert len(os.listdir(f"/proc/{server.pid}/fd")) <= 40 + 20
        assert server.stats()["producers"] == 40
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        for producer in producers:
            producer.close()
    assert "hdf5" not in loaded
    assert out.rows == 40


def produce(address: str, name: str, count: int) -> None:
    with connect(address, name) as producer:
        for number in range(producer.next_seq, count):
            producer.append(x=number)


def test_producers_started_in_any_way(tmp_path: Path) -> None:
    out = small(tmp_path)
    ways = ["fork", "spawn", "forkserver"]
    with out.server(chunk_rows=16) as server:
        workers = [
            multiprocessing.get_context(way).Process(target=produce, args=(server.address, way, 100))  # type: ignore[attr-defined]
            for way in ways
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert by_producer(out) == {way: {"x": list(range(100))} for way in ways}
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_a_forked_child_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server, connect(server.address, "p") as producer:
        producer.append(x=0)
        pid = os.fork()
        if pid == 0:
            try:
                producer.append(x=9)
            except ForkedWriterError:
                server.stop()  # it is not the child's
                os._exit(0)
            os._exit(9)
        assert os.waitpid(pid, 0)[1] == 0
        producer.append(x=1)
    assert by_producer(out)["p"]["x"] == [0, 1]


def test_a_lost_producer_is_reported(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server:
        producer = connect(server.address, "p")
        producer.append(x=1)
        with pytest.warns(ResourceWarning, match="rows from 0 on may be missing"):
            del producer


# ---- addresses and names


def test_the_socket_is_this_users_alone(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server:
        path = server.address.removeprefix("unix:")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert not os.path.exists(path)


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    out = write(tmp_path / ("long" * 40) / "run", SMALL)
    with out.server() as server:
        for target in (server.address, out.folder):
            with connect(target, "p") as producer:
                producer.append(x=1)
    assert out.rows == 2


def test_an_address_of_ones_own(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(f"unix:{tmp_path}/mine.sock") as server, connect(out.folder, "p") as producer:
        assert server.address == f"unix:{tmp_path}/mine.sock"
        producer.append(x=1)
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert out.rows == 1


def test_tcp_needs_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = small(tmp_path)
    with pytest.raises(ValueError, match="expected a token"):
        out.server("tcp://127.0.0.1:0")
    with out.server("tcp://127.0.0.1:0", token="secret") as server:
        assert server.address.startswith("tcp://127.0.0.1:")
        for wrong in (None, "", "Secret", "secret2"):
            with pytest.raises(RefusedError, match="wrong token"):
                connect(server.address, "p", token=wrong)
        monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
        with connect(out.folder, "p") as producer:
            producer.extend({"x": range(1000)})
    assert out.rows == 1000


def test_the_later_of_one_name_has_it(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server:
        first = connect(server.address, "p", timeout=5)
        first.append(x=1)
        first.commit()
        with connect(server.address, "p") as second:
            with pytest.raises(
                RefusedError, match=rf"producer 'p', process {os.getpid()}, has connected under the same"
            ):
                first.append(x=2)
                first.commit()
            second.append(x=2)
    assert by_producer(out)["p"]["x"] == [1, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ack": "never"}, "expected ack"),
        ({"seal_after": 0}, "seal_after=: expected a time"),
        ({"chunk_rows": 0}, "chunk_rows must be a positive integer"),
        ({"codec": "zip"}, "expected codec"),
        ({"queue_bytes": "many"}, "expected a size"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(tmp_path).server(**given)


def test_addresses_that_make_no_sense(tmp_path: Path) -> None:
    out = small(tmp_path)
    for wrong in ("http://x", "tcp://nowhere"):
        with pytest.raises((ValueError, WriteError), match="expected an address"):
            out.server(wrong, token="t").start()
    with pytest.raises(ValueError, match="expected queue_bytes to be twice"):
        out.server(queue_bytes=100).start()
    with pytest.raises(ServerLostError, match="there is no .*address.json"):
        connect(out.folder, "p", timeout=0.1)
    with pytest.raises(ServerLostError, match="does not answer: Connection refused"):
        connect("tcp://127.0.0.1:1", "p", timeout=0.1)
    with pytest.raises(ValueError, match="expected producer="):
        connect(out.folder)
    with pytest.raises(ValueError, match="expected a task's name"):
        connect(out.folder, "a/b")
    shutil.rmtree(out.folder)
    with pytest.raises(InputError, match="schema.json: cannot open"):
        out.server().start()


def test_who_waits_for_ever_says_inf(tmp_path: Path) -> None:
    out = small(tmp_path)
    server = out.server().start()
    with connect(server.address, "p", timeout=math.inf) as producer:
        producer.append(x=1)
        assert producer.commit(math.inf) == 1
    server.stop(timeout=math.inf)
    assert out.rows == 1


def test_rows_without_a_fixed_size_fit_a_small_memory(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"number": hold.Int64(4), "text": hold.Bytes(), "list": hold.Ragged(hold.Int64())})
    texts = [bytes([i % 251]) * 1000 for i in range(2000)]
    columns = {"number": [[i] * 4 for i in range(2000)], "text": texts, "list": [[i] * (i % 50) for i in range(2000)]}
    with out.server(queue_bytes="600kB", chunk_rows=2000) as server, connect(server.address, "p") as producer:
        for number in range(2000):
            producer.append(**{name: column[number] for name, column in columns.items()})
        producer.extend(columns)
    assert by_producer(out)["p"]["text"] == texts * 2


def test_threads_may_share_a_producer(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(chunk_rows=50) as server, connect(server.address, "p") as producer:

        def work(first: int) -> None:
            for number in range(first, first + 10_000):
                producer.append(x=number)
                if number % 100 == 0:
                    producer.commit()

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 40_000, 10_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(by_producer(out)["p"]["x"]) == list(range(40_000))
