"""Numbers as an operator reads them: spans of time, rates, shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .fd_profile import VerdictInput
from .model import FdProfile, Forecast, Trend, Verdict
from .signatures import are_many, are_most_at_once, are_mostly_dead_pipes, count_dead
from .trend import DAY_S, SHORT_S, JobTrend

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span_words(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h 20 min`, `6 d 2 h`: two units at most, and the second only where it tells something."""
    if seconds < 1:
        return "less than 1 s"
    for at, (size, name) in enumerate(_UNITS):
        if seconds < size:
            continue
        whole = int(seconds // size)
        if at + 1 == len(_UNITS) or whole >= 10:
            return f"{round(seconds / size)} {name}"
        smaller, smaller_name = _UNITS[at + 1]
        rest = int((seconds - whole * size) // smaller)
        return f"{whole} {name} {rest} {smaller_name}" if rest else f"{whole} {name}"
    raise AssertionError(f"expected a span of at least one second, got {seconds}")


def number_words(value: float) -> str:
    """`2,105`, `4.2`: one decimal where a whole number would hide the most of it."""
    return f"{value:.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def range_words(low: float, high: float) -> str:
    return f"{number_words(low)}–{number_words(high)}" if low >= 0 else f"{number_words(low)} to {number_words(high)}"


def share_words(part: float, whole: float) -> str:
    """`97.5 %`; no rounding to nothing, nor to all where something is left."""
    percent = 100 * part / whole if whole else 100.0
    if 0 < percent < 1:
        return "under 1 %"
    return f"{min(percent, 99.9):.1f} %" if 90 <= percent < 100 else f"{percent:.0f} %"


# What speaks for a verdict, in whole sentences.

# An average over less time than that says nothing.
_YOUNG_S = 60.0


def find_evidence(inputs: VerdictInput, verdict: Verdict, forecasts: Sequence[Forecast]) -> list[str]:
    """What decided comes first, what weakens it right after it, how much room is left last."""
    room = room_sentence(inputs.fds, inputs.soft)
    if verdict in (Verdict.OK, Verdict.UNCLEAR):
        many = inputs.profile is not None and are_many(inputs.profile)
        return [*_calm(inputs), *(dead_sentences(inputs.profile) if inputs.profile and many else ()), room]
    said = [*_growth(inputs, verdict), *_uselessness(inputs, verdict), *(shrink_sentence(one) for one in forecasts)]
    found = [sentence for sentence in said if sentence]
    return [room, *found] if verdict is Verdict.EXHAUSTED else [*found, room]


def _calm(inputs: VerdictInput) -> list[str]:
    said = [trend_sentence(inputs.trend)] if inputs.trend is not None else []
    if inputs.jobs is not None:
        said.append(job_sentence(inputs.jobs))
    return said or ["seen once: whether it grows shows only when it is watched for a while"]


def _growth(inputs: VerdictInput, verdict: Verdict) -> list[str | None]:
    said: list[str | None] = [job_sentence(inputs.jobs)] if inputs.jobs is not None and inputs.jobs.grows else []
    if inputs.trend is not None and (inputs.trend.grows or inputs.trend.settles):
        said.append(trend_sentence(inputs.trend))
        if verdict is Verdict.GROWING:
            said.append(doubt_sentence(inputs.trend))
    return said


def _uselessness(inputs: VerdictInput, verdict: Verdict) -> list[str | None]:
    if inputs.profile is None:
        return []
    said: list[str | None] = [*dead_sentences(inputs.profile)]
    if inputs.first is not None and verdict not in (Verdict.GROWING, Verdict.SETTLING):
        said.append(growth_sentence(inputs.profile, inputs.first))
    if inputs.growing is None and (are_most_at_once(inputs.profile) or are_mostly_dead_pipes(inputs.profile)):
        watched = inputs.trend is not None
        said.append(average_sentence(inputs.profile, inputs.soft, inputs.uptime_s, watched=watched))
    return said


# ---- sentences ---------------------------------------------------------------------------------------------


def room_sentence(fds: int | None, soft: float | None) -> str:
    if fds is None:
        return "its descriptors may not be seen: look as its user or as root"
    if soft is None:
        return f"it holds {fds:,} descriptors; its limit may not be seen"
    if soft == math.inf:
        return f"it holds {fds:,} descriptors and has no limit"
    if fds >= soft:
        return f"it holds {fds:,} descriptors and its soft limit is {soft:,.0f}: it can open nothing more"
    return f"it holds {fds:,} of {soft:,.0f} descriptors ({share_words(fds, soft)}): {soft - fds:,.0f} are left"


def trend_sentence(trend: Trend) -> str:
    if trend.grows:
        idle = " and survives idle" if trend.span_s >= SHORT_S else ""
        return f"its floor rose by {_rise(trend)}{idle}"
    if trend.settles:
        return f"its floor rose by {_rise(trend)}, but ever less"
    if trend.unclear:
        return f"its floor rose by {_rise(trend)}: in so short a watch a job under way would look the same"
    return f"its floor did not rise for good in {span_words(trend.span_s)}"


def _rise(trend: Trend) -> str:
    return (
        f"{number_words(trend.rise)} in {span_words(trend.span_s)} "
        f"({number_words(trend.per_hour)} an hour, {range_words(trend.low, trend.high)})"
    )


def doubt_sentence(trend: Trend) -> str | None:
    """What else would look the same."""
    if not trend.grows or trend.steady:
        return None
    if trend.span_s >= DAY_S:
        return "it did not rise all the time: a warm-up and one step later would look the same"
    if trend.span_s < SHORT_S:
        return f"it was watched for {span_words(trend.span_s)} only: a job under way would look the same"
    return "the trend is not yet one day long: a daily rhythm would look the same"


def job_sentence(jobs: JobTrend) -> str:
    if not jobs.grows:
        return f"jobs give back what they take: {jobs.jobs:,} of them left nothing behind for good"
    return (
        f"every job leaves {number_words(jobs.per_job)} descriptors behind "
        f"({range_words(jobs.low, jobs.high)}, seen over {jobs.jobs:,} jobs after the warm-up)"
    )


def dead_sentences(profile: FdProfile) -> list[str]:
    all_of_them = f"its {profile.fds:,} descriptors"
    found = []
    if profile.dead_pipes:
        found.append(f"{profile.dead_pipes:,} of {all_of_them} are pipes whose far end is closed in every process")
    if profile.self_pairs:
        found.append(
            f"{2 * profile.self_pairs:,} of {all_of_them} are the two ends of "
            f"{_counted(profile.self_pairs, 'pipe')} that no other process has"
        )
    if profile.close_wait:
        found.append(
            f"{profile.close_wait:,} of {all_of_them} are connections that the other side has closed "
            "and this one not (CLOSE_WAIT)"
        )
    return found


def growth_sentence(profile: FdProfile, first: FdProfile) -> str | None:
    """Between the first look and the last one."""
    grown, dead = profile.fds - first.fds, count_dead(profile) - count_dead(first)
    if dead <= 0:
        return None
    if grown <= dead:
        return f"{dead:,} more than at the first look are of no use to anyone"
    return f"{dead:,} of the {grown:,} that came since the first look are of no use to anyone"


def average_sentence(profile: FdProfile, soft: float | None, uptime_s: float | None, *, watched: bool) -> str:
    """Without a trend that grows, the age of the process gives at least the average."""
    seen = "not growing while it was watched" if watched else "seen once"
    if uptime_s is None or uptime_s < _YOUNG_S:
        return f"{seen}: watch it at work to learn how fast it grows"
    per_hour = 3600 * count_dead(profile) / uptime_s
    text = f"{seen}; {number_words(per_hour)} an hour on average since its start {span_words(uptime_s)} ago"
    if soft is None or soft == math.inf or profile.fds >= soft:
        return text
    return f"{text}: at that pace its limit is reached in {span_words(3600 * (soft - profile.fds) / per_hour)}"


def shrink_sentence(forecast: Forecast) -> str | None:
    """Small pipes are slow, and some programs deadlock on them: harm long before the limit."""
    if forecast.line != "pipe shrink":
        return None
    if forecast.eta_s[1] == 0:
        return f"its user has {forecast.at:,} pipes or more: new ones hold 8 KiB instead of 64 and are slow"
    soonest = span_words(forecast.eta_s[0])
    return f"in {soonest} or more its user has {forecast.at:,} pipes: from then on new ones hold 8 KiB instead of 64"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


# What to do, by verdict: what holds for every cause.

_TIGHT = 0.8
_PLENTY = "1048576"


def find_advice(inputs: VerdictInput, verdict: Verdict) -> tuple[str, ...]:
    """That of the cause first, where there is something to mend; of a process at its limit the way out first."""
    name = "PID" if inputs.pid is None else str(inputs.pid)
    more = _more_room(name, inputs)
    until_then = [f"until then: {one}" for one in more]
    cause = inputs.match.advice if inputs.match is not None else (_find(name),)
    if verdict is Verdict.EXHAUSTED:
        return (*more, *cause, _at_start(inputs))
    if verdict is Verdict.LEAK:
        return (*cause, *until_then)
    if verdict is Verdict.GROWING:
        return (*cause, *((_watch(name),) if inputs.match is not None else ()), *until_then)
    if verdict is Verdict.SETTLING:
        return ("look again in an hour: what rises ever less is a warm-up most of the time",)
    if verdict is Verdict.UNCLEAR:
        return (_watch(name),)
    return (*more, _at_start(inputs)) if _is_tight(inputs) else ()


def _is_tight(inputs: VerdictInput) -> bool:
    return inputs.fds is not None and bool(inputs.soft) and inputs.fds >= _TIGHT * (inputs.soft or 0)


def _watch(name: str) -> str:
    return f"watch it longer before you act: holdfast doctor {name} --for 10m"


def _find(name: str) -> str:
    return f"watch it at work to see which kind grows: holdfast doctor {name} --for 10m"


def _more_room(name: str, inputs: VerdictInput) -> tuple[str, ...]:
    """Nothing where there is no limit, or none that is known."""
    if inputs.soft is None or inputs.soft == math.inf:
        return ()
    if inputs.hard is not None and inputs.hard > inputs.soft:
        most = _PLENTY if inputs.hard == math.inf else f"{inputs.hard:.0f}"
        return (f"raise its limit while it runs: prlimit --pid {name} --nofile={most}:",)
    return (f"restart it before it runs out, or raise its limit as root: prlimit --pid {name} --nofile=SOFT:HARD",)


def _at_start(inputs: VerdictInput) -> str:
    if inputs.soft is not None and inputs.hard is not None and inputs.hard > inputs.soft:
        return "call hold.raise_nofile() when the program starts, or `ulimit -n` in the shell that starts it"
    return "raise the hard limit where it is started (LimitNOFILE= of systemd, --ulimit nofile= of docker)"
