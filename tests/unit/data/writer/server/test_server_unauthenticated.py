"""Strangers, liars and slow ones at the socket: refused and logged, and nobody else notices."""

from __future__ import annotations

import json
import logging
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_central import PATIENCE_S, SMALL, by_producer, served, small

import holdfast as hold
from holdfast._native.codec import crc32c
from holdfast.data.formats.row_buffers import buffers_of
from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.server import connections
from holdfast.data.writer.server.client import connect
from holdfast.data.writer.server.frame_builder import FrameBuilder
from holdfast.data.writer.server.protocol import (
    ACK,
    HELLO,
    HELLO_MAGIC,
    REFUSED,
    WELCOME,
    FrameLayout,
    ServerMessage,
    ServerMessageDecoder,
    pack_head,
    pack_hello,
    pack_meta,
)
from holdfast.data.writer.server.server import CentralWriter
from holdfast.errors import RefusedError

LAYOUT = FrameLayout(SMALL, 8)


class Raw:
    """A socket to the server, with nothing of ours on it."""

    def __init__(self, server: CentralWriter) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(server.address.removeprefix("unix:"))
        self._unpacker, self._heard = ServerMessageDecoder(), list[ServerMessage]()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # it has hung up already

    def receive(self) -> ServerMessage | None:
        """None: it hung up."""
        while not self._heard:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._heard += self._unpacker.feed(data)
        return self._heard.pop(0)

    def hello(self, name: str = "p", **more: Any) -> dict[str, Any]:
        self.send(pack_hello({"producer": name, **more}))
        message = self.receive()
        assert message is not None
        assert message.kind == WELCOME
        welcome: dict[str, Any] = json.loads(message.text)
        return welcome

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def frame(first: int, count: int, epoch: int = 1, name: str = "p", **wrong: Any) -> bytes:
    chunk = FrameBuilder(LAYOUT)
    chunk.add(buffers_of(SMALL, {"x": range(first, first + count)})[0], 0, count)
    made = chunk.take(first)
    meta = pack_meta(name, wrong.get("sizes", [made.bytes]), wrong.get("crcs", made.crcs))
    size = wrong.get("payload_bytes", made.bytes)
    flags = wrong.get("flags", made.flags)
    rows = wrong.get("rows", made.rows)
    head = pack_head(meta, flags=flags, epoch=epoch, first=first, rows=rows, payload_bytes=size)
    return head + b"".join(made.pieces)


def must_still_serve(server: CentralWriter, out: Any, name: str = "honest") -> None:
    with connect(out.folder, name) as producer:
        producer.extend({"x": range(20)})
        assert producer.commit() == 20


BAD_HELLOS: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "expected HELLO, got b'GET '"),
    "zeros": (bytes(64), "expected HELLO"),
    "huge": (HELLO.pack(HELLO_MAGIC, 1 << 31, 0), "expected HELLO"),
    "crc": (HELLO.pack(HELLO_MAGIC, 2, 1) + b"{}", "cannot be parsed"),
    "list": (HELLO.pack(HELLO_MAGIC, 2, crc32c(b"[]")) + b"[]", "cannot be parsed"),
    "deep": (HELLO.pack(HELLO_MAGIC, 9999, crc32c(b"[" * 9999)) + b"[" * 9999, "cannot be parsed"),
    "version": (pack_hello({"protocol": 2, "producer": "p"}), "expected protocol 1, got 2"),
    "name": (pack_hello({"producer": "../../etc/passwd"}), "expected a producer's name"),
    "no name": (pack_hello({}), "expected a producer's name"),
    "a frame first": (frame(0, 8), "expected HELLO"),
}


@pytest.mark.parametrize("kind", BAD_HELLOS)
def test_who_is_no_producer_is_refused(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data, said = BAD_HELLOS[kind]
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False) as server, Raw(server) as raw:
        raw.send(data)
        message = raw.receive()
        assert message is None or (message.kind == REFUSED and said in message.text)
        must_still_serve(server, out)
    assert said in caplog.text
    assert server.stats()["refused"] == 1


@pytest.mark.parametrize("token", ["\ud800", "None", None, 5, ["t"], "t\0"])
def test_a_token_of_any_kind_is_only_a_wrong_one(tmp_path: Path, token: Any) -> None:
    out = small(tmp_path)
    with served(out, token="t", seal=False) as server, Raw(server) as raw:
        raw.send(pack_hello({"producer": "p", "token": token}))
        message = raw.receive()
        assert message is None or (message.kind == REFUSED and message.text == "wrong token")
        with connect(server.address, "p", token="t") as producer:
            producer.append(x=1)


