"""The server's side of the sealer: one disposable process that seals one segment at a time.

Segments are sealed in order, because the watermarks of a segment imply that all earlier ones are in parts.
"""

from __future__ import annotations

import logging
import os
import time

from ...._util.framing import MessageError
from ...._util.helper_process import HelperProcess, module_command
from ...._util.process import describe_exit
from .journal import ClosedSegment

_log = logging.getLogger("holdfast.server")

_TRY_AGAIN_S = (0.1, 1.0, 5.0, 30.0)
_TRY_FULL_S = 1.0


class Sealer:
    """The sealer process. `fd`: the pipe of its answers, -1 without a process. `last_error`: why sealing fails."""

    def __init__(self) -> None:
        self.last_error: str | None = None
        self.full = False
        self.failures = 0
        self._child: HelperProcess | None = None
        self._job: ClosedSegment | None = None
        self._not_before_s = 0.0

    @property
    def fd(self) -> int:
        return -1 if self._child is None else self._child.fd

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def busy(self) -> bool:
        return self._job is not None

    def wait_s(self) -> float:
        """Returns the time until the next attempt."""
        return max(0.0, self._not_before_s - time.monotonic())

    def retry_now(self) -> None:
        """Allows the next attempt at once, whatever failed before."""
        self.failures, self._not_before_s = 0, 0.0

    def start(self) -> None:
        """Starts the process. The server does so early, as loading HDF5 takes a while."""
        if self._child is None:
            self._child = _start_process()

    def begin(self, job: ClosedSegment) -> None:
        try:
            self.start()
        except OSError as error:
            self.failed(f"cannot start the sealer: {error.strerror}", False)
            return
        assert self._child is not None
        self._job = job
        # If the process has died, the end of its answers reports it.
        self._child.send({"path": str(job.path), "end": job.end, "before": job.before, "in_place": job.in_place})

    def answer(self) -> ClosedSegment | None:
        """Reads the pipe. Returns the segment that is sealed; None: there is none yet."""
        assert self._child is not None
        try:
            has_ended = not self._child.read()
            answer = self._child.take()
        except MessageError as error:
            self._lost(f"sent no valid answer: {error}")
            return None
        if answer is None:
            if has_ended:
                self._lost(describe_exit(self._child.wait()))
            return None
        job, self._job = self._job, None
        if "error" in answer.head:
            self.failed(answer.head["error"], answer.head["full"])
            self.stop()  # after an error the state of the HDF5 library is unknown
            return None
        self.last_error, self.full, self.failures = None, False, 0
        return job

    def _lost(self, what: str) -> None:
        if self._job is not None:
            self.failed(f"the sealer of {self._job.path.name} {what}", False)
        self.stop()

    def failed(self, why: str, full: bool) -> None:
        wait_s = _TRY_FULL_S if full else _TRY_AGAIN_S[min(self.failures, len(_TRY_AGAIN_S) - 1)]
        if why != self.last_error:
            _log.error("%s; the server will retry", why)
        self.last_error, self.full = why, full
        self.failures += 1
        self._not_before_s = time.monotonic() + wait_s

    def stop(self) -> None:
        """Kills the process."""
        child, self._child, self._job = self._child, None, None
        if child is not None:
            child.close()


def _start_process() -> HelperProcess:
    return HelperProcess([*module_command("data.writer.server.sealer_main"), str(os.getpid())])
