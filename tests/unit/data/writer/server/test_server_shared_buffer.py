"""Memory that producers share with a server on their machine: rows that fill a chunk do not cross the socket."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_central import PATIENCE_S, WIDE, check_wide, served
from factories_central import wide_rows as rows

import holdfast as hold
from holdfast._native.codec import crc32c
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.server import connections
from holdfast.data.writer.server import shared_buffer as shared_buffers
from holdfast.data.writer.server.client import connect
from holdfast.data.writer.server.connections import BufferPool
from holdfast.data.writer.server.protocol import (
    ACK,
    FULL_CHUNK,
    REFUSED,
    WELCOME,
    ServerMessageDecoder,
    pack_head,
    pack_hello,
    pack_meta,
)
from holdfast.data.writer.server.shared_buffer import NO_SLOT, SLOT, SharedBuffer, make_shared_buffer, slots_for
from holdfast.errors import RefusedError, ServerLostError

CHUNK = 64  # rows: 67 kB


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", WIDE)


def sent_bytes(producer: Any) -> list[int]:
    """How many bytes each message took, from here on."""
    sent: list[int] = []
    send = producer._connection.send

    def count(buffers: list[Any]) -> int:
        n: int = send(buffers)
        sent.append(n)
        return n

    producer._connection.send = count
    return sent


@pytest.mark.parametrize("codec", [None, "lzf"])
def test_only_heads_and_what_fills_no_chunk_cross_the_socket(out: DatasetWriter, codec: Any) -> None:
    with out.server(chunk_rows=CHUNK, codec=codec) as server, connect(server.address, "p") as producer:
        assert producer._connection.shared_buffer is not None
        sent = sent_bytes(producer)
        producer.extend(rows(0, 40 * CHUNK))
        producer.commit()
        assert sum(sent) < 40 * 200
        producer.extend(rows(40 * CHUNK, 10))
        producer.commit()
        assert sum(sent) > 10 * 1028
        assert server.stats()["memory_bytes"] >= producer._connection.shared_buffer.bytes
    check_wide(out, p=40 * CHUNK + 10)


def test_rows_one_by_one_and_in_odd_steps(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        for at in range(0, 5 * CHUNK, 37):
            producer.extend(rows(at, min(37, 5 * CHUNK - at)))
        for at in range(5 * CHUNK, 7 * CHUNK):
            producer.append(x=[at] * 255, seq=at)
    check_wide(out, p=7 * CHUNK)


@pytest.mark.parametrize("schema", [{"t": hold.Bytes(), "x": hold.Float32(4096)}, {"x": hold.Float32(4)}])
def test_what_has_no_fixed_size_and_what_is_small_is_sent(tmp_path: Path, schema: Any) -> None:
    out = write(tmp_path / "run", schema)
    with out.server(chunk_rows=8) as server, connect(server.address, "p") as producer:
        assert producer._connection.shared_buffer is None


def test_packed_rows_and_tcp_are_sent(tmp_path: Path) -> None:
    out = write(tmp_path / "run", WIDE)
    with out.server(chunk_rows=CHUNK, codec="gzip") as server, connect(server.address, "p") as producer:
        assert producer._connection.shared_buffer is None
        producer.extend(rows(0, 100))
    with out.server("tcp://127.0.0.1:0", token="t", chunk_rows=CHUNK) as server:
        with connect(server.address, "q", token="t") as producer:
            assert producer._connection.shared_buffer is None
            producer.extend(rows(0, 100))
    check_wide(out, p=100, q=100)


def test_unacknowledged_rows_of_a_lost_server_are_sent_again(out: DatasetWriter) -> None:
    with pytest.raises(ServerLostError), out.server(chunk_rows=CHUNK) as server:
        producer = connect(server.address, "p")
        producer.extend(rows(0, 2 * CHUNK))
        producer.commit()
        os.kill(server.pid, signal.SIGSTOP)
        producer.extend(rows(2 * CHUNK, 3 * CHUNK + 5))  # in the arena, and nobody looks
        old = producer._connection.shared_buffer
        os.kill(server.pid, signal.SIGKILL)
    with out.server(chunk_rows=CHUNK), producer:
        producer.extend(rows(5 * CHUNK + 5, 20 * CHUNK))
        assert producer._connection.shared_buffer is not old
    check_wide(out, p=25 * CHUNK + 5)


def test_a_producer_that_goes_leaves_nothing_behind(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK) as server:
        for number in range(20):
            with connect(server.address, f"p{number}") as producer:
                producer.extend(rows(0, CHUNK))
        with connect(server.address, "last"):
            maps = Path(f"/proc/{server.pid}/maps").read_text()
            descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
            held = server.stats()["memory_bytes"]
        assert maps.count("holdfast-shared-buffer") <= 2  # the last one's, and one that is about to go
        assert descriptors <= 1 + 20
        assert held <= 2 * (shared_buffers.slots_for(CHUNK * 1028, 4 << 20) or (0, 0))[0] * (CHUNK * 1028 + 4096)
    check_wide(out, **{f"p{number}": CHUNK for number in range(20)})


def test_forty_producers_cost_a_descriptor_each(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK) as server:
        before = len(os.listdir("/proc/self/fd"))
        producers = [connect(server.address, f"p{number}") for number in range(40)]
        for producer in producers:
            producer.extend(rows(0, CHUNK))
            producer.commit()
        assert len(os.listdir("/proc/self/fd")) - before == 40
        assert len(os.listdir(f"/proc/{server.pid}/fd")) <= 40 + 20
        shared = sum(producer._connection.shared_buffer is not None for producer in producers)
        assert 20 < shared < 40  # half of queue_bytes
        assert server.stats()["memory_bytes"] <= 256_000_000
        for producer in producers:
            producer.close()
    check_wide(out, **{f"p{number}": CHUNK for number in range(40)})


def test_without_a_free_descriptor_rows_are_sent(out: DatasetWriter) -> None:
    """There is one, which the socket takes."""
    with tempfile.TemporaryDirectory() as short, out.server(f"unix:{short}/s", chunk_rows=CHUNK) as server:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 8, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    held.append(os.dup(0))
            os.close(held.pop())
            with connect(server.address, "p") as producer:
                assert producer._connection.shared_buffer is None
                producer.extend(rows(0, 3 * CHUNK))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in held:
                os.close(fd)
    check_wide(out, p=3 * CHUNK)


def test_a_server_without_memory_to_share_takes_rows_all_the_same(
    out: DatasetWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(connections, "make_shared_buffer", fail)
    with served(out, chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        assert producer._connection.shared_buffer is None
        assert server.buffers.bytes == 0
        producer.extend(rows(0, 3 * CHUNK))
    check_wide(out, p=3 * CHUNK)


def test_a_producer_that_cannot_map_it_sends(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shared_buffers, "_mapped", fail)
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        assert producer._connection.shared_buffer is None
        producer.extend(rows(0, 3 * CHUNK))
    check_wide(out, p=3 * CHUNK)


def test_a_closed_producer_that_is_kept_keeps_no_memory(out: DatasetWriter) -> None:
    def count() -> int:
        return Path("/proc/self/maps").read_text().count("holdfast-shared-buffer")

    before = count()
    with out.server(chunk_rows=CHUNK) as server:
        kept = [connect(server.address, f"p{number}") for number in range(5)]
        for producer in kept:
            producer.extend(rows(0, CHUNK + 3))
        assert count() == before + 5
        for producer in kept:
            producer.commit()
            producer.close()
        assert count() == before
        assert [producer.next_seq for producer in kept] == [CHUNK + 3] * 5


def test_an_exception_amid_a_frame_and_all_is_sent_again(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        send, link = producer._connection.send, producer._connection

        def half(buffers: list[Any]) -> int:
            monkeypatch.undo()
            send([bytes(buffers[0])[:20]])
            raise KeyboardInterrupt

        monkeypatch.setattr(link, "send", half)
        with pytest.raises(KeyboardInterrupt):
            producer.extend(rows(0, 30 * CHUNK))
        producer.extend(rows(producer.next_seq, 40 * CHUNK - producer.next_seq))
    check_wide(out, p=40 * CHUNK)


# ---- those who lie


class Liar:
    """Says HELLO and shares an arena; what it sends then is up to the test."""

    def __init__(self, address: str, name: str = "liar") -> None:
        self.name, self.socket = name, socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(address.removeprefix("unix:"))
        self.socket.sendall(pack_hello({"producer": name, "shares": True}))
        unpacker, found = ServerMessageDecoder(), []
        fds: list[int] = []
        while not found:
            data, sent, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
            fds += sent
            found = unpacker.feed(data)
        assert found[0].kind == WELCOME
        self.welcome = json.loads(found[0].text)
        [self.fd] = fds
        self.shared_buffer = SharedBuffer(self.fd, *self.welcome["arena"])
        self.unpacker = unpacker

    def frame(self, slot: int, **wrong: Any) -> bytes:
        payload = [np.zeros((CHUNK, 255), np.float32).tobytes(), np.arange(CHUNK).tobytes()]
        memory = self.shared_buffer.slot(0)
        memory[: sum(map(len, payload))] = b"".join(payload)
        sizes = wrong.get("sizes", [len(one) for one in payload])
        meta = pack_meta(self.name, sizes, wrong.get("crcs", [crc32c(one) for one in payload]))
        facts = {"flags": FULL_CHUNK, "epoch": self.welcome["epoch"], "first": 0, "rows": CHUNK}
        return pack_head(meta, **facts, payload_bytes=sum(sizes)) + SLOT.pack(slot)

    def receive(self) -> Any:
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            if found := self.unpacker.feed(data):
                return found[0]

    def close(self) -> None:
        self.socket.close()
        os.close(self.fd)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slot": 1 << 20}, "expected one of"),
        ({"slot": NO_SLOT - 1}, "expected one of"),
        ({"slot": 1}, "the checksum of the payload is wrong"),
        ({"slot": 0, "crcs": [1, 2]}, "the checksum of the payload is wrong"),
        ({"slot": 0, "sizes": [1 << 20, 512], "crcs": [0, 0]}, "expected one of"),
        ({"slot": 0, "sizes": [100, 512], "crcs": [0, 0]}, "expected 65,280 bytes"),
    ],
)
def test_a_frame_that_is_not_in_its_slot_is_refused(out: DatasetWriter, wrong: Any, said: str) -> None:
    with served(out, chunk_rows=CHUNK) as server:
        liar = Liar(server.address)
        liar.socket.sendall(liar.frame(**wrong))
        answer = liar.receive()
        assert answer.kind == REFUSED
        assert said in answer.text
        liar.close()
        with connect(server.address, "honest") as producer:
            producer.extend(rows(0, CHUNK))
    check_wide(out, honest=CHUNK)


def test_a_frame_in_its_slot_byte_by_byte(out: DatasetWriter) -> None:
    with served(out, chunk_rows=CHUNK) as server:
        liar = Liar(server.address)
        for one in liar.frame(0):
            liar.socket.sendall(bytes([one]))
        answer = liar.receive()
        assert (answer.kind, answer.number) == (ACK, CHUNK)
        liar.close()
    assert out.rows == CHUNK


def test_who_did_not_ask_shares_nothing(out: DatasetWriter) -> None:
    with served(out, chunk_rows=CHUNK) as server, socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(PATIENCE_S)
        raw.connect(server.address.removeprefix("unix:"))
        raw.sendall(pack_hello({"producer": "p", "shares": "yes"}))
        data, fds, _, _ = socket.recv_fds(raw, 1 << 16, 1)
        assert fds == []
        assert "arena" not in json.loads(ServerMessageDecoder().feed(data)[0].text)


# ---- the memory itself


def test_nobody_can_make_it_shorter() -> None:
    made, fd = make_shared_buffer(2, 4096)
    try:
        for size in (0, 4096, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        made.slot(1)[:3] = b"abc"
        assert bytes(SharedBuffer(fd, 2, 4096).slot(1)[:3]) == b"abc"
        for wrong in [(2, 8192), (0, 4096), (-2, -4096)]:
            with pytest.raises(ValueError, match="expected"):
                SharedBuffer(fd, *wrong)
        with pytest.raises(IndexError):
            made.slot(2)
    finally:
        os.close(fd)


def test_memory_that_could_be_made_shorter_is_not_used() -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, 8192)
    with pytest.raises((ValueError, OSError)):
        SharedBuffer(fd, 2, 4096)
    os.close(fd)


def test_it_is_there_as_long_as_somebody_looks_at_it() -> None:
    def count() -> int:
        return Path("/proc/self/maps").read_text().count("holdfast-shared-buffer")

    before = count()
    made, fd = make_shared_buffer(2, 1 << 16)
    os.close(fd)
    view = np.frombuffer(made.slot(1), np.uint8)
    del made
    assert not view.any()
    assert count() == before + 1
    del view
    assert count() == before


def test_sizes() -> None:
    assert slots_for(1000, 4 << 20) is None
    assert slots_for(1 << 18, 4 << 20) == (19, 1 << 18)
    assert slots_for((1 << 18) + 1, 4 << 20) == (18, (1 << 18) + 4096)
    assert slots_for(1 << 30, 4 << 20) == (3, 1 << 30)


def test_half_of_the_memory_is_lent_at_most() -> None:
    buffers = BufferPool(1000_000)
    assert buffers.reserve_shared(300_000)
    assert not buffers.reserve_shared(300_000)
    buffer = buffers.take(600_000)
    assert buffer is not None
    assert buffers.take(200_000) is None
    buffers.release(buffer)
    buffers.release_shared(300_000)
    assert buffers.bytes == len(buffer)


def test_a_refused_producer_gives_its_memory_back(out: DatasetWriter) -> None:
    with served(out, chunk_rows=CHUNK) as server:
        first = connect(server.address, "p")
        first.extend(rows(0, CHUNK))
        first.commit()
        with connect(server.address, "p") as second:
            second.extend(rows(CHUNK, CHUNK))
            with pytest.raises(RefusedError):
                first.extend(rows(CHUNK, 9 * CHUNK))
                first.commit()
            assert second._connection.shared_buffer is not None
            assert server.buffers.bytes < 2 * second._connection.shared_buffer.bytes
    check_wide(out, p=2 * CHUNK)
