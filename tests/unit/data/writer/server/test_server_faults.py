"""When things go wrong around the central writer: two servers, no room, a folder that goes, a sealer that stops."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories_central import PATIENCE_S, SMALL, by_producer, served, small

from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.server import client as producer_module
from holdfast.data.writer.server import sealer
from holdfast.data.writer.server.client import Producer, connect
from holdfast.data.writer.server.journal import Journal
from holdfast.data.writer.server.leader_epoch import LeaderEpoch
from holdfast.data.writer.server.server import CentralWriter
from holdfast.data.writer.server.server_process import ServerSettings
from holdfast.errors import RefusedError, ServerLostError, WriteError, WriterBusyError

CHILD = Path(__file__).with_name("server_child.py")


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- two servers


def test_a_second_server_is_refused_and_reported_who_is_there(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server, connect(server.address, "p") as producer:
        with pytest.raises(WriterBusyError, match=rf"is already served by process {server.pid} on "):
            out.server().start()
        producer.append(x=1)
    with out.server() as server:  # it ended: nobody is there
        pass
    assert out.rows == 1


def test_of_two_servers_the_older_stops_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    out = small(tmp_path)
    old = out.server(chunk_rows=4, segment_bytes=300).start()
    with connect(out.folder, "p", timeout=PATIENCE_S) as producer:
        for number in range(50):
            producer.append(x=number)
            producer.commit()
        with out.server(chunk_rows=4, take_over=True) as new:
            for number in range(50, 100):
                producer.append(x=number)
                producer.commit()
            with pytest.raises(WriterBusyError, match=rf"process {new.pid} on .* has taken over \(epoch 2\)"):
                old.stop()
            assert new.stats()["marks"] == {"p": 100}
    assert by_producer(out)["p"]["x"] == list(range(100))
    assert [name for name in os.listdir(out.folder / "journal") if name.startswith("EPOCH")] == ["EPOCH-2"]


def test_an_older_server_that_slept_acknowledges_nothing(tmp_path: Path) -> None:
    """It is stopped, another takes over and serves, then it goes on with a frame that it has already read."""
    out = small(tmp_path)
    old = out.server(chunk_rows=4).start()
    producer = connect(old.address, "p", timeout=0.3)
    producer.extend({"x": range(4)})
    producer.commit()
    os.kill(old.pid, signal.SIGSTOP)
    producer.extend({"x": range(4, 8)})
    with pytest.raises(ServerLostError, match="acknowledged nothing for 0.3 s"):
        producer.commit()
    with out.server(take_over=True, chunk_rows=4) as new, connect(new.address, "q") as other:
        other.extend({"x": range(4)})
        other.commit()
        os.kill(old.pid, signal.SIGCONT)
        with pytest.raises(WriterBusyError, match="has taken over"):
            old.stop()
        assert producer.commit(timeout=PATIENCE_S) == 8  # to the new one
        producer.close()
    assert by_producer(out) == {"p": {"x": list(range(8))}, "q": {"x": list(range(4))}}


def test_a_producer_leaves_a_server_that_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "_SILENT_S", 0.0)
    out = small(tmp_path)
    old = out.server().start()
    with connect(out.folder, "p") as producer:
        producer.append(x=0)
        producer.commit()
        os.kill(old.pid, signal.SIGSTOP)
        try:
            with out.server(take_over=True):
                producer.append(x=1)
                with pytest.raises(ServerLostError, match="acknowledged nothing for 0.2 s"):
                    producer.commit(timeout=0.2)
                assert producer.commit() == 2
        finally:
            os.kill(old.pid, signal.SIGCONT)
    with pytest.raises(WriterBusyError, match="has taken over"):
        old.stop()
    assert by_producer(out)["p"]["x"] == [0, 1]


def test_frames_that_an_older_server_wrote_too_late_are_not_doubled(tmp_path: Path) -> None:
    """They lie in its segment, and what the producer sent again lies in the newer one's."""
    out = small(tmp_path)
    with served(out, chunk_rows=4, seal=False) as server, connect(server.address, "p") as producer:
        producer.extend({"x": range(8)})
    [old] = [name for name in os.listdir(out.folder / "journal") if name.endswith(".hfj")]
    first = (out.folder / "journal" / old).read_bytes()
    with served(out, chunk_rows=4, seal=False) as server, connect(server.address, "p") as producer:
        producer.extend({"x": range(8, 16)})
    newer = sorted(name for name in os.listdir(out.folder / "journal") if name.endswith(".hfj"))[1]
    second = (out.folder / "journal" / newer).read_bytes()
    late = second[second.index(b"HFJ\x01") :][: (len(second) - second.index(b"HFJ\x01")) // 2]
    (out.folder / "journal" / old).write_bytes(first + late)
    with out.server() as again, connect(again.address, "p") as producer:
        assert producer.next_seq == 16
    assert by_producer(out)["p"]["x"] == list(range(16))


def test_marks_outlive_journal_and_parts(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server() as server, connect(server.address, "p") as producer:
        producer.extend({"x": range(5)})
    for name in os.listdir(out.folder / "journal"):
        os.unlink(out.folder / "journal" / name)
    with out.server() as server, connect(server.address, "p") as producer:
        assert producer.next_seq == 5  # as the parts' records say
    for name in os.listdir(out.folder / "parts"):
        os.unlink(out.folder / "parts" / name)
    with out.server() as server, connect(server.address, "p") as producer:
        assert producer.next_seq == 5  # as the marks say
        assert server.stats()["epoch"] == 3


def test_a_damaged_journal_is_reported_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = small(tmp_path)
    with served(out, chunk_rows=4, seal=False) as server, connect(server.address, "p") as producer:
        producer.extend({"x": range(12)})
    [path] = (out.folder / "journal").glob("*.hfj")
    data = bytearray(path.read_bytes())
    second = data.index(b"HFJ\x01", data.index(b"HFJ\x01") + 1)
    data[second + 60] ^= 1
    path.write_bytes(data)
    with served(out, chunk_rows=4) as server, connect(server.address, "p") as producer:
        assert producer.next_seq == 4
        producer.extend({"x": range(4, 12)})
    assert "is corrupt at byte" in caplog.text
    assert [name.endswith(f".from-{second}") for name in os.listdir(out.folder / "quarantine")] == [True]
    assert by_producer(out)["p"]["x"] == list(range(12))


def test_a_server_that_forgot_is_noticed(tmp_path: Path) -> None:
    out = small(tmp_path)
    server = out.server(chunk_rows=4, seal=False).start()
    producer = connect(out.folder, "p")
    producer.extend({"x": range(8)})
    producer.commit()
    server.stop()
    shutil.rmtree(out.folder / "journal")
    with out.server(chunk_rows=4):
        with pytest.raises(WriteError, match="has 0 rows of 'p', but acknowledged 8"):
            producer.extend({"x": range(8, 12)})
            producer.commit()


# ---- no server, no room, no folder


def test_a_producer_waits_for_a_server_that_comes_back(tmp_path: Path) -> None:
    out = small(tmp_path)
    server = out.server(chunk_rows=4).start()
    with connect(server.address, "p", timeout=PATIENCE_S) as producer:
        producer.extend({"x": range(6)})
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerLostError, match="was killed by SIGKILL"):
            server.stop()
        producer.extend({"x": range(6, 9)})
        with pytest.raises(ServerLostError, match="does not answer: Connection refused"):
            producer.commit(timeout=0.05)
        again = out.server(chunk_rows=4).start()
        assert producer.commit() == 9
        again.stop()
    assert by_producer(out)["p"]["x"] == list(range(9))


def test_put_that_found_no_room_may_be_tried_again(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(chunk_rows=1000, queue_bytes=40_000) as server:
        with connect(server.address, "p") as producer:
            os.kill(server.pid, signal.SIGSTOP)
            number, refused = 0, 0
            while refused < 3:
                try:
                    producer.append(x=number, timeout=0.02)
                    number += 1
                except ServerLostError:
                    refused += 1
            assert producer.next_seq == number
            os.kill(server.pid, signal.SIGCONT)
            producer.append(x=number)
            number += 1
    assert by_producer(out)["p"]["x"] == list(range(number))


def test_a_stopped_sealer_holds_producers_back(tmp_path: Path) -> None:
    """The journal does not grow without end, and all goes on with the sealer."""
    out = small(tmp_path)
    with out.server(chunk_rows=100, segment_bytes=5_000, backlog_bytes=40_000) as server:
        pid = server.stats()["sealer_pid"]
        os.kill(pid, signal.SIGSTOP)
        with connect(server.address, "p") as producer:
            producer._window = 1000
            number = 0
            with pytest.raises(ServerLostError, match="it is too far behind"):
                while True:
                    producer.extend({"x": range(number, number + 100)}, timeout=0.3)
                    number += 100
            assert 30_000 < server.stats()["journal_bytes"] < 60_000
            os.kill(pid, signal.SIGCONT)
            producer.extend({"x": range(producer.next_seq, 20_000)})
    assert by_producer(out)["p"]["x"] == list(range(20_000))


def test_a_backlog_smaller_than_a_segment_keeps_nobody_waiting(tmp_path: Path) -> None:
    out = small(tmp_path)
    with out.server(chunk_rows=100, queue_bytes=10_000, backlog_bytes=4_000, seal_after=1e6) as server:
        with connect(server.address, "p") as producer:
            producer.extend({"x": range(5_000)})
    assert by_producer(out)["p"]["x"] == list(range(5_000))


def test_with_no_descriptors_left_producers_are_refused_and_the_others_served(tmp_path: Path) -> None:
    """Neither the next segment nor the next sealer is kept from theirs."""
    out = small(tmp_path)
    with out.server(chunk_rows=100, segment_bytes=2_000) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (48, 48))
        producers, unauthenticated = list[Producer](), list[socket.socket]()
        with pytest.raises(RefusedError, match="no descriptors left for another producer"):
            while True:
                producers.append(connect(server.address, f"p{len(producers)}"))
        for _ in range(40):
            unauthenticated.append(socket.socket(socket.AF_UNIX))
            unauthenticated[-1].connect(server.address.removeprefix("unix:"))
        for first in range(0, 600, 200):
            if (pid := server.stats()["sealer_pid"]) is not None:
                os.kill(pid, signal.SIGKILL)
            for producer in producers:
                producer.extend({"x": range(first, first + 200)})
                producer.commit()
        for producer in producers:
            producer.close()
        for each in unauthenticated:
            each.close()
    assert len(producers) > 8
    assert {name: len(found["x"]) for name, found in by_producer(out).items()} == {one.name: 600 for one in producers}


def test_a_sealer_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no processes, no descriptors: rows are taken all the same."""
    start, failed = sealer._start_process, list[bool]()

    def fail_once() -> Any:
        if not failed:
            failed.append(True)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start()

    out = small(tmp_path)
    with served(out, chunk_rows=10, segment_bytes=500) as server:
        assert server.sealer.pid is not None
        os.kill(server.sealer.pid, signal.SIGKILL)
        monkeypatch.setattr(sealer, "_start_process", fail_once)
        with connect(server.address, "p") as producer:
            producer.extend({"x": range(1000)})
    assert failed
    assert by_producer(out)["p"]["x"] == list(range(1000))


@pytest.mark.needs("unshare")
@pytest.mark.parametrize("segment_bytes", [300_000, 1 << 20], ids=["copied", "in-place"])
@pytest.mark.parametrize("seal", ["seal", "keep"])
def test_a_full_disk(tmp_path: Path, seal: str, segment_bytes: int) -> None:
    mount = 'mount -t tmpfs -o size=3M none "$0" && exec "$@"'
    before = ("unshare", "-rm", "sh", "-c", mount, str(tmp_path))
    command = [*before, sys.executable, "-W", "error", str(CHILD), str(tmp_path), seal, str(segment_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refused"] == "DiskFullError"
    assert "No space left on device" in found["said"]
    assert found["acked"] <= found["rows"] == found["expected"]
    assert found["right"]
    assert found["ok"]


def test_the_folder_goes(tmp_path: Path) -> None:
    out = small(tmp_path)
    server = out.server().start()
    shutil.rmtree(out.folder)
    with pytest.raises(WriteError, match="the directory was removed while it was served"):
        server.stop(PATIENCE_S)


def test_a_journal_that_cannot_be_written_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = small(tmp_path)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(WriteError, match="cannot write .*journal: Permission denied"):
        with served(out) as server:
            monkeypatch.setattr(Journal, "append", refuse)
            producer = connect(server.address, "p", timeout=0.2)
            producer.append(x=1)
            with pytest.raises(ServerLostError):
                producer.commit()
            producer.close()


def test_a_segment_that_cannot_be_sealed_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    out = small(tmp_path)
    server = CentralWriter(out.folder, out.schema, ServerSettings(chunk_rows=4))
    shutil.rmtree(out.folder / "tmp")
    (out.folder / "tmp").write_text("in the way")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            server.run()
        except WriteError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with connect(server.address, "p") as producer:
        producer.append(x=1)
    server.stop()
    thread.join(PATIENCE_S)
    assert "1 unsealed segments of the journal" in str(failures[0])
    assert "cannot work in" in caplog.text
    os.unlink(out.folder / "tmp")
    with write(out.folder, SMALL).server():
        pass
    assert by_producer(out)["p"]["x"] == [1]


def test_epochs_are_never_given_twice(tmp_path: Path) -> None:
    out = small(tmp_path)
    numbers = []
    for _ in range(3):
        epoch = LeaderEpoch(out.folder)
        numbers.append(epoch.number)
        epoch.check()
        epoch.close()
    assert numbers == [1, 2, 3]
    held, other = LeaderEpoch(out.folder), None
    with pytest.raises(WriterBusyError):
        LeaderEpoch(out.folder)
    threading.Timer(0.05, held.close).start()
    other = LeaderEpoch(out.folder, take_over=True)
    assert other.number == 5
    other.close()


def test_without_a_descriptor_for_any_producer_the_limit_is_named(tmp_path: Path) -> None:
    with small(tmp_path).server() as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (20, 20))
        with pytest.raises(RefusedError, match=r"the server has no descriptors left .*\(RLIMIT_NOFILE\)"):
            connect(server.address, "p", timeout=5)
