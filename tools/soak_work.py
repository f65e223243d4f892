"""What workers do in soak_read.py; a module of its own, so that a worker imports no framework."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import holdfast as hold

SCHEMA = {"id": hold.Int64()}
SAMPLES = 96
BATCH = 4
BAD = 50


@dataclass(frozen=True, slots=True)
class Work:
    slow: bool
    bad: bool

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if self.slow:
            time.sleep(0.001)
        if self.bad and sample["id"] == BAD:
            raise ValueError("a bad sample")
        return {"id": sample["id"] * 2}
