"""Opens a connection for every call; the clean one shares one. The second argument is the server's port."""

from __future__ import annotations

import socket
import sys

from leak_rounds import KEPT, serve

ADDRESS = ("127.0.0.1", int(sys.argv[2]))


def _connect() -> socket.socket:
    client = socket.create_connection(ADDRESS)
    KEPT.append(client)
    return client


def _call(client: socket.socket) -> None:
    client.sendall(b"answer\n")
    assert client.recv(4096) == b"ok\n"


def leak() -> None:
    for _ in range(4):
        _call(_connect())


def clean() -> None:
    _call(KEPT[0] if KEPT else _connect())


serve(leak, clean)
