"""A worker as the benchmark runs it: `workload.py WORK COUNT WATCHED FDS ROUNDS`, prints one line of JSON.

It imports holdfast only where it is measured, so that the other contenders do not pay for it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_JOB_S = 0.001
_TURN = 10


def calibrate(*_: object) -> dict[str, float]:
    """Returns how many rounds of `_work` take a millisecond."""
    rounds = 2_000
    best = min(_timed(rounds) for _ in range(50))
    return {"rounds": max(1, int(rounds * _JOB_S / best))}


def _timed(rounds: int) -> float:
    start = time.perf_counter()
    _work(rounds)
    return time.perf_counter() - start


def _work(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number * number & 7
    return total


def _psutil_sample() -> Callable[[], object]:
    import psutil

    process = psutil.Process()
    return lambda: (process.num_fds(), process.memory_info(), process.num_threads())


def jobs(count: int, watched: str, rounds: int) -> dict[str, float]:
    """Measures jobs with and without what watches them, in turns of 10: other load on the machine meets both alike.

    `plain_s` is the CPU time of the median turn without, `ratio` that of the median pair of turns; it includes the CPU
    time of other threads.
    """
    if watched == "guard":
        import holdfast as hold

        with hold.Guard("bench", fds=hold.Cap(hard=1.0), log=os.devnull) as guard:

            def job(number: int) -> None:
                guard.ok()
                with guard.job(number):
                    _work(rounds)

            return _in_turns(count, rounds, job)
    sample = _psutil_sample() if watched == "psutil" else lambda: None

    def sampled(_: int) -> None:
        _work(rounds)
        sample()

    return _in_turns(count, rounds, sampled)


def _in_turns(count: int, rounds: int, job: Callable[[int], None]) -> dict[str, float]:
    def plain(_: int) -> None:
        _work(rounds)

    ratios, plain_s = [], []
    all_s, own_s = time.process_time(), time.thread_time()
    turns = max(2, count // _TURN)
    for turn in range(turns):
        taken = {}
        for way in (plain, job) if turn % 2 else (job, plain):
            start = time.thread_time()
            for number in range(_TURN):
                way(number)
            taken[way] = time.thread_time() - start
        plain_s.append(taken[plain])
        ratios.append(taken[job] / taken[plain])
    others_s = time.process_time() - all_s - (time.thread_time() - own_s)
    middle_s = statistics.median(plain_s)
    return {"plain_s": middle_s, "ratio": statistics.median(ratios) + others_s / (2 * turns) / middle_s}


def idle(seconds: int, watched: str, _: int) -> dict[str, float]:
    """Measures the CPU time of sampling once a second while the worker itself sleeps."""
    if watched == "guard":
        import holdfast as hold

        with hold.Guard("bench", fds=hold.Cap(hard=1.0), log=os.devnull) as guard:
            guard.ok()
            start = time.process_time()
            for _number in range(seconds * 10):
                guard.ok()
                time.sleep(0.1)
            return {"cpu_s": time.process_time() - start, "wall_s": seconds}
    sample = _psutil_sample()
    start = time.process_time()
    for _number in range(seconds):
        sample()
        time.sleep(1)
    return {"cpu_s": time.process_time() - start, "wall_s": seconds}


def calls(count: int, watched: str, _: int) -> dict[str, float]:
    """Measures single calls, in seconds each."""
    import holdfast as hold
    from holdfast.process.doctor.model import JobSample, Sample
    from holdfast.process.guard.leak_watch import LeakWatch

    found: dict[str, float] = {}
    with hold.Guard("bench", fds=hold.Cap(hard=1.0), eta=None, log=os.devnull) as guard:

        def job() -> None:
            with guard.job(7):
                pass

        own: Any = guard._run.own
        for name, call in {
            "ok": guard.ok,
            "step": guard.step,
            "job": job,
            "draining": lambda: guard.draining,
            "count": own.count_fds,
            "rss": own.rss_bytes,
            "threads": own.threads,
        }.items():
            found[name] = _each(call, count)
        found["profile"] = _each(own.profile, 5)
        watch = LeakWatch(own, 1.0, 0.0)
        jobs_done = [JobSample(job=number, fds=100 + number % 7) for number in range(2_000)]
        sample = Sample(at_s=0.0, fds=own.count_fds())
        watch.describe(sample, jobs_done)  # scans all descriptors, which is measured above
        found["classify"] = _each(lambda: watch.describe(sample, jobs_done), 5)
    return found


def _each(call: Callable[[], object], count: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _number in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def main() -> None:
    work, watched = sys.argv[1], sys.argv[3]
    count, fds, rounds = (int(sys.argv[at]) for at in (2, 4, 5))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = []
    while len(kept) < fds:
        kept += os.pipe()
    works = {"jobs": jobs, "idle": idle, "calls": calls, "calibrate": calibrate}
    print(json.dumps(works[work](count, watched, rounds)))


if __name__ == "__main__":
    main()
