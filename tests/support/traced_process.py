"""Runs a program under the descriptor tracing library and reads what it has recorded."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import holdfast._native
from holdfast.process.fdtrace.image import Frame, Image, Stacks, read_folder
from holdfast.process.fdtrace.log_format import BIRTH, CLOSE, KINDS, LIVE
from holdfast.process.fdtrace.tables import Table

LIBRARY = Path(holdfast._native.__file__).parent / "_fdtrace.abi3.so"

needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the tracing library was not built (no C compiler)")


@functools.cache
def interpreters() -> dict[str, str]:
    """Return every CPython of this machine whose frames the library can read, by version."""
    candidates = [
        Path(sys.executable),
        *sorted(Path("/usr/bin").glob("python3.*")),
        *sorted(Path.home().glob(".pyenv/versions/*/bin/python3")),
    ]
    found: dict[str, str] = {}
    for path in candidates:
        if not re.fullmatch(r"python[0-9.]*", path.name) or not os.access(path, os.X_OK):
            continue
        ask = "import sys; print(sys.version.split()[0], sys.implementation.name, getattr(sys, 'abiflags', ''))"
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=60)
        version, implementation, flags = (done.stdout.split(" ") + [""] * 3)[:3]
        supported = version.startswith(("3.11.", "3.12.", "3.13.", "3.14."))
        if supported and implementation == "cpython" and "t" not in flags.strip():
            found.setdefault(version, str(path))
    return found


@dataclass(frozen=True)
class Recording:
    images: dict[tuple[int, int], Image]
    problems: list[str]

    @functools.cached_property
    def stacks(self) -> Stacks:
        return Stacks(self.images)

    def image(self, pid: int | None = None) -> Image:
        """Return the only image of the recording, or the last one of a process."""
        found = [image for key, image in sorted(self.images.items()) if pid in (None, key[0])]
        assert found, f"expected an image of process {pid}, got {list(self.images)}"
        assert pid is not None or len(found) == 1, f"expected one image, got {list(self.images)}"
        return max(found, key=lambda image: image.header.start_ns)

    def frames(self, image: Image, event: np.void) -> tuple[Frame, ...]:
        return self.stacks.resolve(image, int(event["stack"])).frames


def environment(folder: Path, options: int = 0, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment that makes a program and its children record into a folder."""
    return {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "HOLDFAST_FDTRACE_DIR": str(folder),
        "HOLDFAST_FDTRACE_OPTIONS": str(options),
        **(extra or {}),
    }


def run(
    command: Sequence[str | os.PathLike[str]],
    folder: Path,
    *,
    options: int = 0,
    extra: Mapping[str, str] | None = None,
    status: int | None = 0,
    timeout: float = 120,
) -> tuple[Recording, str]:
    """Run a command to its end. Returns what was recorded, and its output."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        env=environment(folder, options, extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        errors="replace",
    )
    assert status is None or done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return read(folder), done.stdout


def read(folder: Path) -> Recording:
    return Recording(*read_folder(folder))


def as_array(table: Table, **wanted: int) -> np.ndarray:
    """Return a table as a numpy array, of the rows that have these values in these fields."""
    types = {"d": "f8", "Q": "u8", "I": "u4", "i": "i4", "H": "u2", "B": "u1"}
    rows = np.frombuffer(table.pack(), [(name, f"<{types[code]}") for name, code in table.layout.items()])
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def live_numbers(image: Image) -> set[int]:
    return {int(fd) for fd in np.flatnonzero(as_array(image.entries)["flags"] & LIVE)}


def history(image: Image, fd: int) -> list[tuple[int, str]]:
    """Return the births and closes of a number: (action, kind)."""
    events = as_array(image.events, fd=fd)
    return [(int(event["action"]), KINDS[event["kind"]]) for event in events if event["action"] in (BIRTH, CLOSE)]


def assert_adds_up(image: Image) -> None:
    """Check that the counters by stack, the table and the totals of an image say the same."""
    live = as_array(image.entries)[(as_array(image.entries)["flags"] & LIVE) > 0]
    assert image.header.live == len(live)
    own = live[live["flags"] == LIVE]
    counters = as_array(image.counters)
    assert int(counters["born"].sum()) - int(counters["closed"].sum()) == len(own)
    assert int(counters["live"].sum()) == len(own)
    assert not image.header.counts["lost_stacks"]
    by_stack = {int(stack): int((own["stack"] == stack).sum()) for stack in np.unique(own["stack"])}
    counted: dict[int, int] = {}
    for counter in counters:
        counted[int(counter["stack"])] = counted.get(int(counter["stack"]), 0) + int(counter["live"])
    assert by_stack == {stack: count for stack, count in counted.items() if count}
