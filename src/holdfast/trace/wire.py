"""One JSON document in a line, within a number of bytes and a moment."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

MOST_REQUEST_BYTES = 64 << 10
MOST_ANSWER_BYTES = 4 << 20


class WireError(Exception):
    """What came is not what was agreed on."""


def receive(connection: socket.socket, most_bytes: int, within_s: float) -> Any:
    """All in all within the time, however slowly the bytes drip."""
    deadline = time.monotonic() + within_s
    parts: list[bytes] = []
    size = 0
    while not parts or b"\n" not in parts[-1]:
        connection.settimeout(_left(deadline))
        part = connection.recv(min(1 << 16, most_bytes + 1 - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise WireError(f"expected at most {most_bytes:,} bytes, got more")
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise WireError("expected one line of JSON") from None


def send(connection: socket.socket, document: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    view = memoryview(json.dumps(document).encode() + b"\n")
    while view:
        connection.settimeout(_left(deadline))
        view = view[connection.send(view) :]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other end was too slow")
    return left
