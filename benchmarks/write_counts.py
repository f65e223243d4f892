"""What is counted, not timed: descriptors of the central writer and its producers, and a view read with too few."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from sides import HERE
from write_measure import Bench
from write_rows import COUNT_ROW, PRODUCER_LIMIT, SERVER_SPARE, VIEW_DESCRIPTORS, Result

TIMES = 5


def measure_counts(bench: Bench) -> list[Result]:
    results = []
    home = bench.folders.get("tmpfs", bench.folders["disk"])
    side = bench.sides.get("write_holdfast")
    for producers in bench.sizes.producers:
        bench.say(f"{COUNT_ROW}  descriptors, producers: {producers}")
        found = side.call("descriptors", out=str(home / "counted.hold"), producers=producers, times=TIMES)
        results += _counted(producers, found)
    parts = bench.sizes.view_parts
    bench.say(f"{COUNT_ROW}  a view of {parts} parts, {VIEW_DESCRIPTORS} descriptors")
    (home / "viewed").mkdir()
    paths = side.call("make_view", out=str(home / "viewed"), parts=parts)
    results += _viewed(paths, parts)
    shutil.rmtree(home / "viewed")
    return results


def _counted(producers: int, found: dict[str, int]) -> list[Result]:
    limits = {"server": producers + SERVER_SPARE, "producer": PRODUCER_LIMIT}
    results = []
    for who, limit in limits.items():
        work = f"most descriptors at once: {producers} {'producer' if producers == 1 else 'producers'}"
        name = "the server" if who == "server" else "each producer, beyond its process's own"
        result = Result(COUNT_ROW, f"descriptors-{producers}", work, name, limit, at_most=True, unit="")
        result.value = found[who]
        result.judge()
        results.append(result)
    return results


def _viewed(paths: dict[str, str], parts: int) -> list[Result]:
    work = f"{parts} parts read with {VIEW_DESCRIPTORS} descriptors: wrong values"
    ways = {
        "hold.read(view)": ("holdfast", paths["view"], 0),
        "hold.read(folder)": ("holdfast", paths["parts"], 0),
        "h5py.File(view)": ("h5py", paths["view"], None),
    }
    results = []
    for name, (reader, path, wanted) in ways.items():
        few, many = (_read(reader, path, parts, limit) for limit in (VIEW_DESCRIPTORS, 2 * parts))
        result = Result(COUNT_ROW, "view", work, name, wanted, at_most=True, unit="")
        result.value = few["wrong"]
        # Else a reader that takes no view at all would look like one that minds its descriptors.
        result.more = {"few": few, "many": many, "note": f"{few['outcome']}; with {2 * parts}: {many['outcome']}"}
        result.judge()
        results.append(result)
    return results


def _read(reader: str, path: str, parts: int, descriptors: int) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "side_write_view.py"), reader, path, str(parts), str(descriptors)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:  # a crash is neither right data nor an error that a program could handle
        return {"outcome": f"it ended with exit code {done.returncode}", "wrong": parts}
    told: dict[str, Any] = json.loads(done.stdout)
    return told
