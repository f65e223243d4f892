"""Writers that die: run as a program, which forks one writer after the other and says in JSON what became of them.

Forked, because a new interpreter takes longer to start than fifty parts to commit; this process itself never opens a
part, so its children begin as if they were new.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from holdfast._util.failpoints import NAMES, VARIABLE
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import HoldfastError, WriteError

SCHEMA = {"label": hold.Int64(), "emb": hold.Float32(16), "text": hold.Bytes(), "boxes": hold.Ragged(hold.Float32(2))}
ROWS = 60
PATIENCE_S = 60


def batch(task: int, first: int, rows: int) -> dict[str, Any]:
    labels = task * 1000 + np.arange(first, first + rows)
    return {
        "label": labels,
        "emb": np.repeat(labels[:, None] % 97, 16, 1).astype(np.float32),
        "text": [b"%d" % label * (label % 5) for label in labels.tolist()],
        "boxes": [[[label % 7, 1]] * (label % 3) for label in labels.tolist()],
    }


def write_part(out: DatasetWriter, task: int, kind: Any) -> None:
    with out.part(f"task{task}", kind) as part:
        if not part.done:
            part.extend(batch(task, 0, ROWS // 2))
            for i in range(ROWS // 2, ROWS):
                part.append(**{name: column[0] for name, column in batch(task, i, 1).items()})


def check_part(path: Path, task: int) -> None:
    with open_shard(path, SCHEMA) as shard:
        assert len(shard) == ROWS
        got, wanted = shard.read(0, ROWS, SCHEMA), batch(task, 0, ROWS)
    assert {name: column.tolist() for name, column in got.items()} == {
        name: column if isinstance(column, list) else column.tolist() for name, column in wanted.items()
    }


def check_all(out: DatasetWriter) -> list[int]:
    """The tasks that a reader sees, each of them whole."""
    tasks = []
    for record in out.parts():
        task = int(record.task.removeprefix("task"))
        check_part(out.path_of(record), task)
        tasks.append(task)
    return tasks


def forked(work: Callable[[], object]) -> int:
    """`work` in a child, which ends as a program does, through all that is to be done at exit."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    work()
    sys.exit(0)


