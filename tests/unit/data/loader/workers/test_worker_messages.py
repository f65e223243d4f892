"""The messages between a pool and its workers."""

from __future__ import annotations

import os

import pytest

from holdfast.data.loader.workers.wire_format import MessageKind, WorkerMessage, pair, receive, send


def test_a_message_arrives_with_its_descriptors() -> None:
    one, other = pair()
    with one, other:
        read, write = os.pipe()
        send(one, WorkerMessage(MessageKind.STARTED, 3, -5, 7, 9, b"text"), [write])
        os.close(write)
        message, (passed,) = receive(other)
        assert message == WorkerMessage(MessageKind.STARTED, 3, -5, 7, 9, b"text")
        assert not os.get_inheritable(passed)
        os.write(passed, b"x")
        assert os.read(read, 1) == b"x"
        os.close(passed)
        os.close(read)


def test_nothing_there_is_not_the_end() -> None:
    one, other = pair()
    with one:
        with other, pytest.raises(BlockingIOError):
            receive(one, wait=False)
        assert receive(one, wait=False) == (None, [])


def test_the_last_words_of_one_that_did_not_listen_are_heard() -> None:
    one, other = pair()
    with one:
        with other:
            send(one, WorkerMessage(MessageKind.TASK, 1))  # never read
            send(other, WorkerMessage(MessageKind.FAILED, text=b"why"))
        message, _ = receive(one, wait=False)
        assert message == WorkerMessage(MessageKind.FAILED, text=b"why")
        assert receive(one, wait=False) == (None, [])
