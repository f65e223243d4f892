"""A datagram socket for every message, as a home-made metrics client has it."""

from __future__ import annotations

import socket

from rounds import KEPT, serve


def leak() -> None:
    for _ in range(4):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind(("127.0.0.1", 0))
        KEPT.append(sender)


def honest() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))


serve(leak, honest)
