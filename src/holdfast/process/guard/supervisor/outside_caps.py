"""Caps that the supervisor enforces from outside, for programs that know nothing of holdfast. Pure.

fds       the descriptors of each process: a number, or a part of that process's own soft limit
threads   the threads of each process
rss       the memory of the worker and its descendants together
children  the number of the worker's descendants
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..caps import CHILDREN, FDS, RSS, THREADS, Amount, Cap, CappedResource, CapWatch, parse_amount
from .worker_machine import RestartReason

RESOURCES = {
    RestartReason.FDS: FDS,
    RestartReason.RSS: RSS,
    RestartReason.THREADS: THREADS,
    RestartReason.CHILDREN: CHILDREN,
}
Caps = Mapping[RestartReason, Cap]
CapWatches = dict[tuple[RestartReason, int], CapWatch]  # by the process that is watched
_SHAPE = "expected SOFT, SOFT:HARD or :HARD"


def cap_parser(what: CappedResource) -> Callable[[object], Cap]:
    """Returns the function that parses `0.5`, `50%`, `800`, `24GiB:30GiB` or `:0.85`, or raises ValueError."""

    def parse(value: object) -> Cap:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{_SHAPE}, got {value!r}")
        soft, _, hard = str(value).partition(":")
        if not soft.strip() and not hard.strip():
            raise ValueError(f"{_SHAPE}, got {value!r}")
        try:
            cap = what.check(Cap(soft=_amount(soft), hard=_amount(hard)))
        except ValueError as error:
            raise ValueError(f"{_SHAPE}: {error}") from None
        assert cap is not None
        for one in (cap.soft, cap.hard):
            if what is RSS and isinstance(parse_amount(one, what.name), float):
                raise ValueError(f"expected a size such as 24GiB, got the part {one!r}")
            if what is not RSS and isinstance(one, str) and not one.endswith("%"):
                raise ValueError(f"expected a number of {what.noun}, got {one!r}")
        return cap

    return parse


def _amount(text: str) -> Amount:
    text = text.strip()
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+", text) else text or None


class ProcessUse(NamedTuple):
    """What one process of a worker's tree uses. None: unknown."""

    pid: int
    fds: int | None
    fd_limit: int | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUse:
    """What a worker, the first of `processes`, and its descendants use. `memory_bytes` is None while not known."""

    processes: tuple[ProcessUse, ...]
    memory_bytes: int | None

    @property
    def children(self) -> int:
        return len(self.processes) - 1


class Breach(NamedTuple):
    reason: RestartReason
    is_hard: bool
    sentence: str


def find_breach(caps: Caps, use: TreeUse, watches: CapWatches) -> Breach | None:
    """Returns the worst breach, a hard one first; None if all caps are kept. `watches` is what earlier scans found:
    a soft cap may be exceeded for a while."""
    here = {process.pid for process in use.processes}
    for key in [key for key in watches if key[1] not in here]:
        del watches[key]
    found = [breach for reason, cap in caps.items() for breach in _breaches(reason, cap, use, watches)]
    return min(found, key=lambda breach: not breach.is_hard, default=None)


def _breaches(reason: RestartReason, cap: Cap, use: TreeUse, watches: CapWatches) -> Iterator[Breach]:
    what = RESOURCES[reason]
    for pid, used, limit in _uses(reason, use):
        resolved = what.resolve(cap, limit)
        which = watches.setdefault((reason, pid), CapWatch()).check(used, resolved)
        if which:
            sentence = what.sentence(used, resolved, which)
            whose = f"process {pid}: " if pid != use.processes[0].pid else ""
            yield Breach(reason, which == "hard", f"{whose}{sentence}")


def _uses(reason: RestartReason, use: TreeUse) -> Iterator[tuple[int, int, int | None]]:
    """Yields whose use it is, how much, and of what limit."""
    worker = use.processes[0].pid
    if reason is RestartReason.RSS and use.memory_bytes is not None:
        yield worker, use.memory_bytes, None
    if reason is RestartReason.CHILDREN:
        yield worker, use.children, None
    for process in use.processes:
        if reason is RestartReason.FDS and process.fds is not None:
            yield process.pid, process.fds, process.fd_limit
        if reason is RestartReason.THREADS:
            yield process.pid, process.threads, None
