"""Reads the log that `native/fdtrace` writes for one process image (a process between two execs).

The log of a process that was killed ends anywhere, so nothing in it is trusted: an offset that leads out of the file
gives no frame instead of an error. Only a file that is no log at all is refused.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..._util.fds import open_regular
from ...errors import CorruptError
from .tables import Table, row_bytes

EVENT = {
    "t_ns": "Q",
    "tid": "I",
    "fd": "i",
    "stack": "I",
    "action": "B",
    "kind": "B",
    "error": "H",
    "aux": "i",
    "gen": "I",
}
ENTRY = {
    "t_ns": "Q",
    "stack": "I",
    "gen": "I",
    "tid": "I",
    "kind": "H",
    "flags": "H",
    "aux": "i",
    "closed_by": "I",
}
COUNTER = {
    "stack": "I",
    "kind": "H",
    "reserved": "H",
    "born": "I",
    "closed": "I",
    "live": "i",
    "peak": "I",
    "inherited_closed": "I",
    "foreign_closed": "I",
}

_HEADER = struct.Struct("<8sIIIIQQQIIIIQQQQQIIQIIIiiIQQIIIIIIIIIIQQII1792s256s1536sQ")
# The order of struct hf_header.
_FIELDS = """
magic version header_bytes pid parent_pid start_ns start_real_ns parent_start_ns options python max_fds ring_events
entries_at ring_at counters_at records_at file_bytes counter_base record_base ring_head counter_end record_end fds_end
live peak stopped finalizing_ns end_ns end_kind lost_stacks lost_children reentrant beyond bad failed close_unseen
birth_unseen short_stacks hook_ns hooks python_stacks stop_requested calls exe command pid_namespace
""".split()  # noqa: SIM905
_COUNTS = [*_FIELDS[_FIELDS.index("lost_stacks") : _FIELDS.index("hook_ns")], "hook_ns", "hooks"]
CODE = struct.Struct("<IHBBIIII")
STACK = struct.Struct("<IHHHHI")
_MAX_ROWS = 1 << 20  # of an array, whatever a header says
_MAX_RECORD_BYTES = 48 << 20
_WIDTHS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def field_offset(name: str) -> int:
    """Returns where a field of the header is."""
    types = re.findall(r"\d*[a-zA-Z]", _HEADER.format)
    return struct.calcsize(f"<{''.join(types[: _FIELDS.index(name)])}")


def pack_header(fields: Mapping[str, int | bytes]) -> bytes:
    """Makes a header. Fields that are not given are 0."""
    types = re.findall(r"\d*[a-zA-Z]", _HEADER.format)
    values = (fields.get(name, b"" if "s" in code else 0) for name, code in zip(_FIELDS, types, strict=True))
    return _HEADER.pack(*values)


class Frame(NamedTuple):
    """One line of Python code on a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Stack:
    """The stack of one call, innermost frame first. `addresses` are return addresses of C code."""

    frames: tuple[Frame, ...] = ()
    addresses: tuple[int, ...] = ()
    is_cut: bool = False


NO_STACK = Stack()


@dataclass(frozen=True)
class Header:
    """What the log says of its process image."""

    pid: int
    parent: tuple[int, int] | None  # pid and start_ns of the image that forked this one
    start_ns: int
    start_real_ns: int
    options: int
    python: int
    has_python_stacks: bool
    ring_events: int
    ring_head: int
    counter_base: int
    record_base: int
    live: int
    peak: int
    stopped: int
    finalizing_ns: int
    end_ns: int
    end_kind: int
    counts: Mapping[str, int]
    calls: tuple[str, ...]
    exe: str
    command: tuple[str, ...]
    pid_namespace: int


