"""Caps that the supervisor enforces from outside, for programs that know nothing of holdfast. Pure.

fds       the descriptors of each process: a number, or a fraction of that process's own soft limit
threads   the threads of each process
rss       the resident memory of the worker and its descendants together; shared pages count more than once
children  the number of the worker's descendants
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..._util.text import counted, format_bytes, parse_bytes
from .policy import RestartReason


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideCap:
    """Over `soft` the worker is recycled, over `hard` it is ended. A float is a fraction of the process's limit."""

    soft: int | float | None = None
    hard: int | float | None = None


def parse_fd_cap(text: object) -> OutsideCap:
    """Parses `0.5`, `50%`, `800`, `0.5:0.85`, `:0.85`; raises ValueError."""
    return _parse(text, _fds)


def parse_size_cap(text: object) -> OutsideCap:
    """Parses `24GiB`, `24GiB:30GiB`; raises ValueError."""
    return _parse(text, parse_bytes)


def parse_count_cap(text: object) -> OutsideCap:
    """Parses `200`, `200:300`; raises ValueError."""
    return _parse(text, _count)


def _parse(text: object, parse: Callable[[str], int | float]) -> OutsideCap:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"expected SOFT, SOFT:HARD or :HARD, got {text!r}")
    soft, _, hard = str(text).partition(":")
    if not soft.strip() and not hard.strip():
        raise ValueError(f"expected SOFT, SOFT:HARD or :HARD, got {text!r}")
    cap = OutsideCap(
        soft=parse(soft.strip()) if soft.strip() else None, hard=parse(hard.strip()) if hard.strip() else None
    )
    if cap.soft is not None and cap.hard is not None and type(cap.soft) is type(cap.hard) and cap.soft > cap.hard:
        raise ValueError(f"expected a soft cap of at most the hard one, got {text!r}")
    return cap


def _fds(text: str) -> int | float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if match or re.fullmatch(r"\d*\.\d+", text):
        part = float(match[1]) / 100 if match else float(text)
        if not 0 < part <= 1:
            raise ValueError(f"expected a fraction above 0 and at most 1 of the limit, got {text!r}")
        return part
    return _count(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or not int(text):
        raise ValueError(f"expected a number of at least 1, got {text!r}")
    return int(text)


class ProcessUse(NamedTuple):
    """What one process of a worker's tree uses. None: unknown."""

    pid: int
    fds: int | None
    fd_limit: float | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUse:
    """What a worker and its descendants use."""

    processes: tuple[ProcessUse, ...]
    rss_bytes: int

    @property
    def children(self) -> int:
        return len(self.processes) - 1


class Breach(NamedTuple):
    reason: RestartReason
    is_hard: bool
    sentence: str


Caps = Mapping[RestartReason, OutsideCap]


def find_breach(caps: Caps, use: TreeUse) -> Breach | None:
    """Returns the worst breach: a hard one first."""
    found = [breach for reason, cap in caps.items() for breach in _CHECKS[reason](cap, use)]
    return min(found, key=lambda breach: not breach.is_hard, default=None)


def _check_fds(cap: OutsideCap, use: TreeUse) -> Iterator[Breach]:
    for process in use.processes:
        for value, is_hard in ((cap.hard, True), (cap.soft, False)):
            if value is None or process.fds is None:
                continue
            if isinstance(value, float):
                if process.fd_limit is None:
                    continue
                most, of = value * process.fd_limit, f" ({value:.0%} of its limit of {process.fd_limit:,.0f})"
            else:
                most, of = value, ""
            if process.fds > most:
                text = f"process {process.pid} has {counted(process.fds, 'descriptor')}, over its {_name(is_hard)} cap"
                yield Breach(RestartReason.FDS, is_hard, f"{text} of {int(most):,}{of}")
                break


def _check_threads(cap: OutsideCap, use: TreeUse) -> Iterator[Breach]:
    for process in use.processes:
        what = f"process {process.pid} has {counted(process.threads, 'thread')}"
        yield from _check(RestartReason.THREADS, cap, process.threads, what, "{:,}".format)


def _check_rss(cap: OutsideCap, use: TreeUse) -> Iterator[Breach]:
    over = f" in {counted(len(use.processes), 'process')}" if use.children else ""
    what = f"it uses {format_bytes(use.rss_bytes)} of memory{over}"
    yield from _check(RestartReason.RSS, cap, use.rss_bytes, what, format_bytes)


def _check_children(cap: OutsideCap, use: TreeUse) -> Iterator[Breach]:
    what = f"it has {counted(use.children, 'child process')}"
    yield from _check(RestartReason.CHILDREN, cap, use.children, what, "{:,}".format)


def _check(
    reason: RestartReason, cap: OutsideCap, value: int, what: str, write: Callable[[int], str]
) -> Iterator[Breach]:
    for most, is_hard in ((cap.hard, True), (cap.soft, False)):
        if most is not None and value > most:
            yield Breach(reason, is_hard, f"{what}, over the {_name(is_hard)} cap of {write(int(most))}")
            return


def _name(is_hard: bool) -> str:
    return "hard" if is_hard else "soft"


_CHECKS: dict[RestartReason, Callable[[OutsideCap, TreeUse], Iterator[Breach]]] = {
    RestartReason.FDS: _check_fds,
    RestartReason.THREADS: _check_threads,
    RestartReason.RSS: _check_rss,
    RestartReason.CHILDREN: _check_children,
}
