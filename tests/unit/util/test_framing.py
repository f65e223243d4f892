"""Messages arrive complete, from pieces of any size, or as an error that says what is wrong."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from holdfast._util.framing import Message, MessageError, MessageReceiver, pack_message, send_message

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def frame(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<IQ", len(text), len(body)) + text + body


def test_messages_arrive_in_order_and_then_the_stream_ends(pair: Pair) -> None:
    sent = [Message({"a": [1, "é"]}, b""), Message({}, bytes(range(256))), Message({"b": None}, b"\n" * 3)]
    for message in sent:
        send_message(pair[0].fileno(), *message)
    pair[0].close()
    receiver = MessageReceiver(pair[1].fileno())
    assert [receiver.receive() for _ in range(4)] == [*sent, None]


def test_a_message_arrives_byte_by_byte(pair: Pair) -> None:
    receiver = MessageReceiver(pair[1].fileno())
    data = pack_message({"a": 1}, b"body")
    for at in range(len(data)):
        assert receiver.take() is None
        pair[0].send(data[at : at + 1])
        assert receiver.read()
    assert receiver.take() == ({"a": 1}, b"body")


def test_a_message_that_is_larger_than_the_pipe() -> None:
    read, write = os.pipe()
    body = os.urandom(3 << 20)
    sender = threading.Thread(target=send_message, args=(write, {}, body))
    sender.start()
    assert MessageReceiver(read).receive(60) == ({}, body)
    sender.join()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1, 2]", b"7", b"[" * 50_000])
def test_only_a_json_object_is_a_message(pair: Pair, text: bytes) -> None:
    pair[0].sendall(frame(text) + pack_message({"next": 1}))
    receiver = MessageReceiver(pair[1].fileno())
    with pytest.raises(MessageError, match="expected a JSON object"):
        receiver.receive()
    assert receiver.receive() == ({"next": 1}, b"")


@pytest.mark.parametrize("sizes", [(101, 0), (50, 51), (0, 1 << 63)])
def test_a_size_beyond_the_bound_is_an_error_before_the_rest_comes(pair: Pair, sizes: tuple[int, int]) -> None:
    pair[0].sendall(struct.pack("<IQ", *sizes))
    with pytest.raises(MessageError, match=f"at most 100 bytes, got one of {sum(sizes):,}"):
        MessageReceiver(pair[1].fileno(), 100).receive(60)


@pytest.mark.parametrize("left", [1, 11, 12, 20])
def test_a_stream_that_ends_within_a_message(pair: Pair, left: int) -> None:
    pair[0].sendall(pack_message({"name": "value"})[:left])
    pair[0].close()
    with pytest.raises(MessageError, match=f"ended within a message, after {left} bytes"):
        MessageReceiver(pair[1].fileno()).receive()


def test_time_is_for_the_complete_message(pair: Pair) -> None:
    receiver = MessageReceiver(pair[1].fileno())
    data = pack_message({"a": 1})
    pair[0].sendall(data[:-1])
    with pytest.raises(TimeoutError):
        receiver.receive(0.01)
    pair[0].sendall(data[-1:])
    assert receiver.receive(float("inf")) == ({"a": 1}, b"")
    pair[0].setblocking(False)
    with pytest.raises(TimeoutError):
        send_message(pair[0].fileno(), {}, bytes(8 << 20), timeout_s=0.01)
