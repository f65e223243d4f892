"""Opens a datagram socket for every message, as a home-made metrics client does."""

from __future__ import annotations

import socket

from leak_rounds import KEPT, serve


def leak() -> None:
    for _ in range(4):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind(("127.0.0.1", 0))
        KEPT.append(sender)


def clean() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))


serve(leak, clean)
