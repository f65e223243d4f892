"""Counts what each place in the code made, closed and still has open, and finds those that grow.

A site is the innermost line of the user's code on a stack. Frames of the standard library and of installed packages
below it are folded: a leak of `DataLoader` belongs to the line that made the loader, not to `multiprocessing`.
"""

from __future__ import annotations

import errno
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..doctor.trend import LEAST_RISE, find_slope
from .log_format import BEFORE, BIRTH, CLOSE, CLOSE_UNSEEN, FAIL, INHERITED, KINDS
from .trace_file import SourceFrame, Trace, TracedProcess

GRID = 240
_BINS = 12
# A leak that begins late rises in a tail of the run: a half, a quarter, … of it. A tail is longer than it takes to open
# a pool, and the rise exceeds what pools have; half a pool where the line had closed most of what it opened before.
_TAILS, _LEAST_TAIL_S, _LATE_RISE = 6, 0.1, 64
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
    series: np.ndarray = field(repr=False)

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
        self.grid = np.linspace(self.since, self.until, GRID)
        self._frames, self._site_of_stack = _assign_sites(trace)

    # -- time

    def end_of(self, process: TracedProcess) -> float:
        """Returns when the program's own work in a process ended: when the interpreter shut down, or the process."""
        ends = [end for end in (process.finalizing_s, process.end_s) if end is not None]
        return min([*ends, self.until])

    @cached_property
    def _is_over(self) -> np.ndarray:
        """Whether each process has ended, and with it what it had open."""
        # When a process was killed is known only roughly: one killed with the program was part of it to the end.
        roughly_s = min(0.02, 0.01 * self.until)
        over = [
            process.end_s is not None and process.end_s < self.until - (roughly_s if process.ended == "killed" else 0)
            for process in self.trace.processes
        ]
        return np.array(over or [False])

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the birth and the close event of the same lifetime."""
        events = self.trace.events
        births = np.flatnonzero(events["action"] == BIRTH)
        closes = np.flatnonzero((events["action"] == CLOSE) | (events["action"] == CLOSE_UNSEEN))
        if not len(births) or not len(closes):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        birth_key, close_key = lifetime_keys(events[births]), lifetime_keys(events[closes])
        order = np.argsort(birth_key, kind="stable")
        at = np.searchsorted(birth_key[order], close_key)
        at = np.minimum(at, len(order) - 1)
        match = birth_key[order][at] == close_key
        return births[order[at[match]]], closes[match]

    @cached_property
    def _series(self) -> np.ndarray:
        """Number of live descriptors by stack and grid point."""
        trace = self.trace
        deltas = np.zeros((len(trace.stacks), GRID + 1), np.int64)
        t, stack, by = self._all_deltas
        if len(t):
            np.add.at(deltas, (stack, np.searchsorted(self.grid, t)), by)
        return deltas.cumsum(axis=1)[:, :GRID]

    @cached_property
    def _all_deltas(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(Time, stack, change of the live count), and at the end of a process what it still had."""
        trace = self.trace
        events = trace.events
        ends = np.array([self.end_of(process) for process in trace.processes] or [0.0])
        exact = np.array([process.dropped_events == 0 for process in trace.processes] or [False])
        t: list[np.ndarray] = []
        stack: list[np.ndarray] = []
        by: list[np.ndarray] = []
        process: list[np.ndarray] = []

        def add(times: np.ndarray, stacks: np.ndarray, changes: np.ndarray, processes: np.ndarray) -> None:
            keep = times <= ends[processes]
            for column, values in zip((t, stack, by, process), (times, stacks, changes, processes), strict=True):
                column.append(values[keep])

        births = events[events["action"] == BIRTH]
        births = births[exact[births["process"]]]
        add(births["t_s"], births["stack"], np.ones(len(births), np.int64), births["process"])
        born, closed = self._pairs
        keep = exact[events["process"][closed]]
        born, closed = born[keep], closed[keep]
        add(events["t_s"][closed], events["stack"][born], -np.ones(len(closed), np.int64), events["process"][closed])
        for rows in self._sampled(exact):
            live = rows["live"].astype(np.int64)
            add(rows["t_s"], rows["stack"], np.diff(live, prepend=0), rows["process"])
        all_t, all_stack, all_by, all_process = map(np.concatenate, (t, stack, by, process))
        gone = self._is_over[all_process]
        kept = self._kept_over_exec
        lost = kept[self._is_over[kept["process"]]]
        # What a process still had when it ended is gone with it: the same changes once more, negative, at its end.
        return (
            np.concatenate([all_t, ends[all_process[gone]] + 1e-9, kept["t_s"] + 1e-9, ends[lost["process"]] + 1e-9]),
            np.concatenate([all_stack, all_stack[gone], kept["stack"], lost["stack"]]),
            np.concatenate([all_by, -all_by[gone], np.ones(len(kept), np.int64), -np.ones(len(lost), np.int64)]),
        )

    @cached_property
    def _kept_over_exec(self) -> np.ndarray:
        """Rows of `open` for what was made before an exec and is open after it: with the stack of its birth, the time
        of the exec, and the process that has it at the end."""
        trace = self.trace
        images: dict[int, list[int]] = defaultdict(list)  # of each pid
        for number in sorted(range(len(trace.processes)), key=lambda number: trace.processes[number].start_s):
            images[trace.processes[number].pid].append(number)
        found: list[np.void] = []
        for numbers in images.values():
            made: dict[int, np.void] = {}
            for number in numbers:
                rows = trace.open[trace.open["process"] == number] if len(numbers) > 1 else trace.open[:0]
                here = {int(row["fd"]): row for row in rows}
                made = {fd: row for fd, row in made.items() if fd in here and here[fd]["flags"] & BEFORE}
                for row in made.values():
                    row["process"] = number
                if trace.processes[number].ended != "exec":
                    found += made.values()
                    made = {}
                    continue
                for fd, row in here.items():
                    if not row["flags"] & (INHERITED | BEFORE):
                        made[fd] = row.copy()
                        made[fd]["t_s"] = self.end_of(trace.processes[number])
        kept = np.array(found, trace.open.dtype)
        return kept[kept["t_s"] <= self.until]

    @property
    def _kept_at_end(self) -> np.ndarray:
        kept = self._kept_over_exec
        still: np.ndarray = kept[~self._is_over[kept["process"]]]
        return still

    def _sampled(self, exact: np.ndarray) -> list[np.ndarray]:
        """Returns the samples of each stack of each process whose ring has dropped events."""
        samples = np.concatenate([self.trace.samples, self._last_samples(self.trace.samples)])
        samples = samples[~exact[samples["process"]]] if len(samples) else samples
        if not len(samples):
            return []
        order = np.lexsort((samples["t_s"], samples["stack"], samples["process"]))
        samples = samples[order]
        cuts = (
            np.flatnonzero(
                (np.diff(samples["process"].astype(np.int64)) != 0) | (np.diff(samples["stack"].astype(np.int64)) != 0)
            )
            + 1
        )
        return [self._with_survivors(rows) for rows in np.split(samples, cuts)]

    def _with_survivors(self, rows: np.ndarray) -> np.ndarray:
        """Adds to the samples of one stack of a process the births of what is still open at the end.

        What survived was open since its birth, however far apart the samples are: a short program has a single one.
        Survivors of a leak are of all ages, those of a cache that closes what it evicts are young.
        """
        process, stack = int(rows["process"][0]), int(rows["stack"][0])
        births, has_closed = self._survivors.get((process, stack), (np.zeros(0), False))
        births = births[births < rows["t_s"][-1]]
        if not len(births):
            return rows
        # Where some were closed, the line ran before its oldest survivor was born.
        began = [self.trace.processes[process].start_s] if has_closed else []
        times = np.concatenate([began, births, rows["t_s"]])
        least = np.concatenate([[1.0] * len(began), np.arange(1.0, len(births) + 1), np.zeros(len(rows))])
        order = np.argsort(times, kind="stable")
        found = np.zeros(len(times), rows.dtype)
        found["t_s"], found["process"], found["stack"] = times[order], process, stack
        at = np.searchsorted(rows["t_s"], times[order], "right") - 1
        sampled = np.where(at >= 0, rows["live"][np.maximum(at, 0)], 0)
        found["live"] = np.maximum(sampled, np.maximum.accumulate(least[order]))
        found["live"][-1] = rows["live"][-1]
        return found

    @cached_property
    def _survivors(self) -> dict[tuple[int, int], tuple[np.ndarray, bool]]:
        """The births of what each stack of each process has open at its end, and whether it closed any."""
        opened, counts = self.trace.open, self.trace.counts
        own = opened[(opened["flags"] & (INHERITED | BEFORE)) == 0]
        closing = counts[counts["closed"] > 0]
        closers = set(zip(closing["process"].tolist(), closing["stack"].tolist(), strict=True))
        own = own[np.lexsort((own["t_s"], own["stack"], own["process"]))]
        keys = own["process"].astype(np.int64) << 32 | own["stack"].astype(np.int64)
        found = {}
        for rows in np.split(own, np.flatnonzero(np.diff(keys)) + 1) if len(own) else ():
            key = (int(rows["process"][0]), int(rows["stack"][0]))
            found[key] = (rows["t_s"], key in closers)
        return found

    def _last_samples(self, samples: np.ndarray) -> np.ndarray:
        """Returns what each stack of each process had open when its work ended, which no tick of the clock sees."""
        opened = self.trace.open
        own = opened[(opened["flags"] & (INHERITED | BEFORE)) == 0]
        counts = Counter(zip(own["process"].tolist(), own["stack"].tolist(), strict=True))
        sampled = set(zip(samples["process"].tolist(), samples["stack"].tolist(), strict=True))
        ends = [self.end_of(process) for process in self.trace.processes]
        rows = [(ends[process], process, stack, counts[process, stack]) for process, stack in sampled | counts.keys()]
        return np.array(rows, samples.dtype)

    @cached_property
    def _sums(self) -> np.ndarray:
        """Born, closed and closed by another thread than the one of the birth, by stack, within the time looked at.

        What a process had open when it ended counts as closed. Where a ring has dropped events, the counters of the
        entire run are used.
        """
        trace, events = self.trace, self.trace.events
        ends = np.array([self.end_of(process) for process in trace.processes] or [0.0])
        exact = np.array([process.dropped_events == 0 for process in trace.processes] or [False])
        found = np.zeros((len(trace.stacks), 3), np.int64)

        def in_time(rows: np.ndarray) -> np.ndarray:
            process = events["process"][rows]
            within: np.ndarray = exact[process] & (events["t_s"][rows] <= ends[process])
            return within

        births = np.flatnonzero(events["action"] == BIRTH)
        births = births[in_time(births)]
        born, closed = self._pairs
        keep = in_time(closed)
        born, closed = born[keep], closed[keep]
        ended = np.setdiff1d(births[self._is_over[events["process"][births]]], born)
        since = events["t_s"] >= self.since
        np.add.at(found[:, 0], events["stack"][births[since[births]]], 1)
        np.add.at(found[:, 1], events["stack"][born[since[closed]]], 1)
        np.add.at(found[:, 1], events["stack"][ended], 1)
        np.add.at(found[:, 2], events["stack"][born], since[closed] & (events["tid"][born] != events["tid"][closed]))
        counts = trace.counts[~exact[trace.counts["process"]]]
        np.add.at(found[:, 0], counts["stack"], counts["born"])
        np.add.at(found[:, 1], counts["stack"], counts["born"])
        opened = trace.open
        still = (opened["flags"] & (INHERITED | BEFORE)) == 0
        still &= ~(exact | self._is_over)[opened["process"]] if len(opened) else False
        np.add.at(found[:, 1], opened["stack"][still], -1)
        np.add.at(found[:, 1], self._kept_at_end["stack"], -1)
        np.add.at(found[:, 2], counts["stack"], counts["foreign_closed"])
        return found

    # -- results

    @cached_property
    def sites(self) -> list[Site]:
        """All sites, the fastest growing first, then those with the most live descriptors."""
        count = len(self._frames)
        site_of = self._site_of_stack
        series = np.zeros((count, GRID), np.int64)
        sums = np.zeros((count, 3), np.int64)
        keep = site_of >= 0
        np.add.at(series, site_of[keep], self._series[keep])
        np.add.at(sums, site_of[keep], self._sums[keep])
        born, closed = self._closed_in_time
        grouped = zip(
            self._by_site(np.arange(len(site_of))),
            self._by_site(self.trace.open["stack"]),
            self._by_site(self.trace.counts["stack"]),
            self._by_site(self.trace.events["stack"][born]),
            strict=True,
        )
        found = [
            self._site(number, sums[number].tolist(), series[number], stacks, opened, rows, born[mine], closed[mine])
            for number, (stacks, opened, rows, mine) in enumerate(grouped)
        ]
        shown = [site for site in found if site.born or site.live or site.inherited]
        return sorted(shown, key=lambda site: (-site.growth, -site.live, -site.peak, -site.born, site.where))

    def _by_site(self, stacks: np.ndarray) -> list[np.ndarray]:
        """Returns the indices that belong to each site, of rows that have these stacks."""
        site_of = self._site_of_stack[stacks]
        order = np.argsort(site_of, kind="stable")
        cuts = np.searchsorted(site_of[order], np.arange(len(self._frames) + 1))
        return [order[first:last] for first, last in pairwise(cuts.tolist())]

    def _site(
        self,
        number: int,
        sums: Sequence[int],
        series: np.ndarray,
        stacks: np.ndarray,
        open_rows: np.ndarray,
        count_rows: np.ndarray,
        births: np.ndarray,
        closes: np.ndarray,
    ) -> Site:
        trace = self.trace
        born, closed, elsewhere = sums
        growth, per_minute = _growth(self.grid, series)
        tail_s = 0.0
        if not growth:
            growth, per_minute, tail_s = self._late_growth(stacks, _LATE_RISE // (2 if closed > born / 2 else 1))
        opened = trace.open[open_rows]
        inherited = int(((opened["flags"] & INHERITED) > 0).sum())
        own = opened[(opened["flags"] & (INHERITED | BEFORE)) == 0]
        live = int(series[-1])
        rows = trace.counts[count_rows]
        kinds = Counter(dict(zip(KINDS, self._live_kinds[stacks].sum(axis=0).tolist(), strict=True)))
        lifetimes = trace.events["t_s"][closes] - trace.events["t_s"][births]
        return Site(
            frame=self._frames[number],
            stacks=tuple(stacks.tolist()),
            live=live,
            born=born,
            closed=closed,
            # The grid misses what was open for a moment; the counters do not.
            peak=max(
                int(series.max(initial=0)),
                live,
                *((int(self._peaks[number]), int(rows["peak"].max(initial=0))) if self.is_entire else ()),
            ),
            growth=growth,
            per_minute=per_minute,
            tail_s=tail_s,
            oldest_s=float(self.until - own["t_s"].min()) if live and len(own) else 0.0,
            kinds={kind: count for kind, count in kinds.most_common() if count},
            processes=tuple(sorted({trace.processes[process].pid for process in rows["process"].tolist()})),
            inherited=inherited,
            closed_elsewhere=elsewhere,
            lifetime_p50_s=float(np.quantile(lifetimes, 0.5)) if len(lifetimes) else None,
            lifetime_p99_s=float(np.quantile(lifetimes, 0.99)) if len(lifetimes) else None,
            closers=self._closers(closes),
            owners=tuple(dict.fromkeys(line for stack in stacks.tolist() for line in trace.owners.get(stack, ()))),
            targets=tuple(dict.fromkeys(line for stack in stacks.tolist() for line in trace.targets.get(stack, ())))[
                :5
            ],
            series=series,
        )

    def _late_growth(self, stacks: np.ndarray, least: int) -> tuple[float, float, float]:
        """Returns the rise above all that was open before, its slope a minute and the length of the tail of the run in
        which what these stacks made grew to the end; zeros if there is none."""
        if self._series[stacks, -1].sum() < least:
            return 0.0, 0.0, 0.0
        t, stack, by = self._all_deltas
        mine = np.flatnonzero(np.isin(stack, stacks) & (t <= self.until))
        mine = mine[np.argsort(t[mine], kind="stable")]
        times, live = t[mine], np.concatenate([[0], by[mine].cumsum()])
        for halvings in range(1, _TAILS + 1):
            tail_s = (self.until - self.since) / 2**halvings
            begin = self.until - tail_s
            before = live[: np.searchsorted(times, begin) + 1].max()
            if tail_s < _LEAST_TAIL_S or live[-1] - before < least:
                break
            grid = np.linspace(begin, self.until, GRID)
            _, per_minute = _growth(grid, live[np.searchsorted(times, grid, "right")], begin=0)
            if per_minute and self._known_from[stacks].max() <= begin:
                return float(live[-1] - before), per_minute, tail_s
        return 0.0, 0.0, 0.0

    @cached_property
    def _known_from(self) -> np.ndarray:
        """Since when the count of each stack is known. Where a ring has dropped events: since the first sample."""
        trace = self.trace
        found = np.zeros(len(trace.stacks))
        for number, process in enumerate(trace.processes):
            if process.dropped_events:
                sampled = trace.samples["t_s"][trace.samples["process"] == number]
                stacks = trace.counts["stack"][trace.counts["process"] == number]
                found[stacks] = np.maximum(found[stacks], sampled.min(initial=float("inf")))
        return found

    @cached_property
    def _closed_in_time(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of births and closes whose close was within the time looked at."""
        events = self.trace.events
        born, closed = self._pairs
        ends = np.array([self.end_of(process) for process in self.trace.processes] or [0.0])
        t = events["t_s"][closed]
        keep = (t >= self.since) & (t <= ends[events["process"][closed]])
        return born[keep], closed[keep]

    def _closers(self, closes: np.ndarray) -> dict[str, int]:
        """Returns the lines that closed most often."""
        closers = Counter[str]()
        numbers, times = np.unique(self.trace.events["stack"][closes], return_counts=True)
        for stack, count in zip(numbers.tolist(), times.tolist(), strict=True):
            frame = self._frame_of(stack)
            closers[f"{frame.file}:{frame.line}" if frame.line else frame.file] += count
        return dict(closers.most_common(5))

    def _frame_of(self, stack: int) -> SourceFrame:
        site = int(self._site_of_stack[stack])
        return self._frames[site] if site >= 0 else user_frame(self.trace.frames_of(stack))

    def weights(self, name: str) -> dict[int, float]:
        """Returns the stacks that have a weight: "live", "born" or "growth" (descriptors a minute)."""
        if name == "live":
            values = self._series[:, -1]
        elif name == "born":
            values = self._sums[:, 0]
        else:
            late = {stack for site in self.sites if site.tail_s for stack in site.stacks}
            values = np.array(
                [
                    self._late_growth(np.array([stack]), LEAST_RISE)[1] if stack in late else _growth(self.grid, one)[1]
                    for stack, one in enumerate(self._series)
                ]
            )
        return {
            stack: float(values[stack]) for stack in np.flatnonzero((values > 0) & (self._site_of_stack >= 0)).tolist()
        }

    def path_of(self, site: Site) -> list[SourceFrame]:
        """Returns the library frames from the site's line to the call that made most of its descriptors."""
        heaviest = max(site.stacks, key=lambda stack: (int(self._series[stack, -1]), int(self._sums[stack, 0])))
        found: list[SourceFrame] = []
        for frame in self.trace.frames_of(heaviest):
            if frame == site.frame:
                break
            found.append(frame)
        return found[::-1]

    def inheritors(self, site: Site) -> int:
        """Returns how many forked processes had a copy of what the site made when they ended."""
        opened = self.trace.open
        mine = np.isin(opened["stack"], site.stacks) & ((opened["flags"] & INHERITED) > 0)
        return len(np.unique(opened["process"][mine]))

    @cached_property
    def failed(self) -> list[FailedCalls]:
        """The calls that failed because no descriptor was free, by line, the most frequent first."""
        events = self.trace.events
        rows = events[(events["action"] == FAIL) & (events["t_s"] >= self.since) & (events["t_s"] <= self._last)]
        rows = rows[self._site_of_stack[rows["stack"]] >= 0]
        found: Counter[tuple[SourceFrame, str, str]] = Counter()
        for stack, call, error in zip(
            rows["stack"].tolist(), rows["aux"].tolist(), rows["error"].tolist(), strict=True
        ):
            name = self.trace.calls[call] if 0 <= call < len(self.trace.calls) else "a call"
            frame = self._frame_of(stack)
            found[frame, name.strip("_").removesuffix("64"), errno.errorcode.get(error, str(error))] += 1
        return [FailedCalls(*key, count) for key, count in found.most_common()]

    @cached_property
    def _peaks(self) -> np.ndarray:
        """The most that each site had open at a time, over all its stacks and processes."""
        t, stack, by = self._all_deltas
        site = self._site_of_stack[stack]
        order = np.lexsort((t, site))
        order = order[site[order] >= 0]
        found = np.zeros(len(self._frames), np.int64)
        if len(order):
            starts = np.flatnonzero(np.diff(site[order], prepend=-1))
            live = by[order].cumsum()
            before = live[starts] - by[order][starts]
            found[site[order][starts]] = np.maximum.reduceat(live, starts) - before
        return found

    @cached_property
    def _live_kinds(self) -> np.ndarray:
        """What is open at the end, by stack and kind."""
        trace, events = self.trace, self.trace.events
        ends = np.array([self.end_of(process) for process in trace.processes] or [0.0])
        exact = np.array([process.dropped_events == 0 for process in trace.processes] or [False])
        found = np.zeros((len(trace.stacks), len(KINDS)), np.int64)
        births = np.flatnonzero(events["action"] == BIRTH)
        born, closed = self._pairs
        births = np.setdiff1d(births, born[events["t_s"][closed] <= ends[events["process"][closed]]])
        process = events["process"][births]
        births = births[exact[process] & ~self._is_over[process] & (events["t_s"][births] <= ends[process])]
        opened = trace.open[(trace.open["flags"] & (INHERITED | BEFORE)) == 0]
        opened = opened[~(exact | self._is_over)[opened["process"]] & (opened["t_s"] <= self.until)]
        for rows in (events[births], opened, self._kept_at_end):
            np.add.at(found, (rows["stack"], np.where(rows["kind"] < len(KINDS), rows["kind"], 0)), 1)
        return found

    @cached_property
    def live(self) -> np.ndarray:
        """Live descriptors of all sites over the grid."""
        total: np.ndarray = self._series[self._site_of_stack >= 0].sum(axis=0)
        return total

    @cached_property
    def by_kind(self) -> dict[str, np.ndarray]:
        """Live descriptors over the grid, by kind."""
        counts = self.trace.counts
        made = np.zeros((len(self.trace.stacks), len(KINDS)))
        np.add.at(made, (counts["stack"], np.where(counts["kind"] < len(KINDS), counts["kind"], 0)), counts["born"])
        made[made.sum(axis=1) == 0, 0] = 1
        rows = self._site_of_stack >= 0
        # A line may make several kinds; each has the share of the line's descriptors that it has of its births.
        series = (made[rows] / made[rows].sum(axis=1, keepdims=True)).T @ self._series[rows]
        found = {kind: np.rint(live).astype(np.int64) for kind, live in zip(KINDS, series, strict=True) if live.any()}
        return dict(sorted(found.items(), key=lambda item: -int(item[1].max())))

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
        seen = int(self.trace.counts["born"].sum())
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
        most = max(self.sites, key=lambda site: site.live, default=None)
        where = f", {most.live} of them from {short(most.where)}" if most and most.live >= LEAST_RISE else ""
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


def _assign_sites(trace: Trace) -> tuple[list[SourceFrame], np.ndarray]:
    """Returns the frame of each site, and the site of each stack: -1 for what the tracer itself did."""
    frames: dict[tuple[str, int, str], int] = {}
    found: list[SourceFrame] = []
    site_of = np.full(len(trace.stacks), -1, np.int64)
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


def _growth(grid: np.ndarray, series: np.ndarray, begin: int | None = None) -> tuple[float, float]:
    """Returns the rise of the baseline and its slope a minute, or zeros if the rise is small or a single step."""
    if begin is None:  # a site that first runs late in the program does not look steady for that
        begin = int(np.argmax(series > 0))
    width = (len(series) - begin) // _BINS
    if width < 2:
        return 0.0, 0.0
    bins = series[len(series) - _BINS * width :].reshape(_BINS, width).min(axis=1)
    at = grid[len(grid) - _BINS * width :].reshape(_BINS, width).mean(axis=1)
    rise = float(bins[-1] - bins[0])
    if rise < LEAST_RISE:
        return 0.0, 0.0
    slope = find_slope(at.tolist(), bins.tolist())
    return (rise, slope.value * 60) if slope.low > 0 and slope.value > 0 else (0.0, 0.0)


def lifetime_keys(events: np.ndarray) -> np.ndarray:
    """Gives each lifetime of a number in a process one key."""
    process, fd, gen = (events[name].astype(np.uint64) for name in ("process", "fd", "gen"))
    key: np.ndarray = process << np.uint64(48) | fd << np.uint64(28) | gen & np.uint64((1 << 28) - 1)
    return key
