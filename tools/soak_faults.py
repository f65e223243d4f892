"""Kills or stops workers at random moments of a pass: all batches arrive, or an error names the worker."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from soak_loaders import HANG_S, workers_of
from soak_work import SAMPLES

import leftovers
from holdfast.errors import WorkerDiedError, WorkerTimeoutError
from process_tree import descendants

TIMEOUT_S = 5  # more than a worker takes to start on a busy machine


def soak_faults(loader: Any, faults: int, seed: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Injects this many faults; one that comes after the end of its pass is tried again."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    pass_s = min(_undisturbed_s(loader, number, problems) for number in range(4))
    number = 0
    while counts["killed"] + counts["stopped"] < faults:
        fault = rng.choice([signal.SIGKILL, signal.SIGSTOP])
        injector = FaultInjector(loader.kind, fault, rng.uniform(0, pass_s), rng)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            outcome, problem = _pass_with_fault(loader, number, injector)
        finally:
            faulthandler.cancel_dump_traceback_later()
        number += 1
        if outcome is not None:
            counts[{signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}[fault]] += 1
            counts[outcome] += 1
        if problem:
            problems.append(f"round {number}, {fault.name} after {injector.after_s:.3f} s: {problem}")
        report(f"{loader.kind}: {counts['killed'] + counts['stopped']:,} of {faults:,} faults")
    return {name: counts[name] for name in ("killed", "stopped", "named", "harmless")} | {"problems": problems}


def _undisturbed_s(loader: Any, number: int, problems: list[str]) -> float:
    """Returns how long a pass without faults takes."""
    started = time.monotonic()
    with loader.open(number, slow=True, timeout_s=HANG_S) as opened:
        got = [each for batch in opened for each in loader.numbers(batch)]
    if got != list(range(SAMPLES)):
        problems.append(f"a pass without faults gave {got}")
    return time.monotonic() - started


class FaultInjector:
    """Waits for its moment and then for a worker to appear; never sends its signal after the pass."""

    def __init__(self, kind: str, fault: signal.Signals, after_s: float, rng: random.Random) -> None:
        self.fault = fault
        self.after_s = after_s
        self.pid: int | None = None
        self._kind = kind
        self._rng = rng
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._inject, name="injector")

    def __enter__(self) -> FaultInjector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _inject(self) -> None:
        self._over.wait(self.after_s)
        while not self._over.is_set():
            if workers := workers_of(self._kind):
                pid = self._rng.choice(workers)
                try:
                    os.kill(pid, self.fault)
                except ProcessLookupError:
                    continue
                self.pid = pid
                return
            self._over.wait(0.001)


def _pass_with_fault(loader: Any, number: int, injector: FaultInjector) -> tuple[str | None, str | None]:
    """Returns the outcome of a fault, None if it came too late; and what is wrong with that outcome."""
    before = leftovers.take()
    got: list[int] = []
    error: Exception | None = None
    with loader.open(number, slow=True, timeout_s=TIMEOUT_S) as opened, injector:
        try:
            for batch in opened:
                got += loader.numbers(batch)
        except Exception as raised:  # noqa: BLE001 - any error is checked below
            error = raised
    problem = _check(got, error, injector)
    del opened
    if left := leftovers.wait_until_clean(before):
        problem = f"{problem or ''} left: {left}"
    elif alive := [pid for pid in descendants(os.getpid()) if pid not in before.process]:
        problem = f"{problem or ''} processes left: {alive}"
    outcome = None if injector.pid is None else "harmless" if error is None else "named"
    return outcome, problem


def _check(got: list[int], error: Exception | None, injector: FaultInjector) -> str | None:
    if got != list(range(len(got))):
        return f"not in order: {got}"
    if error is None:
        return None if len(got) == SAMPLES else f"only {len(got)} samples, and no error"
    expected = WorkerDiedError if injector.fault is signal.SIGKILL else WorkerTimeoutError
    if not isinstance(error, expected) or error.pid != injector.pid or str(injector.pid) not in str(error):
        return f"signalled {injector.pid}, got {type(error).__name__} ({getattr(error, 'pid', None)}): {error}"
    return None
