"""Example messages put together byte by byte: also in ways no protobuf library writes them."""

from __future__ import annotations

import struct

VARINT, FIXED64, LEN, GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int, size: int = 0) -> bytes:
    """`size`: fill up to so many bytes, as no writer does but readers must understand."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    while len(out) < size:
        out[-1] |= 128
        out.append(0)
    return bytes(out)


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def field(number: int, content: bytes) -> bytes:
    return tag(number, LEN) + varint(len(content)) + content


def group(number: int, content: bytes) -> bytes:
    return tag(number, GROUP) + content + tag(number, END_GROUP)


# ---- a Feature's lists -------------------------------------------------------------------------------------


def ints(*values: int) -> bytes:
    return field(1, b"".join(map(varint, values)))


def ints_unpacked(*values: int) -> bytes:
    return b"".join([tag(1, VARINT) + varint(value) for value in values])


def floats(*values: float) -> bytes:
    return field(1, struct.pack(f"<{len(values)}f", *values))


def floats_unpacked(*values: float) -> bytes:
    return b"".join([tag(1, FIXED32) + struct.pack("<f", value) for value in values])


def strings(*values: bytes) -> bytes:
    return b"".join([field(1, value) for value in values])


# ---- Features ----------------------------------------------------------------------------------------------


def bytes_feature(*values: bytes) -> bytes:
    return field(1, strings(*values))


def float_feature(*values: float) -> bytes:
    return field(2, floats(*values))


def int_feature(*values: int) -> bytes:
    return field(3, ints(*values))


# ---- maps and messages -------------------------------------------------------------------------------------


def entry(key: bytes, value: bytes) -> bytes:
    """Of the map of features, or of feature lists."""
    return field(1, field(1, key) + field(2, value))


def steps(*features: bytes) -> bytes:
    return b"".join([field(1, feature) for feature in features])


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def example_of_a(value: bytes) -> bytes:
    """An Example with the Feature `value` at the key a."""
    return example(entry(b"a", value))


def sequence(context: list[bytes], lists: list[bytes]) -> bytes:
    return field(1, b"".join(context)) + field(2, b"".join(lists))
