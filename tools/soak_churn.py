"""Creates loaders and ends them in all the ways programs do; counts what this process holds after each round."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_loaders import HANG_S, workers_of

from holdfast._util.finalize import finish_finalizers
from process_tree import descendants

KEPT = 4  # iterators and errors that are kept at a time, as a program might
SAMPLES = 100
TRIES = 40
RARE = 20  # rounds between two killed workers, which take longest
MAX_RSS_GROWN_BYTES = 2_000_000
COUNTS = ("descriptors", "threads", "processes")

Kept = deque[Any]
Ending = Callable[[Any, Kept], None]


# ---- endings -----------------------------------------------------------------------------------------------


def exhausted(loader: Any, kept: Kept) -> None:
    for _ in loader.open():
        pass


def exhausted_and_kept(loader: Any, kept: Kept) -> None:
    opened = loader.open()
    for _ in opened:
        pass
    kept.append(opened)


def broken_off(loader: Any, kept: Kept) -> None:
    for _ in loader.open():
        break


def left_open_and_kept(loader: Any, kept: Kept) -> None:
    opened = loader.open()
    next(iter(opened))
    kept.append(opened)


def raised_in_body(loader: Any, kept: Kept) -> None:
    try:
        _fail_at_a_batch(loader)
    except LookupError as error:
        kept.append(error)


def _fail_at_a_batch(loader: Any) -> None:
    opened = loader.open()
    for _ in opened:
        raise LookupError("in the body")


def raised_in_with(loader: Any, kept: Kept) -> None:
    try:
        with loader.open() as opened:
            for _ in opened:
                raise LookupError("in the body")
    except LookupError as error:
        kept.append(error)


def raised_by_a_sample(loader: Any, kept: Kept) -> None:
    try:
        for _ in loader.open(bad=True):
            pass
    except Exception as error:
        if "a bad sample" not in str(error):
            raise
        kept.append(error)
        return
    raise AssertionError("expected the error of the bad sample, got none")


def dropped_in_a_cycle(loader: Any, kept: Kept) -> None:
    opened = loader.open()
    next(iter(opened))
    ring: list[Any] = [opened]
    ring.append(ring)


def worker_killed(loader: Any, kept: Kept) -> None:
    opened = loader.open(slow=True)
    try:
        next(iter(opened))
        os.kill(workers_of(loader.kind)[-1], signal.SIGKILL)
        for _ in opened:
            pass
    except RuntimeError as error:
        kept.append(error)


ENDINGS: tuple[Ending, ...] = (
    exhausted,
    exhausted_and_kept,
    broken_off,
    left_open_and_kept,
    raised_in_body,
    raised_in_with,
    raised_by_a_sample,
    dropped_in_a_cycle,
)


# ---- the rounds --------------------------------------------------------------------------------------------


def soak_churn(loader: Any, loaders: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Takes samples between rounds of all endings: with the same objects kept, the counts must be equal.

    Garbage cycles are collected before a sample, so that it does not depend on when Python last did so; `maximum` holds
    the highest counts at any time.
    """
    kept: Kept = deque(maxlen=KEPT)
    every = max(loaders // len(ENDINGS) // SAMPLES, 1)
    done = rounds = 0
    samples: list[dict[str, int]] = []
    maximum: Counter[str] = Counter()
    while done < loaders:
        if rounds % RARE == 0 and loader.kind != "threads":
            worker_killed(loader, kept)
            done += 1
        for end in ENDINGS:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            end(loader, kept)
            maximum |= Counter(_counts())
        done += len(ENDINGS)
        rounds += 1
        report(f"{loader.kind}: {done:,} of {loaders:,} loaders, at most {maximum['descriptors']} descriptors")
        if rounds % every == 0:
            _collect()
            samples.append({"loaders": done, **_settled_counts(samples), "rss_bytes": _rss_bytes()})
    kept.clear()
    _collect()
    faulthandler.cancel_dump_traceback_later()
    return {"loaders": done, **_check(samples), "most": {name: maximum[name] for name in COUNTS}, "samples": samples}


def _collect() -> None:
    gc.collect()
    finish_finalizers()


def _settled_counts(samples: list[dict[str, int]]) -> dict[str, int]:
    """Counts again for a while: a joined thread stays in the kernel's list for some microseconds."""
    for _ in range(TRIES):
        counts = _counts()
        if samples and counts.items() <= samples[-1].items():
            break
        time.sleep(0.005)
    return counts


def _counts() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # without the one of the listing itself
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(descendants(os.getpid())),
    }


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check(samples: list[dict[str, int]]) -> dict[str, Any]:
    """Compares the last tenth of the samples with the second; the first tenth includes one-time allocations."""
    tenth = max(len(samples) // 10, 1)
    early, late = samples[tenth : 2 * tenth] or samples, samples[-tenth:]
    grown = {name: _median(late, name) - _median(early, name) for name in (*COUNTS, "rss_bytes")}
    problems = [f"{name} grew by {grown[name]}" for name in COUNTS if grown[name] > 0]
    if grown["rss_bytes"] > MAX_RSS_GROWN_BYTES:
        problems.append(f"RSS grew by {grown['rss_bytes']:,} bytes")
    return {"at_the_end": samples[-1], "grown": grown, "problems": problems}


def _median(samples: list[dict[str, int]], name: str) -> int:
    return int(statistics.median(sample[name] for sample in samples))
