"""Words a verdict: the evidence as sentences, and the advice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..._util.text import counted, span_words
from .model import FdProfile, Forecast, JobTrend, Trend, Verdict, VerdictInput
from .signatures import are_many, are_most_at_once, are_mostly_dead_pipes, count_dead
from .trend import DAY_S, LEAST_RISE, SHORT_S


def number_words(value: float) -> str:
    """`2,105`, `4.2`: one decimal below ten."""
    return f"{value:.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def range_words(low: float, high: float) -> str:
    return f"{number_words(low)}–{number_words(high)}" if low >= 0 else f"{number_words(low)} to {number_words(high)}"


def share_words(part: float, whole: float) -> str:
    """`97.5 %`; a share above zero is never rounded to 0, one below all never to 100."""
    percent = 100 * part / whole if whole else 100.0
    if 0 < percent < 1:
        return "under 1 %"
    return f"{min(percent, 99.9):.1f} %" if 90 <= percent < 100 else f"{percent:.0f} %"


# ---- evidence

# An average over less time than this is meaningless.
_YOUNG_S = 60.0


def find_evidence(inputs: VerdictInput, verdict: Verdict, forecasts: Sequence[Forecast]) -> list[str]:
    """Returns the decisive sentence first, then what weakens it; the headroom last, or first when exhausted."""
    headroom = headroom_sentence(inputs.fds, inputs.soft)
    if verdict in (Verdict.OK, Verdict.UNCLEAR):
        many = inputs.profile is not None and (are_many(inputs.profile) or are_mostly_dead_pipes(inputs.profile))
        return [*_no_growth(inputs), *(dead_sentences(inputs.profile) if inputs.profile and many else ()), headroom]
    lines = [*_growth(inputs, verdict), *_unusable(inputs, verdict), *(shrink_sentence(one) for one in forecasts)]
    found = [sentence for sentence in lines if sentence]
    return [headroom, *found] if verdict is Verdict.EXHAUSTED else [*found, headroom]


def _no_growth(inputs: VerdictInput) -> list[str]:
    lines = [trend_sentence(inputs.trend)] if inputs.trend is not None else []
    if inputs.jobs is not None:
        lines.append(job_sentence(inputs.jobs))
    return lines or ["one snapshot: whether it grows shows only when it is watched"]


def _growth(inputs: VerdictInput, verdict: Verdict) -> list[str | None]:
    lines: list[str | None] = [job_sentence(inputs.jobs)] if inputs.jobs is not None and inputs.jobs.grows else []
    if inputs.trend is not None and (inputs.trend.grows or inputs.trend.settles):
        lines.append(trend_sentence(inputs.trend))
        if verdict is Verdict.GROWING:
            lines.append(doubt_sentence(inputs.trend))
    return lines


def _unusable(inputs: VerdictInput, verdict: Verdict) -> list[str | None]:
    if inputs.profile is None:
        return []
    lines: list[str | None] = [*dead_sentences(inputs.profile)]
    if inputs.first is not None and verdict not in (Verdict.GROWING, Verdict.SETTLING):
        lines.append(growth_sentence(inputs.profile, inputs.first))
    if inputs.growing is None and (are_most_at_once(inputs.profile) or are_mostly_dead_pipes(inputs.profile)):
        watched = inputs.trend is not None
        lines.append(average_sentence(inputs.profile, inputs.soft, inputs.uptime_s, watched=watched))
    return lines


# ---- sentences


def headroom_sentence(fds: int | None, soft: float | None) -> str:
    if fds is None:
        return "permission denied to list its descriptors: run as its user or as root"
    if soft is None:
        return f"it holds {fds:,} descriptors; its limit cannot be read"
    if soft == math.inf:
        return f"it holds {fds:,} descriptors and has no limit"
    if fds >= soft:
        return f"it holds {fds:,} descriptors and its soft limit is {soft:,.0f}: it can open nothing more"
    return f"it holds {fds:,} of {soft:,.0f} descriptors ({share_words(fds, soft)}): {soft - fds:,.0f} are left"


def trend_sentence(trend: Trend) -> str:
    if trend.grows:
        idle = " and stays high when idle" if trend.span_s >= SHORT_S else ""
        return f"its baseline rose by {_rise(trend)}{idle}"
    if trend.settles:
        return f"its baseline rose by {_rise(trend)}, but more and more slowly"
    if trend.unclear:
        return f"its baseline rose by {_rise(trend)}: in so short a time a running job would look the same"
    return f"its baseline did not rise in {span_words(trend.span_s)}"


def _rise(trend: Trend) -> str:
    return (
        f"{number_words(trend.rise)} in {span_words(trend.span_s)} "
        f"({number_words(trend.per_hour)} an hour, {range_words(trend.low, trend.high)})"
    )


def doubt_sentence(trend: Trend) -> str | None:
    """Names what else would look the same."""
    if not trend.grows or trend.steady:
        return None
    if trend.span_s >= DAY_S:
        return "it did not rise steadily: a warm-up and one later step would look the same"
    if trend.span_s < SHORT_S:
        return f"it was watched for {span_words(trend.span_s)} only: a running job would look the same"
    return "the trend covers less than a day: a daily cycle would look the same"


def job_sentence(jobs: JobTrend) -> str:
    if not jobs.grows and jobs.rise > LEAST_RISE:
        rise = f"{number_words(jobs.rise)} descriptors more are open after {jobs.jobs:,} jobs"
        return f"{rise}: a cache or a pool that fills would look the same"
    if not jobs.grows:
        return f"jobs release what they open: {jobs.jobs:,} of them left nothing open"
    number, low, high = (number_words(one) for one in (jobs.per_job, jobs.low, jobs.high))
    spread = "" if low == number == high else f"{range_words(jobs.low, jobs.high)}, "
    noun = "descriptor" if number == "1" else "descriptors"
    return f"every job leaves {number} {noun} open ({spread}over {jobs.jobs:,} jobs after the warm-up)"


def dead_sentences(profile: FdProfile) -> list[str]:
    all_of_them = f"its {profile.fds:,} descriptors"
    found = []
    if profile.dead_pipes:
        found.append(f"{profile.dead_pipes:,} of {all_of_them} are pipes whose other end is closed in every process")
    if profile.self_pairs:
        found.append(
            f"{2 * profile.self_pairs:,} of {all_of_them} are both ends of "
            f"{counted(profile.self_pairs, 'pipe')} that no other process has open"
        )
    if profile.close_wait:
        found.append(
            f"{profile.close_wait:,} of {all_of_them} are connections that the peer has closed "
            "and this process has not (CLOSE_WAIT)"
        )
    return found


def growth_sentence(profile: FdProfile, first: FdProfile) -> str | None:
    """Compares the first snapshot with the last one."""
    grown, dead = profile.fds - first.fds, count_dead(profile) - count_dead(first)
    if dead <= 0:
        return None
    if grown <= dead:
        return f"{dead:,} more are unusable than in the first snapshot"
    return f"{dead:,} of the {grown:,} opened since the first snapshot are unusable"


def average_sentence(profile: FdProfile, soft: float | None, uptime_s: float | None, *, watched: bool) -> str:
    """Gives the average over the life of the process where there is no growing trend."""
    seen = "not growing while it was watched" if watched else "seen once"
    if uptime_s is None or uptime_s < _YOUNG_S:
        return f"{seen}: watch it under load to see how fast it grows"
    per_hour = 3600 * count_dead(profile) / uptime_s
    text = f"{seen}; {number_words(per_hour)} an hour on average since its start {span_words(uptime_s)} ago"
    if soft is None or soft == math.inf or profile.fds >= soft:
        return text
    return f"{text}: at that rate its limit is reached in {span_words(3600 * (soft - profile.fds) / per_hour)}"


def shrink_sentence(forecast: Forecast) -> str | None:
    """Small pipes are slow, and some programs deadlock on them: that happens long before the limit."""
    if forecast.line != "pipe shrink":
        return None
    if forecast.eta_s[1] == 0:
        return f"its user has {forecast.at:,} pipes or more: new ones buffer 8 KiB instead of 64 and are slow"
    soonest = span_words(forecast.eta_s[0])
    return f"in {soonest} or more its user has {forecast.at:,} pipes: from then on new ones buffer 8 KiB instead of 64"


# ---- advice

_TIGHT = 0.8
_PLENTY = "1048576"


def find_advice(inputs: VerdictInput, verdict: Verdict) -> tuple[str, ...]:
    """Returns advice on the cause first; for a process at its limit, how to raise that first."""
    name = "PID" if inputs.pid is None else str(inputs.pid)
    more = _raise_limit(name, inputs)
    until_then = [f"until then: {one}" for one in more]
    cause = inputs.match.advice if inputs.match is not None else (_find(name),)
    if verdict is Verdict.EXHAUSTED:
        return (*more, *cause, _at_start(inputs))
    if verdict is Verdict.LEAK:
        return (*cause, *until_then)
    if verdict is Verdict.GROWING:
        return (*cause, *((watch_longer(inputs.pid),) if inputs.match is not None else ()), *until_then)
    if verdict is Verdict.SETTLING:
        return (f"growth that slows down is mostly a warm-up; to make sure: holdfast doctor {name} --for 1h",)
    if verdict is Verdict.UNCLEAR:
        return (watch_longer(inputs.pid),)
    return (*more, _at_start(inputs)) if _is_tight(inputs) else ()


def find_next_step(inputs: VerdictInput, verdict: Verdict) -> str:
    """Returns how to find the line of code; empty where nothing is wrong, or the advice itself is a command."""
    if verdict not in (Verdict.GROWING, Verdict.LEAK, Verdict.EXHAUSTED):
        return ""
    name = "PID" if inputs.pid is None else str(inputs.pid)
    return f"find the line that opens them: holdfast trace --attach {name} --for 60s"


def _is_tight(inputs: VerdictInput) -> bool:
    return inputs.fds is not None and bool(inputs.soft) and inputs.fds >= _TIGHT * (inputs.soft or 0)


def watch_longer(pid: int | None) -> str:
    return f"watch it longer before you act: holdfast doctor {'PID' if pid is None else pid} --for 10m"


def _find(name: str) -> str:
    return f"watch it under load to see which kind grows: holdfast doctor {name} --for 10m"


def _raise_limit(name: str, inputs: VerdictInput) -> tuple[str, ...]:
    """Returns nothing where the limit is infinite or unknown."""
    if inputs.soft is None or inputs.soft == math.inf:
        return ()
    if inputs.hard is not None and inputs.hard > inputs.soft:
        maximum = _PLENTY if inputs.hard == math.inf else f"{inputs.hard:.0f}"
        return (f"raise its limit while it runs: prlimit --pid {name} --nofile={maximum}:",)
    return (f"restart it before it runs out, or raise its limit as root: prlimit --pid {name} --nofile=SOFT:HARD",)


def _at_start(inputs: VerdictInput) -> str:
    if inputs.soft is not None and inputs.hard is not None and inputs.hard > inputs.soft:
        return "call hold.raise_nofile() when the program starts, or `ulimit -n` in the shell that starts it"
    return "raise the hard limit where it is started (LimitNOFILE= of systemd, --ulimit nofile= of docker)"
