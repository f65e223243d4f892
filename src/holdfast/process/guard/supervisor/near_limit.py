"""Finds processes that have used up their descriptors, for programs without caps and without a Guard.

A program at its limit often goes on: its loop runs, and whatever needs a descriptor fails. It is replaced if that is
its lasting state: at least 95 % of the soft limit in 60 scans in a row, the same descriptors at the end as at the
beginning, and at least half of them of no use to anybody else, such as pipes without another end. Descriptors that come
and go belong to a program that works, connections may be those of a server, and different files those of a dataset: a
process that holds these is only reported. So is one whose descriptors cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ...._util.text import one_line, span_words
from ....procfs.descriptors import Kind, count
from ....procfs.limits import process_limits
from ....procfs.procfs import REAL, readlink_or_none

if TYPE_CHECKING:
    from ...doctor.model import FdProfile

NEAR = 0.95
_SCANS = 60
_LEAST_LIMIT = 64  # sandboxes lower their limit to what they have open
_SAMPLED = 200
_MAX_CHANGED = 0.1
_LEFT_ALONE = "it is left alone (--fds 95% has it replaced)"
_USELESS, _USED = "-", "+"
Links = dict[int, str]


class LimitFinding(NamedTuple):
    """`must_end`: the process has used up its descriptors. Otherwise the sentence is only to be reported."""

    pid: int
    sentence: str
    must_end: bool


@dataclass(slots=True)
class _Near:
    """A process near its limit. `use` is what `write_use` has found."""

    since_s: float
    scans: int = 0
    links: Links = field(default_factory=dict)
    use: str | None = None
    was_reported: bool = False


class LimitWatch:
    """Remembers which processes of one worker are near their limit. Times are passed in."""

    def __init__(self) -> None:
        self.wants_use = 0  # the process whose descriptors `write_use` must read
        self._limits: dict[int, int | None] = {}
        self._near: dict[int, _Near] = {}
        self._scans = 0

    def scan(self, pids: Iterable[int], now_s: float) -> LimitFinding | None:
        """Returns a process that must end, or one to report."""
        self._scans += 1
        pids = list(pids)
        self._limits = {pid: limit for pid, limit in self._limits.items() if pid in pids}
        self._near = {pid: near for pid, near in self._near.items() if pid in pids}
        found = [finding for pid in pids if (finding := self._scan_process(pid, now_s)) is not None]
        return max(found, key=lambda finding: finding.must_end, default=None)

    def learned_use(self, pid: int, use: str) -> None:
        """Takes the output of `write_use`; empty: it did not end in time."""
        if pid in self._near:
            self._near[pid].use = use

    def restart_clock(self) -> None:
        self._near.clear()

    def _scan_process(self, pid: int, now_s: float) -> LimitFinding | None:
        fds = count(REAL, pid)
        if not is_near(fds, self._limit(pid)) or not is_near(fds, limit := self._limit(pid, again=True)):
            self._near.pop(pid, None)
            return None
        assert fds is not None
        assert limit is not None
        near = self._near.setdefault(pid, _Near(now_s))
        near.scans += 1
        if near.scans == 1:
            near.links = _sample(pid, max(fds, limit))
        if near.scans < _SCANS:
            return None
        if near.use is None and _are_same(near.links, _sample(pid, max(fds, limit))):
            if near.scans == _SCANS:
                self.wants_use = pid
            return None
        self._near[pid] = _Near(near.since_s, was_reported=True)  # from the beginning, if it is left alone
        of = f"of its {limit:,} descriptors" if fds <= limit else f"descriptors, more than its limit of {limit:,},"
        sentence = f"it has used {fds:,} {of} for {span_words(now_s - near.since_s)}"
        if near.use is not None and near.use.startswith(_USELESS):
            return LimitFinding(pid, f"{sentence}: {near.use.removeprefix(_USELESS)}", must_end=True)
        why = "they come and go" if near.use is None else "they may be in use" if near.use else "they cannot be read"
        return None if near.was_reported else LimitFinding(pid, f"{sentence}; {why}, so {_LEFT_ALONE}", must_end=False)

    def _limit(self, pid: int, *, again: bool = False) -> int | None:
        """Reads the limit only now and then, unless it matters: that takes ten times as long as counting."""
        if again or pid not in self._limits or (pid + self._scans) % _SCANS == 0:
            soft = process_limits(REAL, pid, None, None)[0].soft
            self._limits[pid] = None if soft is None or soft == float("inf") else int(soft)
        return self._limits[pid]


def is_near(fds: int | None, limit: int | None) -> bool:
    """A process that holds more than its limit has lowered it: it can open nothing either."""
    return fds is not None and limit is not None and limit >= _LEAST_LIMIT and fds >= NEAR * limit


def _sample(pid: int, maximum: int) -> Links:
    """Returns what some descriptors are, evenly spread over the numbers that the process may have."""
    fds = range(3, maximum, max(1, maximum // _SAMPLED))
    links = {fd: readlink_or_none(REAL, f"/proc/{pid}/fd/{fd}") for fd in fds}
    return {fd: link for fd, link in links.items() if link is not None}


def _are_same(before: Links, after: Links) -> bool:
    same = sum(before.get(fd) == link for fd, link in after.items())
    return same >= (1 - _MAX_CHANGED) * max(len(before), len(after))


def write_use(pid: int, write: int) -> None:
    """Writes what the descriptors of a process are good for. It may take seconds, and runs in a process of its own."""
    from ...doctor.diagnose import diagnose  # not in the supervisor, which is small and starts quickly

    found = diagnose(pid, tree=False)[0]
    profile = found.diagnosis.profile
    if found.snapshot.descriptors is None or profile is None:
        return
    match = found.diagnosis.match
    cause = f"looks like {match.cause}" if match is not None else "they are of no use to another process"
    os.write(write, f"{_USELESS}{one_line(cause)}".encode() if are_useless(profile) else _USED.encode())


def are_useless(profile: FdProfile) -> bool:
    """Whether at least half are neither connections nor pipes to living processes nor different files."""
    again = profile.most_opened.times if profile.most_opened is not None else 0
    files = max(0, profile.kinds.get(Kind.FILE, 0) + profile.kinds.get(Kind.DEVICE, 0) - again)
    sockets = profile.kinds.get(Kind.SOCKET, 0) - profile.close_wait
    return 2 * (profile.live + profile.unknown + sockets + files) <= profile.fds
