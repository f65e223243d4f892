"""Writes a recording as one HTML file that needs no other file and no other host.

Everything of the recording is in one JSON document inside the page, and html_page.js shows it as text, never as markup:
file names, commands and source lines may contain anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ..._util.atomic import write_atomically
from ..._util.offline_html import assemble, common_part
from ..._util.text import counted, printable
from .bad_descriptors import NumberHistory
from .descriptor_lives import describe_frame
from .render import Findings, owner_words
from .sites import Site, is_library, short
from .trace_file import SourceFrame, Trace

MAX_STACKS, MAX_SITES, MAX_ROWS = 2_000, 300, 2_000
_MAX_FRAMES = 20_000
_MAX_IN_STACK = 128
_MAX_TEXT = 300
_MAX_IN_CHART = 12
_MAX_IN_SITE = 20
_HERE = Path(__file__).parent


def write_page(
    trace: Trace, path: str | os.PathLike[str], *, since: float | None = None, until: float | None = None
) -> None:
    """Writes the page over whatever has this name.

    Args:
        since: Leaves out what happened before, in seconds since the start; `until` what happened after.
    """
    data = PageData(trace, since=since, until=until).as_dict()
    template = (_HERE / "html_page.html").read_text()
    style, script = (common_part(kind) + (_HERE / f"html_page.{kind}").read_text() for kind in ("css", "js"))
    page = assemble(template, style=style, script=script, data=data)
    write_atomically(path, page.encode())


class PageData:
    """Collects what the page shows, the largest first, up to the limits above."""

    def __init__(self, trace: Trace, *, since: float | None = None, until: float | None = None) -> None:
        self._trace = trace
        self._found = Findings(trace, since=since, until=until)
        self._stats = self._found.statistics
        self._is_part = since is not None or until is not None
        self._frames: dict[SourceFrame, int] = {}
        self._stacks: dict[int, int] = {}
        self._stack_frames: list[list[int]] = []
        self._left_out: list[str] = []

    def as_dict(self) -> dict[str, Any]:
        """Returns the data as JSON knows it."""
        stats, trace = self._stats, self._trace
        sites = stats.sites[:MAX_SITES]
        self._count_left_out(len(stats.sites) - len(sites), "site")
        ranked = self._ranked_stacks
        flame = [stack for stack in ranked[:MAX_STACKS] if self._add_stack(stack) is not None]
        self._count_left_out(len(ranked) - len(flame), "stack")
        # Added last, and not part of the flame graph.
        histories = [self._history(history) for history in self._found.histories]
        return {
            "verdict": _text(self._found.verdict(), 900),
            "problem": self._found.problem,
            "is_misused": bool(self._found.misused),
            "facts": self._facts(),
            "warnings": [_text(line, 600) for line in trace.warnings[:50]],
            "grid": [_number(t, 4) for t in stats.grid],
            "by_kind": [{"name": name, "series": series.tolist()} for name, series in stats.by_kind.items()],
            "by_site": self._by_site(),
            "sites": [self._site(site) for site in sites],
            "processes": self._processes(),
            "histories": histories,
            "failed": [
                {
                    "where": _text(f"{one.frame.file}:{one.frame.line}"),
                    "function": _text(one.frame.function),
                    "text": _source(one.frame.text),
                    "call": _text(one.call),
                    "error": _text(one.error),
                    "count": one.count,
                }
                for one in stats.failed[:MAX_SITES]
            ],
            "unknown": [{"target": _text(one.target), "count": one.count} for one in self._unknown()],
            "coverage": _number(stats.coverage, 4),
            "frames": [
                [_text(frame.file), frame.line, _text(frame.function), _source(frame.text), int(is_library(frame.file))]
                for frame in self._frames
            ],
            "stacks": self._stack_frames,
            "flame": [self._stacks[stack] for stack in flame],
            "weights": {
                name: [_number(self._weights[name].get(stack, 0), 2) for stack in flame]
                for name in ("growth", "live", "born")
            },
            "left_out": self._left_out,
        }

    # -- stacks

    @cached_property
    def _weights(self) -> dict[str, dict[int, float]]:
        return {name: self._stats.weights(name) for name in ("growth", "live", "born")}

    @cached_property
    def _ranked_stacks(self) -> list[int]:
        growth, live, born = (self._weights[name] for name in ("growth", "live", "born"))
        return sorted(
            growth.keys() | live.keys() | born.keys(),
            key=lambda stack: (-growth.get(stack, 0), -live.get(stack, 0), -born.get(stack, 0), stack),
        )

    def _add_stack(self, stack: int) -> int | None:
        """Returns the number of a stack in the page, None if it has no place there."""
        if stack in self._stacks:
            return self._stacks[stack]
        frames = self._trace.frames_of(stack)[:_MAX_IN_STACK]
        if len(self._frames) + len(frames) > _MAX_FRAMES:
            return None
        self._stacks[stack] = len(self._stack_frames)
        self._stack_frames.append([self._frames.setdefault(frame, len(self._frames)) for frame in frames])
        return self._stacks[stack]

    def _count_left_out(self, count: int, noun: str) -> None:
        if count > 0:
            self._left_out.append(counted(count, noun))

    # -- sections

    def _facts(self) -> list[tuple[str, str]]:
        trace, stats = self._trace, self._stats
        ended = sum(process.end_s is not None for process in trace.processes)
        killed = sum(process.ended == "killed" for process in trace.processes)
        missing = f"; {counted(len(trace.untraced), 'process')} not traced" if trace.untraced else ""
        facts = [
            ("Command", _text(trace.command, 2_000)),
            ("Began", _when(trace.started)),
            ("Recorded", _duration(trace.duration_s)),
            ("Processes", f"{len(trace.processes):,}, {ended:,} ended" + (f", {killed:,} killed" if killed else "")),
            ("Exit code", "none" if trace.exit_code is None else str(trace.exit_code)),
            ("Mode", "partial: without the tracing library" if trace.is_partial else "full"),
            ("Births seen", f"{math.floor(1000 * stats.coverage) / 10:g} % in traced processes{missing}"),
            ("Dropped events", f"{stats.dropped_events:,}"),
        ]
        if self._is_part:
            facts.insert(3, ("Looked at", f"{stats.since:.1f} s to {stats.until:.1f} s"))
        return facts

    def _by_site(self) -> list[dict[str, Any]]:
        sites = sorted(self._stats.sites, key=lambda site: (-site.growth, -site.peak))
        found = [
            {"name": _text(f"{short(site.where)} {site.frame.function}", 45), "series": site.series.tolist()}
            for site in sites[:_MAX_IN_CHART]
        ]
        if len(sites) > _MAX_IN_CHART:
            rest = [sum(live) for live in zip(*(site.series for site in sites[_MAX_IN_CHART:]), strict=True)]
            found.append({"name": counted(len(sites) - _MAX_IN_CHART, "other site"), "series": rest})
        return found

    def _site(self, site: Site) -> dict[str, Any]:
        live, born = self._weights["live"], self._weights["born"]
        stacks = sorted(site.stacks, key=lambda stack: (-live.get(stack, 0), -born.get(stack, 0)))
        return {
            "file": _text(site.frame.file),
            "line": site.frame.line,
            "function": _text(site.frame.function),
            "text": _source(site.frame.text),
            "is_library": is_library(site.frame.file),
            "live": site.live,
            "born": site.born,
            "closed": site.closed,
            "peak": site.peak,
            "growth": _number(site.growth, 1),
            "per_minute": _number(site.per_minute, 3),
            "oldest_s": _number(site.oldest_s, 2),
            "kinds": dict(site.kinds),
            "processes": len(site.processes),
            "pids": list(site.processes[:_MAX_IN_SITE]),
            "inherited": site.inherited,
            "closed_elsewhere": site.closed_elsewhere,
            "p50_s": _number(site.lifetime_p50_s, 6),
            "p99_s": _number(site.lifetime_p99_s, 6),
            "closers": [[_text(where), count] for where, count in site.closers.items()],
            "owners": _texts(owner_words(site.owners, site.live, _MAX_IN_SITE)),
            "targets": _texts(site.targets),
            "series": site.series.tolist()[::4],
            "stack_count": len(stacks),
            "stacks": [
                [self._stacks[stack], int(live.get(stack, 0)), int(born.get(stack, 0))]
                for stack in stacks
                if stack in self._stacks
            ][:_MAX_IN_SITE],
        }

    def _processes(self) -> list[dict[str, Any]]:
        processes = self._trace.processes
        order = sorted(range(len(processes)), key=lambda number: (-processes[number].peak, number))
        shown = set(order[:MAX_ROWS])
        self._count_left_out(len(order) - len(shown), "process row")
        children: dict[int | None, list[int]] = {}
        for number in sorted(shown, key=lambda number: (processes[number].start_s, number)):
            parent = processes[number].parent
            is_known = parent in shown and parent != number
            children.setdefault(parent if is_known else None, []).append(number)
        rows: list[dict[str, Any]] = []
        waiting = [(number, 0) for number in reversed(children.get(None, []))]
        while waiting:
            number, depth = waiting.pop()
            rows.append(self._process(number, depth))
            waiting += [(child, depth + 1) for child in reversed(children.get(number, []))]
        return rows

    def _process(self, number: int, depth: int) -> dict[str, Any]:
        process = self._trace.processes[number]
        return {
            "pid": process.pid,
            "depth": depth,
            "command": _text(process.command),
            "python": _text(process.python),
            "start_s": _number(process.start_s, 3),
            "end_s": _number(process.end_s, 3),
            "ended": _text(process.ended),
            "live": process.live,
            "peak": process.peak,
            "dropped": process.dropped_events,
            "unknown": len(process.unknown),
            "note": _note(process.stopped_by, bool(process.python) and not process.has_stacks),
        }

    def _history(self, history: NumberHistory) -> dict[str, Any]:
        return {
            "kind": history.kind,
            "fd": history.fd,
            "call": _text(history.call),
            "sentence": _text(history.sentence, 1_000),
            "doubt": _text(history.doubt, 1_000),
            "culprit": _line(history.culprit),
            "victim": _line(history.victim),
            "count": history.count,
            "steps": [
                {
                    "t_s": _number(step.t_s, 6),
                    "pid": step.pid,
                    "tid": step.tid,
                    "what": _text(step.what),
                    "where": _text(f"{step.frame.file}:{step.frame.line}" if step.frame.line else step.frame.file),
                    "function": _text(step.frame.function),
                    "text": _source(step.frame.text),
                    "stack": self._add_stack(step.stack),
                    "lifetime": step.lifetime,
                    "note": _text(step.note),
                }
                for step in history.steps
            ],
        }

    def _unknown(self) -> Sequence[Any]:
        unknown = self._stats.unknown
        self._count_left_out(len(unknown) - MAX_ROWS, "unknown target")
        return unknown[:MAX_ROWS]


def _note(stopped_by: int, is_without_stacks: bool) -> str:
    if stopped_by:
        return f"recording stopped: {os.strerror(stopped_by)}"
    return "no stacks for this Python" if is_without_stacks else ""


def _text(text: str, maximum: int = _MAX_TEXT) -> str:
    """Makes text visible and short. The end of a path says more than its beginning."""
    if len(text) > maximum:
        text = f"{text[: maximum // 3]} … {text[-(maximum - maximum // 3) :]}"
    return printable(text)


def _texts(lines: Iterable[str]) -> list[str]:
    return [_text(line) for line in list(lines)[:_MAX_IN_SITE]]


def _line(frame: SourceFrame) -> list[str]:
    return [_text(describe_frame(frame)), _source(frame.text)]


def _source(text: str) -> str:
    return _text(text[: 2 * _MAX_TEXT].expandtabs(4).strip())


def _number(value: float | None, digits: int) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits) if value % 1 else int(value)


def _when(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %z}"
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _duration(seconds: float) -> str:
    if not seconds >= 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
