"""Recordings made without running a program: as large, and as hostile, as a test needs."""

from __future__ import annotations

import numpy as np

from holdfast.fdtrace.log_format import BIRTH, CLOSE, KINDS
from holdfast.fdtrace.trace_file import COUNTS, EVENTS, OPEN, SAMPLES, TOTALS, SourceFrame, Trace, TracedProcess

FILE, PIPE, SOCKET = (KINDS.index(kind) for kind in ("file", "pipe", "socket"))


def make_process(pid: int, parent: int | None = None, **changes: object) -> TracedProcess:
    fields: dict[str, object] = {
        "pid": pid,
        "parent": parent,
        "command": "python train.py",
        "python": "3.11.7",
        "start_s": 0.0,
        "end_s": None,
        "ended": "running",
        "finalizing_s": None,
        "live": 0,
        "peak": 0,
        "dropped_events": 0,
        "has_stacks": True,
        "stopped_by": 0,
        "counts": {},
    }
    return TracedProcess(**(fields | changes))  # type: ignore[arg-type]


def make_trace(
    frames: list[SourceFrame],
    stacks: list[tuple[int, ...]],
    births: list[tuple[float, int, int, int, float | None]],
    processes: tuple[TracedProcess, ...] = (make_process(100),),
    duration_s: float = 600.0,
    **changes: object,
) -> Trace:
    """Returns a recording. A birth is (time, process, stack, kind, time of the close or None)."""
    columns = list(zip(*births, strict=True)) or [()] * 5
    t, process, stack, kind = (np.array(column, np.float64) for column in columns[:4])
    closed = np.array([np.nan if end is None else end for end in columns[4]], np.float64)
    return make_large_trace(frames, stacks, t, process, stack, kind, closed, processes, duration_s, **changes)


def make_large_trace(
    frames: list[SourceFrame],
    stacks: list[tuple[int, ...]],
    t: np.ndarray,
    process: np.ndarray,
    stack: np.ndarray,
    kind: np.ndarray,
    closed: np.ndarray,
    processes: tuple[TracedProcess, ...],
    duration_s: float,
    **changes: object,
) -> Trace:
    """Returns a recording of many descriptors, one in each row; `closed` is nan where it stays open."""
    born = np.zeros(len(t), EVENTS)
    born["t_s"], born["process"], born["stack"], born["kind"] = t, process, stack, kind
    born["action"], born["tid"] = BIRTH, 1
    born["fd"], born["gen"] = np.arange(len(t)) % (1 << 20), 1 + np.arange(len(t)) // (1 << 20)
    ends = born[~np.isnan(closed)].copy()
    ends["t_s"], ends["action"] = closed[~np.isnan(closed)], CLOSE
    events = np.concatenate([born, ends])
    events = events[np.argsort(events["t_s"], kind="stable")]
    live = born[np.isnan(closed)]
    opened = np.zeros(len(live), OPEN)
    for name in ("t_s", "process", "tid", "fd", "stack", "kind", "gen"):
        opened[name] = live[name]
    opened["flags"] = 1
    keys, first, times = np.unique(born[["process", "stack"]], return_index=True, return_counts=True)
    counts = np.zeros(len(keys), COUNTS)
    counts["process"], counts["stack"], counts["kind"] = keys["process"], keys["stack"], born["kind"][first]
    counts["born"] = counts["peak"] = times
    fields: dict[str, object] = {
        "command": "python train.py",
        "started": 1_700_000_000.0,
        "duration_s": duration_s,
        "is_partial": False,
        "exit_code": 0,
        "calls": (),
        "processes": processes,
        "frames": tuple(frames),
        "stacks": tuple(stacks),
        "native": {},
        "owners": {},
        "targets": {},
        "warnings": (),
        "events": events,
        "open": opened,
        "counts": counts,
        "samples": np.zeros(0, SAMPLES),
        "totals": np.zeros(0, TOTALS),
    }
    return Trace(**(fields | changes))  # type: ignore[arg-type]


def make_trainer(processes: int = 63, events: int = 32_768, stacks: int = 4_000, sites: int = 600) -> Trace:
    """Returns ten minutes of a trainer with workers, of which ten lines leak."""
    random = np.random.default_rng(0)
    folder, library = "/home/user/trainer", "/usr/lib/python3.11"
    user = [
        SourceFrame(f"{folder}/module_{n % 40}.py", 10 + n, f"load_{n}", f"self.file_{n} = open(path_{n}, 'rb')")
        for n in range(sites)
    ]
    mid = [SourceFrame(f"{folder}/train.py", 100 + n, f"step_{n % 30}", f"loader.step({n})") for n in range(300)]
    torch = [
        SourceFrame(
            f"{library}/site-packages/torch/utils/data/d_{n % 20}.py", n, f"_next_{n}", "data = self._next_data()"
        )
        for n in range(300)
    ]
    inner = [
        SourceFrame(f"{library}/multiprocessing/c_{n % 9}.py", n, f"reduce_{n}", "fd = duplicate(conn.fileno())")
        for n in range(200)
    ]
    frames = [SourceFrame("", 0, ""), *user, *mid, *torch, *inner]
    starts = np.cumsum([1, len(user), len(mid), len(torch)])
    made: list[tuple[int, ...]] = [()]
    for n in range(1, stacks):
        parts = [
            starts[3] + random.integers(0, len(inner), 6),
            starts[0] + np.array([n % sites]),
            starts[2] + random.integers(0, len(torch), 14),
            starts[1] + random.integers(0, 6, 8) + 6 * (n % 50),
        ]
        made.append(tuple(np.concatenate(parts).tolist()))
    rows = processes * events // 2
    t = np.sort(random.uniform(1, 600, rows))
    stack = random.integers(1, stacks, rows)
    leaks = (stack % sites < 10) & (random.uniform(size=rows) < 0.3)
    closed = np.where(leaks, np.nan, np.minimum(t + random.exponential(0.5, rows), 600))
    return make_large_trace(
        frames,
        made,
        t,
        random.integers(0, processes, rows),
        stack,
        np.where(stack % sites < 5, SOCKET, np.where(stack % 3, FILE, PIPE)),
        closed,
        tuple(make_process(1000 + n, 0 if n else None, live=50 + n, peak=80 + n) for n in range(processes)),
        600.0,
    )


HOSTILE = (
    "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1>'\"&lt;{{plotly}}\x1b[31m\x00\n\u202e\udcff"
)


def make_hostile_trace() -> Trace:
    """Returns a recording whose every text tries to become markup."""
    frames = [SourceFrame(f"{HOSTILE}{n}.py", n, HOSTILE, HOSTILE * (1 + 999 * (n == 3))) for n in range(1, 5)]
    births = [(float(t), 0, t % 4, FILE, None) for t in range(1, 590)]
    return make_trace(
        frames,
        [(0, 1), (1, 2), (2, 3), (3, 0)],
        births,
        (make_process(1, command=HOSTILE, python=HOSTILE, ended=HOSTILE, unknown=[HOSTILE]),),
        command=HOSTILE * 1_000,
        warnings=(HOSTILE,),
        owners={0: [HOSTILE], 1: [HOSTILE]},
        targets={0: [HOSTILE]},
        native={0: [HOSTILE]},
    )