def test_no_token_is_not_the_token_none(tmp_path: Path) -> None:
    with served(small(tmp_path), token="None", seal=False) as server, pytest.raises(RefusedError, match="wrong token"):
        connect(server.address, "p")


BAD_FRAMES: dict[str, tuple[Callable[[], bytes], str]] = {
    "payload": (lambda: frame(0, 8, crcs=[1]), "the checksum of the payload is wrong"),
    "gap": (lambda: frame(9, 8), "expected row 0 next, got 9 to 17"),
    "other": (lambda: frame(0, 8, name="q"), "expected a frame of 'p' in epoch 1, got 'q' in 1"),
    "epoch": (lambda: frame(0, 8, epoch=2), "got 'p' in 2"),
    "huge": (lambda: frame(0, 8, sizes=[1 << 40], payload_bytes=1 << 40), "got 1,099,511,627,776"),
    "pieces": (lambda: frame(0, 8, sizes=[32, 32], crcs=[0, 0]), "bytes of meta"),
    "sum": (lambda: frame(0, 8, sizes=[63]), "expected pieces of 64 bytes, got 63"),
    "size": (lambda: frame(0, 8, rows=7, flags=0), "expected 56 bytes"),
    "rows": (lambda: frame(0, 8, rows=9), "expected 8 rows in a chunk, got 9"),
    "no rows": (lambda: frame(0, 8, rows=0), "invalid head: 0 rows"),
    "short as whole": (lambda: frame(0, 4, flags=1), "expected 8 rows in a chunk, got 4"),
    "version": (lambda: frame(0, 8).replace(b"HFJ\x01", b"HFJ\x02"), "expected a frame of version 1, got 2"),
    "head": (lambda: frame(0, 8)[:20] + b"\xff" + frame(0, 8)[21:], ""),
    "noise": (lambda: b"\x55" * 200, "expected a frame"),
    "hello again": (lambda: pack_hello({"producer": "p", "host": "h" * 99}), "expected a frame"),
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
def test_a_bad_frame_is_refused_and_not_written(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make, said = BAD_FRAMES[kind]
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False) as server, Raw(server) as raw:
        raw.hello()
        raw.send(make())
        message = raw.receive()
        assert message is None or message.kind == REFUSED
        must_still_serve(server, out)
        assert server.stats()["marks"] == {"honest": 20}
    assert said in caplog.text


@pytest.mark.parametrize("ends", [[0, 9, 3], [1, 2, 3], [0, 1, 2], [0, 1, 4], [0, -1, 3], [0, 1 << 62, 3]])
def test_ends_that_lead_nowhere_are_refused_before_they_keep_parts_from_being_made(
    tmp_path: Path, ends: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    out = write(tmp_path / "run", {"text": hold.Bytes()})
    pieces = [b"abc", np.array(ends, "<i8").tobytes()]
    meta = pack_meta("p", [len(piece) for piece in pieces], [crc32c(piece) for piece in pieces])
    head = pack_head(meta, flags=0, epoch=1, first=0, rows=2, payload_bytes=sum(map(len, pieces)))
    with served(out) as server, Raw(server) as raw:
        raw.hello()
        raw.send(head + b"".join(pieces))
        message = raw.receive()
        assert message is None or message.kind == REFUSED
        with connect(server.address, "honest") as producer:
            producer.append(text=b"a")
    assert "by its offsets" in caplog.text or "invalid offsets" in caplog.text
    assert by_producer(out) == {"honest": {"text": [b"a"]}}


def test_a_frame_sent_twice_is_acknowledged_twice_and_written_once(tmp_path: Path) -> None:
    out = small(tmp_path)
    with served(out, chunk_rows=8) as server, Raw(server) as raw:
        assert raw.hello()["mark"] == 0
        for _ in range(3):
            raw.send(frame(0, 8))
            assert raw.receive() == (ACK, 8, "")
        raw.send(frame(8, 3) + frame(0, 8) + frame(11, 8))
        watermarks = []
        while not watermarks or watermarks[-1] != 19:
            message = raw.receive()
            assert message is not None
            watermarks.append(message.number)
        assert watermarks == sorted(watermarks)
    assert by_producer(out)["p"]["x"] == list(range(19))


def test_a_frame_byte_by_byte(tmp_path: Path) -> None:
    out = small(tmp_path)
    with served(out, chunk_rows=8) as server, Raw(server) as raw:
        data = pack_hello({"producer": "p"})
        for at in range(len(data)):
            raw.send(data[at : at + 1])
        message = raw.receive()
        assert message is not None
        assert message.kind == WELCOME
        for at, byte in enumerate(frame(0, 8)):
            raw.send(bytes([byte]))
            if at % 20 == 0:
                must_still_serve(server, out, f"honest{at}")
        assert raw.receive() == (ACK, 8, "")


def test_one_who_hangs_up_in_a_frame_leaves_nothing_of_it(tmp_path: Path) -> None:
    out = small(tmp_path)
    data = frame(0, 8)
    with served(out, chunk_rows=8) as server:
        for size in (1, 39, 60, len(data) - 1):
            with Raw(server) as raw:
                raw.hello()
                raw.send(data[:size])
        must_still_serve(server, out)
        with Raw(server) as raw:
            assert raw.hello()["mark"] == 0
    assert by_producer(out) == {"honest": {"x": list(range(20))}}


def test_one_who_says_nothing_is_gone_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_HELLO_S", 0.05)
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False) as server, Raw(server) as mute, Raw(server) as slow:
        slow.send(HELLO_MAGIC)
        assert mute.receive() is None
        assert slow.receive() is None
        with connect(server.address, "p") as producer:
            producer.append(x=1)
    assert caplog.text.count("no HELLO within") == 2


def test_a_crowd_of_strangers_keeps_no_producer_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False) as server:
        unauthenticated = [Raw(server) for _ in range(90)]
        must_still_serve(server, out)
        assert len(server.connections.all) <= 65
        for raw in unauthenticated:
            raw.close()
    assert "too many connections without a HELLO" in caplog.text


