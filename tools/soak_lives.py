"""Loaders that come and go in all the ways programs leave them: what this process has after each round of them."""

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

from soak_loaders import PATIENCE_S, workers_of

from holdfast._util.finalize import finish_finalizers
from process_tree import descendants

KEPT = 4  # a program that keeps more than so many iterators or errors has them for as long
SAMPLES = 100
LOOKS = 40
RARE = 20  # rounds between two killed workers, which take longest
MOST_RSS_GROWN_BYTES = 2_000_000
COUNTS = ("descriptors", "threads", "processes")

Kept = deque[Any]
Way = Callable[[Any, Kept], None]


# ---- ways to end -------------------------------------------------------------------------------------------


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
    raise AssertionError("nobody said it")


def lost_in_a_cycle(loader: Any, kept: Kept) -> None:
    opened = loader.open()
    next(iter(opened))
    ring: list[Any] = [opened]
    ring.append(ring)


def killed(loader: Any, kept: Kept) -> None:
    opened = loader.open(slow=True)
    try:
        next(iter(opened))
        os.kill(workers_of(loader.kind)[-1], signal.SIGKILL)
        for _ in opened:
            pass
    except RuntimeError as error:
        kept.append(error)


WAYS: tuple[Way, ...] = (
    exhausted,
    exhausted_and_kept,
    broken_off,
    left_open_and_kept,
    raised_in_body,
    raised_in_with,
    raised_by_a_sample,
    lost_in_a_cycle,
)


# ---- again and again ---------------------------------------------------------------------------------------


def soak_lives(loader: Any, lives: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Samples between rounds of all ways: with the same things kept, they must have the same numbers.

    What was lost in cycles is collected for a sample, so that it does not depend on when Python last did so; `most` is
    what was counted at any time before.
    """
    kept: Kept = deque(maxlen=KEPT)
    every = max(lives // len(WAYS) // SAMPLES, 1)
    lived = rounds = 0
    samples: list[dict[str, int]] = []
    most: Counter[str] = Counter()
    while lived < lives:
        if rounds % RARE == 0 and loader.kind != "threads":
            killed(loader, kept)
            lived += 1
        for way in WAYS:
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            way(loader, kept)
            most |= Counter(_counts())
        lived += len(WAYS)
        rounds += 1
        say(f"{loader.kind}: {lived:,} of {lives:,} lives, {most['descriptors']} descriptors at the most")
        if rounds % every == 0:
            _collect()
            samples.append({"lives": lived, **_settled(samples), "rss_bytes": _rss_bytes()})
    kept.clear()
    _collect()
    faulthandler.cancel_dump_traceback_later()
    return {"lives": lived, **_judge(samples), "most": {name: most[name] for name in COUNTS}, "samples": samples}


def _collect() -> None:
    gc.collect()
    finish_finalizers()


def _settled(samples: list[dict[str, int]]) -> dict[str, int]:
    """A thread that was joined is in the kernel's list for some more microseconds: it gets the time."""
    for _ in range(LOOKS):
        counts = _counts()
        if samples and counts.items() <= samples[-1].items():
            break
        time.sleep(0.005)
    return counts


def _counts() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # without the listing's own
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(descendants(os.getpid())),
    }


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _judge(samples: list[dict[str, int]]) -> dict[str, Any]:
    """The last tenth against the second: the first has what only a beginning brings."""
    tenth = max(len(samples) // 10, 1)
    early, late = samples[tenth : 2 * tenth] or samples, samples[-tenth:]
    grown = {name: _typical(late, name) - _typical(early, name) for name in (*COUNTS, "rss_bytes")}
    problems = [f"{name} grew by {grown[name]}" for name in COUNTS if grown[name] > 0]
    if grown["rss_bytes"] > MOST_RSS_GROWN_BYTES:
        problems.append(f"RSS grew by {grown['rss_bytes']:,} bytes")
    return {"at_the_end": samples[-1], "grown": grown, "problems": problems}


def _typical(samples: list[dict[str, int]], name: str) -> int:
    return int(statistics.median(sample[name] for sample in samples))
