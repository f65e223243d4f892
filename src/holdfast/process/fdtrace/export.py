"""Writes what was found in a recording for other programs: as JSON, whose keys are stable, and as folded stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..._util.text import printable
from .bad_descriptors import NumberHistory
from .compare import SiteChange
from .render import Findings, library_path, place_words
from .sites import Site, Statistics
from .trace_file import SourceFrame, Trace

WEIGHTS = ("live", "born", "growth")

# ---- JSON


def report_as_dict(found: Findings, file: str, top: int | None = None) -> dict[str, Any]:
    """Returns the document of --json."""
    trace, statistics = found.trace, found.statistics
    return {
        "file": file,
        "command": trace.command,
        "started": trace.started,
        "duration_s": round(trace.duration_s, 3),
        "since_s": round(statistics.since, 3),
        "until_s": round(statistics.until, 3),
        "mode": "partial" if trace.is_partial else "full",
        "exit_code": trace.exit_code,
        "verdict": found.verdict(),
        "problem": found.problem,
        "bad": [_history_as_dict(trace, one) for one in found.histories],
        "coverage": round(statistics.coverage, 4),
        "untraced": [{"pid": pid, "command": command} for pid, command in trace.untraced],
        "dropped_events": statistics.dropped_events,
        "warnings": list(trace.warnings),
        "sites": [site_as_dict(statistics, site) for site in statistics.sites[:top]],
        "failed": [
            {**_frame_as_dict(one.frame), "call": one.call, "error": one.error, "count": one.count}
            for one in statistics.failed
        ],
        "unknown": [{"target": one.target, "count": one.count} for one in statistics.unknown],
        "processes": [
            {
                "pid": process.pid,
                "parent": None if process.parent is None else trace.processes[process.parent].pid,
                "command": process.command,
                "python": process.python,
                "start_s": round(process.start_s, 3),
                "end_s": None if process.end_s is None else round(process.end_s, 3),
                "ended": process.ended,
                "live": process.live,
                "peak": process.peak,
                "dropped_events": process.dropped_events,
            }
            for process in trace.processes
        ],
    }


def _frame_as_dict(frame: SourceFrame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line, "function": frame.function, "text": frame.text}


def site_as_dict(statistics: Statistics, site: Site) -> dict[str, Any]:
    return {
        **_frame_as_dict(site.frame),
        "live": site.live,
        "born": site.born,
        "closed": site.closed,
        "peak": site.peak,
        "growth": round(site.growth, 3),
        "growth_per_minute": round(site.per_minute, 3),
        "oldest_s": round(site.oldest_s, 3),
        "kinds": dict(site.kinds),
        "pids": list(site.processes),
        "inherited": site.inherited,
        "inherited_by": statistics.inheritors(site),
        "closed_by_another_thread": site.closed_elsewhere,
        "lifetime_p50_s": _rounded(site.lifetime_p50_s),
        "lifetime_p99_s": _rounded(site.lifetime_p99_s),
        "closed_at": dict(site.closers),
        "owners": list(site.owners),
        "targets": list(site.targets),
        "via": [place_words(frame) for frame in statistics.path_of(site)],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _history_as_dict(trace: Trace, history: NumberHistory) -> dict[str, Any]:
    return {
        "kind": history.kind,
        "fd": history.fd,
        "call": history.call,
        "count": history.count,
        "sentence": history.sentence,
        "doubt": history.doubt,
        "deadly": history.is_deadly,
        "culprit": _frame_as_dict(history.culprit),
        "victim": _frame_as_dict(history.victim),
        "steps": [
            {
                "t_s": round(step.t_s, 6),
                "pid": step.pid,
                "tid": step.tid,
                "what": step.what,
                "note": step.note,
                **_frame_as_dict(step.frame),
                "stack": [f"{place_words(frame)} {frame.function}" for frame in trace.frames_of(step.stack)],
            }
            for step in history.steps
        ],
    }


def changes_as_dict(changes: Iterable[SiteChange], before: str, after: str) -> dict[str, Any]:
    """Returns the document of --diff."""
    return {
        "before": before,
        "after": after,
        "sites": [
            {
                "change": one.change,
                **_frame_as_dict(one.frame),
                "live_before": one.live_before,
                "live_after": one.live_after,
                "growth_per_minute_before": round(one.per_minute_before, 3),
                "growth_per_minute_after": round(one.per_minute_after, 3),
            }
            for one in changes
        ],
    }


# ---- folded stacks


def folded_stacks(statistics: Statistics, weight: str) -> Iterator[str]:
    """Yields `outermost;…;innermost N` for each stack, as flamegraph.pl and speedscope read them."""
    found: Counter[str] = Counter()
    for stack, value in statistics.weights(weight).items():
        frames = [_folded_frame(frame) for frame in reversed(statistics.trace.frames_of(stack))]
        found[";".join(frames) or "(no Python frame)"] += max(1, round(value))
    for line, value in found.most_common():
        yield f"{line} {value}"


def _folded_frame(frame: SourceFrame) -> str:
    name = f"{frame.function} ({library_path(frame.file)}:{frame.line})" if frame.line else frame.file
    return " ".join(printable(name).replace(";", ":").split())
