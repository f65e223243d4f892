"""What the demo's steps share: the dataset and what was done to it, and how a step tells what came out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..formats.tfrecord.manifest import FileEntry
from .screen import Screen


@dataclass
class Damage:
    shard: int
    done: str  # as a person would say it
    offset: int  # in the file
    lost: range  # the records that cannot be got back


@dataclass
class Stage:
    folder: Path
    entries: list[FileEntry] = field(default_factory=list)  # of the shards, as they were written
    labels: Any = None  # of all records, for comparison
    damages: list[Damage] = field(default_factory=list)
    salvaged: dict[int, Path] = field(default_factory=dict)  # by shard

    def shard(self, number: int) -> Path:
        return Path(self.entries[number].path)

    def original(self, number: int) -> Path:
        return self.folder / "originals" / self.shard(number).name

    def damage_of(self, number: int) -> Damage | None:
        return next((damage for damage in self.damages if damage.shard == number), None)


@dataclass
class Outcome:
    """What a step says and found out. `checks` hold what must be so."""

    name: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    parts: list[str | tuple[list[str], Sequence[Sequence[str]]]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    def say(self, line: str) -> None:
        self.parts.append(line)

    def table(self, heads: list[str], rows: Sequence[Sequence[str]]) -> None:
        self.parts.append((heads, rows))

    def check(self, what: str, ok: bool) -> None:
        self.checks[what] = bool(ok)

    def show(self, screen: Screen) -> None:
        for part in self.parts:
            if isinstance(part, str):
                screen.print(part)
            else:
                screen.table(*part)
        for what, ok in self.checks.items():
            screen.print(screen.styled("✓ " if ok else "✗ ", "bold green" if ok else "bold red"), what)
        screen.print()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "seconds": round(self.seconds, 3), "facts": self.facts}


def rate(n: int, seconds: float) -> float:
    return n / max(seconds, 1e-9)


def open_descriptors() -> int | None:
    """Of this process; None where there is no /proc."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing's own
    except OSError:
        return None


class MemoryMeter:
    """How far memory rose above where it was. Linux: the kernel's high-water mark can be set back there."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._start = self._read("VmRSS")
        except OSError:
            self._start = None

    def rise_bytes(self) -> int | None:
        if self._start is None:
            return None
        peak = self._read("VmHWM")
        return None if peak is None else max(peak - self._start, 0)

    @staticmethod
    def _read(name: str) -> int | None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return None