@dataclass(frozen=True)
class Image:
    """The log of one process image, read into memory."""

    header: Header
    events: Table  # EVENT, oldest first
    entries: Table  # ENTRY, indexed by descriptor
    counters: Table  # COUNTER
    records: bytes
    _codes: dict[int, tuple[str, str, list[tuple[int, int]], int] | None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        return self.header.pid, self.header.start_ns

    @property
    def dropped_events(self) -> int:
        """Number of events that the ring has overwritten."""
        return max(0, self.header.ring_head - self.header.ring_events)


def open_in_folder(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a file in a folder of logs, whose owner may be hostile to the user who traces.

    A file that another user has put there, a link, a pipe and a device are an OSError.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = os.fstat(folder)
        if seen.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "other users can write to the folder", str(path.parent))
        return open_regular(path.name, flags, uid=seen.st_uid, dir_fd=folder)
    finally:
        os.close(folder)


def read_in_folder(path: Path, max_bytes: int = 16 << 20) -> bytes:
    """Reads a small file of a folder of logs."""
    fd = open_in_folder(path)
    try:
        return os.pread(fd, max_bytes, 0)
    finally:
        os.close(fd)


def read_image(path: str | os.PathLike[str], *, only_counts: bool = False) -> Image:
    """Reads the log of one process image, which may still be running; `only_counts`: without events and stacks."""
    fd = open_in_folder(Path(path))
    try:
        head = os.pread(fd, _HEADER.size, 0)
        if len(head) < _HEADER.size:
            raise CorruptError(os.fspath(path), None, None, f"expected a descriptor log, got {len(head)} bytes")
        raw = dict(zip(_FIELDS, _HEADER.unpack(head), strict=True))
        if raw["magic"] != b"HFTRACE1" or raw["version"] != 1:
            raise CorruptError(
                os.fspath(path), None, None, f"expected a log of version 1, got {raw['magic']!r} {raw['version']}"
            )
        ring_head = raw["ring_head"]
        ring = _rows(fd, raw["ring_at"], 0 if only_counts else min(ring_head, raw["ring_events"]), EVENT)
        if ring_head > raw["ring_events"] and ring:
            oldest = ring_head * row_bytes(EVENT) % len(ring)
            ring = ring[oldest:] + ring[:oldest]
        entries = _rows(fd, raw["entries_at"], min(raw["fds_end"], raw["max_fds"]), ENTRY)
        maximum = max(0, raw["records_at"] - raw["counters_at"]) // row_bytes(COUNTER)
        counters = _rows(fd, raw["counters_at"], min(raw["counter_end"] - raw["counter_base"], maximum), COUNTER)
        units = 0 if only_counts else max(0, raw["record_end"] - raw["record_base"])
        records = _pread(fd, min(8 * units, _MAX_RECORD_BYTES), raw["records_at"])
    finally:
        os.close(fd)
    events, counts = Table.unpack(EVENT, ring), Table.unpack(COUNTER, counters)
    if 0 in events["t_ns"]:  # not written yet
        events = events.take([at for at, t_ns in enumerate(events["t_ns"]) if t_ns])
    used = [at for at, (born, closed) in enumerate(counts.rows("born", "inherited_closed")) if born or closed]
    return Image(
        _header(raw),
        events,
        Table.unpack(ENTRY, entries),
        counts if len(used) == len(counts) else counts.take(used),
        records,
    )


def _pread(fd: int, length: int, at: int) -> bytes:
    # Not a mapping: the process could make its file shorter, and reading the mapping would then end this process. So
    # would a hole in the file while the file system is full.
    return os.pread(fd, length, at) if length > 0 and at < 1 << 62 else b""


def _rows(fd: int, at: int, count: int, layout: Mapping[str, str]) -> bytes:
    """Reads packed rows, without one that the end of the file cuts."""
    size = row_bytes(layout)
    data = _pread(fd, min(count, _MAX_ROWS) * size, at)
    return data[: len(data) // size * size]


@functools.lru_cache(maxsize=8)
def _split_calls(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _header(raw: dict[str, object]) -> Header:
    def number(name: str) -> int:
        value = raw[name]
        assert isinstance(value, int)
        return value

    def text(name: str) -> str:
        value = raw[name]
        assert isinstance(value, bytes)
        return value.rstrip(b"\0").decode(errors="replace")

    parent = number("parent_pid")
    return Header(
        pid=number("pid"),
        parent=(parent, number("parent_start_ns")) if parent else None,
        start_ns=number("start_ns"),
        start_real_ns=number("start_real_ns"),
        options=number("options"),
        python=number("python"),
        has_python_stacks=bool(number("python_stacks")),
        ring_events=number("ring_events"),
        ring_head=number("ring_head"),
        counter_base=number("counter_base"),
        record_base=number("record_base"),
        live=number("live"),
        peak=number("peak"),
        stopped=number("stopped") & 0xFFFF,
        finalizing_ns=number("finalizing_ns"),
        end_ns=number("end_ns"),
        end_kind=number("end_kind"),
        counts={name: number(name) for name in _COUNTS},
        calls=_split_calls(text("calls")),
        exe=text("exe"),
        command=tuple(text("command").split("\0")),
        pid_namespace=number("pid_namespace"),
    )


class Stacks:
    """Resolves the stack ids of process images. An image that was forked refers to the records of its parent."""

    def __init__(self, images: Mapping[tuple[int, int], Image]) -> None:
        self._images = images
        self._known: dict[tuple[tuple[int, int], int], Stack] = {}

    def resolve(self, image: Image, stack: int) -> Stack:
        """Returns the stack of an id; one without frames if the log does not hold it."""
        if not stack:
            return NO_STACK
        owner = self._owner(image, stack)
        if owner is None:
            return NO_STACK
        key = (owner.key, stack)
        if key not in self._known:
            self._known[key] = self._read(owner, stack)
        return self._known[key]

    def _owner(self, image: Image, record: int) -> Image | None:
        """Returns the image whose log holds a record: this one or one of those that it was forked from."""
        found: Image | None = image
        for _ in range(len(self._images) + 1):
            if found is None or record >= found.header.record_base:
                return found
            found = self._images.get(found.header.parent) if found.header.parent else None
        return None  # a cycle, in a damaged log

    def _read(self, image: Image, stack: int) -> Stack:
        at = 8 * (stack - image.header.record_base)
        records = image.records
        if at < 0 or at + STACK.size > len(records):
            return NO_STACK
        _, kind, frames, native, flags, _ = STACK.unpack_from(records, at)
        at += STACK.size
        if kind != 2 or at + 8 * (frames + native) > len(records):
            return NO_STACK
        pairs = struct.unpack_from(f"<{2 * frames}I", records, at)
        addresses = struct.unpack_from(f"<{native}Q", records, at + 8 * frames)
        found = (self._frame(image, code, instr) for code, instr in zip(pairs[::2], pairs[1::2], strict=True))
        return Stack(tuple(found), addresses, bool(flags & 1))

    def _frame(self, image: Image, code: int, instr: int) -> Frame:
        owner = self._owner(image, code)
        if owner is None or not code:
            return Frame("?", 0, "?")
        if code not in owner._codes:
            owner._codes[code] = _read_code(owner.records, 8 * (code - owner.header.record_base))
        known = owner._codes[code]
        if known is None:
            return Frame("?", 0, "?")
        file, name, lines, first = known
        return Frame(file, next((line for end, line in lines if instr < end), first), name)


def _read_code(records: bytes, at: int) -> tuple[str, str, list[tuple[int, int]], int] | None:
    """Returns the file, the function, (end of a range of instructions, its line) in order, and the first line."""
    if at < 0 or at + CODE.size > len(records):
        return None
    _, kind, file_width, name_width, first, file_bytes, name_bytes, table_bytes = CODE.unpack_from(records, at)
    at += CODE.size
    if kind != 1 or at + file_bytes + name_bytes + table_bytes > len(records):
        return None
    file = records[at : at + file_bytes].decode(_WIDTHS.get(file_width, "latin-1"), "replace")
    at += file_bytes
    name = records[at : at + name_bytes].decode(_WIDTHS.get(name_width, "latin-1"), "replace")
    at += name_bytes
    return file, name, list(_line_ranges(records[at : at + table_bytes], first)), first


def _line_ranges(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    """Decodes a line table of Python 3.11 or later: (end offset in bytes, line) for every range of instructions."""
    at = end = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(table):
            byte = table[at]
            at += 1
            value |= (byte & 63) << shift
            shift += 6
            if not byte & 64:
                break
        return value

    def signed() -> int:
        value = varint()
        return -(value >> 1) if value & 1 else value >> 1

    while at < len(table):
        first = table[at]
        at += 1
        end += 2 * ((first & 7) + 1)
        code = first >> 3 & 15
        shown = line
        if code == 15:  # no line: an instruction that the compiler added; Python reports none
            shown = 0
        elif code == 14:
            line += signed()
            varint(), varint(), varint()
        elif code == 13:
            line += signed()
        elif code >= 10:
            line += code - 10
            at += 2
        else:
            at += 1
        yield end, (0 if code == 15 else line) or shown


def read_folder(folder: str | os.PathLike[str]) -> tuple[dict[tuple[int, int], Image], list[str]]:
    """Reads every log of a recording. Returns the images and a sentence for each file that could not be read."""
    images: dict[tuple[int, int], Image] = {}
    problems: list[str] = []
    for path in sorted(Path(folder).glob("fd.*.log")):
        try:
            image = read_image(path)
        except FileNotFoundError:
            continue  # the collector has taken it
        except OSError as error:
            problems.append(f"the log {path.name} was left out: {error.strerror}")
        except (CorruptError, ValueError) as error:
            problems.append(str(error))
        else:
            images[image.key] = image
    return images, problems
