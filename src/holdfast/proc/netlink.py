"""Unix sockets, asked of the kernel itself: `/proc/net/unix` does not say who is at their other end, and is slower."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from .._native.look import compiled

_SOCK_DIAG = 4
_DIAG_BY_FAMILY = 20
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x1 | 0x300
_SHOW_NAME, _SHOW_PEER = 0x1, 0x4
_EVERY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ASK = struct.Struct("=BBHIII8s")  # family, protocol, -, states, inode, what to show, cookie
_ROW = struct.Struct("=BBBBI8s")  # family, type, state, -, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NAME, _PEER, _SHUTDOWN = 0, 2, 6
# What nearly every message is like: a row, its peer, how it was shut down. Taken apart at once: there may be thousands.
_COMMON = struct.Struct("=IHHIIBBBBI8sHHIHHB3x")

_new_tuple = tuple.__new__
_BOTH_WAYS = 3
_WAIT_S = 1.0
_BUFFER_BYTES = 1 << 18


class UnixRow(NamedTuple):
    """`peer` is the far end's inode: None without one, 0 where it has no descriptor (not yet, or not any more)."""

    inode: int
    type: int
    state: int
    peer: int | None
    shutdown: int
    path: str = ""

    @property
    def far(self) -> int | None:
        """The far end's inode, 0 where it was closed; None where there is none, or this cannot be told.

        A connection that nobody has accepted yet has a far end without inode, too: only a closed one is shut both ways.
        """
        if self.peer == 0 and self.shutdown != _BOTH_WAYS and self.type != socket.SOCK_DGRAM:
            return None
        return self.peer


def read_unix_rows() -> dict[int, UnixRow]:
    """Every Unix socket of this network namespace by its inode.

    Empty where the kernel cannot be asked: no descriptor is free, a container forbids it, or it was built without.
    """
    if sys.platform != "linux":
        return {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.send(_question())
            return {row[0]: row for part in _answers(kernel) for row in part}
    except OSError:
        return {}


def _question() -> bytes:
    ask = _ASK.pack(socket.AF_UNIX, 0, 0, _EVERY_STATE, 0, _SHOW_NAME | _SHOW_PEER, _NO_COOKIE)
    return _HEADER.pack(_HEADER.size + len(ask), _DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask


def _answers(kernel: socket.socket) -> Iterator[list[UnixRow]]:
    last = False
    while not last:
        rows, last = parse_rows(kernel.recv(_BUFFER_BYTES))
        yield rows


def parse_rows(data: bytes) -> tuple[list[UnixRow], bool]:
    """The messages of one packet, and whether they were the last. An error from the kernel is an OSError."""
    rows: list[UnixRow] = []
    at, size = 0, len(data)
    while (at := parse_common(data, at, rows)) + _HEADER.size <= size:
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if kind == _DONE or length < _HEADER.size:
            return rows, True
        if kind == _ERROR:
            (number,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise OSError(-number, os.strerror(-number))
        rows.append(_parse_row(data, at + _HEADER.size, min(at + length, size)))
        at += _aligned(length)
    return rows, not data


def _parse_common(data: bytes, at: int, rows: list[UnixRow]) -> int:
    """Adds the messages from here on that are like nearly all; where the first one that is not begins."""
    while at + _COMMON.size <= len(data):
        length, kind, _, _, _, _, type_, state, _, inode, _, _, first, peer, _, second, shut = _COMMON.unpack_from(
            data, at
        )
        if (length, kind, first, second) != (_COMMON.size, _DIAG_BY_FAMILY, _PEER, _SHUTDOWN):
            break
        rows.append(_new_tuple(UnixRow, (inode, type_, state, peer, shut, "")))
        at += length
    return at


def _parse_common_compiled(data: bytes, at: int, rows: list[UnixRow]) -> int:
    return compiled.parse_unix(data, at, UnixRow, rows)


parse_common = _parse_common_compiled if compiled else _parse_common


def _parse_row(data: bytes, at: int, end: int) -> UnixRow:
    _, type_, state, _, inode, _ = _ROW.unpack_from(data, at)
    peer, shutdown, path = None, 0, ""
    at += _ROW.size
    while at + _ATTRIBUTE.size <= end:
        length, name = _ATTRIBUTE.unpack_from(data, at)
        start = at + _ATTRIBUTE.size
        if name == _NAME:
            path = _text_of(data[start : at + length])
        elif name == _PEER:
            (peer,) = struct.unpack_from("=I", data, start)
        elif name == _SHUTDOWN:
            shutdown = data[start]
        at += max(_aligned(length), _ATTRIBUTE.size)
    return UnixRow(inode, type_, state, peer, shutdown, path)


def _text_of(name: bytes) -> str:
    """As `/proc/net/unix` writes it: a name that is no path begins with `@`, which stands for a zero byte."""
    text = name[1:] if name[:1] == b"\0" else name.rstrip(b"\0")
    return ("@" if name[:1] == b"\0" else "") + text.replace(b"\0", b"@").decode("utf-8", "replace")


def _aligned(length: int) -> int:
    return (length + 3) & ~3
