"""The demo's training step: two ranks that are killed in the middle of an epoch, and three that go on from there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ..read.entry import read
from ..schema import Float32, Int64
from .demo_stage import Outcome, Stage, rate

_BATCH = 128
_OPEN_FILES = 64
_COLUMNS = {"label": Int64(), "embedding": Float32(16)}

# One rank. It saves what it saw and where it stands, and is killed; or goes on from a state to the end.
_RANK = """\
import json, os, resource, signal, sys
import numpy as np
import holdfast as hold

paths, rank, world, batch, stop, state, out = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ds = hold.read(paths, {"label": hold.Int64(), "embedding": hold.Float32(16)})
ds = ds.shuffle(seed=7).shard((rank, world)).batch(batch).prefetch("16MB")
seen = []
with ds.iterate() as it:
    if state:
        it.load_state_dict(json.loads(state))
    for step, rows in enumerate(it, 1):
        seen.append(rows["embedding"][:, 0])
        if step == stop:
            np.save(out, np.concatenate(seen))
            print(json.dumps(it.state_dict()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
np.save(out, np.concatenate([np.zeros(0, np.float32), *seen]))
"""


def train(stage: Stage, out: Outcome) -> None:
    """Every sample exactly once, over a kill and another number of ranks."""
    paths = [str(stage.salvaged.get(shard, stage.shard(shard))) for shard in range(len(stage.entries))]
    since = time.perf_counter()
    whole = [batch["embedding"][:, 0] for batch in read(paths, _COLUMNS).batch(1024)]
    wanted = np.sort(np.concatenate(whole))
    steps = max(1, len(wanted) // (5 * _BATCH))  # before the kill: two fifths of an epoch
    first = _run(stage, paths, world=2, stop=steps, state="")
    state = first[0][1]
    second = _run(stage, paths, world=3, stop=0, state=state)
    seen = np.concatenate([ids for ids, _ in first + second])
    seconds = time.perf_counter() - since

    rows = [(f"rank {at} of 2", "killed (SIGKILL)", f"{len(ids):,}") for at, (ids, _) in enumerate(first)]
    rows += [(f"rank {at} of 3", "went on to the end", f"{len(ids):,}") for at, (ids, _) in enumerate(second)]
    out.facts = {"samples": len(wanted), "seen": len(seen), "state_bytes": len(state), "seconds": round(seconds, 2)}
    out.say(f"Shuffled, under a limit of {_OPEN_FILES} open files. The state has {len(state)} bytes.\n")
    out.table(["process", "how it ended", ">samples"], rows)
    out.say(f"\n{len(seen):,} samples by five processes, starting them included: {rate(len(seen), seconds):,.0f}/s")
    out.check("both ranks saved the same state", json.loads(first[0][1]) == json.loads(first[1][1]))
    out.check("every sample was seen exactly once", np.array_equal(np.sort(seen), wanted))


def _run(
    stage: Stage, paths: list[str], *, world: int, stop: int, state: str
) -> list[tuple[np.ndarray[tuple[int], np.dtype[np.float32]], str]]:
    """What every rank saw, and the state it printed."""
    ranks = []
    try:
        for rank in range(world):
            saved = stage.folder / f"seen-{world}-{rank}.npy"
            asked = json.dumps([paths, rank, world, _BATCH, stop, state, str(saved)])
            command = [sys.executable, "-c", _RANK, asked]
            ranks.append((saved, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        return [_end(saved, process) for saved, process in ranks]
    finally:
        for _, process in ranks:
            process.kill()
            process.wait()


def _end(saved: Path, process: subprocess.Popen[str]) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], str]:
    said, _ = process.communicate()
    return np.load(saved), said.strip()
