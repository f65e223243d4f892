"""The child's half of the benchmark: does what the parent asks for, times it, answers in JSON lines.

{"call": "sums", …}    ->  what the operation returned, not timed
{"turn": "columns", …} ->  {"seconds": of one pass, "passes": …, "records": …}
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Job = dict[str, Any]


@dataclass(slots=True)
class Pass:
    """What one pass did. `finish` is called once the clock has stopped."""

    records: int
    finish: Callable[[], object] = lambda: None
    extra: dict[str, float] = field(default_factory=dict)


def serve(operations: Mapping[str, Callable[[Job], Any]], facts: Callable[[], Mapping[str, Any]]) -> None:
    """Answers until the parent closes the pipe, or is gone."""
    # What a library prints goes to stderr, so that the answers alone are on the pipe.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known = {**operations, "facts": lambda _: dict(facts())}
    for line in sys.stdin:
        job = json.loads(line)
        try:
            reply: Any = {"result": take_turn(known[job["turn"]], job) if "turn" in job else call(known, job)}
        except Exception as error:  # noqa: BLE001 - the parent tells it
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def call(operations: Mapping[str, Callable[[Job], Any]], job: Job) -> Any:
    result = operations[job["call"]](job)
    return {"records": result.records} if isinstance(result, Pass) else result


def take_turn(operation: Callable[[Job], Pass], job: Job) -> dict[str, float]:
    """Passes until `least_s` are over; the mean of them. One rule for all sides, however quick a pass is."""
    gc.collect()
    total_s, passes, records = 0.0, 0, 0
    extra: dict[str, float] = {}
    while not passes or total_s < job["least_s"]:
        start = time.perf_counter()
        done = operation(job)
        total_s += time.perf_counter() - start
        done.finish()
        passes += 1
        records += done.records
        extra = {name: extra.get(name, 0.0) + amount for name, amount in done.extra.items()}
    means = {name: amount / passes for name, amount in extra.items()}
    return {"seconds": total_s / passes, "passes": passes, "records": records // passes, **means}
