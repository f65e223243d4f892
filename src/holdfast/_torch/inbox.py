"""The trainer's end of the pipe that batches come through, read so that nobody can make it wait for ever.

multiprocessing reads a message in one blocking go once its first byte is there; a worker that was stopped or killed in
the middle of writing leaves the reader waiting. Here what has come is kept, and the wait goes on to its deadline.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

_READ_BYTES = 1 << 20
_LENGTH = struct.Struct("!i")
_LONG_LENGTH = struct.Struct("!Q")


class Patience:
    """How long may still be waited; None is for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def at_most(self, timeout_s: float) -> Patience:
        left_s = self.left_s()
        return Patience(timeout_s if left_s is None else min(timeout_s, left_s))


class Inbox:
    """`next_message` gives one message, or None: time is up, or one of `others` is ready and nothing came."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._had = bytearray()

    def next_message(self, patience: Patience, others: Sequence[int]) -> bytes | None:
        reader = self._queue._reader.fileno()
        while (message := self._take()) is None:
            if reader not in wait([reader, *others], timeout=patience.left_s()):
                return None
            self._had += os.read(reader, _READ_BYTES)  # it is readable and nobody else reads: what is there, at once
        self._queue._sem.release()
        return message

    def _take(self) -> bytes | None:
        start, length = self._frame()
        if length is None or len(self._had) < start + length:
            return None
        message = bytes(memoryview(self._had)[start : start + length])
        del self._had[: start + length]
        return message

    def _frame(self) -> tuple[int, int | None]:
        """Where the message begins and how long it is: 4 bytes, or -1 and 8 bytes when it is over 2 GiB."""
        if len(self._had) < _LENGTH.size:
            return 0, None
        (length,) = _LENGTH.unpack_from(self._had)
        if length != -1:
            return _LENGTH.size, length
        start = _LENGTH.size + _LONG_LENGTH.size
        return start, _LONG_LENGTH.unpack_from(self._had, _LENGTH.size)[0] if len(self._had) >= start else None
