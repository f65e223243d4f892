"""Decides whether a process uses up anything but descriptors: threads, children, memory, /dev/shm, inotify.

Each is a row of `RESOURCES`: how a sample tells it, the limits that it counts against, and what to say. All rows go
through the same rule as descriptors: the baseline of the samples, its trend, and when a limit is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..._util.text import format_bytes, span_words
from ...procfs.limits import Limit, amount, is_bytes, name_of
from .messages import number_words, range_words, watch_longer
from .model import Diagnosis, Match, ResourceUse, Sample, Trend, Verdict
from .remedies import READ_BOUNDED, Remedy
from .signatures import SIGNATURES
from .trend import CONCLUSIVE_S, DAY_S, HOUR_S, LEAST_RISE, find_trend
from .verdict import eta_s, is_exhausted

_MIB = 1 << 20
_TASKS = ("nproc", "cgroup_pids", "threads_max", "pid_max")
_ROWS = {row.name: row for row in SIGNATURES}
_SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}
_NEVER = (math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """Describes one resource of a process.

    limits        the limits that it counts against, by their name in procfs
    full          limits in another unit, which can be reached but not forecast
    step          a rise of fewer than five steps is none; trends are computed in steps
    conclusive_s  a rise in a shorter watch may be ordinary work
    within_s      growth that reaches no limit within this time is none: memory always moves
    since_start   whether growth that fits the age of the process is conclusive in a shorter watch, too
    slows_down    whether it grows more and more slowly even where it is a fault
    is_dead       whether the resource is of no use to the process, so that its growth proves a leak
    next_step     ends with the command that leads on from here; `{pid}` is the process
    """

    name: str
    noun: str
    read: Callable[[Sample], int | None]
    limits: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    signature: str
    cause: str = ""
    advice: tuple[str, ...] = ()
    remedy: Remedy | None = None
    doubt: str = ""
    in_bytes: bool = False
    step: int = 1
    conclusive_s: float = CONCLUSIVE_S
    within_s: float = math.inf
    since_start: bool = True
    slows_down: bool = False
    is_dead: bool = False
    next_step: str

    def match(self, count: int) -> Match:
        """Returns the cause; that of a row of the signatures if the table has one."""
        row = _ROWS.get(self.signature)
        return Match(
            name=self.signature,
            cause=self.cause or (row.cause if row else ""),
            advice=self.advice or (row.advice if row else ()),
            count=count,
            dead=count if self.is_dead else 0,
            share=1.0,
            remedy=self.remedy,
        )

    def words(self, value: float) -> str:
        return ("-" if value < 0 else "") + format_bytes(int(abs(value))) if self.in_bytes else number_words(value)


def _living(sample: Sample) -> int | None:
    return None if sample.children is None else sample.children - (sample.zombies or 0)


_LIST = "list them: ps --ppid {pid} -o pid,stat,etime,args"
_TRACE = "find the line that opens watchers: holdfast trace --attach {pid} --for 60s"
RESOURCES = (
    ResourceKind(
        name="threads",
        noun="threads",
        read=lambda sample: sample.threads,
        limits=_TASKS,
        signature="threads-never-ended",
        next_step="see where they wait: py-spy dump --pid {pid}",
    ),
    ResourceKind(
        name="zombies",
        noun="zombie processes",
        read=lambda sample: sample.zombies,
        limits=_TASKS,
        signature="zombies",
        is_dead=True,
        next_step=_LIST,
    ),
    ResourceKind(
        name="children",
        noun="child processes",
        read=_living,
        limits=_TASKS,
        signature="children-never-ended",
        next_step=_LIST,
    ),
    ResourceKind(
        name="memory",
        noun="private memory",
        read=lambda sample: sample.private_bytes,
        limits=("cgroup_memory", "memory_available"),
        signature="memory-grows",
        cause="memory that is kept: results, losses with their graph, a cache without a bound, prefetched batches",
        advice=(
            "keep loss.item() or tensor.detach() instead of a loss, and bound caches and queues",
            "prefetch less: a smaller prefetch_factor, fewer workers",
        ),
        remedy=READ_BOUNDED,
        doubt="data that is being loaded would look the same",
        in_bytes=True,
        step=8 * _MIB,
        conclusive_s=600.0,
        within_s=7 * DAY_S,
        since_start=False,
        next_step="see who allocates it: memray attach {pid}",
    ),
    ResourceKind(
        name="shm_files",
        noun="files in /dev/shm",
        read=lambda sample: sample.shm_files,
        full=("dev_shm_bytes",),
        signature="shm-files-kept",
        cause="files in /dev/shm are made and never removed",
        advice=(
            "call SharedMemory.unlink() once for every block, after all processes have called close()",
            'under set_sharing_strategy("file_system"), drop tensors that came from workers, or keep tensor.clone()',
        ),
        next_step="list the newest: ls -lt /dev/shm | head",
    ),
    ResourceKind(
        name="inotify_instances",
        noun="file watchers",
        read=lambda sample: None,  # they are descriptors: their growth is found there
        full=("inotify_instances",),
        signature="watchers-kept",
        next_step=_TRACE,
    ),
    ResourceKind(
        name="inotify_watches",
        noun="inotify watches",
        read=lambda sample: sample.watches,
        limits=("inotify_watches",),
        signature="watches-kept",
        cause="files and folders are watched (inotify) and never given up",
        advice=("remove a watch when done with it (unschedule of a watchdog Observer); leave out data folders",),
        step=4,
        next_step=_TRACE,
    ),
)
_MEMORY = next(one for one in RESOURCES if one.name == "memory")
# Pages that a forked process shared with its parent and has written to: reference counts are written, too.
_COPY_ON_WRITE = replace(
    _MEMORY,
    signature="copy-on-write",
    cause="a forked worker copies memory that it shared: reading a Python list or dict writes reference counts",
    advice=(
        "keep the samples of a Dataset in a numpy array or a tensor, not in lists or dicts of Python objects",
        "or read them with hold.read, whose workers inherit no samples",
    ),
    conclusive_s=0.0,
    slows_down=True,  # at random, fewer and fewer of the pages that are read are shared still
    doubt="",
    next_step="compare private and shared memory: grep -E 'Private_Dirty|Shared' /proc/{pid}/smaps_rollup",
)
_COPIED = 4 * _MEMORY.step
_WEEK_S = 7 * DAY_S
_SOON_S = 600.0
_OF_LIFE = 4
_FULL_PART = 0.99
_OWN_SHARE = 0.25


def find_uses(
    samples: Sequence[Sample], limits: Sequence[Limit], *, uptime_s: float | None, pid: int | None, forked: bool = False
) -> list[ResourceUse]:
    """Returns what grows, the worst first. `forked`: the process was forked from one of the same program."""
    found = []
    for row in RESOURCES:
        if row is _MEMORY and _copies(samples):
            # In the parent, too, pages that were shared become private: there it is no growth.
            if not forked:
                continue
            row = _COPY_ON_WRITE
        use = _use(row, samples, {limit.name: limit for limit in limits}, uptime_s, pid)
        if use is not None:
            found.append(use)
    return sorted(found, key=lambda use: -_SEVERITY[use.verdict])


def _copies(samples: Sequence[Sample]) -> bool:
    """Whether private memory grew at the cost of shared memory."""
    known = [one for one in samples if one.private_bytes is not None and one.shared_bytes is not None]
    if len(known) < 2:
        return False
    more = (known[-1].private_bytes or 0) - (known[0].private_bytes or 0)
    less = (known[0].shared_bytes or 0) - (known[-1].shared_bytes or 0)
    return more > _COPIED and 2 * less >= more


def _use(
    row: ResourceKind, samples: Sequence[Sample], limits: Mapping[str, Limit], uptime_s: float | None, pid: int | None
) -> ResourceUse | None:
    """Returns None if it does not grow, or only perhaps and without reaching a limit within a week."""
    known = [(one.at_s, value) for one in samples if (value := row.read(one)) is not None]
    # Every trend needs a rise: without one, a tree of a thousand processes costs nothing.
    if len(known) < 2 or known[-1][1] - min(value for _, value in known) <= LEAST_RISE * row.step:
        return None
    steps = find_trend([Sample(at_s=at_s, fds=value // row.step) for at_s, value in known])
    if steps is None or not (steps.grows or (steps.settles and row.slows_down)):
        return None
    trend = replace(_scaled(steps, row.step), grows=True, settles=False)
    used = known[-1][1]
    limit = _nearest([limits[name] for name in row.limits if name in limits])
    more = ""
    if row is _COPY_ON_WRITE:
        # It ends when all is copied: no forecast, but how much that can be.
        limit, shared = None, next((one.shared_bytes for one in reversed(samples) if one.shared_bytes is not None), 0)
        more = f"; it still shares {format_bytes(shared)}, which it can copy too"
    eta = _NEVER if limit is None else eta_s(limit.headroom or 0, trend.low, trend.high)
    conclusive = _is_conclusive(row, trend, used, eta, uptime_s)
    if limit is not None and eta[0] > (row.within_s if conclusive else _WEEK_S):
        return None
    if not conclusive:
        verdict, trend = Verdict.UNCLEAR, replace(trend, grows=False, unclear=True, low=min(trend.low, 0.0))
    else:
        verdict = Verdict.LEAK if row.is_dead or trend.steady else Verdict.GROWING
    return ResourceUse(
        name=row.name,
        noun=row.noun,
        in_bytes=row.in_bytes,
        used=used,
        limit=limit,
        trend=trend,
        eta_s=eta,
        verdict=verdict,
        match=row.match(used),
        next_step=row.next_step.replace("{pid}", "PID" if pid is None else str(pid)),
        sentence=_growth_sentence(row, used, trend, limit, verdict) + more,
    )


def _scaled(trend: Trend, step: int) -> Trend:
    return replace(
        trend, per_hour=trend.per_hour * step, low=trend.low * step, high=trend.high * step, rise=trend.rise * step
    )


def _nearest(limits: Sequence[Limit]) -> Limit | None:
    known = [limit for limit in limits if limit.headroom is not None and limit.headroom < math.inf]
    return min(known, key=lambda limit: limit.headroom or 0, default=None)


def _is_conclusive(
    row: ResourceKind, trend: Trend, used: int, eta: tuple[float, float], uptime_s: float | None
) -> bool:
    """Applies the rule of descriptors: watched long enough, about to reach a limit, or growing since the start."""
    if trend.span_s >= row.conclusive_s or eta[1] <= _SOON_S:
        return True
    return row.since_start and uptime_s is not None and trend.per_hour / HOUR_S * uptime_s <= _OF_LIFE * used


def _growth_sentence(row: ResourceKind, used: int, trend: Trend, limit: Limit | None, verdict: Verdict) -> str:
    spread = range_words(trend.low, trend.high)
    if row.in_bytes:
        spread = f"{row.words(trend.low)} to {row.words(trend.high)}"
    text = (
        f"its {row.noun} rose by {row.words(trend.rise)} in {span_words(trend.span_s)} to {row.words(used)} "
        f"({row.words(trend.per_hour)} an hour, {spread})"
    )
    if limit is not None:
        text += f"; {amount(limit, limit.used)} of {amount(limit, limit.soft)} are used: {name_of(limit)}"
    if verdict is Verdict.UNCLEAR:
        return f"{text}; in so short a time ordinary work would look the same"
    return f"{text}; {row.doubt}" if row.doubt and verdict is not Verdict.LEAK else text


# ---- limits that are reached


def find_full(limits: Sequence[Limit], own: Mapping[str, int], pid: int | None) -> list[ResourceUse]:
    """Returns the limits that are reached by what this process tree uses itself, at least a quarter of them.

    `own` is what the tree uses, by the name of the limit.
    """
    found = []
    for limit in limits:
        row = next((row for row in RESOURCES if limit.name in (*row.limits, *row.full)), None)
        share = own.get(limit.name, 0)
        if row is None or not limit.used or not share or share < _OWN_SHARE * limit.used or not _is_full(limit):
            continue
        sentence = f"{amount(limit, limit.used)} of {amount(limit, limit.soft)} are used: {name_of(limit)}"
        found.append(
            ResourceUse(
                name=row.name,
                noun=row.noun,
                in_bytes=row.in_bytes,
                used=share,
                limit=limit,
                trend=None,
                eta_s=(0.0, 0.0),
                verdict=Verdict.EXHAUSTED,
                match=row.match(share),
                next_step=row.next_step.replace("{pid}", "PID" if pid is None else str(pid)),
                sentence=f"{sentence}; {amount(limit, share)} of them by this process and its children",
            )
        )
    return found


def _is_full(limit: Limit) -> bool:
    return (limit.ratio or 0.0) >= _FULL_PART if is_bytes(limit) else is_exhausted(limit.used, limit.soft)


# ---- the verdict on everything


def with_uses(found: Diagnosis, uses: Sequence[ResourceUse], pid: int | None) -> Diagnosis:
    """Returns the verdict on all resources: the worst one, with its cause, advice and next step."""
    if not uses:
        return found
    ranked = sorted(uses, key=lambda use: -_SEVERITY[use.verdict])
    worst = ranked[0]
    sentences = tuple(use.sentence for use in ranked)
    if _SEVERITY[worst.verdict] <= _SEVERITY[found.verdict]:
        return replace(found, evidence=(*found.evidence, *sentences), resources=tuple(ranked))
    is_proven = worst.verdict is not Verdict.UNCLEAR
    return replace(
        found,
        verdict=worst.verdict,
        evidence=(*sentences, *found.evidence),
        advice=worst.match.advice if is_proven else (watch_longer(pid),),
        match=worst.match,
        next_step=worst.next_step if is_proven else "",
        resources=tuple(ranked),
        decisive=worst,
    )
