"""What committing a part takes beyond getting its bytes onto the disk."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from turns import Turn, take_turns
from write_measure import Bench
from write_rows import COMMIT_LIMIT_MS, COMMIT_ROW, Result

OURS, PLAIN = ("write_holdfast", "part"), ("write_plain", "plain_file")

# Which part of ours, beyond which parts of a plain file's.
PEERS = {
    "fsync of a plain file": ("leaving_s", ("fsync_s",), COMMIT_LIMIT_MS),
    "write and fsync of it": ("leaving_s", ("write_s", "fsync_s"), COMMIT_LIMIT_MS),
    "the same, of the whole `with` block": ("whole_s", ("write_s", "fsync_s"), None),
}


def measure_commits(bench: Bench) -> list[Result]:
    results = []
    for size, rows in bench.sizes.part_rows.items():
        bench.say(f"{COMMIT_ROW}  a part of {size} (times: {bench.sizes.commits})")
        home = bench.folder("disk") / f"commit-{rows}"
        home.mkdir()
        turns = _turns(bench, home, rows)
        results += [_result(size, peer, turns) for peer in PEERS]
    return results


def _turns(bench: Bench, home: Path, rows: int) -> dict[tuple[str, str], list[Turn]]:
    outs = {OURS: str(home / "run.hold"), PLAIN: str(home / "plain")}

    def turn(which: tuple[str, str]) -> Turn:
        side, operation = which
        return bench.sides.get(side).turn(operation, rows=rows, out=outs[which], least_s=0.0)

    take_turns([OURS, PLAIN], 1, turn)  # what only the first one brings in
    return take_turns([OURS, PLAIN], bench.sizes.commits, turn)


def _result(size: str, peer: str, turns: dict[tuple[str, str], list[Turn]]) -> Result:
    ours, plain, wanted = PEERS[peer]
    mine = [1000 * turn[ours] for turn in turns[OURS]]
    theirs = [1000 * sum(turn[name] for name in plain) for turn in turns[PLAIN]]
    work = f"leaving `with out.part()` after {size}, on a disk"
    result = Result(COMMIT_ROW, f"commit-{size}", work, peer, wanted, at_most=True, unit=" ms")
    result.ours, result.theirs = _told(mine), _told(theirs)
    result.value = median(mine) - median(theirs)
    best = min(mine) - min(theirs)
    result.more = {
        "ours_ms": _rounded(mine),
        "theirs_ms": _rounded(theirs),
        "best_ms": round(best, 3),
        "note": f"of the median; of the best {best:+.1f} ms",
    }
    result.judge()
    return result


def _told(times_ms: list[float]) -> str:
    return f"{median(times_ms):.1f} ms (best {min(times_ms):.1f})"


def _rounded(times_ms: list[float]) -> list[Any]:
    return [round(one, 3) for one in times_ms]
