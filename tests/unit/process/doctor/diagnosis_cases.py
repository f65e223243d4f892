"""Hand-made processes with their judgement, for the pages that show them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from holdfast.process.doctor.diagnose import WatchTarget
from holdfast.process.doctor.model import Diagnosis, FdProfile, Forecast, Match, Trend, Verdict
from holdfast.procfs.descriptors import Descriptor, Kind
from holdfast.procfs.limits import Limit
from holdfast.procfs.processes import Process
from holdfast.procfs.snapshot import ProcessSnapshot


@dataclass(frozen=True)
class Case:
    snapshot: ProcessSnapshot
    diagnosis: Diagnosis


def process_snapshot(
    pid: int = 41231, ppid: int = 1, kinds: dict[Kind, int] | None = None, **process: Any
) -> ProcessSnapshot:
    mix = {Kind.PIPE: 18, Kind.FILE: 6} if kinds is None else kinds
    table = [Descriptor(fd, kind, "x") for kind, times in mix.items() for fd in range(times)]
    facts = {
        "comm": "python",
        "cmdline": "python -m ami.worker",
        "uid": 1000,
        "threads": 12,
        "rss_bytes": 4_210_000_000,
    }
    return ProcessSnapshot(
        process=Process(pid=pid, ppid=ppid, start_ticks=1, uptime_s=507_600.0, **(facts | process)),
        fd_count=len(table),
        descriptors=tuple(table),
        ends=(),
        limits=(
            Limit(name="nofile", used=len(table), soft=65536, hard=1048576),
            Limit(name="nproc", used=40_100, soft=63_204, hard=63_204),
        ),
    )


def diagnosis(verdict: Verdict = Verdict.OK, **changes: Any) -> Diagnosis:
    plain = Diagnosis(
        verdict=verdict,
        evidence=("it holds 24 of 65,536 descriptors",),
        advice=(),
        fds=24,
        soft=65536,
        hard=1048576,
        profile=FdProfile(fds=24),
        trend=None,
        forecasts=(),
        match=None,
    )
    return replace(plain, **changes)


def leak() -> Case:
    return Case(
        process_snapshot(kinds={Kind.PIPE: 63_871, Kind.DEVICE: 19, Kind.SOCKET: 1}),
        diagnosis(
            Verdict.LEAK,
            evidence=("its baseline rose by 50,000 in 5 d", "63,840 of them are pipes whose other end is closed"),
            advice=("drop the iterator after the loop", "until then: prlimit --pid 41231 --nofile=1048576"),
            fds=63_912,
            profile=FdProfile(fds=63_912, self_pairs=15_960, hup=31_920, err=31_920),
            trend=Trend(
                per_hour=421, low=396, high=447, rise=50_000, span_s=432_000, bins=400, grows=True, settles=False
            ),
            forecasts=(
                Forecast(line="soft limit", at=65536, eta_s=(7260.0, 8340.0)),
                Forecast(line="pipe shrink", at=1024, eta_s=(60.0, math.inf)),
            ),
            match=Match(
                name="dead-loaders",
                cause="finished DataLoader iterators are still referenced",
                advice=(),
                count=63_840,
                dead=63_840,
                share=0.99,
            ),
        ),
    )


def child(pid: int, ppid: int = 41231, verdict: Verdict = Verdict.OK) -> Case:
    return Case(process_snapshot(pid, ppid), diagnosis(verdict))


def target(*processes: Case, **changes: Any) -> WatchTarget:
    shm = Limit(name="dev_shm_bytes", used=7_100_000_000, soft=8_000_000_000, hard=8_000_000_000)
    return replace(WatchTarget(processes=processes or (leak(),), role="worker", shared=(shm,)), **changes)
