"""Renders a state document in the Prometheus text format.

The names follow the conventions: base units, `_total` for counters, one series per verdict and per state of health with
the value 0 or 1. What is unknown has no series; a limit that is never reached is +Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..doctor.model import Verdict
from ..guard.health import Health
from .state import StateDocument, TargetState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """A metric: its name without the prefix `holdfast_`, its type and its help."""

    name: str
    type: str
    help: str


FAMILIES = (
    Family("watch_last_sample_timestamp_seconds", "gauge", "When watch sampled last."),
    Family("watch_samples_total", "counter", "Rounds of samples since watch started."),
    Family("watch_problems", "gauge", "How many things watch cannot do now, such as writing to a full disk."),
    Family("sample_duration_seconds", "gauge", "How long the last round of samples took."),
    Family("target_up", "gauge", "Whether the process of the target is there."),
    Family("process_open_fds", "gauge", "Open descriptors by kind; the sum over the kinds is exact."),
    Family("process_fd_limit", "gauge", "The limit of open descriptors (RLIMIT_NOFILE), soft and hard."),
    Family("process_dead_pipe_fds", "gauge", "Pipe ends whose other end is closed in every process."),
    Family("process_self_pair_pipes", "gauge", "Pipes with both ends in the process and none elsewhere."),
    Family("process_close_wait_sockets", "gauge", "Connections that the peer has closed and the process has not."),
    Family("process_fd_growth_per_second", "gauge", "Growth of the descriptor baseline, with its 95 % interval."),
    Family("process_fd_exhaustion_seconds", "gauge", "Time until the soft limit is reached; +Inf without growth."),
    Family("process_headroom_ratio", "gauge", "The part of a limit that is left, 0 to 1."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory of the process."),
    Family("process_threads", "gauge", "Threads of the process."),
    Family("process_tree_processes", "gauge", "Processes in the tree of the target."),
    Family("process_start_time_seconds", "gauge", "When the process of the target started."),
    Family("leak_verdict", "gauge", "The verdict on the target: 1 for the present one, 0 for the others."),
    Family("worker_health", "gauge", "The state of the Guard's heartbeat: 1 for the present state, 0 for the others."),
    Family(
        "last_success_timestamp_seconds",
        "gauge",
        "The last success of the worker; its start before the first.",
    ),
    Family("failures_in_row", "gauge", "Failures that the worker reported since its last success."),
    Family("jobs_total", "counter", "Jobs of the present process, by result."),
    Family("restarts_total", "counter", "Restarts of the target, by reason."),
    Family("restart_loop", "gauge", "Whether the target is restarted again and again."),
    Family("draining", "gauge", "Whether the worker finishes its job and takes no new one."),
)

Labels = Mapping[str, str]
Series = tuple[str, Labels, float]


def render_metrics(document: StateDocument, *, round_s: float = 0.0, rounds: int = 0) -> str:
    """Returns the exposition; `round_s` is how long the last of `rounds` rounds took."""
    found: dict[str, list[str]] = {family.name: [] for family in FAMILIES}
    for name, labels, value in (*_of_watch(document, round_s, rounds), *_of_targets(document)):
        found[name].append(f"holdfast_{name}{_label_text(labels)} {_number(value)}\n")
    return "".join(_head(family) + "".join(found[family.name]) for family in FAMILIES if found[family.name])


def _head(family: Family) -> str:
    return f"# HELP holdfast_{family.name} {family.help}\n# TYPE holdfast_{family.name} {family.type}\n"


def _label_text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _of_watch(document: StateDocument, round_s: float, rounds: int) -> Iterator[Series]:
    yield "watch_last_sample_timestamp_seconds", {}, document["now"]
    yield "watch_samples_total", {}, rounds
    yield "watch_problems", {}, len(document["problems"])
    yield "sample_duration_seconds", {}, round(round_s, 6)


def _of_targets(document: StateDocument) -> Iterator[Series]:
    for one in document["targets"]:
        own = {"target": one["target"]}
        yield "target_up", own, one["alive"]
        for reason, times in ({"recycle": 0} | one["restarts"]).items():
            yield "restarts_total", own | {"reason": reason}, times
        yield "restart_loop", own, bool(one["restart_loop"])
        if one["alive"]:
            yield from _of_process(one, own)
            yield from _of_guard(one, own)


def _of_process(one: TargetState, own: Labels) -> Iterator[Series]:
    for kind, times in _exact_kinds(one["kinds"], one["fds"]).items():
        yield "process_open_fds", {**own, "kind": kind}, times
    for type_, limit in (("soft", one["limit"]), ("hard", one["hard_limit"])):
        if limit is not None:
            yield "process_fd_limit", {**own, "type": type_}, limit
    for end, times in (one["dead_pipes"] or {}).items():
        yield "process_dead_pipe_fds", {**own, "end": end}, times
    if one["self_pairs"] is not None:
        yield "process_self_pair_pipes", own, one["self_pairs"]
    if one["close_wait"] is not None:
        yield "process_close_wait_sockets", own, one["close_wait"]
    for bound, rate in zip(("estimate", "low", "high"), one["growth_per_hour"] or (), strict=False):
        yield "process_fd_growth_per_second", {**own, "bound": bound}, rate / 3600
    for bound, eta in zip(("earliest", "latest"), one["eta_s"] or (None, None), strict=True):
        yield "process_fd_exhaustion_seconds", {**own, "bound": bound}, math.inf if eta is None else eta
    for limit_state in one["headroom"]:
        if limit_state["ratio"] is not None:
            left = max(0.0, 1 - limit_state["ratio"])
            yield "process_headroom_ratio", {**own, "resource": limit_state["name"]}, round(left, 6)
    for row in one["tree"]:
        if row["pid"] == one["about"]:
            if row["rss_bytes"] is not None:
                yield "process_resident_memory_bytes", own, row["rss_bytes"]
            if row["threads"] is not None:
                yield "process_threads", own, row["threads"]
    if one["tree"]:
        yield "process_tree_processes", own, len(one["tree"])
    if one["started"] is not None:
        yield "process_start_time_seconds", own, round(one["started"], 3)
    for verdict in Verdict:
        yield "leak_verdict", {**own, "verdict": verdict.value}, one["verdict"] == verdict


def _of_guard(one: TargetState, own: Labels) -> Iterator[Series]:
    guard = one["guard"]
    if guard is None:
        return
    for health in Health:
        yield "worker_health", {**own, "health": health.value}, guard["health"] == health
    # Before the first success it is the start: an alert on its age must not wait for one that never comes.
    last = guard["last_success"] if guard["last_success"] is not None else one["started"]
    yield "last_success_timestamp_seconds", own, last or 0
    yield "failures_in_row", own, guard["fails_in_row"]
    yield "jobs_total", {**own, "result": "done"}, guard["jobs_done"]
    yield "jobs_total", {**own, "result": "failed"}, guard["jobs_failed"]
    yield "draining", own, guard["health"] == Health.DRAINING or guard["state"] == "draining"


def _exact_kinds(kinds: dict[str, int] | None, fds: int | None) -> dict[str, int]:
    """Scales counts by kind, which are estimated once a minute, so that their sum is the present count."""
    if fds is None:
        return {}
    total = sum((kinds or {}).values())
    if not kinds or not total:
        return {"unknown": fds}
    parts = {kind: fds * times / total for kind, times in kinds.items()}
    whole = {kind: int(part) for kind, part in parts.items()}
    rest = sorted(parts, key=lambda kind: whole[kind] - parts[kind])[: fds - sum(whole.values())]
    return {kind: times + (kind in rest) for kind, times in whole.items()}