def test_memory_is_bounded_whatever_they_send(tmp_path: Path) -> None:
    """Twenty begin a frame of a third of the memory each, and stop: three of them have it, the others wait."""
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False, queue_bytes=1_000_000) as server:
        raws = [Raw(server) for _ in range(20)]
        for number, raw in enumerate(raws):
            raw.hello(f"p{number}")
            meta = pack_meta(f"p{number}", [300_000], [0])
            raw.send(pack_head(meta, flags=0, epoch=1, first=0, rows=8, payload_bytes=300_000) + bytes(1000))
        while len(server.connections.awaiting_buffer) < 17:
            time.sleep(0.001)
        assert server.buffers.bytes <= 1_000_000
        for raw in raws:
            raw.close()
        must_still_serve(server, out)


def test_random_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Noise, noise behind a good HELLO, and good frames with some bytes changed, from many at once."""
    caplog.set_level(logging.ERROR)
    chance = random.Random(7)
    out = small(tmp_path)
    with served(out, chunk_rows=8, queue_bytes=100_000) as server:
        with connect(server.address, "honest") as honest:
            for number in range(300):
                with Raw(server) as raw:
                    raw.send(chance.randbytes(chance.randrange(400)))
                with Raw(server) as raw:
                    mark = raw.hello("liar")["mark"]
                    data = bytearray(frame(mark, 8, name="liar") * chance.randrange(1, 3))
                    for _ in range(chance.randrange(4)):
                        data[chance.randrange(len(data))] = chance.randrange(256)
                    raw.send(bytes(data[: chance.randrange(1, len(data) + 1)]))
                honest.append(x=number)
                if number % 50 == 0:
                    honest.commit()
    assert by_producer(out)["honest"]["x"] == list(range(300))
    liar = by_producer(out).get("liar", {"x": []})["x"]
    assert liar == list(range(len(liar)))


def test_an_unread_acknowledgement_does_no_harm(tmp_path: Path) -> None:
    """A producer that never reads: the last mark is kept for it, not all of them."""
    out = small(tmp_path)
    with served(out, chunk_rows=8, seal=False) as server, Raw(server) as raw:
        raw.hello()
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for first in range(0, 40_000, 8):
            raw.send(frame(first, 8))
        must_still_serve(server, out)
        number = 0
        while number < 40_000:
            message = raw.receive()
            assert message is not None
            number = message.number
