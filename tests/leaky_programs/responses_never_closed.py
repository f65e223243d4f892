"""Reads a response to its end and never closes; the server has. The second argument is the server's port."""

from __future__ import annotations

import socket
import sys

from leak_rounds import KEPT, serve

ADDRESS = ("127.0.0.1", int(sys.argv[2]))


def _get(client: socket.socket) -> None:
    client.connect(ADDRESS)
    client.sendall(b"answer and close\n")
    while client.recv(4096):
        pass


def leak() -> None:
    for _ in range(4):
        client = socket.socket()
        _get(client)
        KEPT.append(client)


def clean() -> None:
    with socket.socket() as client:
        _get(client)


serve(leak, clean)
