"""Counts what each place in the code made, closed and still has open, and finds those that grow.

A site is the innermost line of the user's code on a stack. Frames of the standard library and of installed packages
below it are folded: a leak of `DataLoader` belongs to the line that made the loader, not to `multiprocessing`.
"""

from __future__ import annotations

import errno
import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from operator import add, itemgetter
from pathlib import Path
from typing import NamedTuple

from ..doctor.trend import LEAST_RISE, find_slope
from .log_format import BEFORE, BIRTH, FAIL, INHERITED, KINDS
from .trace_file import SourceFrame, Trace, TracedProcess

GRID = 240
_BINS = 12
# A leak that begins late rises in a tail of the run: a half, a quarter, … of it. A tail is longer than it takes to open
# a pool, and the rise exceeds what pools have; half a pool where the line had closed most of what it opened before.
_TAILS, _LEAST_TAIL_S, _LATE_RISE = 6, 0.1, 64
_MOMENT_S = 1e-9
# Not any folder named holdfast: a user's project may have that name.
_PACKAGE = re.escape(str(Path(__file__).parents[2]))
_LIBRARY = re.compile(rf"/(site|dist)-packages/|/lib(64)?/python3?[\d.]*/|^<frozen |^<string>$|^{_PACKAGE}/")
_OWN = re.compile(r"/holdfast/(process/)?(fdtrace|fd_owners)/")


def is_library(file: str) -> bool:
    """Returns whether a file belongs to the standard library or an installed package."""
    return bool(_LIBRARY.search(file))


def is_own(file: str) -> bool:
    """Returns whether a file belongs to the part of holdfast that runs inside a traced program."""
    return bool(_OWN.search(file))


@dataclass(frozen=True)
class Site:
    """One place that makes descriptors.

    `growth` is the rise of the site's baseline since its first descriptor, `per_minute` its slope; both are 0 if it
    does not grow. `tail_s`: it grew only in so many last seconds, 0 if for longer.
    `live` counts at the end of the recording, and in each process before the interpreter shut down; `kinds` are theirs.
    `born` and `closed` count up to then, too; the end of a process closes what it has open.
    `inherited` are copies in forked processes of what this site made. `closed_elsewhere` were closed by another thread.
    """

    frame: SourceFrame
    stacks: tuple[int, ...]
    live: int
    born: int
    closed: int
    peak: int
    growth: float
    per_minute: float
    tail_s: float
    oldest_s: float
    kinds: Mapping[str, int]
    processes: tuple[int, ...]
    inherited: int
    closed_elsewhere: int
    lifetime_p50_s: float | None
    lifetime_p99_s: float | None
    closers: Mapping[str, int]
    owners: tuple[str, ...]
    targets: tuple[str, ...]
    series: array[int] = field(repr=False)

    @property
    def where(self) -> str:
        return f"{self.frame.file}:{self.frame.line}" if self.frame.line else self.frame.file


@dataclass(frozen=True)
class UnknownOrigin:
    """Descriptors whose birth was not seen: made without libc, or open before. Grouped by what they lead to."""

    target: str
    count: int


@dataclass(frozen=True)
class FailedCalls:
    """Calls of one line that failed with EMFILE or ENFILE."""

    frame: SourceFrame
    call: str
    error: str
    count: int


class _Open(NamedTuple):
    """A descriptor that is open at the end of a process, and when it was made."""

    t_s: float
    process: int
    stack: int
    kind: int


class _Tally:
    """What one stack made within the time asked for.

    `elsewhere` were closed by another thread than the one of the birth. `kinds` are those of what is open at the end.
    """

    __slots__ = ("born", "changes", "closed", "closers", "elsewhere", "kinds", "lifetimes", "times")

    def __init__(self) -> None:
        self.born = self.closed = self.elsewhere = 0
        self.times, self.changes = array("d"), array("q")  # of the live count
        self.lifetimes, self.closers = array("d"), array("I")  # of each one that was closed: seconds, closing stack
        self.kinds: Counter[int] = Counter()

    def change(self, t: float, by: int) -> None:
        self.times.append(t)
        self.changes.append(by)


