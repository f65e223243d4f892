"""Kills the making of one file from many parts, at every named place and at any moment; it must go on and be right."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from soak_rows import SCHEMA, count_wrong, forked, rows

from holdfast._util.failpoints import MERGE_CHILD_NAMES, MERGE_PARENT_NAMES, MERGE_REPEATED_NAMES
from holdfast.formats.base import open_shard
from holdfast.writer.dataset import write

PARTS, PART_ROWS = 5, 200
PATIENCE_S = 60.0
ORDERS = ("exact", "any")


def soak_consolidate(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """How many kills there were, and what was wrong with the files that came of it in the end."""
    chance = random.Random(seed)
    out = write(folder / "parts.hold", SCHEMA)
    for who in range(PARTS):
        with out.part(f"rank{who}", codec="gzip", chunk_rows=16) as part:
            part.extend(rows(who, 0, PART_ROWS))
    wanted = [(who, seq) for who in range(PARTS) for seq in range(PART_ROWS)]
    found = {"kills": 0, "files": 0, "lost": 0, "wrong": 0, "hangs": 0}
    while found["kills"] < kills:
        target, order = folder / f"joined-{found['files']}.h5", chance.choice(ORDERS)
        killed, hung = _until_done(out.folder, target, order, chance, kills - found["kills"])
        found["kills"], found["hangs"], found["files"] = (
            found["kills"] + killed,
            found["hangs"] + hung,
            found["files"] + 1,
        )
        with open_shard(target, SCHEMA) as shard:
            got: Any = shard.read(0, len(shard), SCHEMA)
        seen = list(zip(got["who"].tolist(), got["seq"].tolist(), strict=True))
        found["lost"] += len(wanted) - len(set(seen)) + abs(len(seen) - len(wanted))
        found["wrong"] += count_wrong(got) + (order == "exact" and seen != wanted)
        target.unlink()
    return found


def _until_done(run: Path, target: Path, order: Any, chance: random.Random, most: int) -> tuple[int, int]:
    """Kills and hangs on the way."""
    killed = hung = 0
    while not target.exists():
        place = None
        if killed < most and chance.random() < 0.6:
            names = MERGE_CHILD_NAMES + MERGE_PARENT_NAMES + MERGE_REPEATED_NAMES
            place = f"{chance.choice(names)}:{chance.choice((1, 1, 2, 4))}"
        after_s = chance.random() * 0.8 if killed < most and place is None else PATIENCE_S
        pid = forked(lambda: write(run).consolidate(target, order=order), place)
        until = time.monotonic() + after_s
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.005)
        if not ended[0]:
            hung += after_s == PATIENCE_S
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(ended[1])
        killed += code == -signal.SIGKILL
        if code > 0:
            raise AssertionError(f"consolidate ended with {code}")
    return killed, hung
