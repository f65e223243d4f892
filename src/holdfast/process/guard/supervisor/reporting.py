"""What the supervisor reports: its log, the status file for `holdfast watch`, and systemd."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from ...._util.text import counted, printable
from .config import SuperviseOptions
from .log_lines import LogLines
from .status import EVENTS, REWRITE_S, StatusFile, SupervisorEvent, SupervisorStatus
from .systemd import SystemdNotifier
from .worker_machine import RestartReason, WorkerState

if TYPE_CHECKING:
    from .supervised_worker import SupervisedWorker

_MAX_EVENT = 1000
_EXTEND_EVERY_S = 5.0
_EXTEND_BY_S = 15.0


class SupervisorReport:
    """`systemd` takes its variables out of `environment`: they are not for workers."""

    def __init__(
        self,
        name: str,
        options: SuperviseOptions,
        workers: Sequence[SupervisedWorker],
        log: LogLines,
        environment: MutableMapping[str, str],
    ) -> None:
        self._name = name
        self._options = options
        self._workers = workers
        self._log = log
        self.systemd = SystemdNotifier(environment)
        self._file = StatusFile()
        self._events: deque[SupervisorEvent] = deque(maxlen=EVENTS)
        self.changed = True  # whether the status file must be written
        self._written_s = -math.inf
        self._was_ready = False
        self._watchdog_s = 0.0
        self._extended_s = -math.inf
        if self._file.problem:
            self.log("status", f"holdfast watch cannot see the restarts: {self._file.problem}", level="warning")

    @property
    def mark(self) -> str:
        """Identifies this supervisor, in the environment of all its workers."""
        return "-".join(map(str, self._file.identity))

    def close(self) -> None:
        self._file.remove()
        self.systemd.close()

    def log(
        self,
        kind: str,
        text: str,
        worker: SupervisedWorker | None = None,
        reason: RestartReason | None = None,
        level: str = "info",
        *,
        pid: int = 0,
        keep: bool = True,
    ) -> None:
        """Writes one line to the log, and keeps it as an event of the status file."""
        number = 0 if worker is None else worker.number
        now = time.time()
        facts = {
            "t": round(now, 3),
            "level": level,
            "kind": kind,
            "worker": number,
            "pid": worker.last_pid if worker is not None else pid,
            "reason": None if reason is None else str(reason),
            "text": text,
        }
        self._log.write(facts, text)
        if keep:
            self._events.append(SupervisorEvent(t=now, worker=number, kind=kind, text=printable(text)[:_MAX_EVENT]))
            self.changed = True

    def restarts(self) -> Counter[RestartReason]:
        return sum((worker.restarts for worker in self._workers), Counter())

    def restart_words(self) -> str:
        total = self.restarts()
        if not total:
            return "no restarts"
        by_reason = ", ".join(f"{n} {reason}" for reason, n in total.items())
        return f"{counted(sum(total.values()), 'restart')} ({by_reason})"

    def publish(self, now_s: float) -> None:
        """Writes the status file, if something has changed or the file was removed."""
        if not self.changed and now_s - self._written_s < REWRITE_S and self._file.is_there():
            return
        self.changed, self._written_s = False, now_s
        pid, ticks = self._file.identity
        status = SupervisorStatus(
            pid=pid,
            start_ticks=ticks or 0,
            name=self._name,
            command=self._options.command,
            workers=tuple(worker.status_row() for worker in self._workers),
            restarts={str(reason): n for reason, n in self.restarts().items()},
            events=tuple(self._events),
        )
        with contextlib.suppress(OSError):  # a full disk
            self._file.write(status)

    def notify_systemd(self, now_s: float, *, is_stopping: bool) -> None:
        systemd = self.systemd
        if not systemd.is_on:
            return
        running = sum(worker.process is not None for worker in self._workers)
        if not self._was_ready and running == len(self._workers):
            self._was_ready = True
            systemd.ready()
        given_up = "".join(
            f"; gave up on {worker.name}: {worker.sentence}"
            for worker in self._workers
            if worker.state is WorkerState.GIVEN_UP
        )
        status = f"{running} of {counted(len(self._workers), 'worker')} running; {self.restart_words()}{given_up}"
        systemd.status(status[:_MAX_EVENT])
        if is_stopping and now_s - self._extended_s > _EXTEND_EVERY_S:
            self._extended_s = now_s
            systemd.still_stopping(_EXTEND_BY_S)
        if systemd.watchdog_s is not None and now_s >= self._watchdog_s and _some_work(self._workers):
            self._watchdog_s = now_s + systemd.watchdog_s
            systemd.watchdog()


def _some_work(workers: Sequence[SupervisedWorker]) -> bool:
    """Whether to report to systemd that the service works: it would end all workers otherwise, also those that do.

    A worker that waits for its next start is as it should be, and one that was given up is in the status.
    """
    left = [worker for worker in workers if not worker.is_over]
    return not left or any(
        not worker.is_running or worker.escalation is None or worker.escalation.plan.is_planned for worker in left
    )
