"""Looks cheap enough to be taken all the time: the vitals every few seconds, a sample of the kinds every minute."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

from .descriptors import Kind, count, count_kinds, describe_all, list_fds
from .limits import count_threads
from .procfs import ProcFS, read_or_none

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """None is unknown, or gone."""

    fds: int | None
    rss_bytes: int | None
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSample:
    """`seen` of `looked` descriptors, chosen evenly over all `fd_count` of them."""

    fd_count: int
    looked: int
    seen: dict[Kind, int]

    @property
    def estimate(self) -> dict[Kind, int]:
        """How many of each kind the process has, scaled up."""
        if not self.looked:
            return {}
        return {kind: round(times * self.fd_count / self.looked) for kind, times in self.seen.items()}


def parse_statm(text: str) -> int | None:
    """`3014 1520 803 1 0 790 0\\n`: the second number is the resident size in pages -> bytes."""
    words = text.split()
    return int(words[1]) * _PAGE_BYTES if len(words) > 1 and words[1].isdigit() else None


def read_vitals(procfs: ProcFS, pid: int) -> Vitals:
    """Two stats and one small read, which a `HeldProcFS` that holds `/proc/PID/statm` does without opening it.

    A pid does not say whether it is still the same process: ask `is_same` now and then.
    """
    return Vitals(
        fds=count(procfs, pid),
        rss_bytes=parse_statm(read_or_none(procfs, f"/proc/{pid}/statm") or ""),
        threads=count_threads(procfs, pid),
    )


def sample_kinds(procfs: ProcFS, pid: int, n: int = 300, chance: random.Random | None = None) -> KindSample | None:
    """The mix of kinds from `n` descriptors, or all if there are fewer; None if they may not be seen.

    One is drawn from each of `n` equal stretches of the numbers: descriptors opened together lie together, and a plain
    draw would miss whole stretches.
    """
    if n < 1:
        raise ValueError(f"expected a sample of at least one descriptor, got {n}")
    numbers = list_fds(procfs, pid)
    if numbers is None:
        return None
    chance = chance or random.Random()
    total = len(numbers)
    if total > n:
        edges = [total * at // n for at in range(n + 1)]
        numbers = [numbers[chance.randrange(edges[at], edges[at + 1])] for at in range(n)]
    found = describe_all(procfs, pid, numbers)
    fds = count(procfs, pid)
    return KindSample(fd_count=total if fds is None else fds, looked=len(found), seen=count_kinds(found))
