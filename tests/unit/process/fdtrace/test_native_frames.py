"""C frames get the names of their functions."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.native_frames import NO_SYMBOLS, MappedFile, NativeFrames, parse_maps, read_symbols
from traced_process import needs_library

MAPS = """\
55d0a0000000-55d0a0001000 r--p 00000000 fe:01 10 /usr/bin/tool
55d0a0001000-55d0a0002000 r-xp 00001000 fe:01 10 /usr/bin/tool
55d0a0004000-55d0a0005000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r-xp 00002000 fe:01 11 /opt/with space/lib (deleted)
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0 [vdso]
not a line
"""


def test_the_map_of_a_process() -> None:
    assert parse_maps(MAPS) == [
        MappedFile(0x55D0A0001000, 0x55D0A0002000, 0x1000, "/usr/bin/tool"),
        MappedFile(0x7F0000000000, 0x7F0000001000, 0x2000, "/opt/with space/lib (deleted)"),
    ]
    assert parse_maps("") == []


def test_functions_of_this_process() -> None:
    maps = parse_maps(Path("/proc/self/maps").read_text())
    frames = NativeFrames()
    libc = ctypes.CDLL(None)
    for name in ("strtol", "qsort", "getpid"):
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        assert address is not None
        [line] = frames.describe([address + 2], maps)
        function, _, library = line.partition("+0x1 ")
        assert function.lstrip("_").startswith((name, "IO_", "libc_")), line
        assert library.startswith("(libc")


def test_what_has_no_name() -> None:
    maps = parse_maps(MAPS)
    assert NativeFrames().describe([0x55D0A0001235, 0x1000, 0x55D0A0002001], maps) == [
        "tool+0x1234",
        "0x1000",
        "0x55d0a0002001",
    ]
    assert NativeFrames().describe([0x10], []) == ["0x10"]


def test_a_damaged_file_has_no_symbols_or_other_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    for data in (b"", b"\x7fELF", b"#!/bin/sh\n", os.urandom(4096)):
        path.write_bytes(data)
        assert read_symbols(str(path)) == NO_SYMBOLS
    assert read_symbols(str(tmp_path / "none")) == NO_SYMBOLS
    good = Path(sys.modules["_ctypes"].__file__ or "").read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(20):
            damaged[chance.choice((chance.randrange(64), chance.randrange(len(good))))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.randrange(64, len(good))] if chance.random() < 0.3 else damaged)
        read_symbols(str(path)).name(0x2000)


@needs_library
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_the_trace_command_names_c_frames(end: str, tmp_path: Path) -> None:
    code = f"import os, time\nos.dup(0)\ntime.sleep({1.5 if end else 0})\n{end}\n"
    output = tmp_path / "run.hft"
    command = [sys.executable, "-m", "holdfast", "trace", "-q", "--native", "-o", str(output), "-c", code]
    assert subprocess.run(command, timeout=60).returncode == (-9 if end else 0)
    trace = trace_file.load(output)
    [stack] = [number for number in trace.native if [frame.line for frame in trace.frames_of(number)] == [2]]
    assert "(libpython3" in trace.native[stack][0] or "(python3" in trace.native[stack][0]
    assert any("Eval" in line for line in trace.native[stack])