class Statistics:
    """All that a report shows of one recording, computed when it is asked for.

    Args:
        since: Leaves out what happened before, in seconds since the start; `until` what happened after.
    """

    def __init__(self, trace: Trace, *, since: float | None = None, until: float | None = None) -> None:
        self.trace = trace
        self.since = 0.0 if since is None else max(0.0, since)
        end = max(_end_of_work(trace), 1e-6)
        self.until = end if until is None else min(until, end)
        self._last = float("inf") if until is None else until
        self.is_entire = not since and until is None
        if not self.since < self.until:
            raise ValueError(f"expected since < until within {end:.1f} s, got {self.since:g} and {self.until:g}")
        self.grid = _linspace(self.since, self.until)
        self._frames, self._site_of_stack = _assign_sites(trace)

    # -- time

    def end_of(self, process: TracedProcess) -> float:
        """Returns when the program's own work in a process ended: when the interpreter shut down, or the process."""
        ends = [end for end in (process.finalizing_s, process.end_s) if end is not None]
        return min([*ends, self.until])

    @cached_property
    def _ends(self) -> list[float]:
        return [self.end_of(process) for process in self.trace.processes]

    @cached_property
    def _is_exact(self) -> list[bool]:
        """Whether the events of each process are complete: its ring has dropped none."""
        return [not process.dropped_events for process in self.trace.processes]

    @cached_property
    def _is_over(self) -> list[bool]:
        """Whether each process has ended, and with it what it had open."""
        # When a process was killed is known only roughly: one killed with the program was part of it to the end.
        roughly_s = min(0.02, 0.01 * self.until)
        return [
            process.end_s is not None and process.end_s < self.until - (roughly_s if process.ended == "killed" else 0)
            for process in self.trace.processes
        ]

    # -- by stack

    @cached_property
    def _tallies(self) -> list[_Tally]:
        """What each stack made and closed.

        What a process had open when it ended counts as closed. Where a ring has dropped events, the counters of the
        entire run are used.
        """
        tallies = [_Tally() for _ in self.trace.stacks]
        self._count_lives(tallies)
        self._count_sampled(tallies)
        for kept in self._kept_over_exec:
            tally = tallies[kept.stack]
            tally.change(kept.t_s + _MOMENT_S, 1)
            if self._is_over[kept.process]:
                tally.change(self._ends[kept.process] + _MOMENT_S, -1)
            else:
                tally.closed -= 1
                tally.kinds[kept.kind] += 1
        return tallies

    def _count_lives(self, tallies: Sequence[_Tally]) -> None:
        events = self.trace.events
        times, tids, stacks = events["t_s"], events["tid"], events["stack"]
        ends, is_exact, is_over, since = self._ends, self._is_exact, self._is_over, self.since
        rows = zip(events.rows("action", "process", "t_s", "stack", "kind", "tid"), self.trace.closes, strict=True)
        for (action, process, t, stack, kind, tid), close in rows:
            end = ends[process] if action == BIRTH else -math.inf
            if t > end:
                continue
            tally = tallies[stack]
            close_s = times[close] if close >= 0 else math.inf
            is_closed = close_s <= end
            if is_closed and close_s >= since:
                tally.lifetimes.append(close_s - t)
                tally.closers.append(stacks[close])
            if not is_exact[process]:
                continue
            tally.change(t, 1)
            tally.born += t >= since
            if is_closed:
                tally.change(close_s, -1)
                if close_s >= since:
                    tally.closed += 1
                    tally.elsewhere += tid != tids[close]
            elif is_over[process]:
                tally.change(end + _MOMENT_S, -1)
                tally.closed += 1
            else:
                tally.kinds[kind] += 1

    def _count_sampled(self, tallies: Sequence[_Tally]) -> None:
        """Counts what happened in processes whose rings have dropped events."""
        trace, is_exact, is_over = self.trace, self._is_exact, self._is_over
        for (process, stack), rows in self._sampled().items():
            before = total = 0
            for t, live in rows:
                if t <= self._ends[process]:
                    tallies[stack].change(t, live - before)
                    total += live - before
                before = live
            if is_over[process]:
                tallies[stack].change(self._ends[process] + _MOMENT_S, -total)
        for process, stack, born, foreign in trace.counts.rows("process", "stack", "born", "foreign_closed"):
            if not is_exact[process]:
                tallies[stack].born += born
                tallies[stack].closed += born
                tallies[stack].elsewhere += foreign
        for t, process, stack, kind in self._own_open:
            if not is_exact[process] and not is_over[process]:
                tallies[stack].closed -= 1
                if t <= self.until:
                    tallies[stack].kinds[kind] += 1

    @cached_property
    def _own_open(self) -> list[_Open]:
        """What each process made itself and has open at its end."""
        rows = self.trace.open.rows("t_s", "process", "stack", "kind", "flags")
        return [_Open(*row) for *row, flags in rows if not flags & (INHERITED | BEFORE)]

    @cached_property
    def _kept_over_exec(self) -> list[_Open]:
        """What was made before an exec and is open after it: with the stack of its birth, the time of the exec, and
        the process that has it at the end."""
        trace = self.trace
        images: dict[int, list[int]] = defaultdict(list)  # of each pid
        for number in sorted(range(len(trace.processes)), key=lambda number: trace.processes[number].start_s):
            images[trace.processes[number].pid].append(number)
        opened: dict[int, dict[int, tuple[int, int, int]]] = {
            number: {} for numbers in images.values() if len(numbers) > 1 for number in numbers
        }
        for process, fd, *row in trace.open.rows("process", "fd", "stack", "kind", "flags"):
            if process in opened:
                opened[process][fd] = (row[0], row[1], row[2])
        found: list[_Open] = []
        for numbers in images.values():
            made: dict[int, _Open] = {}
            for number in numbers if len(numbers) > 1 else ():
                here = opened[number]
                made = {
                    fd: one._replace(process=number) for fd, one in made.items() if fd in here and here[fd][2] & BEFORE
                }
                if trace.processes[number].ended != "exec":
                    found += made.values()
                    made = {}
                    continue
                for fd, (stack, kind, flags) in here.items():
                    if not flags & (INHERITED | BEFORE):
                        made[fd] = _Open(self._ends[number], number, stack, kind)
        return [one for one in found if one.t_s <= self.until]

    def _sampled(self) -> dict[tuple[int, int], list[tuple[float, int]]]:
        """Returns the samples (time, live) of each stack of each process whose ring has dropped events."""
        survivors: dict[tuple[int, int], list[float]] = defaultdict(list)
        for t, process, stack, _ in self._own_open:
            survivors[process, stack].append(t)
        found: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
        for t, process, stack, live in self.trace.samples.rows():
            found[process, stack].append((t, live))
        for key in found.keys() | survivors.keys():
            # What each stack had open when the process's work ended, which no tick of the clock sees.
            found[key].append((self._ends[key[0]], len(survivors[key])))
        closers = {row[:2] for row in self.trace.counts.rows("process", "stack", "closed") if row[2]}
        return {
            key: self._with_survivors(
                sorted(rows, key=itemgetter(0)),
                sorted(survivors[key]),
                # Where some were closed, the line ran before its oldest survivor was born.
                [self.trace.processes[key[0]].start_s] if key in closers else [],
            )
            for key, rows in found.items()
            if not self._is_exact[key[0]]
        }

    @staticmethod
    def _with_survivors(
        rows: list[tuple[float, int]], births: list[float], began: list[float]
    ) -> list[tuple[float, int]]:
        """Adds to the samples of one stack of a process the births of what is still open at the end.

        What survived was open since its birth, however far apart the samples are: a short program has a single one.
        Survivors of a leak are of all ages, those of a cache that closes what it evicts are young.
        """
        births = births[: bisect_left(births, rows[-1][0])]
        if not births:
            return rows
        times = [t for t, _ in rows]
        least = [(t, 1) for t in began] + [(t, number) for number, t in enumerate(births, 1)] + [(t, 0) for t in times]
        found: list[tuple[float, int]] = []
        alive = 0
        for t, count in sorted(least, key=itemgetter(0)):
            alive = max(alive, count)
            at = bisect_right(times, t) - 1
            found.append((t, max(alive, rows[at][1] if at >= 0 else 0)))
        found[-1] = (found[-1][0], rows[-1][1])
        return found

    @cached_property
    def _series(self) -> list[array[int]]:
        """Number of live descriptors by stack and grid point."""
        found = []
        for tally in self._tallies:
            steps = [0] * (GRID + 1)
            for t, by in zip(tally.times, tally.changes, strict=True):
                steps[bisect_left(self.grid, t)] += by
            found.append(array("q", accumulate(steps[:GRID])))
        return found

    def _history(self, stacks: Iterable[int]) -> tuple[list[float], list[int]]:
        """Returns the times at which the live count of what these stacks made changed, and the count after each.

        Of what happens at the same time, births come first.
        """
        tallies = [self._tallies[stack] for stack in stacks]
        rows = sorted((t, -by) for tally in tallies for t, by in zip(tally.times, tally.changes, strict=True))
        return [t for t, _ in rows], list(accumulate(-by for _, by in rows))

    # -- results

    @cached_property
    def sites(self) -> list[Site]:
        """All sites, the fastest growing first, then those with the most live descriptors."""
        stacks: list[list[int]] = [[] for _ in self._frames]
        for stack, site in enumerate(self._site_of_stack):
            if site >= 0:
                stacks[site].append(stack)
        inherited = Counter(
            self._site_of_stack[stack] for stack, flags in self.trace.open.rows("stack", "flags") if flags & INHERITED
        )
        oldest: dict[int, float] = {}
        for t, _, stack, _ in self._own_open:
            site = self._site_of_stack[stack]
            oldest[site] = min(t, oldest.get(site, t))
        peaks: dict[int, int] = defaultdict(int)
        processes: dict[int, set[int]] = defaultdict(set)
        for process, stack, peak in self.trace.counts.rows("process", "stack", "peak"):
            site = self._site_of_stack[stack]
            peaks[site] = max(peaks[site], peak)
            processes[site].add(self.trace.processes[process].pid)
        found = [
            self._site(number, mine, inherited[number], oldest.get(number), peaks[number], processes[number])
            for number, mine in enumerate(stacks)
        ]
        shown = [site for site in found if site.born or site.live or site.inherited]
        return sorted(shown, key=lambda site: (-site.growth, -site.live, -site.peak, -site.born, site.where))

    def _site(
        self, number: int, stacks: list[int], inherited: int, oldest: float | None, peak: int, processes: set[int]
    ) -> Site:
        trace = self.trace
        tallies = [self._tallies[stack] for stack in stacks]
        born, closed = sum(tally.born for tally in tallies), sum(tally.closed for tally in tallies)
        series = _sum_series(self._series[stack] for stack in stacks)
        growth, per_minute = _growth(self.grid, series)
        tail_s = 0.0
        if not growth:
            growth, per_minute, tail_s = self._late_growth(stacks, _LATE_RISE // (2 if closed > born / 2 else 1))
        live = series[-1]
        kinds = Counter[str]()
        closers = Counter[int]()
        for tally in tallies:
            for kind, count in tally.kinds.items():
                kinds[KINDS[kind] if kind < len(KINDS) else KINDS[0]] += count
            closers.update(tally.closers)
        lifetimes = sorted(chain.from_iterable(tally.lifetimes for tally in tallies))
        return Site(
            frame=self._frames[number],
            stacks=tuple(stacks),
            live=live,
            born=born,
            closed=closed,
            # The grid misses what was open for a moment; the counters do not.
            peak=max(chain(series, [peak], self._history(stacks)[1])) if self.is_entire else max(series),
            growth=growth,
            per_minute=per_minute,
            tail_s=tail_s,
            oldest_s=self.until - oldest if live and oldest is not None else 0.0,
            kinds=dict(sorted(kinds.items(), key=lambda item: (-item[1], KINDS.index(item[0])))),
            processes=tuple(sorted(processes)),
            inherited=inherited,
            closed_elsewhere=sum(tally.elsewhere for tally in tallies),
            lifetime_p50_s=_quantile(lifetimes, 0.5) if lifetimes else None,
            lifetime_p99_s=_quantile(lifetimes, 0.99) if lifetimes else None,
            closers=self._closing_lines(closers),
            owners=tuple(dict.fromkeys(line for stack in stacks for line in trace.owners.get(stack, ()))),
            targets=tuple(dict.fromkeys(line for stack in stacks for line in trace.targets.get(stack, ())))[:5],
            series=series,
        )

    def _late_growth(self, stacks: Sequence[int], least: int) -> tuple[float, float, float]:
        """Returns the rise above all that was open before, its slope a minute and the length of the tail of the run in
        which what these stacks made grew to the end; zeros if there is none."""
        if sum(self._series[stack][-1] for stack in stacks) < least:
            return 0.0, 0.0, 0.0
        times, live = self._history(stacks)
        live = [0, *live[: bisect_right(times, self.until)]]
        times = times[: len(live) - 1]
        for halvings in range(1, _TAILS + 1):
            tail_s = (self.until - self.since) / 2**halvings
            begin = self.until - tail_s
            before = max(live[: bisect_left(times, begin) + 1])
            if tail_s < _LEAST_TAIL_S or live[-1] - before < least:
                break
            grid = _linspace(begin, self.until)
            _, per_minute = _growth(grid, [live[bisect_right(times, t)] for t in grid], begin=0)
            if per_minute and max(self._known_from[stack] for stack in stacks) <= begin:
                return float(live[-1] - before), per_minute, tail_s
        return 0.0, 0.0, 0.0

    @cached_property
    def _known_from(self) -> dict[int, float]:
        """Since when the count of each stack is known. Where a ring has dropped events: since the first sample."""
        trace = self.trace
        first: dict[int, float] = {}
        for t, process in trace.samples.rows("t_s", "process"):
            first[process] = min(t, first.get(process, t))
        found: dict[int, float] = defaultdict(float)
        for process, stack in trace.counts.rows("process", "stack"):
            if not self._is_exact[process]:
                found[stack] = max(found[stack], first.get(process, math.inf))
        return found

    def _closing_lines(self, stacks: Mapping[int, int]) -> dict[str, int]:
        """Returns the lines that closed most often."""
        closers = Counter[str]()
        for stack, count in sorted(stacks.items()):
            frame = self._frame_of(stack)
            closers[f"{frame.file}:{frame.line}" if frame.line else frame.file] += count
        return dict(closers.most_common(5))

    def _frame_of(self, stack: int) -> SourceFrame:
        site = self._site_of_stack[stack]
        return self._frames[site] if site >= 0 else user_frame(self.trace.frames_of(stack))

    def weights(self, name: str) -> dict[int, float]:
        """Returns the stacks that have a weight: "live", "born" or "growth" (descriptors a minute)."""
        if name == "live":
            values: list[float] = [series[-1] for series in self._series]
        elif name == "born":
            values = [tally.born for tally in self._tallies]
        else:
            late = {stack for site in self.sites if site.tail_s for stack in site.stacks}
            values = [
                self._late_growth([stack], LEAST_RISE)[1] if stack in late else _growth(self.grid, series)[1]
                for stack, series in enumerate(self._series)
            ]
        return {
            stack: value
            for stack, (value, site) in enumerate(zip(values, self._site_of_stack, strict=True))
            if value > 0 and site >= 0
        }

    def path_of(self, site: Site) -> list[SourceFrame]:
        """Returns the library frames from the site's line to the call that made most of its descriptors."""
        heaviest = max(site.stacks, key=lambda stack: (self._series[stack][-1], self._tallies[stack].born))
        found: list[SourceFrame] = []
        for frame in self.trace.frames_of(heaviest):
            if frame == site.frame:
                break
            found.append(frame)
        return found[::-1]

    def inheritors(self, site: Site) -> int:
        """Returns how many forked processes had a copy of what the site made when they ended."""
        stacks = set(site.stacks)
        rows = self.trace.open.rows("process", "stack", "flags")
        return len({process for process, stack, flags in rows if flags & INHERITED and stack in stacks})

    @cached_property
    def failed(self) -> list[FailedCalls]:
        """The calls that failed because no descriptor was free, by line, the most frequent first."""
        found: Counter[tuple[SourceFrame, str, str]] = Counter()
        for t, stack, action, call, error in self.trace.events.rows("t_s", "stack", "action", "aux", "error"):
            if action != FAIL or not self.since <= t <= self._last or self._site_of_stack[stack] < 0:
                continue
            name = self.trace.calls[call] if 0 <= call < len(self.trace.calls) else "a call"
            frame = self._frame_of(stack)
            found[frame, name.strip("_").removesuffix("64"), errno.errorcode.get(error, str(error))] += 1
        return [FailedCalls(*key, count) for key, count in found.most_common()]

    @cached_property
    def live(self) -> array[int]:
        """Live descriptors of all sites over the grid."""
        sites = zip(self._series, self._site_of_stack, strict=True)
        return _sum_series(series for series, site in sites if site >= 0)

    @cached_property
    def by_kind(self) -> dict[str, array[int]]:
        """Live descriptors over the grid, by kind."""
        made: dict[int, Counter[int]] = defaultdict(Counter)
        for stack, kind, born in self.trace.counts.rows("stack", "kind", "born"):
            if born and self._site_of_stack[stack] >= 0:
                made[stack][kind if kind < len(KINDS) else 0] += born
        series: dict[int, list[float]] = {}
        for stack, site in enumerate(self._site_of_stack):
            if site < 0 or not any(self._series[stack]):
                continue
            # A line may make several kinds; each has the share of the line's descriptors that it has of its births.
            births = made.get(stack) or {0: 1}
            for kind, count in births.items():
                share = count / sum(births.values())
                pairs = zip(series.get(kind) or [0.0] * GRID, self._series[stack], strict=True)
                series[kind] = [total + share * live for total, live in pairs]
        found = {KINDS[kind]: array("q", map(round, live)) for kind, live in sorted(series.items()) if any(live)}
        return dict(sorted(found.items(), key=lambda item: -max(item[1])))

    @cached_property
    def unknown(self) -> list[UnknownOrigin]:
        """What was open without a birth that could be seen, by target, without numbers that differ each time."""
        found = Counter(
            re.sub(r"\[\d+\]|\d{3,}", "…", target) for process in self.trace.processes for target in process.unknown
        )
        return [UnknownOrigin(target, count) for target, count in found.most_common()]

    @property
    def coverage(self) -> float:
        """The part of all births that was seen, from 0 to 1."""
        seen = sum(self.trace.counts["born"])
        unseen = sum(process.counts.get("birth_unseen", 0) + len(process.unknown) for process in self.trace.processes)
        return seen / (seen + unseen) if seen + unseen else 1.0

    @property
    def dropped_events(self) -> int:
        return sum(process.dropped_events for process in self.trace.processes)

    def verdict(self) -> str:
        """Says in a sentence what grows, or that nothing does, and in another one if stacks are missing."""
        lost = sum(process.counts.get("lost_stacks", 0) for process in self.trace.processes)
        without = f" {lost:,} calls have no stack: the tables of a log were full." if lost else ""
        return f"{self._growth()}{without}"

    def _growth(self) -> str:
        if not self.trace.processes:
            return "Nothing was recorded."
        growing = [site for site in self.sites if site.growth > 0]
        if growing:
            first = growing[0]
            function = f" in {first.frame.function}" if first.frame.function else ""
            kinds = " and ".join(list(first.kinds)[:2])
            others = (
                f"; {len(growing) - 1} more {'site grows' if len(growing) == 2 else 'sites grow'}"
                if len(growing) > 1
                else ""
            )
            late = f" in the last {first.tail_s:.1f} s" if first.tail_s else ""
            return (
                f"{short(first.where)}{function} leaks: {first.live} descriptors ({kinds}) are open, "
                f"{first.born} were made and {first.closed} closed, "
                f"and it grows by {rate(first.per_minute)}{late}{others}."
            )
        failed = sum(process.counts.get("failed", 0) for process in self.trace.processes)
        if failed:
            calls = "call" if failed == 1 else "calls"
            return f"No site grows, but {failed} {calls} failed because no descriptor was free."
        live = sum(site.live for site in self.sites)
        largest = max(self.sites, key=lambda site: site.live, default=None)
        where = (
            f", {largest.live} of them from {short(largest.where)}" if largest and largest.live >= LEAST_RISE else ""
        )
        were = "1 descriptor was" if live == 1 else f"{live:,} descriptors were"
        unknown = sum(one.count for one in self.unknown)
        more = f" {unknown:,} more have an unknown origin." if unknown >= LEAST_RISE else ""
        return f"No site grows: {were} open after {self.until - self.since:.1f} s{where}.{more}"


def _end_of_work(trace: Trace) -> float:
    """Returns when the program began to shut down: from then on it closes what it has leaked, too."""
    first = [process for process in trace.processes if process.pid == trace.processes[0].pid]
    ends = [end for process in first[-1:] for end in (process.finalizing_s, process.end_s) if end is not None]
    return min([*ends, trace.duration_s])


def rate(per_minute: float) -> str:
    """Writes a rate in the unit in which it is at least one."""
    if per_minute >= 600:
        return f"{per_minute / 60:.0f} a second"
    return f"{per_minute:.0f} a minute" if per_minute >= 1.5 else f"{per_minute * 60:.0f} an hour"


def short(where: str) -> str:
    """Shortens a path to its last two parts."""
    return "/".join(where.rsplit("/", 2)[-2:]) if where.count("/") > 2 else where


def user_frame(frames: Sequence[SourceFrame]) -> SourceFrame:
    """Returns the innermost frame of the user's code, else the innermost frame of all."""
    for frame in frames:
        if not is_library(frame.file):
            return frame
    # `python -c` is the user's code, except where multiprocessing starts a process with it.
    is_code = len(frames) > 1 and frames[-1][::2] == ("<string>", "<module>")
    if is_code and "/multiprocessing/" not in frames[-2].file:
        return next(frame for frame in frames if frame.file == "<string>")
    return frames[0] if frames else SourceFrame("(no Python frame)", 0, "")


def _assign_sites(trace: Trace) -> tuple[list[SourceFrame], list[int]]:
    """Returns the frame of each site, and the site of each stack: -1 for what the tracer itself did."""
    frames: dict[tuple[str, int, str], int] = {}
    found: list[SourceFrame] = []
    site_of = [-1] * len(trace.stacks)
    for stack in range(len(trace.stacks)):
        of_stack = trace.frames_of(stack)
        if any(is_own(frame.file) for frame in of_stack):
            continue
        frame = user_frame(of_stack)
        key = (frame.file, frame.line, frame.function)
        if key not in frames:
            frames[key] = len(found)
            found.append(frame)
        site_of[stack] = frames[key]
    return found, site_of


def _linspace(begin: float, end: float) -> list[float]:
    step = (end - begin) / (GRID - 1)
    return [*(begin + number * step for number in range(GRID - 1)), end]


def _sum_series(parts: Iterable[Sequence[int]]) -> array[int]:
    total = array("q", [0]) * GRID
    for part in parts:
        total = array("q", map(add, total, part))
    return total


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Interpolates between the two nearest of sorted values."""
    at = part * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at % 1)


def _growth(grid: Sequence[float], series: Sequence[int], begin: int | None = None) -> tuple[float, float]:
    """Returns the rise of the baseline and its slope a minute, or zeros if the rise is small or a single step."""
    if begin is None:  # a site that first runs late in the program does not look steady for that
        begin = next((at for at, live in enumerate(series) if live > 0), 0)
    width = (len(series) - begin) // _BINS
    if width < 2:
        return 0.0, 0.0
    starts = range(len(series) - _BINS * width, len(series), width)
    bins = [min(series[start : start + width]) for start in starts]
    rise = float(bins[-1] - bins[0])
    if rise < LEAST_RISE:
        return 0.0, 0.0
    slope = find_slope([sum(grid[start : start + width]) / width for start in starts], bins)
    return (rise, slope.value * 60) if slope.low > 0 and slope.value > 0 else (0.0, 0.0)
