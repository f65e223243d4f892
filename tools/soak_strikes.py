"""Workers killed or stopped at random moments of a pass: all batches come, or an error names the worker."""

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

from soak_loaders import PATIENCE_S, workers_of
from soak_work import SAMPLES

import leftovers
from holdfast.errors import WorkerDiedError, WorkerTimeoutError
from process_tree import descendants

TIMEOUT_S = 5  # more than a worker takes to start on a busy machine


def soak_strikes(loader: Any, strikes: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Until so many have hit: one that comes after its pass is tried again."""
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    whole_s = min(_pass_s(loader, number, problems) for number in range(4))
    number = 0
    while counts["killed"] + counts["stopped"] < strikes:
        blow = dice.choice([signal.SIGKILL, signal.SIGSTOP])
        striker = Striker(loader.kind, blow, dice.uniform(0, whole_s), dice)
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        try:
            fate, problem = _one(loader, number, striker)
        finally:
            faulthandler.cancel_dump_traceback_later()
        number += 1
        if fate is not None:
            counts[{signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}[blow]] += 1
            counts[fate] += 1
        if problem:
            problems.append(f"round {number}, {blow.name} after {striker.after_s:.3f} s: {problem}")
        say(f"{loader.kind}: {counts['killed'] + counts['stopped']:,} of {strikes:,} strikes")
    return {name: counts[name] for name in ("killed", "stopped", "named", "harmless")} | {"problems": problems}


def _pass_s(loader: Any, number: int, problems: list[str]) -> float:
    """How long one takes that nobody strikes."""
    started = time.monotonic()
    with loader.open(number, slow=True, timeout_s=PATIENCE_S) as opened:
        got = [each for batch in opened for each in loader.numbers(batch)]
    if got != list(range(SAMPLES)):
        problems.append(f"a pass that nobody struck gave {got}")
    return time.monotonic() - started


class Striker:
    """Waits for its moment, and for a worker to be there by then; never strikes after the pass."""

    def __init__(self, kind: str, blow: signal.Signals, after_s: float, dice: random.Random) -> None:
        self.blow = blow
        self.after_s = after_s
        self.pid: int | None = None
        self._kind = kind
        self._dice = dice
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._strike, name="striker")

    def __enter__(self) -> Striker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _strike(self) -> None:
        self._over.wait(self.after_s)
        while not self._over.is_set():
            if workers := workers_of(self._kind):
                pid = self._dice.choice(workers)
                try:
                    os.kill(pid, self.blow)
                except ProcessLookupError:
                    continue
                self.pid = pid
                return
            self._over.wait(0.001)


def _one(loader: Any, number: int, striker: Striker) -> tuple[str | None, str | None]:
    """What came of a strike, None if it came too late; and what is wrong with that."""
    before = leftovers.take()
    got: list[int] = []
    error: Exception | None = None
    with loader.open(number, slow=True, timeout_s=TIMEOUT_S) as opened, striker:
        try:
            for batch in opened:
                got += loader.numbers(batch)
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is judged
            error = raised
    problem = _judge(got, error, striker)
    del opened
    if left := leftovers.wait_until_clean(before):
        problem = f"{problem or ''} left: {left}"
    elif alive := [pid for pid in descendants(os.getpid()) if pid not in before.process]:
        problem = f"{problem or ''} processes left: {alive}"
    fate = None if striker.pid is None else "harmless" if error is None else "named"
    return fate, problem


def _judge(got: list[int], error: Exception | None, striker: Striker) -> str | None:
    if got != list(range(len(got))):
        return f"not in order: {got}"
    if error is None:
        return None if len(got) == SAMPLES else f"only {len(got)} samples, and no error"
    wanted = WorkerDiedError if striker.blow is signal.SIGKILL else WorkerTimeoutError
    if not isinstance(error, wanted) or error.pid != striker.pid or str(striker.pid) not in str(error):
        return f"struck {striker.pid}, got {type(error).__name__} ({getattr(error, 'pid', None)}): {error}"
    return None
