"""The status file of a supervisor: what `holdfast watch` reads about its workers, restarts and events.

It lies beside the heartbeat pages, as `PID-STARTTICKS.supervise.json`, and is replaced atomically at each change. All
times are seconds since 1970.

    {"version": 1, "pid": 4711, "start_ticks": 88321, "name": "worker", "command": ["python", "worker.py"],
     "workers": [{"worker": 1, "pid": 4713, "state": "running", "since": 1700000000.0, "restarts": {"recycle": 2},
                  "sentence": "it works"}],
     "restarts": {"recycle": 2}, "events": [{"t": 1700000000.0, "worker": 1, "kind": "start", "text": "…"}]}
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ....errors import InputError
from ....procfs.processes import Identity
from ....procfs.procfs import REAL, ProcFS
from ...fd_owners.agent import make_private, socket_dirs
from ..process_files import file_name, own_identity, read_process_files, remove_stale
from .worker_machine import WorkerState

Number = TypeVar("Number", int, float)

_VERSION = 1
_SUFFIX = ".supervise.json"
_MAX_BYTES = 4 << 20
EVENTS = 100
REWRITE_S = 600.0  # a supervisor writes the file at least that often, also without a change
_STALE_S = 6 * REWRITE_S
# Bounds on the content of a file, which belongs to the user of the process and not to the reader's.
_LATEST_S = 253_402_300_799.0  # the year 9999: later times cannot be printed
_MAX_PID = 1 << 22
_MAX_COUNT = 1 << 53
_MAX_REASONS = 100
_MAX_WORKERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker of the program. `pid` is 0 while none runs; `since` is when its state began."""

    worker: int
    pid: int
    state: WorkerState
    since: float
    restarts: Mapping[str, int]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorEvent:
    """`worker` counts from 1; 0 is the supervisor itself."""

    t: float
    worker: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    """What a supervisor reported at one moment. `restarts` counts over all workers, by reason."""

    pid: int
    start_ticks: int
    name: str
    command: tuple[str, ...]
    workers: tuple[WorkerStatus, ...]
    restarts: Mapping[str, int]
    events: tuple[SupervisorEvent, ...]

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks)


class StatusFile:
    """The status file of this process. `problem` is why there is none, if so."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.problem = ""
        self.identity = Identity(os.getpid(), 0)
        try:
            self.identity, self.path = _own_path()
            remove_stale(self.path.parent, _SUFFIX, _is_rewritten)
        except (OSError, InputError) as error:
            self.problem = str(error)

    def write(self, status: SupervisorStatus) -> None:
        """Replaces the file; OSError: no space or no descriptor is left."""
        if self.path is None:
            return
        make_private(self.path.parent)  # again: it may have been removed
        data = json.dumps({"version": _VERSION, **asdict(status)}, ensure_ascii=True).encode()
        new = self.path.with_name(f".{self.path.name}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.rename(new, self.path)

    def is_there(self) -> bool:
        """False if somebody removed it, as old files in /tmp are on some machines."""
        return self.path is None or os.path.exists(self.path)

    def remove(self) -> None:
        if self.path is not None:
            for path in (self.path, self.path.with_name(f".{self.path.name}")):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _own_path() -> tuple[Identity, Path]:
    identity = own_identity()
    if identity is None:
        raise InputError("this process is not visible in /proc, so that no other process could find its status")
    reasons = []
    for folder in socket_dirs():
        try:
            make_private(folder)
        except OSError as error:
            reasons.append(str(error))
        else:
            return identity, folder / file_name(identity, _SUFFIX)
    raise InputError(f"no folder for the status file: {'; '.join(reasons)}")


def _is_rewritten(path: Path) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime <= _STALE_S
    except OSError:
        return False


# ---- reading the file of another process


def read_supervisor_status(pid: int, procfs: ProcFS = REAL) -> SupervisorStatus | None:
    """Reads the status of a supervisor; None if the process is none, is gone, or its file is not readable."""
    for identity, data in read_process_files(pid, _SUFFIX, _MAX_BYTES, procfs):
        found = parse_supervisor_status(data)
        if found is not None and found.identity == identity:
            return found
    return None


def parse_supervisor_status(data: bytes) -> SupervisorStatus | None:
    """Parses the bytes of a status file; None if they are not one."""
    try:
        facts = json.loads(data)
        if not isinstance(facts, dict) or facts.get("version") != _VERSION:
            return None
        if len(facts["workers"]) > _MAX_WORKERS:
            return None
        return SupervisorStatus(
            pid=_within(int(facts["pid"]), _MAX_PID),
            start_ticks=int(facts["start_ticks"]),
            name=str(facts["name"]),
            command=tuple(str(word) for word in facts["command"]),
            workers=tuple(_parse_worker(one) for one in facts["workers"]),
            restarts=_parse_counts(facts["restarts"]),
            events=tuple(_parse_event(one) for one in facts["events"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _parse_worker(facts: dict[str, Any]) -> WorkerStatus:
    return WorkerStatus(
        worker=int(facts["worker"]),
        pid=_within(int(facts["pid"]), _MAX_PID),
        state=WorkerState(facts["state"]),
        since=_within(float(facts["since"]), _LATEST_S),
        restarts=_parse_counts(facts["restarts"]),
        sentence=str(facts["sentence"]),
    )


def _parse_event(facts: dict[str, Any]) -> SupervisorEvent:
    return SupervisorEvent(
        t=_within(float(facts["t"]), _LATEST_S),
        worker=int(facts["worker"]),
        kind=str(facts["kind"]),
        text=str(facts["text"]),
    )


def _parse_counts(facts: dict[str, Any]) -> dict[str, int]:
    if len(facts) > _MAX_REASONS:
        raise ValueError(f"expected at most {_MAX_REASONS} reasons, got {len(facts)}")
    return {str(reason): _within(int(n), _MAX_COUNT) for reason, n in facts.items()}


def _within(value: Number, maximum: float) -> Number:
    if not 0 <= value <= maximum:  # of NaN, too
        raise ValueError(f"expected a number from 0 to {maximum:.0f}, got {value}")
    return value
