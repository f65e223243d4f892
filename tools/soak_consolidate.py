"""Kills consolidate at failpoints and at random moments; the next call must produce the right file."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from soak_rows import SCHEMA, count_wrong, forked, rows

from holdfast._util.failpoints import MERGE_CHILD_NAMES, MERGE_PARENT_NAMES, MERGE_REPEATED_NAMES
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import write

PARTS, PART_ROWS = 5, 200
HANG_S = 60.0
ORDERS = ("exact", "any")


def soak_consolidate(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Counts the kills and what was wrong with the resulting files."""
    rng = random.Random(seed)
    out = write(folder / "parts.hold", SCHEMA)
    for who in range(PARTS):
        with out.part(f"rank{who}", codec="gzip", chunk_rows=16) as part:
            part.extend(rows(who, 0, PART_ROWS))
    expected = [(who, seq) for who in range(PARTS) for seq in range(PART_ROWS)]
    found = {"kills": 0, "files": 0, "lost": 0, "wrong": 0, "hangs": 0}
    while found["kills"] < kills:
        target, order = folder / f"joined-{found['files']}.h5", rng.choice(ORDERS)
        killed, hung = _until_done(out.folder, target, order, rng, kills - found["kills"])
        found["kills"], found["hangs"], found["files"] = (
            found["kills"] + killed,
            found["hangs"] + hung,
            found["files"] + 1,
        )
        with open_shard(target, SCHEMA) as shard:
            got: Any = shard.read(0, len(shard), SCHEMA)
        seen = list(zip(got["who"].tolist(), got["seq"].tolist(), strict=True))
        found["lost"] += len(expected) - len(set(seen)) + abs(len(seen) - len(expected))
        found["wrong"] += count_wrong(got) + (order == "exact" and seen != expected)
        target.unlink()
    return found


def _until_done(run: Path, target: Path, order: Any, rng: random.Random, maximum: int) -> tuple[int, int]:
    """Consolidates until the file exists; returns the numbers of kills and hangs."""
    killed = hung = 0
    while not target.exists():
        failpoint = None
        if killed < maximum and rng.random() < 0.6:
            names = MERGE_CHILD_NAMES + MERGE_PARENT_NAMES + MERGE_REPEATED_NAMES
            failpoint = f"{rng.choice(names)}:{rng.choice((1, 1, 2, 4))}"
        after_s = rng.random() * 0.8 if killed < maximum and failpoint is None else HANG_S
        pid = forked(lambda: write(run).consolidate(target, order=order), failpoint)
        until = time.monotonic() + after_s
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.005)
        if not ended[0]:
            hung += after_s == HANG_S
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(ended[1])
        killed += code == -signal.SIGKILL
        if code > 0:
            raise AssertionError(f"consolidate ended with {code}")
    return killed, hung
