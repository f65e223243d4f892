"""Kills producers, servers and sealers of the central writer, writers of parts, and consolidate, again and again; then
counts rows.

    python tools/soak_write.py --kills 1000
    python tools/soak_write.py --everywhere producer    # or server, sealer: one kill at each failpoint

Processes are forked from this one, which itself opens nothing: starting an interpreter would take longer than most of
them run. Half of the kills happen at a failpoint, half at a random moment. A producer saves how many rows were
acknowledged; its successor must find at least as many. At the end every row must be in a committed part exactly once.
Exits with 1 if a row is lost, duplicated or wrong, or if anything hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_consolidate import soak_consolidate
from soak_rows import PLAIN, SCHEMA, count_wrong, forked, rows

from holdfast._util.failpoints import NAMES, PRODUCER_NAMES, SEALER_NAMES, SERVER_NAMES, VARIABLE
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.server import journal, server, shared_buffer
from holdfast.data.writer.server.client import connect
from holdfast.data.writer.server.server import CentralWriter
from holdfast.data.writer.server.server_process import ServerSettings

PRODUCERS = 3
PART_ROWS = 100
HANG_S = 60.0
journal.LEAST_SPARE_BYTES = 0  # journal files are reused however small they are
shared_buffer.LEAST_BYTES = 0  # rows of a fixed size go through shared memory
server.LEAST_IN_PLACE_BYTES = 0  # and their segments are sealed in place
KINDS = ("producer", "server", "sealer", "part")


# ---- what is killed


def serve(out: DatasetWriter, ack: Any, statement: Path) -> None:
    settings = ServerSettings(ack=ack, segment_bytes=40_000, seal_after_s=0.3, chunk_rows=16, queue_bytes=2_000_000)
    server = CentralWriter(out.folder, out.schema, settings)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    tick = server._seal_next

    def seal_next() -> None:
        tick()
        statement.write_text(f"{server.stats()['sealer_pid'] or 0} {server.sealer.failures}")

    server._seal_next = seal_next  # type: ignore[method-assign]
    server.run()


def produce(out: DatasetWriter, who: int, goal: int, notes: Path, seed: int) -> None:
    """Produces rows up to `goal`, and keeps the number of acknowledged rows in the file `notes`."""
    rng = random.Random(seed)
    with open(notes, "r+b", buffering=0) as file:
        [noted] = struct.unpack("<q", os.pread(file.fileno(), 8, 0))
        with connect(out.folder, f"p{who}", timeout=HANG_S) as producer:
            if os.environ.get(VARIABLE, "").startswith("producer-half-sent"):
                link: Any = producer._connection  # frames are small and would be sent at once
                link.send = lambda buffers: link._socket.send(bytes(buffers[0])[:50])
            if producer.next_seq < noted:
                raise AssertionError(f"LOST: p{who} had {noted} rows acknowledged, the server has {producer.next_seq}")
            while producer.next_seq < goal:
                count = min(goal - producer.next_seq, rng.choice((1, 5, 16, 40)))
                batch = rows(who, producer.next_seq, count, out.schema)
                if count == 1:
                    producer.append(**{name: column[0] for name, column in batch.items()})
                else:
                    producer.extend(batch)
                if rng.random() < 0.1:
                    producer.commit()
                os.pwrite(file.fileno(), struct.pack("<q", max(noted, producer.acked)), 0)
            producer.commit()
            os.pwrite(file.fileno(), struct.pack("<q", producer.acked), 0)


def write_part(out: DatasetWriter, task: int, kind: Any) -> None:
    with out.part(f"task{task}", kind, chunk_rows=16 if kind == "hdf5" else None) as part:
        if not part.done:
            part.extend(rows(1000 + task, 0, PART_ROWS, out.schema))


# ---- the run


class Soak:
    def __init__(self, folder: Path, kills: int, seed: int, ack: str, schema: Any = SCHEMA) -> None:
        self.out = write(folder / "run", schema)
        self.folder, self.kills, self.ack = folder, kills, ack
        self.rng = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.hangs = 0
        self.goals = [0] * PRODUCERS
        self.task = 0
        for who in range(PRODUCERS):
            self.notes(who).write_bytes(struct.pack("<q", 0))
        self.pids: dict[str, int] = {}

    def notes(self, who: int) -> Path:
        return self.folder / f"notes-{who}"

    @property
    def sealer_note(self) -> Path:
        return self.folder / "sealer"

    def run_and_clean_up(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return work()
        finally:
            for pid in self.pids.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def run(self) -> dict[str, Any]:
        while sum(self.killed.values()) < self.kills:
            self.start_what_is_missing()
            self.kill_one()
            self.reap()
        self.finish()
        return self.count()

    def run_to(self, name: str) -> dict[str, Any]:
        """Kills one process at this failpoint, then restarts all of them."""
        at_producer = name in PRODUCER_NAMES
        self.goals = [100] * PRODUCERS
        failpoint = None if at_producer else name
        self.pids["server"] = forked(lambda: serve(self.out, self.ack, self.sealer_note), failpoint)
        for who in range(PRODUCERS):
            work = (self.out, who, self.goals[who], self.notes(who), who)
            failpoint = name if at_producer and who == 0 else None
            self.pids[f"producer {who}"] = forked(lambda work=work: produce(*work), failpoint)  # type: ignore[misc]
        deadline = time.monotonic() + HANG_S
        if at_producer:
            self.wait("producer 0", deadline)
        elif name in SERVER_NAMES:
            self.wait("server", deadline)
        else:
            while not self.sealer_has_died() and time.monotonic() < deadline:
                time.sleep(0.005)
            self.killed["sealer"] += self.sealer_has_died()
        self.finish()
        return self.count()

    def sealer_has_died(self) -> bool:
        try:
            return self.sealer_note.read_text().split()[1] != "0"
        except (OSError, IndexError):
            return False

    def failpoint_of(self, names: tuple[str, ...]) -> str | None:
        if self.rng.random() < 0.5 or sum(self.killed.values()) >= self.kills:
            return None
        name = self.rng.choice(names)
        return f"{name}:{self.rng.choice((1, 1, 2, 3, 10))}"

    def start_what_is_missing(self) -> None:
        if "server" not in self.pids:
            failpoint = self.failpoint_of(SERVER_NAMES + SEALER_NAMES)
            self.pids["server"] = forked(lambda: serve(self.out, self.ack, self.sealer_note), failpoint)
        for who in range(PRODUCERS):
            if f"producer {who}" not in self.pids:
                self.goals[who] += self.rng.randrange(50, 400)
                work = (self.out, who, self.goals[who], self.notes(who), self.rng.randrange(1 << 30))
                self.pids[f"producer {who}"] = forked(
                    lambda work=work: produce(*work), self.failpoint_of(PRODUCER_NAMES)
                )  # type: ignore[misc]
        if "part" not in self.pids:
            kind = self.rng.choice(("hdf5", "tfrecord"))
            task = self.task
            self.pids["part"] = forked(lambda: write_part(write(self.out.folder), task, kind), self.failpoint_of(NAMES))

    def kill_one(self) -> None:
        time.sleep(self.rng.random() ** 2 * 0.1)  # a random moment, not a wait
        what = self.rng.choice(("producer", "producer", "server", "sealer", "part", None))
        if what == "sealer":
            try:
                pid = int(self.sealer_note.read_text().split()[0])
                if b"sealer" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    self.killed["sealer"] += 1
            except (OSError, ValueError, IndexError):
                pass
        elif what is not None:
            name = f"producer {self.rng.randrange(PRODUCERS)}" if what == "producer" else what
            if name in self.pids:
                os.kill(self.pids[name], signal.SIGKILL)

    def reap(self) -> None:
        for name, pid in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.ended(name, os.waitstatus_to_exitcode(status))

    def ended(self, name: str, code: int) -> None:
        del self.pids[name]
        kind = name.split()[0]
        if code == -signal.SIGKILL:
            self.killed[kind] += 1
        elif code:
            raise AssertionError(f"{name} ended with {code}")
        elif name == "part":
            self.task += 1

    def finish(self) -> None:
        """Lets all processes finish without further kills."""
        deadline = time.monotonic() + HANG_S
        for name in [name for name in self.pids if name in ("server", "part")]:
            os.kill(self.pids[name], signal.SIGKILL)
            self.wait(name, deadline)
        os.environ.pop(VARIABLE, None)
        self.pids["server"] = forked(lambda: serve(self.out, self.ack, self.sealer_note), None)
        for name in [name for name in self.pids if name != "server"]:
            self.wait(name, deadline)
        for who in range(PRODUCERS):
            work = (self.out, who, self.goals[who], self.notes(who), 1)
            self.pids[f"producer {who}"] = forked(lambda work=work: produce(*work), None)  # type: ignore[misc]
        for name in [name for name in self.pids if name != "server"]:
            self.wait(name, deadline)
        self.pids["part"] = forked(lambda: write_part(write(self.out.folder), self.task, "hdf5"), None)
        self.wait("part", deadline)
        os.kill(self.pids["server"], signal.SIGTERM)
        self.wait("server", deadline)

    def wait(self, name: str, deadline: float) -> None:
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.pids[name], os.WNOHANG)
            if done:
                self.ended(name, os.waitstatus_to_exitcode(status))
                return
            time.sleep(0.01)
        self.hangs += 1
        os.kill(self.pids[name], signal.SIGKILL)
        os.waitpid(self.pids.pop(name), 0)

    def count(self) -> dict[str, Any]:
        seen: Counter[tuple[int, int]] = Counter()
        wrong = 0
        report = self.out.verify()
        for record in self.out.parts():
            with open_shard(self.out.path_of(record), self.out.schema) as shard:
                got = shard.read(0, len(shard), self.out.schema)
            seen.update(zip(got["who"].tolist(), got["seq"].tolist(), strict=True))
            wrong += count_wrong(got)
        expected = {(who, seq) for who in range(PRODUCERS) for seq in range(self.goals[who])}
        expected |= {(1000 + task, seq) for task in range(self.task) for seq in range(PART_ROWS)}
        left = [name for name in os.listdir(self.out.folder / "journal") if not name.startswith(("EPOCH", "marks"))]
        return {
            "kills": {kind: self.killed[kind] for kind in KINDS},
            "rows": len(expected),
            "parts": report.parts,
            "lost": len(expected - set(seen)),
            "doubled": sum(times - 1 for times in seen.values()),
            "strange": len(set(seen) - expected),
            "wrong": wrong,
            "hangs": self.hangs,
            "problems": [str(problem) for problem in report.problems],
            "left": left + os.listdir(self.out.folder / "tmp"),
        }


def is_bad(found: dict[str, Any]) -> bool:
    return any(found[name] for name in ("lost", "doubled", "strange", "wrong", "hangs", "problems", "left"))


def kill_everywhere(folder: Path, kind: str, schema: Any) -> int:
    names = {"producer": PRODUCER_NAMES, "server": SERVER_NAMES, "sealer": SEALER_NAMES}[kind]
    outcomes = {}
    for name in names:
        here = folder / name
        here.mkdir()
        soak = Soak(here, 1, 1, "disk" if name == "server-unsynced" else "process", schema)
        outcomes[name] = soak.run_and_clean_up(lambda soak=soak, name=name: soak.run_to(name))  # type: ignore[misc]
    print(json.dumps(outcomes))
    return int(any(is_bad(outcome) or outcome["kills"][kind] < 1 for outcome in outcomes.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--everywhere", choices=["producer", "server", "sealer"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ack", choices=["process", "disk"], default="process")
    parser.add_argument("--shared", action="store_true", help="use rows that go through shared memory")
    parser.add_argument("--folder", type=Path, help="folder to work in, which is kept [default: a temporary one]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    folder.mkdir(exist_ok=True)
    if given.everywhere:
        code = kill_everywhere(folder, given.everywhere, PLAIN if given.shared else SCHEMA)
        if given.folder is None and not code:
            shutil.rmtree(folder)
        return code
    started = time.monotonic()
    joins = given.kills // 8
    soak = Soak(folder, given.kills - joins, given.seed, given.ack, PLAIN if given.shared else SCHEMA)
    found = soak.run_and_clean_up(soak.run)
    joined = soak_consolidate(folder, joins, given.seed)
    found["kills"]["consolidate"] = joined["kills"]
    for name in ("lost", "wrong", "hangs"):
        found[name] += joined[name]
    bad = is_bad(found)
    if given.json:
        print(json.dumps(found))
    else:
        kills = ", ".join(f"{count} of {kind}" for kind, count in found["kills"].items())
        took_s = time.monotonic() - started
        print(f"{sum(found['kills'].values()):,} kills ({kills}) in {took_s:.0f} s, ack={given.ack}\n")
        for name, value in list(found.items())[1:]:
            print(f"{name:<10} {value or 0}" if isinstance(value, list) else f"{name:<10} {value:,}")
    if given.folder is None and not bad:
        shutil.rmtree(folder)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
