"""The state document: everything that the page, `/api/state`, `/metrics` and the offline report show, as plain JSON.

All times are seconds since 1970. None is unknown; a limit that is infinite is None, too. Fields may be added: a reader
ignores what it does not know.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypedDict

from ..._util.text import counted, span_words
from ..doctor.diagnose import SEVERITY
from ..doctor.model import Trend, Verdict

VERSION = 1
# More points than pixels of a chart show nothing more.
MAX_POINTS = 1000
MAX_EVENTS = 500
MAX_DEAD = 50
# A forecast far beyond the samples would squeeze them into one corner of the chart.
_AHEAD = 3.0
# The ranges that the page offers, as ages.
_AGES_S = (2 * 86400, 6 * 3600, 3600, 0)


class HeadroomState(TypedDict):
    """One limit, the tightest first."""

    name: str
    label: str
    used: int | None
    limit: float | None
    ratio: float | None


class TreeRow(TypedDict):
    """One process of the tree, each after its parent."""

    pid: int
    ppid: int | None
    command: str
    fds: int | None
    limit: float | None
    kinds: dict[str, int] | None
    dead_pipes: int | None
    threads: int | None
    rss_bytes: int | None
    verdict: str


class DeadEnd(TypedDict):
    """A pipe end whose other end is closed in every process (`state` "dead"), or is only here as well ("self")."""

    pid: int
    fd: int
    inode: int
    access: str
    state: str


class GuardFacts(TypedDict):
    """What the Guard of the process reported."""

    pid: int
    name: str
    health: str  # starting, ok, draining, stopped, frozen, hung, failing
    sentence: str
    state: str  # starting, running, draining, ended
    jobs_done: int
    jobs_failed: int
    fails_in_row: int
    last_success: float | None
    job: str
    reason: str
    error: str
    soft_cap: int | None
    hard_cap: int | None
    jobs: list[list[int]]  # [job number, descriptors after it]


class SeriesState(TypedDict):
    """Oldest first. `fds` is the highest and `low` the lowest count of each bin."""

    t: list[float]
    fds: list[int]
    low: list[int]
    rss_bytes: list[int | None]
    threads: list[int | None]
    children: list[int | None]


class KindSeries(TypedDict):
    t: list[float]
    kinds: dict[str, list[int]]


class BaselineState(TypedDict):
    t: list[float]
    fds: list[int]


class TrendState(TypedDict):
    """Straight lines over `t`: the slope, and the ends of its 95 % interval."""

    t: list[float]
    fit: list[float]
    low: list[float]
    high: list[float]


class TargetState(TypedDict):
    """One target. The counts are those of the process `about`: the worst of its tree, mostly `pid` itself."""

    target: str
    source: str  # "pid", "name:TEXT" for --name TEXT, "worker:N" of a supervisor
    pid: int
    about: int
    command: str
    started: float | None
    uptime_s: float | None
    alive: bool
    verdict: str
    sentence: str
    evidence: list[str]
    advice: list[str]
    confidence: str
    cause: str
    signature: str | None
    held_by: list[str]
    fds: int | None
    limit: float | None
    hard_limit: float | None
    kinds: dict[str, int] | None
    dead_pipes: dict[str, int] | None
    self_pairs: int | None
    close_wait: int | None
    growth_per_hour: list[float] | None
    eta_s: list[float | None] | None
    headroom: list[HeadroomState]
    tree: list[TreeRow]
    dead: list[DeadEnd]
    guard: GuardFacts | None
    restarts: dict[str, int]
    restart_loop: str | None  # a sentence, if it is in one
    series: SeriesState
    kind_series: KindSeries
    baseline: BaselineState
    trend: TrendState | None


class EventState(TypedDict):
    t: float
    target: str
    kind: str  # start, end, verdict, restart, loop, drain, health, limit
    text: str


class StateDocument(TypedDict):
    """`problems` is what watch itself cannot do at the moment, such as writing to a full disk."""

    version: int
    now: float
    live: bool
    host: str
    every_s: float
    since: float
    verdict: str
    sentence: str
    problems: list[str]
    targets: list[TargetState]
    events: list[EventState]


def state_document(
    *,
    now: float,
    live: bool,
    host: str,
    every_s: float,
    since: float,
    targets: Sequence[TargetState],
    events: Sequence[EventState],
    problems: Sequence[str] = (),
) -> StateDocument:
    """Assembles the document; `events` are oldest first, and the last 500 are kept."""
    return StateDocument(
        version=VERSION,
        now=now,
        live=live,
        host=host,
        every_s=every_s,
        since=since,
        verdict=worst_of(targets),
        sentence=summary_of(targets),
        problems=list(problems),
        targets=list(targets),
        events=list(events)[-MAX_EVENTS:],
    )


def worst_of(targets: Sequence[TargetState]) -> str:
    """Returns the worst verdict of the targets that are alive or ran out of descriptors, or of all if none did."""
    verdicts = [Verdict(one["verdict"]) for one in targets if one["alive"] or has_died_of_exhaustion(one)] or [
        Verdict(one["verdict"]) for one in targets
    ]
    return max(verdicts, key=SEVERITY.__getitem__, default=Verdict.OK).value


def has_died_of_exhaustion(one: TargetState) -> bool:
    return not one["alive"] and one["verdict"] == Verdict.EXHAUSTED


_PHRASES = {
    Verdict.OK: "is OK",
    Verdict.UNCLEAR: "is unclear",
    Verdict.SETTLING: "is settling",
    Verdict.GROWING: "grows",
    Verdict.LEAK: "leaks",
    Verdict.EXHAUSTED: "is out of descriptors",
}


def summary_of(targets: Sequence[TargetState]) -> str:
    """Returns `worker leaks: 421 an hour, full in 2 h 10 min; 1 of 3 targets`."""
    if not targets:
        return "no process to watch yet"
    ended = sum(not one["alive"] for one in targets)
    living = [one for one in targets if one["alive"]]
    parts = _dead_or_looping(targets)
    if not living:
        end = f"{targets[0]['target']} has ended" if len(targets) == 1 else f"all {len(targets)} targets have ended"
        return "; ".join(parts) if len(targets) == 1 and parts else "; ".join([*parts, end])
    ill = [one for one in living if one["guard"] is not None and one["guard"]["health"] in _ILL]
    worst = max(living, key=lambda one: SEVERITY[Verdict(one["verdict"])])
    is_bad = SEVERITY[Verdict(worst["verdict"])] >= SEVERITY[Verdict.GROWING]
    if is_bad:
        like = sum(one["verdict"] == worst["verdict"] for one in living)
        parts.append(_bad_words(worst) + (f"; {like} of {counted(len(living), 'target')}" if len(living) > 1 else ""))
    if ill:
        first = ill[0]
        assert first["guard"] is not None
        more = f", and {len(ill) - 1} more" if len(ill) > 1 else ""
        parts.append(f"{first['target']}: {first['guard']['sentence']}{more}")
    if not parts:
        one = living[0]
        what = _PHRASES[Verdict(worst["verdict"])]
        parts.append(f"{one['target']} {what}" if len(living) == 1 else f"{counted(len(living), 'target')}, none leaks")
    if ended:
        parts.append(f"{ended} ended")
    return "; ".join(parts)


def _dead_or_looping(targets: Sequence[TargetState]) -> list[str]:
    """Returns a sentence each for the first that has died of exhaustion, and the first that is in a restart loop."""
    dead = [f"{one['target']} has ended out of descriptors" for one in targets if has_died_of_exhaustion(one)]
    loops = [f"{one['target']}: {one['restart_loop']}" for one in targets if one["restart_loop"]]
    return [found[0] + (f", and {len(found) - 1} more" if len(found) > 1 else "") for found in (dead, loops) if found]


_ILL = frozenset({"stopped", "frozen", "hung", "failing"})


def _bad_words(one: TargetState) -> str:
    words = f"{one['target']} {_PHRASES[Verdict(one['verdict'])]}"
    growth = one["growth_per_hour"]
    if one["verdict"] == Verdict.EXHAUSTED:
        return f"{words}: {one['fds'] or 0:,} of {one['limit'] or 0:,.0f}"
    if growth is not None and growth[1] > 0:
        words += f" by {growth[0]:,.0f} an hour"
    if one["eta_s"] is not None and one["eta_s"][0] is not None:
        words += f", out of descriptors in {span_words(one['eta_s'][0])} or more"
    return words


# ---- points of the charts


class Point(NamedTuple):
    """One bin of the series: `fds` is the highest count in it, `low` the lowest."""

    t: float
    fds: int
    low: int
    rss_bytes: int | None = None
    threads: int | None = None
    children: int | None = None


def thin(points: Sequence[Point], maximum: int = MAX_POINTS) -> list[Point]:
    """Merges neighbours until at most `maximum` points remain; each keeps the extremes of what it stands for.

    The last hour has as many points as the time before it, up to six hours, and so on: whoever reads the last hour
    of a month sees more than one point.
    """
    if len(points) <= maximum:
        return list(points)
    end = points[-1].t
    kept: list[Point] = []
    begin = 0
    for age_s in _AGES_S:
        until = bisect_right(points, end - age_s, lo=begin, key=attrgetter("t")) if age_s else len(points)
        kept += _merged(points[begin:until], maximum // len(_AGES_S))
        begin = until
    return kept


def _merged(points: Sequence[Point], maximum: int) -> list[Point]:
    """Merges the points of equal spans of time."""
    if len(points) <= maximum:
        return list(points)
    start, end = points[0].t, points[-1].t
    width = max((end - start) / maximum, 1e-9)
    merged: list[Point] = []
    last_bin = -1
    for point in points:
        at = min(int((point.t - start) / width), maximum - 1)
        if at != last_bin:
            merged.append(point)
            last_bin = at
        else:
            merged[-1] = merge(merged[-1], point)
    return merged


def merge(one: Point, later: Point) -> Point:
    """Returns one point for both, at the time of the later one."""
    return Point(
        t=later.t,
        fds=max(one.fds, later.fds),
        low=min(one.low, later.low),
        rss_bytes=_largest(one.rss_bytes, later.rss_bytes),
        threads=_largest(one.threads, later.threads),
        children=_largest(one.children, later.children),
    )


def _largest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def series_state(points: Sequence[Point]) -> SeriesState:
    thinned = thin(points)
    return SeriesState(
        t=[round(one.t, 1) for one in thinned],
        fds=[one.fds for one in thinned],
        low=[one.low for one in thinned],
        rss_bytes=[one.rss_bytes for one in thinned],
        threads=[one.threads for one in thinned],
        children=[one.children for one in thinned],
    )


def kind_series(samples: Sequence[tuple[float, dict[str, int]]], maximum: int = MAX_POINTS) -> KindSeries:
    """Makes one list per kind, all as long as `t`; thins by leaving out, from the last one backwards."""
    step = -(-len(samples) // maximum) if samples else 1
    kept = list(samples)[::-step][::-1]
    names = dict.fromkeys(name for _, kinds in reversed(kept) for name in kinds)
    return KindSeries(
        t=[round(t, 1) for t, _ in kept],
        kinds={name: [kinds.get(name, 0) for _, kinds in kept] for name in names},
    )


def trend_lines(baseline: BaselineState, trend: Trend | None, now: float, limit: float | None) -> TrendState | None:
    """Draws the trend from its first bin to where it reaches the limit, at most three times its span ahead.

    None where the baseline does not rise. The band opens from the fitted line's start.
    """
    if trend is None or trend.per_hour <= 0 or not baseline["t"]:
        return None
    begin = now - trend.span_s
    points = [(t, fds) for t, fds in zip(baseline["t"], baseline["fds"], strict=True) if t >= begin - 1]
    if not points:
        return None
    start = points[0][0]
    per_s = trend.per_hour / 3600
    heights = sorted(fds - per_s * (t - start) for t, fds in points)
    first = heights[len(heights) // 2]
    end = now + _AHEAD * max(now - start, 1.0)
    if limit is not None:
        end = min(end, max(now, start + (limit - first) / per_s))

    def line(per_hour: float) -> list[float]:
        return [round(first, 2), round(first + per_hour / 3600 * (end - start), 2)]

    return TrendState(
        t=[round(start, 1), round(end, 1)], fit=line(trend.per_hour), low=line(trend.low), high=line(trend.high)
    )


def no_history() -> dict[str, Any]:
    """Returns the charts' fields for a document without history."""
    return {
        "series": series_state(()),
        "kind_series": kind_series(()),
        "baseline": BaselineState(t=[], fds=[]),
        "trend": None,
    }
