"""Names the C function of a return address, from the memory map of a process and the symbols of its libraries."""

from __future__ import annotations

import bisect
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..._util.fds import open_regular

_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_LOAD = 1
_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_MAX_NAME = 512
_MAX_BYTES = 1 << 30


class MappedFile(NamedTuple):
    """An executable part of a file in the memory of a process."""

    start: int
    end: int
    offset: int
    path: str


def parse_maps(text: str) -> list[MappedFile]:
    """Parses `/proc/PID/maps` and returns what is executable and comes from a file, by address.

    ```
    7f0e4c1d3000-7f0e4c328000 r-xp 00026000 fe:01 1055 /usr/lib/x86_64-linux-gnu/libc.so.6
    ```
    """
    found = []
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and "x" in words[1] and words[5].startswith("/"):
            start, _, end = words[0].partition("-")
            try:
                found.append(MappedFile(int(start, 16), int(end, 16), int(words[2], 16), words[5]))
            except ValueError:
                continue
    return sorted(found)


@dataclass(frozen=True)
class Symbols:
    """The functions of an ELF file by address, and where the parts of the file are loaded."""

    loads: Sequence[tuple[int, int, int]]  # offset in the file, bytes, address
    starts: Sequence[int]
    sizes: Sequence[int]
    names: Sequence[str]

    def name(self, offset: int) -> str:
        """Returns `function+0x1f` for an offset in the file, "" if no function is known there."""
        address = next((offset - at + to for at, size, to in self.loads if at <= offset < at + size), None)
        if address is None or not self.starts:
            return ""
        number = bisect.bisect_right(self.starts, address) - 1
        if number < 0:
            return ""
        into = address - self.starts[number]
        size = self.sizes[number]
        return f"{self.names[number]}+{into:#x}" if not size or into < size else ""


NO_SYMBOLS = Symbols((), (), (), ())


def read_symbols(path: str) -> Symbols:
    """Reads the symbols of a 64-bit ELF file; none if it is gone, stripped or damaged."""
    try:
        with open(open_regular(path, follow=True), "rb") as file:
            if os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
                return _parse_elf(file.read(_MAX_BYTES))  # its owner could cut it, and reading a mapping would fail
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse_elf(data)
    except (OSError, ValueError, struct.error, IndexError, OverflowError):
        return NO_SYMBOLS


def _parse_elf(data: mmap.mmap | bytes) -> Symbols:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    programs_at, sections_at = struct.unpack_from("<QQ", data, 32)
    program_bytes, programs, section_bytes, sections = struct.unpack_from("<HHHH", data, 54)
    loads = []
    for number in range(programs):
        kind, _, offset, address, _, size, _, _ = _PROGRAM_HEADER.unpack_from(
            data, programs_at + number * program_bytes
        )
        if kind == _LOAD:
            loads.append((offset, size, address))
    headers = [_SECTION_HEADER.unpack_from(data, sections_at + number * section_bytes) for number in range(sections)]
    found: dict[int, tuple[int, str]] = {}
    for _, kind, _, _, at, size, link, _, _, _ in headers:
        if kind not in _TABLES or link >= len(headers):
            continue
        strings = headers[link][4]
        for name, info, _, section, value, length in _SYMBOL.iter_unpack(
            data[at : at + size // _SYMBOL.size * _SYMBOL.size]
        ):
            if info & 15 in _FUNCTIONS and section and value and value not in found:
                name_at = strings + name
                end = data.find(b"\0", name_at, name_at + _MAX_NAME)
                found[value] = (length, data[name_at : max(end, name_at)].decode(errors="replace"))
    order = sorted(found)
    return Symbols(loads, order, [found[start][0] for start in order], [found[start][1] for start in order])


class NativeFrames:
    """Names return addresses. The symbols of a file are read once."""

    def __init__(self) -> None:
        self._symbols: dict[str, Symbols] = {}

    def describe(self, addresses: Sequence[int], mappings: Sequence[MappedFile]) -> list[str]:
        """Returns a line for each address: `PyObject_Vectorcall+0x2c (python3.11)` or `libfoo.so+0x1234`."""
        return [self._describe(address, mappings) for address in addresses]

    def _describe(self, address: int, mappings: Sequence[MappedFile]) -> str:
        at = address - 1  # the call, not the instruction after it, which may be that of the next function
        number = bisect.bisect_right(mappings, at, key=lambda mapping: mapping.start) - 1
        if number < 0 or at >= mappings[number].end:
            return f"{address:#x}"
        mapping = mappings[number]
        offset = at - mapping.start + mapping.offset
        if mapping.path not in self._symbols:
            self._symbols[mapping.path] = read_symbols(mapping.path)
        file = os.path.basename(mapping.path)
        name = self._symbols[mapping.path].name(offset)
        return f"{name} ({file})" if name else f"{file}+{offset:#x}"