def waited(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- killed at a named place


def kill_everywhere(folder: Path) -> object:
    found = {}
    for kind in ("hdf5", "tfrecord"):
        for name in NAMES:
            found[f"{kind} {name}"] = _kill_at(folder / f"{kind}-{name}", kind, name)
    return found


def _kill_at(folder: Path, kind: str, name: str) -> dict[str, Any]:
    out = write(folder, SCHEMA)

    def work() -> None:
        os.environ[VARIABLE] = name
        write_part(out, 1, kind)

    code = waited(forked(work))
    seen = check_all(out)
    again = write(folder)
    swept = not os.listdir(folder / "tmp")
    done = again.part("task1").done
    waited(forked(lambda: write_part(again, 1, kind)))
    data = [one for one in os.listdir(folder / "parts") if not one.endswith(".json")]
    report = again.verify()
    whole = report.ok and not report.leftovers and check_all(again) == [1]
    return {"code": code, "seen": seen, "done": done, "swept": swept, "files": len(data), "whole": whole}


# ---- killed at any moment, under the eyes of a reader


def kill_randomly(folder: Path, kills: int, seed: int) -> object:
    out = write(folder, SCHEMA)
    chance = random.Random(seed)
    stop_read, stop_write = os.pipe()
    reader = forked(lambda: _read_meanwhile(out, stop_read, stop_write))
    acked: set[int] = set()
    n_killed = 0
    while n_killed < kills:
        acked |= _killed_writer(folder, acked, chance)
        n_killed += 1
        lost = acked - set(check_all(out))
        assert not lost, f"acknowledged, but not there: {lost}"
    os.close(stop_write)
    code = waited(reader)
    os.close(stop_read)
    report = write(folder).verify()
    return {
        "killed": n_killed,
        "acked": len(acked),
        "parts": report.parts,
        "rows": report.rows,
        "ok": report.ok,
        "leftovers": report.leftovers,
        "reader": code,
    }


def _killed_writer(folder: Path, acked: set[int], chance: random.Random) -> set[int]:
    """What a writer acknowledged, of what none had before it, until it was killed."""
    read, write_end = os.pipe()

    def work() -> None:
        os.close(read)
        out = write(folder)
        for task in sorted(set(range(len(acked) + 10)) - acked):
            write_part(out, task, "hdf5" if task % 3 else "tfrecord")
            os.write(write_end, b"%d\n" % task)
        signal.pause()

    pid = forked(work)
    os.close(write_end)
    said = b""
    wanted = chance.randrange(3)
    while said.count(b"\n") < wanted:
        ready, _, _ = select.select([read], [], [], PATIENCE_S)
        assert ready, "the writer hangs"
        said += os.read(read, 1 << 16)
    time.sleep(chance.random() * 0.02)  # not to wait for anything: any moment will do
    os.kill(pid, signal.SIGKILL)
    while data := os.read(read, 1 << 16):
        said += data
    os.close(read)
    assert waited(pid) == -signal.SIGKILL
    return {int(line) for line in said.split()}


def _read_meanwhile(out: DatasetWriter, stop: int, other_end: int) -> None:
    os.close(other_end)
    looked = 0
    while not select.select([stop], [], [], 0)[0] or not looked:
        seen = len(check_all(out))
        if seen:
            with hold.read(str(out.folder), SCHEMA).batch(ROWS).iterate() as it:
                sizes = {len(batch["label"]) for batch in it}
            assert sizes == {ROWS}
            looked += 1


# ---- a full disk


def fill_disk(folder: Path, steps: int) -> object:
    """`folder` is on a small tmpfs, which is filled up but for more and more."""
    found: dict[str, int] = {"refused": 0, "committed": 0}
    codes = []
    out = write(folder / "run", SCHEMA)
    for step in range(steps):
        codec = (None, "lzf", "gzip", "tfrecord")[step % 4]
        free = 4096 * step
        with open(folder / "ballast", "wb") as ballast:
            size = os.statvfs(folder).f_bavail * 4096 - free
            os.posix_fallocate(ballast.fileno(), 0, max(size, 1))
        before = len(out.parts())
        codes.append(waited(forked(lambda: _write_until_full(out, step, codec))))  # noqa: B023
        os.unlink(folder / "ballast")
        more = len(out.parts()) - before
        found["committed" if more else "refused"] += 1
        assert out.verify().ok
        assert not os.listdir(folder / "run" / "tmp")
        for name in os.listdir(folder / "run" / "parts"):
            os.unlink(folder / "run" / "parts" / name)
    return {**found, "codes": sorted(set(codes))}


def _write_until_full(out: DatasetWriter, step: int, codec: Any) -> None:
    noise = np.random.default_rng(step).standard_normal((64, 16)).astype(np.float32)
    try:
        kind: Any = {"format": "tfrecord"} if codec == "tfrecord" else {"codec": codec, "chunk_rows": 16}
        with out.part(f"task{step}", **kind) as part:
            for _ in range(8):
                part.extend({**batch(step, 0, 64), "emb": noise})
    except WriteError as error:
        if "No space left on device" not in str(error) or out.parts():
            raise


# ---- many at once, and forks


def work_together(folder: Path, workers: int) -> object:
    """All make the folder, and all try all tasks."""

    def work() -> None:
        out = write(folder, SCHEMA)
        for task in range(6):
            try:
                write_part(out, task, "hdf5")
            except hold.errors.TargetExistsError as error:
                if "was committed meanwhile by attempt" not in str(error):
                    raise

    codes = [waited(pid) for pid in [forked(work) for _ in range(workers)]]
    out = write(folder)
    data = [name for name in os.listdir(folder / "parts") if name.endswith(".h5")]
    report = out.verify()
    return {"codes": codes, "tasks": sorted(check_all(out)), "files": len(data), "said": str(report)}


def start_all_ways(folder: Path) -> object:
    """Workers that are given the folder by whatever way a process can be started."""
    out = write(folder, SCHEMA)
    ways = ["fork", "spawn", "forkserver"]
    workers = [
        multiprocessing.get_context(way).Process(target=write_part, args=(out, task, "hdf5"))  # type: ignore[attr-defined]
        for task, way in enumerate(ways)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
    return {"codes": [worker.exitcode for worker in workers], "tasks": check_all(out), "ok": out.verify().ok}


def fork_with_open_part(folder: Path, kind: Any) -> object:
    out = write(folder, SCHEMA)

    def child() -> None:
        try:
            part.append(**{name: column[0] for name, column in batch(1, 0, 1).items()})
        except hold.errors.ForkedWriterError:
            sys.exit(0)
        sys.exit(9)

    with out.part("task1", kind) as part:
        part.extend(batch(1, 0, ROWS // 2))
        code = waited(forked(child))  # the child's exit would flush what it inherited over the parent's file
        part.extend(batch(1, ROWS // 2, ROWS - ROWS // 2))
    return {"child": code, "seen": check_all(out), "ok": out.verify().ok, "tmp": os.listdir(folder / "tmp")}


def main() -> None:
    name, folder, *numbers = sys.argv[1:]
    works: dict[str, Callable[..., object]] = {
        "everywhere": kill_everywhere,
        "randomly": lambda where, kills, seed: kill_randomly(where, int(kills), int(seed)),
        "full": lambda where, steps: fill_disk(where, int(steps)),
        "together": lambda where, workers: work_together(where, int(workers)),
        "fork": fork_with_open_part,
        "ways": start_all_ways,
    }
    try:
        print(json.dumps(works[name](Path(folder), *numbers)))
    except HoldfastError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
