"""Builds recordings event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.log_format import BAD, BIRTH, CLOSE, FAIL, INHERITED, KINDS, LIVE
from holdfast.process.fdtrace.tables import Table
from holdfast.process.fdtrace.trace_file import SourceFrame, Trace, TracedProcess

CALLS = ("open", "close", "read", "__read_chk", "openat64")
EBADF, EMFILE = 9, 24


class TraceBuilder:
    """Collects events and makes a recording of them, with the counts that the library would have made."""

    def __init__(self) -> None:
        self.processes: list[dict[str, Any]] = []
        self.events: list[tuple[float, int, int, int, int, int, int, int, int, int]] = []
        self.frames: dict[SourceFrame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        self.samples: list[tuple[float, int, int, int]] = []
        self.inherited: list[tuple[float, int, int, int, int]] = []
        self.facts: dict[str, Any] = {}
        self._gens: Counter[tuple[int, int]] = Counter()
        self._open: dict[tuple[int, int], tuple[float, int, int, int]] = {}
        self.process()

    def process(self, **facts: Any) -> int:
        self.processes.append(facts)
        return len(self.processes) - 1

    def stack(self, *frames: tuple[str, int, str] | tuple[str, int, str, str]) -> int:
        """Takes the frames innermost first."""
        numbers = tuple(self.frames.setdefault(SourceFrame(*frame), len(self.frames)) for frame in frames)
        return self.stacks.setdefault(numbers, len(self.stacks))

    def born(self, t: float, fd: int, stack: int, kind: str = "pipe", process: int = 0, tid: int = 1) -> None:
        self._gens[process, fd] += 1
        self._open[process, fd] = (t, stack, KINDS.index(kind), tid)
        self._event(t, process, tid, fd, stack, BIRTH, KINDS.index(kind))

    def closed(self, t: float, fd: int, stack: int = 0, process: int = 0, tid: int = 1) -> None:
        _, _, kind, _ = self._open.pop((process, fd))
        self._event(t, process, tid, fd, stack, CLOSE, kind)

    def bad(self, t: float, fd: int, stack: int, call: str = "read", process: int = 0, tid: int = 1) -> None:
        self._event(t, process, tid, fd, stack, BAD, 0, EBADF, CALLS.index(call))

    def failed(self, t: float, stack: int, call: str = "openat64") -> None:
        self._event(t, 0, 1, -1, stack, FAIL, 0, EMFILE, CALLS.index(call))

    def _event(
        self,
        t: float,
        process: int,
        tid: int,
        fd: int,
        stack: int,
        action: int,
        kind: int,
        error: int = 0,
        aux: int = 0,
    ) -> None:
        self.events.append((t, process, tid, fd, stack, action, kind, error, aux, self._gens[process, fd]))

    def build(self, duration_s: float = 60.0, **facts: Any) -> Trace:
        rows = [
            (t, process, tid, fd, stack, kind, LIVE, self._gens[process, fd])
            for (process, fd), (t, stack, kind, tid) in self._open.items()
        ]
        rows += [
            (t, process, 1, fd, stack, kind, LIVE | INHERITED, 1) for t, process, fd, stack, kind in self.inherited
        ]
        events = Table(trace_file.EVENTS, sorted(self.events, key=lambda event: event[0]))
        return Trace(
            **{
                "command": "python train.py",
                "started": 1.79e9,
                "duration_s": duration_s,
                "is_partial": False,
                "exit_code": 0,
                "calls": CALLS,
                "processes": tuple(
                    self._process(number, facts, duration_s) for number, facts in enumerate(self.processes)
                ),
                "frames": tuple(self.frames),
                "stacks": tuple(self.stacks),
                "native": {},
                "owners": {},
                "targets": {},
                "warnings": (),
                "events": events,
                "open": Table(trace_file.OPEN, rows),
                "counts": self._counts(events),
                "samples": Table(trace_file.SAMPLES, self.samples),
                **facts,
            }
        )

    def _process(self, number: int, facts: dict[str, Any], duration_s: float) -> TracedProcess:
        return TracedProcess(
            **{
                "pid": 100 + number,
                "parent": None if not number else 0,
                "command": "python train.py",
                "python": "3.11.7",
                "start_s": 0.0,
                "end_s": duration_s,
                "ended": "exit",
                "finalizing_s": None,
                "live": 0,
                "peak": 0,
                "dropped_events": 0,
                "has_stacks": True,
                "stopped_by": 0,
                "counts": {"failed": sum(event[5] == FAIL for event in self.events) if not number else 0},
                **facts,
            }
        )

    def _counts(self, events: Table) -> Table:
        made: dict[tuple[int, int, int], list[int]] = {}
        birth: dict[tuple[int, int, int], Sequence[int]] = {}
        for _, process, tid, fd, stack, action, kind, _, _, gen in events.rows():
            if action == BIRTH:
                birth[process, fd, gen] = (stack, tid)
                row = made.setdefault((process, stack, kind), [0, 0, 0, 0, 0])
                row[0] += 1
                row[2] += 1
                row[3] = max(row[3], row[2])
            elif action == CLOSE and (process, fd, gen) in birth:
                stack, opener = birth[process, fd, gen]
                row = made[process, stack, kind]
                row[1] += 1
                row[2] -= 1
                row[4] += opener != tid
        rows = [
            (process, stack, kind, born, closed, live, peak, 0, foreign)
            for (process, stack, kind), (born, closed, live, peak, foreign) in made.items()
        ]
        return Table(trace_file.COUNTS, rows)


LIBRARY = "/usr/lib/python3.11/site-packages/torch/loader.py"
TRAIN = ("/home/me/train.py", 31, "train", "loader = make()")


def leaking_trace(per_minute: int = 60, duration_s: float = 60.0) -> TraceBuilder:
    """A line that leaks at a steady rate through a library, beside one that closes what it opens."""
    made = TraceBuilder()
    leak = made.stack((LIBRARY, 7, "Queue.__init__", "pipe()"), (LIBRARY, 3, "make", "Queue()"), TRAIN)
    other = made.stack(("/home/me/train.py", 50, "save", "open(path)"), TRAIN)
    for number in range(int(per_minute * duration_s / 60)):
        t = number * 60 / per_minute
        made.born(t, 10 + number, leak)
        made.born(t, 3, other, "file")
        made.closed(t + 0.02, 3, other)
    return made


def large_trace(processes: int = 63, events: int = 131_072, stacks: int = 4_000, sites: int = 600) -> TraceBuilder:
    """Ten minutes of a trainer with workers, in which ten lines leak."""
    random = np.random.default_rng(0)
    made = TraceBuilder()
    made.processes = [{"parent": 0 if n else None, "peak": 80 + n} for n in range(processes)]
    numbers = []
    for n in range(stacks):
        inner, outer, steps = (random.integers(0, end, count).tolist() for end, count in ((99, 6), (99, 14), (6, 8)))
        numbers.append(
            made.stack(
                *((f"/usr/lib/python3.11/multiprocessing/c_{i % 9}.py", i, f"f_{i}", "os.dup(fd)") for i in inner),
                (
                    f"/home/me/module_{n % sites % 40}.py",
                    n % sites,
                    f"load_{n % sites}",
                    "self.file = open(path, 'rb')",
                ),
                *((LIBRARY, i, f"next_{i}", "data = self._next_data()") for i in outer),
                *(("/home/me/train.py", 100 + i, f"step_{i}", "loader.step()") for i in steps),
            )
        )
    times = np.sort(random.uniform(1, 599, events // 2)).tolist()
    for fd, (t, chance) in enumerate(zip(times, random.uniform(size=len(times)).tolist(), strict=True)):
        n, process = fd % stacks, fd % processes
        made.born(t, fd, numbers[n], ("socket", "file", "pipe")[n % 3], process)
        if n % sites >= 10 or chance > 0.3:
            made.closed(t + 0.5, fd, process=process)
    return made


HOSTILE = (
    "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1>'\"&lt;{{script}}"  # markup
    "\x1b[31m\x00\n\u202e\udcff"  # what is not printable
)


def hostile_trace() -> Trace:
    """A recording in which every text tries to become markup."""
    made = TraceBuilder()
    made.processes = [{"command": HOSTILE, "python": HOSTILE, "ended": HOSTILE, "unknown": [HOSTILE]}]
    frames = [(f"{HOSTILE}{n}.py", n, HOSTILE, HOSTILE * n**6) for n in range(1, 5)]
    stacks = [made.stack(frames[n], frames[n - 1]) for n in range(4)]
    for fd in range(400):
        made.born(fd * 0.1, fd, stacks[fd % 4], "file")
    made.bad(50, 1_000, stacks[0])
    made.failed(50, stacks[1])
    of_stack = {stack: [HOSTILE] for stack in stacks}
    return made.build(command=HOSTILE * 1_000, warnings=(HOSTILE,), owners=of_stack, targets=of_stack)
