"""tar headers as they are written: ustar, and pax where a name or a size does not fit. The same input gives the same
bytes: no time, no user, no machine. No I/O."""

from __future__ import annotations

from .headers import BLOCK_BYTES

END = bytes(2 * BLOCK_BYTES)  # what ends a tar

_NAME_BYTES = 100
_MOST_OCTAL = 8**11 - 1
_PAX_NAME = b"././@PaxHeader"

# Mode, user and group, before the size; and the time, behind it.
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_REST = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
_FIXED_SUM = sum(_BEFORE_SIZE) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


def header_of(name: bytes, size: int) -> bytes:
    """What stands before a regular member's data: one block, or three and more where it needs a pax header."""
    records = {}
    if len(name) > _NAME_BYTES or (not name.isascii() and _is_utf8(name)):  # other bytes fit as they are, if they do
        if not _is_utf8(name):
            records[b"hdrcharset"] = b"BINARY"
        records[b"path"] = name
    if size > _MOST_OCTAL:
        records[b"size"] = b"%d" % size
        size = 0
    block = _block(name[:_NAME_BYTES], size, b"0")
    if not records:
        return block
    payload = b"".join(_record(key, value) for key, value in records.items())
    return _block(_PAX_NAME, len(payload), b"x") + payload + padding(len(payload)) + block


def padding(size: int) -> bytes:
    """What a member's data are filled up with."""
    return bytes(-size % BLOCK_BYTES)


def _block(name: bytes, size: int, flag: bytes) -> bytes:
    digits = b"%011o\0" % size
    total = _FIXED_SUM + sum(name) + sum(digits) + flag[0]
    return b"".join((name.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, digits, _TIME, b"%06o\0 " % total, flag, _REST))


def _record(key: bytes, value: bytes) -> bytes:
    """`12 path=a/b`: its length counts the digits of its length.

    >>> _record(b"path", b"a/b")
    b'12 path=a/b\\n'
    """
    rest = b" " + key + b"=" + value + b"\n"
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d" % size + rest


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
