"""What types a record's features have and how many values, without looking at the values: of every record of a file.

Only of records as writers nearly always make them. For what is otherwise in any way the answer is None, and somebody
has to look closer.
"""

from __future__ import annotations

from ..._native import codec

_MESSAGE = 1 << 3 | 2  # field 1, of a length
_VALUE = 2 << 3 | 2
_LISTS = {kind << 3 | 2: kind for kind in (codec.BYTES, codec.FLOAT32, codec.INT64)}
_GO_ON = bytes(range(128, 256))  # bytes of a varint that are not its last


Counted = tuple[int, int]  # the type, and how many values

_names: dict[bytes, str] = {}


def counted(data: bytes) -> dict[str, Counted] | None:
    """The features of a tf.train.Example by name."""
    try:
        return _features(data)
    except (IndexError, UnicodeDecodeError):
        return None


def _features(data: bytes) -> dict[str, Counted] | None:
    found: dict[str, Counted] = {}
    size, at = _length(data, 1)
    if data[0] != _MESSAGE or at + size != len(data):
        return None
    while at < len(data):
        if data[at] != _MESSAGE:
            return None
        size, start = _length(data, at + 1)
        end = start + size
        if data[start] != _MESSAGE or end > len(data):
            return None
        size, at = _length(data, start + 1)
        key = data[at : at + size]
        at += size
        if at >= end or data[at] != _VALUE:
            return None
        size, at = _length(data, at + 1)
        one = _feature(data, at, end) if at + size == end else None
        name = _names.get(key) or _name(key)
        if one is None or name in found:
            return None
        found[name] = one
        at = end
    return found


def _name(key: bytes) -> str:
    if len(_names) > 10_000:
        _names.clear()
    name = _names[key] = key.decode()
    return name


def _feature(data: bytes, at: int, end: int) -> Counted | None:
    if at == end:
        return codec.NONE, 0
    kind = _LISTS.get(data[at], 0)
    size, at = _length(data, at + 1)
    if not kind or at + size != end:
        return None
    if at == end:
        return kind, 0
    if kind == codec.BYTES:
        return _strings(data, at, end)
    tag = data[at]
    size, at = _length(data, at + 1)
    if tag != _MESSAGE or at + size != end:
        return None  # not packed, or in pieces
    if kind == codec.FLOAT32:
        return (kind, size // 4) if size % 4 == 0 else None
    values = data[at:end]
    return (kind, len(values.translate(None, _GO_ON))) if values and values[-1] < 128 else None


def _strings(data: bytes, at: int, end: int) -> Counted | None:
    count = 0
    while at < end:
        tag = data[at]
        size, at = _length(data, at + 1)
        at += size
        count += 1
        if tag != _MESSAGE:
            return None
    return (codec.BYTES, count) if at == end else None


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
    return value, at + 1
