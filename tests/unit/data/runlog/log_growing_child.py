"""A worker whose metrics come and go, for a while or until it is killed: LOGDIR RANK SEED STEPS.

Prints the last step that is committed, at first and each time one is. Rank and step alone decide what is logged.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import holdfast as hold


def values_of(rank: int, step: int) -> dict[str, Any]:
    chance = random.Random(f"{rank} {step}")
    logged: dict[str, Any] = {"loss": step / 2}
    for number in range(min(step // 7, 6) + 1):
        if chance.random() < 0.6:
            logged[f"m{number}"] = step + (0.5 if step > 30 + 3 * number and chance.random() < 0.5 else 0)
    if step > 20 and chance.random() < 0.3:
        logged["tag"] = f"{rank}-{step}"
    if chance.random() < 0.1:
        logged["loss"] = float("nan")
    if chance.random() < 0.2:
        del logged["loss"]
    return logged


if __name__ == "__main__":
    logdir, (rank, seed, steps) = sys.argv[1], map(int, sys.argv[2:])
    chance = random.Random(seed)
    with hold.log(logdir, rank=rank, every_rows=10**6, every=10**6) as log:
        first = 0 if log.last_step is None else log.last_step + 1
        print(first - 1, flush=True)
        for step in range(first, steps):
            log(step, **values_of(rank, step))
            if chance.random() < 0.3:
                log.commit()
                print(step, flush=True)
