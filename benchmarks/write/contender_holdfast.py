"""holdfast: consolidate, merge, the central writer and parts; and reading with few descriptors."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from benchmarks.common.contenders import Job, Pass, serve
from benchmarks.common.processes import Clock, open_descriptors
from benchmarks.write.tasks import BLOCK_ROWS, CODECS, ROW_FLOATS, Blocks
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.errors import HoldfastError

SCHEMA: dict[str, Any] = {"x": hold.Float32(ROW_FLOATS)}
SMALL: dict[str, Any] = {"x": hold.Int64()}
TIMEOUT_S = 120.0


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
    return Pass(made.rows, Path(job["out"]).unlink, clock.read())


def merge(job: Job) -> Pass:
    return _merge(job, verify_sources=False)


def merge_verified(job: Job) -> Pass:
    return _merge(job, verify_sources=True)


def _merge(job: Job, verify_sources: bool) -> Pass:
    """Merges the same files without the records beside them, as files of other programs are."""
    with tempfile.TemporaryDirectory(dir=Path(job["out"]).parent) as bare:
        links = [Path(bare) / f"{number}.h5" for number in range(len(job["files"]))]
        for link, file in zip(links, job["files"], strict=True):
            os.link(file, link)
        clock = Clock()
        made = merge_hdf5(links, job["out"], verify_sources=verify_sources)
        assert made.checked == 0
        assert made.rows is not None
        return Pass(made.rows, Path(job["out"]).unlink, clock.read())


# ---- the central writer ------------------------------------------------------------------------------------


def central(job: Job) -> Pass:
    """Times from the start of all producers, which have connected, until everything is in committed parts."""
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
        ready.wait(TIMEOUT_S)  # all have connected
        clock = Clock()
        ready.wait(TIMEOUT_S)
        for child in children:
            child.join()
        acked_s = clock.seconds()
    extra = clock.read() | {"acked_s": acked_s}
    rows, expected = out.rows, job["producers"] * job["blocks"] * BLOCK_ROWS
    if rows != expected or any(child.exitcode for child in children):
        raise RuntimeError(f"expected {expected:,} rows, got {rows:,}")
    return Pass(rows, lambda: shutil.rmtree(job["out"]), extra)


def _wait_for_hdf5(pid: int) -> None:
    """Waits until the sealer has loaded HDF5 and is idle: the peers have it loaded, too."""
    deadline_s, before = time.monotonic() + TIMEOUT_S, ""
    while time.monotonic() < deadline_s:
        state, cpu = _state(pid)
        if state == "S" and cpu == before and "hdf5" in Path(f"/proc/{pid}/maps").read_text():
            return
        before = cpu
        time.sleep(0.05)
    raise TimeoutError(f"the sealer was not ready within {TIMEOUT_S:.0f} s")


def _state(pid: int) -> tuple[str, str]:
    """Returns the state of a process and its CPU time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], " ".join(fields[11:13])


def _produce(address: str, number: int, job: Job, ready: Any) -> None:
    blocks = Blocks(number, job["codec"])
    with hold.connect(address, f"rank{number}") as producer:
        for _ in range(2):
            ready.wait(TIMEOUT_S)
        for block in range(job["blocks"]):
            producer.extend({"x": blocks[block]})


# ---- committing a part -------------------------------------------------------------------------------------


def one_part(job: Job) -> Pass:
    """Writes a part from one process that has all the rows, and commits it."""
    out, blocks = hold.write(job["out"], SCHEMA), [Blocks(n, job["codec"]) for n in range(job["producers"])]
    clock = Clock()
    with out.part("one", chunk_rows=BLOCK_ROWS, codec=CODECS[job["codec"]]) as one:
        for number in range(job["blocks"]):
            for each in blocks:
                one.extend({"x": each[number]})
    return Pass(out.rows, lambda: shutil.rmtree(job["out"]), clock.read())


def part(job: Job) -> Pass:
    """`leaving_s` is the time of the end of the `with` block, `whole_s` of all of it."""
    out = hold.write(job["out"], SCHEMA)
    rows = np.ones((job["rows"], ROW_FLOATS), np.float32)
    start_s = time.perf_counter()
    with out.part(f"task{time.monotonic_ns()}", chunk_rows=BLOCK_ROWS) as one:
        one.extend({"x": rows})
        left_s = time.perf_counter()
    end_s = time.perf_counter()
    assert one.record is not None
    extra = {"seconds": end_s - left_s, "leaving_s": end_s - left_s, "whole_s": end_s - start_s}
    return Pass(job["rows"], out.path_of(one.record).unlink, extra)


# ---- descriptors -------------------------------------------------------------------------------------------


def descriptors(job: Job) -> dict[str, int]:
    """Returns the most descriptors that the server has while rows arrive and are sealed, and the most of a producer."""
    out = hold.write(job["out"], SMALL)
    with out.server(segment_bytes=4096) as server, ExitStack() as stack:
        before = open_descriptors()
        producers = [stack.enter_context(hold.connect(server.address, f"p{n}")) for n in range(job["producers"])]
        max_server = max_own = 0
        for number in range(job["times"]):
            for producer in producers:
                producer.extend({"x": np.full(100, number)})
                producer.flush()
                max_server = max(max_server, len(os.listdir(f"/proc/{server.pid}/fd")))
                max_own = max(max_own, open_descriptors() - before)
            for producer in producers:
                producer.commit()
    expected = 100 * job["times"] * job["producers"]
    if out.rows != expected:
        raise RuntimeError(f"expected {expected:,} rows, got {out.rows:,}")
    shutil.rmtree(job["out"])
    return {"server": max_server, "producer": -(-max_own // job["producers"])}


def make_view(job: Job) -> dict[str, str]:
    """Makes a view of parts with one number each, from 1 up: a 0 read from it is a fill value."""
    out = hold.write(Path(job["out"]) / "run.hold", SMALL)
    for task in range(job["parts"]):
        with out.part(task) as part:
            part.append(x=task + 1)
    made = out.view(Path(job["out"]) / "view.h5")
    return {"view": str(made.path), "parts": str(out.folder)}


def read_numbers(job: Job) -> dict[str, Any]:
    """Reads the numbers 1, 2, 3, … with few descriptors, in a fresh process: all of them, an error, or wrong ones."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = job["descriptors"] if hard < 0 else min(job["descriptors"], hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    try:
        found = {"holdfast": _with_holdfast, "h5py": _with_h5py}[job["reader"]](job["path"])
    except (OSError, HoldfastError) as error:
        return {"outcome": type(error).__name__, "wrong": 0}
    count = job["count"]
    wrong = count - len(np.intersect1d(found, np.arange(1, count + 1)))
    outcome = "right data" if len(found) == count and not wrong else f"{wrong} of {count} values wrong, no error"
    return {"outcome": outcome, "wrong": wrong}


def _with_holdfast(path: str) -> Any:
    with hold.read(path, SMALL).batch(64).iterate() as batches:
        return np.concatenate([batch["x"] for batch in batches])


def _with_h5py(path: str) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["x"][:]


def facts() -> dict[str, Any]:
    return {"versions": {"holdfast": hold.__version__, "numpy": np.__version__}}


if __name__ == "__main__":
    serve(
        [make_parts, consolidate, merge, merge_verified, central, one_part, part, descriptors, make_view, read_numbers],
        facts,
    )
