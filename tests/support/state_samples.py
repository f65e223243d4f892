"""State documents as watch makes them: healthy, leaking, out of descriptors, ended, and full of hostile text."""

from __future__ import annotations

import math
from typing import Any

from holdfast.process.doctor.model import Trend
from holdfast.process.watch.state import (
    BaselineState,
    EventState,
    GuardFacts,
    HeadroomState,
    Point,
    StateDocument,
    TargetState,
    TreeRow,
    kind_series,
    series_state,
    state_document,
    trend_lines,
)

NOW = 1_790_000_000.0
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e'\"`${1}{{2}} 名前 🚀 "
_BOTTOM = 40


def target(name: str = "worker", *, per_hour: float = 0.0, hours: float = 3.0, **changes: Any) -> TargetState:
    """A target that was watched for some hours; `changes` replace fields."""
    points = []
    for step in range(int(hours * 720)):
        t = NOW - hours * 3600 + step * 5
        floor = _BOTTOM + per_hour * step * 5 / 3600
        points.append(
            Point(
                t,
                int(floor + 6 + 5 * math.sin(step / 9)),
                int(floor),
                900_000_000 + step * 1000,
                12 + step % 3,
                2,
            )
        )
    fds = points[-1].fds
    rise = per_hour * hours
    trend = (
        Trend(
            per_hour=per_hour,
            low=per_hour * 0.94,
            high=per_hour * 1.06,
            rise=rise,
            span_s=hours * 3600,
            bins=12,
            grows=True,
            settles=False,
        )
        if per_hour
        else None
    )
    width = hours * 3600 / 12
    baseline = BaselineState(
        t=[NOW - hours * 3600 + (at + 0.5) * width for at in range(12)],
        fds=[int(_BOTTOM + per_hour * (at + 0.5) * width / 3600) for at in range(12)],
    )
    dead = int(rise * 0.9)
    kinds = {"pipe": dead + 12, "file": 20, "TCP socket": fds - dead - 32 if fds > dead + 32 else 2, "char device": 3}
    limit = 1024
    eta: list[float | None] | None = (
        [round(3600 * (limit - fds) / rate, 1) for rate in (per_hour * 1.06, per_hour * 0.94)] if per_hour else None
    )
    minutes = [NOW - hours * 3600 + 60 * minute for minute in range(int(hours * 60))]
    shown = [
        (t, {"pipe": int(12 + per_hour * 0.9 * (t - minutes[0]) / 3600), "file": 20, "TCP socket": 8}) for t in minutes
    ]
    made = TargetState(
        target=name,
        source="pid",
        pid=4711,
        about=4711,
        command="/usr/bin/python3 -m ami.worker --queue default",
        started=NOW - hours * 3600 - 60,
        uptime_s=hours * 3600 + 60,
        alive=True,
        verdict="OK",
        sentence="it holds 51 of 1,024 descriptors (5 %): 973 are left",
        evidence=["its baseline did not rise in 3 h", "it holds 51 of 1,024 descriptors (5 %): 973 are left"],
        advice=[],
        confidence="sure (95 %) that it grows by at most 40 a day: its limit is not reached within a week",
        cause="",
        signature=None,
        held_by=[],
        fds=fds,
        limit=limit,
        hard_limit=4096,
        kinds=kinds,
        dead_pipes={"read": dead // 2, "write": dead - dead // 2},
        self_pairs=dead // 9,
        close_wait=0,
        growth_per_hour=[per_hour, per_hour * 0.94, per_hour * 1.06] if per_hour else [0.0, -0.4, 0.3],
        eta_s=eta,
        headroom=[
            HeadroomState(name="nofile", label="open files", used=fds, limit=limit, ratio=fds / limit),
            HeadroomState(name="nproc", label="threads of this user (ulimit -u)", used=212, limit=None, ratio=0.0),
            HeadroomState(name="dev_shm_bytes", label="/dev/shm", used=1 << 28, limit=1 << 33, ratio=1 / 32),
            HeadroomState(name="inotify_watches", label="inotify watches of this user", used=None, limit=8, ratio=None),
        ],
        tree=[
            _row(4711, 1, fds, kinds, dead),
            _row(4720, 4711, 19, {"pipe": 9, "file": 10}, 0),
            _row(4721, 4720, None, None, None),
        ],
        dead=[
            {
                "pid": 4711,
                "fd": 30 + at,
                "inode": 880_000 + at,
                "access": "rw"[at % 2],
                "state": "dead" if at % 9 else "self",
            }
            for at in range(min(dead, 50))
        ],
        guard=guard(),
        restarts={"recycle": 3},
        restart_loop=None,
        series=series_state(points),
        kind_series=kind_series(shown),
        baseline=baseline,
        trend=trend_lines(baseline, trend, NOW, limit),
    )
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def guard(**changes: Any) -> GuardFacts:
    made = GuardFacts(
        pid=4711,
        name="worker",
        health="ok",
        sentence="412 jobs done, last success 3 s ago",
        state="running",
        jobs_done=412,
        jobs_failed=2,
        fails_in_row=0,
        last_success=NOW - 3,
        job="batch-413",
        reason="",
        error="",
        soft_cap=512,
        hard_cap=870,
        jobs=[[number, 50 + number // 40] for number in range(157, 413)],
    )
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def _row(pid: int, ppid: int, fds: int | None, kinds: dict[str, int] | None, dead: int | None) -> TreeRow:
    return TreeRow(
        pid=pid,
        ppid=ppid,
        command=f"python3 -m ami.worker {pid}",
        fds=fds,
        limit=1024,
        kinds=kinds,
        dead_pipes=dead,
        threads=4,
        rss_bytes=120_000_000,
        verdict="OK",
    )


def event(ago_s: float, target: str, kind: str, text: str) -> EventState:
    return EventState(t=NOW - ago_s, target=target, kind=kind, text=text)


def document(*targets: TargetState, events: list[EventState] | None = None, **changes: Any) -> StateDocument:
    facts: dict[str, Any] = {"now": NOW, "live": True, "host": "gpu-07", "every_s": 5.0, "since": NOW - 10800}
    return state_document(**(facts | changes), targets=targets, events=events or [])


# ---- the documents


def healthy() -> StateDocument:
    return document(
        target(), target("loader", guard=None, restarts={}), events=[event(10800, "worker", "start", "pid 4711")]
    )


def leaking() -> StateDocument:
    """One of three leaks some 300 an hour and reaches its limit within hours."""
    bad = target(
        per_hour=290.0,
        verdict="LEAK",
        sentence="788 of its 917 descriptors are pipes whose other end is closed in every process",
        evidence=[
            "its baseline rose by 870 in 3 h (290 an hour, 273–307) and stays high when idle",
            "788 of its 917 descriptors are pipes whose other end is closed in every process",
        ],
        advice=[
            "drop finished DataLoader iterators, or use one persistent loader",
            "until then: raise its limit while it runs: prlimit --pid 4711 --nofile=4096:",
        ],
        confidence="certain: the evidence is conclusive, a longer watch would not change the verdict",
        cause="finished DataLoader iterators that something still references",
        signature="dead-loaders",
        held_by=["module ami.worker › _iterators › [0] › _index_queues"],
        guard=guard(health="draining", sentence="it drains: 512 descriptors", state="draining", reason="512 fds"),
    )
    events = [
        event(10800, "worker", "start", "pid 4711"),
        event(7200, "worker", "restart", "recycle: pid 4700 ended with exit code 75, pid 4711 took its place"),
        event(600, "worker", "verdict", "OK → GROWING: its baseline rose by 60"),
        event(300, "worker", "verdict", "GROWING → LEAK: 788 of its 917 descriptors are dead pipes"),
        event(20, "worker", "drain", "512 descriptors"),
    ]
    return document(bad, target("loader", guard=None, restarts={}), target("worker-2", pid=4800), events=events)


def exhausted() -> StateDocument:
    """Out of descriptors, and failing because of that."""
    sentence = "it is failing: it runs, but 212 failures in a row (EMFILE: Too many open files)"
    bad = target(
        per_hour=290.0,
        verdict="EXHAUSTED",
        fds=1024,
        sentence="it holds 1,024 descriptors and its soft limit is 1,024: it can open nothing more",
        evidence=["it holds 1,024 descriptors and its soft limit is 1,024: it can open nothing more"],
        advice=["raise its limit while it runs: prlimit --pid 4711 --nofile=4096:"],
        eta_s=[0.0, 0.0],
        guard=guard(health="failing", sentence=sentence, fails_in_row=212, error="SSLError", last_success=NOW - 4000),
    )
    return document(bad, events=[event(60, "worker", "health", f"ok → failing: {sentence}")])


def ended() -> StateDocument:
    """A recording of a process that is gone."""
    gone = target(
        per_hour=290.0,
        alive=False,
        verdict="LEAK",
        sentence="it ended while it was watched: this is its last state",
        guard=None,
        headroom=[],
        tree=[],
        dead=[],
    )
    events = [event(10800, "worker", "start", "pid 4711"), event(0, "worker", "end", "pid 4711 ended")]
    return document(gone, events=events, live=False)


def dying() -> StateDocument:
    """A healthy one, one that leaks, one that is restarted again and again, and one that died of exhaustion."""
    loop = "it is in a restart loop: 4 unplanned restarts within 10 min (3 exit, 1 signal)"
    looping = target("loader", pid=4790, restarts={"exit": 9, "signal": 1}, restart_loop=loop, hours=0.05)
    died = target(
        "trainer",
        per_hour=300.0,
        pid=4650,
        alive=False,
        verdict="EXHAUSTED",
        fds=1023,
        sentence="it has ended out of descriptors: it held 1,023 of 1,024; this is its last state",
        cause="finished DataLoader iterators that something still references",
        guard=None,
        headroom=[],
        tree=[],
        dead=[],
    )
    batch = target("batch", pid=4500, alive=False, sentence="it has ended; this is its last state", guard=None)
    leaks = leaking()["targets"][0]
    events = [
        event(900, "trainer", "end", "pid 4650 ended out of descriptors: it held 1,023 of 1,024"),
        event(60, "loader", "loop", loop),
    ]
    return document(target("api", pid=4400), batch, leaks, looping, died, events=events)


def without_guard() -> StateDocument:
    """Another user's process, just seen: nothing but its count is known, and no trend."""
    unknown = target(
        hours=0.01,
        guard=None,
        restarts={},
        kinds=None,
        dead_pipes=None,
        self_pairs=None,
        close_wait=None,
        growth_per_hour=None,
        eta_s=None,
        limit=None,
        hard_limit=None,
        started=None,
        uptime_s=None,
        headroom=[],
        tree=[],
        dead=[],
        kind_series=kind_series(()),
        baseline=BaselineState(t=[], fds=[]),
        trend=None,
        sentence="permission denied to list its descriptors: run as its user or as root",
        evidence=["permission denied to list its descriptors: run as its user or as root"],
    )
    return document(unknown, problems=["watch.db: the disk is full: samples are kept in memory only"])


def nothing() -> StateDocument:
    """No process of that name has been seen yet."""
    return document()


def hostile() -> StateDocument:
    """Every text that a watched process or its user can choose is hostile."""
    bad = target(
        HOSTILE,
        per_hour=290.0,
        command=HOSTILE * 40,
        verdict="LEAK",
        sentence=HOSTILE,
        evidence=[HOSTILE],
        advice=[HOSTILE],
        cause=HOSTILE,
        signature=HOSTILE,
        held_by=[HOSTILE],
        kinds={HOSTILE: 3},
        kind_series={"t": [NOW - 60, NOW], "kinds": {HOSTILE: [1, 2]}},
        restarts={HOSTILE: 1},
        guard=guard(name=HOSTILE, sentence=HOSTILE, job=HOSTILE, reason=HOSTILE, error=HOSTILE),
    )
    bad["tree"][0]["command"] = HOSTILE
    return document(bad, events=[event(5, HOSTILE, "verdict", HOSTILE)], host=HOSTILE, problems=[HOSTILE])


ALL = (healthy, leaking, exhausted, ended, dying, without_guard, nothing, hostile)
