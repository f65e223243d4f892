"""What speaks for a verdict, in whole sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .case import Case
from .dead import are_many, are_most_at_once, are_mostly_dead_pipes, count_dead
from .facts import Forecast, Structure, Trend, Verdict
from .floors import SHORT_S
from .jobs import JobTrend
from .trend import DAY_S
from .words import number_words, range_words, share_words, span_words

# An average over less time than that says nothing.
_YOUNG_S = 60.0


def find_evidence(case: Case, verdict: Verdict, forecasts: Sequence[Forecast]) -> list[str]:
    """What decided comes first, what weakens it right after it, how much room is left last."""
    room = room_sentence(case.fds, case.soft)
    if verdict in (Verdict.OK, Verdict.UNCLEAR):
        many = case.structure is not None and are_many(case.structure)
        return [*_calm(case), *(dead_sentences(case.structure) if case.structure and many else ()), room]
    said = [*_growth(case, verdict), *_uselessness(case, verdict), *(shrink_sentence(one) for one in forecasts)]
    found = [sentence for sentence in said if sentence]
    return [room, *found] if verdict is Verdict.EXHAUSTED else [*found, room]


def _calm(case: Case) -> list[str]:
    said = [trend_sentence(case.trend)] if case.trend is not None else []
    if case.jobs is not None:
        said.append(job_sentence(case.jobs))
    return said or ["seen once: whether it grows shows only when it is watched for a while"]


def _growth(case: Case, verdict: Verdict) -> list[str | None]:
    said: list[str | None] = [job_sentence(case.jobs)] if case.jobs is not None and case.jobs.grows else []
    if case.trend is not None and (case.trend.grows or case.trend.settles):
        said.append(trend_sentence(case.trend))
        if verdict is Verdict.GROWING:
            said.append(doubt_sentence(case.trend))
    return said


def _uselessness(case: Case, verdict: Verdict) -> list[str | None]:
    if case.structure is None:
        return []
    said: list[str | None] = [*dead_sentences(case.structure)]
    if case.first is not None and verdict not in (Verdict.GROWING, Verdict.SETTLING):
        said.append(growth_sentence(case.structure, case.first))
    if case.growing is None and (are_most_at_once(case.structure) or are_mostly_dead_pipes(case.structure)):
        watched = case.trend is not None
        said.append(average_sentence(case.structure, case.soft, case.uptime_s, watched=watched))
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


def dead_sentences(structure: Structure) -> list[str]:
    all_of_them = f"its {structure.fds:,} descriptors"
    found = []
    if structure.dead_pipes:
        found.append(f"{structure.dead_pipes:,} of {all_of_them} are pipes whose far end is closed in every process")
    if structure.self_pairs:
        found.append(
            f"{2 * structure.self_pairs:,} of {all_of_them} are the two ends of "
            f"{_counted(structure.self_pairs, 'pipe')} that no other process has"
        )
    if structure.close_wait:
        found.append(
            f"{structure.close_wait:,} of {all_of_them} are connections that the other side has closed "
            "and this one not (CLOSE_WAIT)"
        )
    return found


def growth_sentence(structure: Structure, first: Structure) -> str | None:
    """Between the first look and the last one."""
    grown, dead = structure.fds - first.fds, count_dead(structure) - count_dead(first)
    if dead <= 0:
        return None
    if grown <= dead:
        return f"{dead:,} more than at the first look are of no use to anyone"
    return f"{dead:,} of the {grown:,} that came since the first look are of no use to anyone"


def average_sentence(structure: Structure, soft: float | None, uptime_s: float | None, *, watched: bool) -> str:
    """Without a trend that grows, the age of the process gives at least the average."""
    seen = "not growing while it was watched" if watched else "seen once"
    if uptime_s is None or uptime_s < _YOUNG_S:
        return f"{seen}: watch it at work to learn how fast it grows"
    per_hour = 3600 * count_dead(structure) / uptime_s
    text = f"{seen}; {number_words(per_hour)} an hour on average since its start {span_words(uptime_s)} ago"
    if soft is None or soft == math.inf or structure.fds >= soft:
        return text
    return f"{text}: at that pace its limit is reached in {span_words(3600 * (soft - structure.fds) / per_hour)}"


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
