"""holdfast's writing, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from holdfast.formats.hdf5.merge.api import merge_hdf5
from read_pass import open_descriptors
from worker import Job, Pass, serve
from write_pass import BLOCK_ROWS, CODECS, ROW_FLOATS, Blocks, Clock

SCHEMA: dict[str, Any] = {"x": hold.Float32(ROW_FLOATS)}
SMALL: dict[str, Any] = {"x": hold.Int64()}
PATIENCE_S = 120.0


# ---- one file of many parts --------------------------------------------------------------------------------


def make_parts(job: Job) -> dict[str, Any]:
    out = hold.write(job["folder"], SCHEMA)
    for task in range(job["parts"]):
        blocks = Blocks(task, job["codec"])
        with out.part(task, chunk_rows=BLOCK_ROWS, codec=CODECS[job["codec"]]) as part:
            for number in range(job["blocks"]):
                part.extend({"x": blocks[number][0 if number else job["short"] :]})
    records = out.parts()
    return {"files": [str(out.path_of(one)) for one in records], "bytes": sum(one.bytes for one in records)}


def consolidate(job: Job) -> Pass:
    clock = Clock()
    made = hold.write(job["folder"]).consolidate(job["out"])
    return Pass(made.rows, Path(job["out"]).unlink, clock.told())


def merge(job: Job) -> Pass:
    """The same files without the records beside them, as anybody's are."""
    with tempfile.TemporaryDirectory(dir=Path(job["out"]).parent) as bare:
        links = [Path(bare) / f"{number}.h5" for number in range(len(job["files"]))]
        for link, file in zip(links, job["files"], strict=True):
            os.link(file, link)
        clock = Clock()
        made = merge_hdf5(links, job["out"])
        assert made.checked == 0
        assert made.rows is not None
        return Pass(made.rows, Path(job["out"]).unlink, clock.told())


# ---- the central writer ------------------------------------------------------------------------------------


def central(job: Job) -> Pass:
    """From the moment when all producers, which have connected, may begin, until everything is in committed parts."""
    out = hold.write(job["out"], SCHEMA)
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(job["producers"] + 1)
    with out.server(ack=job["ack"], chunk_rows=BLOCK_ROWS, codec=CODECS[job["codec"]]) as server:
        children = [
            context.Process(target=_produce, args=(server.address, number, job, ready), daemon=True)
            for number in range(job["producers"])
        ]
        for child in children:
            child.start()
        _wait_for_hdf5(server.stats()["sealer_pid"])
        ready.wait(PATIENCE_S)  # all have connected
        clock = Clock()
        ready.wait(PATIENCE_S)
        for child in children:
            child.join()
        acked_s = clock.lap_s()
    told = clock.told() | {"acked_s": acked_s}
    rows, wanted = out.rows, job["producers"] * job["blocks"] * BLOCK_ROWS
    if rows != wanted or any(child.exitcode for child in children):
        raise RuntimeError(f"wanted {wanted:,} rows, got {rows:,}")
    return Pass(rows, lambda: shutil.rmtree(job["out"]), told)


def _wait_for_hdf5(pid: int) -> None:
    """Until the sealer has loaded the library and waits for work: the peers have it loaded, too."""
    deadline_s, before = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline_s:
        state, spent = _state(pid)
        if state == "S" and spent == before and "hdf5" in Path(f"/proc/{pid}/maps").read_text():
            return
        before = spent
        time.sleep(0.05)
    raise TimeoutError(f"the sealer was not ready within {PATIENCE_S:.0f} s")


def _state(pid: int) -> tuple[str, str]:
    """What a process does, and its CPU time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], " ".join(fields[11:13])


def _produce(address: str, number: int, job: Job, ready: Any) -> None:
    blocks = Blocks(number, job["codec"])
    with hold.connect(address, f"rank{number}") as producer:
        for _ in range(2):
            ready.wait(PATIENCE_S)
        for block in range(job["blocks"]):
            producer.extend({"x": blocks[block]})


# ---- committing a part -------------------------------------------------------------------------------------


def part(job: Job) -> Pass:
    """`leaving_s` is what the end of the `with` block takes, `whole_s` all of it."""
    out = hold.write(job["out"], SCHEMA)
    rows = np.ones((job["rows"], ROW_FLOATS), np.float32)
    start_s = time.perf_counter()
    with out.part(f"task{time.monotonic_ns()}", chunk_rows=BLOCK_ROWS) as one:
        one.extend({"x": rows})
        left_s = time.perf_counter()
    end_s = time.perf_counter()
    assert one.record is not None
    told = {"seconds": end_s - left_s, "leaving_s": end_s - left_s, "whole_s": end_s - start_s}
    return Pass(job["rows"], out.path_of(one.record).unlink, told)


# ---- descriptors -------------------------------------------------------------------------------------------


def descriptors(job: Job) -> dict[str, int]:
    """The most that the server has open while rows come in and are made parts of; the most a producer needs."""
    out = hold.write(job["out"], SMALL)
    with out.server(segment_bytes=4096) as server, ExitStack() as stack:
        before = open_descriptors()
        producers = [stack.enter_context(hold.connect(server.address, f"p{n}")) for n in range(job["producers"])]
        most_server = most_own = 0
        for number in range(job["times"]):
            for producer in producers:
                producer.extend({"x": np.full(100, number)})
                producer.flush()
                most_server = max(most_server, len(os.listdir(f"/proc/{server.pid}/fd")))
                most_own = max(most_own, open_descriptors() - before)
            for producer in producers:
                producer.commit()
    wanted = 100 * job["times"] * job["producers"]
    if out.rows != wanted:
        raise RuntimeError(f"wanted {wanted:,} rows, got {out.rows:,}")
    shutil.rmtree(job["out"])
    return {"server": most_server, "producer": -(-most_own // job["producers"])}


def make_view(job: Job) -> dict[str, str]:
    """Of parts with one number each, from 1 up: a 0 in what is read of it is a fill value."""
    out = hold.write(Path(job["out"]) / "run.hold", SMALL)
    for task in range(job["parts"]):
        with out.part(task) as part:
            part.append(x=task + 1)
    made = out.view(Path(job["out"]) / "view.h5")
    return {"view": str(made.path), "parts": str(out.folder)}


def facts() -> dict[str, Any]:
    return {"versions": {"holdfast": hold.__version__, "numpy": np.__version__}}


if __name__ == "__main__":
    serve({one.__name__: one for one in (make_parts, consolidate, merge, central, part, descriptors, make_view)}, facts)
