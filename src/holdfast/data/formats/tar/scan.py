"""Parses, writes and scans tar headers.

Headers are written as ustar, with pax records where a name or a size does not fit. They contain no time and no user, so
the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import CorruptError, DataError, FormatError, UnfinishedError
from ....procfs.locks import writers_of
from .source import TarBytes

# ---- parsing: the block of 512 bytes before every member, and the records that extend it

BLOCK_BYTES = 512
ZEROS = bytes(BLOCK_BYTES)
_CHECKSUM = slice(148, 156)
_MAX_BYTES = 1 << 60  # limit of sizes: far above any file, and cannot overflow


class BadHeader(ValueError):
    """A block is not a valid tar header, or its extension is not valid."""


def number_in(field: bytes) -> int:
    """Parses a number in octal digits, or in base 256 if its first bit is set.

    >>> number_in(b"00000000644\\0")
    420
    """
    if field[:11].isdigit() and field[11] in b" \0":  # nearly always
        return _octal(field[:11])
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value > _MAX_BYTES:
            raise BadHeader("its size is not valid")
        return value
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise BadHeader("its size is no number")
    return _octal(digits) if digits else 0


def _octal(digits: bytes) -> int:
    try:
        return int(digits, 8)
    except ValueError:
        raise BadHeader("its size is no number") from None


def name_in(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":  # GNU's format has times here
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name


def pax_records(payload: bytes) -> dict[bytes, bytes]:
    """Parses the records of a pax header.

    >>> pax_records(b"12 path=a/b\\n")
    {b'path': b'a/b'}
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(payload) and payload[at]:
        space = payload.find(b" ", at, at + 20)
        digits = payload[at:space] if space >= 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = payload[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(payload) or payload[end - 1] != 10 or not equals:
            raise BadHeader("its pax header is corrupt")
        records[key] = value
        at = end
    return records


def pax_size(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18 or int(value) > _MAX_BYTES:
        raise BadHeader("the size in its pax header is not valid")
    return int(value)


def bad_checksums(blocks: list[bytes]) -> npt.NDArray[np.intp]:
    """Returns which of these blocks have a wrong checksum. Many at once: a single one takes 5 µs in Python."""
    table: npt.NDArray[Any] = np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, BLOCK_BYTES)
    expected = _checksums_in(table[:, _CHECKSUM])
    rest = table[:, _CHECKSUM].sum(axis=1, dtype=np.int64) - 8 * 32  # the checksum itself counts as eight spaces
    sums = table.sum(axis=1, dtype=np.int64) - rest
    wrong = sums != expected
    if wrong.any():  # some old programs added signed bytes
        signed = sums - 256 * ((table >= 128).sum(axis=1) - (table[:, _CHECKSUM] >= 128).sum(axis=1))
        wrong &= signed != expected
    return np.flatnonzero(wrong)


def _checksums_in(fields: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Parses checksums: most are six octal digits, a NUL and a space."""
    digits = fields[:, :6].astype(np.int64) - ord("0")
    values: npt.NDArray[np.int64] = digits @ (8 ** np.arange(5, -1, -1))
    for i in np.flatnonzero((digits < 0).any(axis=1) | (digits > 7).any(axis=1) | (fields[:, 6] != 0)):
        text = fields[i].tobytes().strip(b" \0")
        values[i] = int(text, 8) if text.isdigit() and not text.strip(b"01234567") else -1
    return values


def is_header(block: bytes) -> bool:
    """Returns whether a file that begins with this block is a tar: POSIX or GNU, with a valid checksum."""
    return len(block) >= BLOCK_BYTES and block[257:262] == b"ustar" and not len(bad_checksums([block[:BLOCK_BYTES]]))


# ---- writing

END = bytes(2 * BLOCK_BYTES)  # the end mark of a tar

_NAME_BYTES = 100
_MAX_OCTAL = 8**11 - 1
_PAX_NAME = b"././@PaxHeader"

# Mode, user and group, which precede the size; and the time, which follows it.
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_REST = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
_FIXED_SUM = sum(_BEFORE_SIZE) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


def header_of(name: bytes, size: int) -> bytes:
    """Returns the header of a regular member: one block, or three and more if it needs a pax header."""
    records = {}
    if len(name) > _NAME_BYTES or (not name.isascii() and _is_utf8(name)):
        if not _is_utf8(name):
            records[b"hdrcharset"] = b"BINARY"
        records[b"path"] = name
    if size > _MAX_OCTAL:
        records[b"size"] = b"%d" % size
        size = 0
    block = _block(name[:_NAME_BYTES], size, b"0")
    if not records:
        return block
    payload = b"".join(_record(key, value) for key, value in records.items())
    return _block(_PAX_NAME, len(payload), b"x") + payload + padding(len(payload)) + block


def padding(size: int) -> bytes:
    """Returns the padding after a member's data."""
    return bytes(-size % BLOCK_BYTES)


def _block(name: bytes, size: int, flag: bytes) -> bytes:
    digits = b"%011o\0" % size
    total = _FIXED_SUM + sum(name) + sum(digits) + flag[0]
    return b"".join((name.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, digits, _TIME, b"%06o\0 " % total, flag, _REST))


def _record(key: bytes, value: bytes) -> bytes:
    """Encodes a pax record, `12 path=a/b`, whose length includes its own digits.

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


# ---- scanning
#
# The standard library's `tarfile` silently takes a corrupt header for the end, and is eight to ten times slower.

Member = tuple[bytes, int, int]  # its name, and the offset and size of its data

_WINDOW_BYTES = 1 << 18
_PEEK_BYTES = 1 << 12  # enough for a header and its extensions, where members are large
_FAR_BYTES = 1 << 16
_CHECKED_AT_ONCE = 4096  # headers
_EXTENSION_BYTES = 1 << 20  # limit of a long name or a pax header
_PADDING_BYTES = 1 << 24  # how far data after the end mark are searched for

_REGULAR = b"0\x007"
_NO_DATA = b"123456V"  # links, devices, folders, FIFOs, labels: their size does not count
_LINKS = b"12"
_KEPT_PAX = (b"path", b"size")


class _Window:
    """Buffered part of the file, which only moves forward."""

    def __init__(self, source: TarBytes) -> None:
        self._source = source
        self._base = 0
        self._data = b""

    def get(self, at: int, size: int) -> bytes:
        """Returns `size` bytes from `at` on; fewer only at the end of the file."""
        start = at - self._base
        data = self._data[start : start + size]
        return data if len(data) == size else self._move(at, size)

    def _move(self, at: int, size: int) -> bytes:
        end = self._base + len(self._data)
        kept = self._data[at - self._base :] if at < end else b""
        usual = _PEEK_BYTES if at > end + _FAR_BYTES else _WINDOW_BYTES
        fresh = self._source.read_at(at + len(kept), max(size - len(kept), usual))
        self._base, self._data = at, kept + fresh
        return self._data[:size]


class TarScan:
    """Iterates over the regular members of a tar. All checksums have been checked only when the iteration has ended."""

    def __init__(self, source: TarBytes) -> None:
        self._path = source.path
        self._window = _Window(source)
        self._blocks: list[tuple[int, bytes]] = []  # headers whose checksums are not checked yet
        self._shared: dict[bytes, bytes] = {}  # from a global pax header
        self._own: dict[bytes, bytes] = {}  # from the extensions of the next header
        self._last = b""

    def __iter__(self) -> Iterator[Member]:
        at, blocks, get = 0, self._blocks, self._window.get
        while True:
            block = get(at, BLOCK_BYTES)
            if len(block) < BLOCK_BYTES:
                raise self._truncated(at)
            if not block[0] and block == ZEROS:
                break
            blocks.append((at, block))
            if len(blocks) == _CHECKED_AT_ONCE:
                self._check()
            try:
                name, size = name_in(block), number_in(block[124:136])
                flag = block[156]
                if flag in b"xXgLK":
                    at += BLOCK_BYTES + self._extend(flag, at, size)
                    continue
                if self._own or self._shared:
                    name, size = self._extended(name, size)
            except BadHeader as error:
                self._check()  # report the first corrupt header
                raise CorruptError(self._path, None, at, f"the tar header is corrupt: {error}") from None
            data = at + BLOCK_BYTES
            if flag in _REGULAR and not name.endswith(b"/"):
                self._last = name
                yield name, data, size
            else:
                self._check_skippable(flag, name, block, at)
            at = data if flag in _NO_DATA else data + (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        self._check()
        self._end(at)

    def _extend(self, flag: int, at: int, size: int) -> int:
        """Reads a long name or a pax header; returns its size with padding."""
        if size > _EXTENSION_BYTES:
            raise BadHeader(f"a long name or pax header of {size:,} bytes")
        payload = self._window.get(at + BLOCK_BYTES, size)
        if len(payload) < size:
            self._check()
            raise self._truncated(at + BLOCK_BYTES + len(payload))
        if flag == ord("L"):
            self._own[b"path"] = payload.partition(b"\0")[0]
        elif flag == ord("g"):
            self._shared |= _known_records(pax_records(payload))
        elif flag != ord("K"):
            self._own |= _known_records(pax_records(payload))
        return (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES

    def _extended(self, name: bytes, size: int) -> tuple[bytes, int]:
        known = self._shared | self._own
        self._own = {}
        name = known.get(b"path", name)
        if b"sparse" in known:
            raise self._sparse(name)
        return name, pax_size(known[b"size"]) if b"size" in known else size

    def _check_skippable(self, flag: int, name: bytes, block: bytes, at: int) -> None:
        """Raises an error for a member that cannot be skipped without losing data."""
        if flag == ord("S"):
            raise self._sparse(name)
        if flag == ord("M"):
            reason = f"{_shown(name)} continues from another tar, and multi-volume tars cannot be read"
            raise FormatError(self._path, None, at, reason)
        if flag in _LINKS and parts_of(name):
            to = block[157:257].partition(b"\0")[0]
            raise FormatError(
                self._path,
                None,
                at,
                f"{_shown(name)} is a link to {_shown(to)}, and links are not followed",
                "Pack the files themselves: `tar --dereference --hard-dereference`",
            )

    def _sparse(self, name: bytes) -> FormatError:
        reason = f"{_shown(name)} is a sparse member, which cannot be read"
        return FormatError(self._path, None, None, reason, "Pack it without --sparse")

    def _check(self) -> None:
        if not self._blocks:
            return
        bad = bad_checksums([block for _, block in self._blocks])
        if len(bad):
            at = self._blocks[int(bad[0])][0]
            if not at:
                raise FormatError(self._path, None, 0, "not a tar file", "Check it with `file`")
            raise CorruptError(self._path, None, at, "the tar header is corrupt: its checksum is wrong")
        self._blocks.clear()

    def _truncated(self, at: int) -> DataError:
        self._check()
        after = f" in or after {_shown(self._last)}" if self._last else ""
        reason = f"the file ends{after}, without a tar's end mark"
        writers = writers_of(self._path)
        if writers:
            who = f"process {writers[0].pid} ({writers[0].command})"
            return UnfinishedError(self._path, None, at, f"{reason}: it is being written by {who}", "Wait for it")
        return CorruptError(
            self._path, None, at, f"{reason}: it was cut", "If it is complete, `truncate -s +1024 FILE` adds one"
        )

    def _end(self, at: int) -> None:
        if self._own:
            raise CorruptError(self._path, None, at, "a long name or pax header has no member after it")
        stop = at + _PADDING_BYTES
        while at < stop:
            padding = self._window.get(at, _WINDOW_BYTES)
            if not padding:
                return
            if padding.strip(b"\0"):
                at += len(padding) - len(padding.lstrip(b"\0"))
                reason = "there are data after the tar's end mark"
                hint = "Two tars joined with `cat`? `tar -A` joins them so that both are read"
                raise FormatError(self._path, None, at, reason, hint)
            at += len(padding)


def _known_records(records: dict[bytes, bytes]) -> dict[bytes, bytes]:
    kept = {key: value for key, value in records.items() if key in _KEPT_PAX}
    if any(key.startswith(b"GNU.sparse.") for key in records):
        kept[b"sparse"] = b""
        kept[b"path"] = records.get(b"GNU.sparse.name", kept.get(b"path", b"a member"))
    return kept


def parts_of(name: bytes) -> tuple[bytes, bytes] | None:
    """Splits a name into the sample's key and the member's extension; None for a member of no sample.

    >>> parts_of(b"a.b/000.seg.PNG")
    (b'a.b/000', b'seg.PNG')
    """
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base or dot == len(name) - 1 or (name.startswith(b"__") and name.endswith(b"__")):
        return None
    return name[:dot], name[dot + 1 :]


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "replace"))
