"""The server's side of the sealer: one disposable process that seals one segment at a time.

Segments are sealed in order, because the watermarks of a segment imply that all earlier ones are in parts.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time

from ..._util.process import child_environment, module_command
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
        self._child: subprocess.Popen[bytes] | None = None
        self._job: ClosedSegment | None = None
        self._output = b""
        self._not_before_s = 0.0

    @property
    def fd(self) -> int:
        return -1 if self._child is None or self._child.stdout is None else self._child.stdout.fileno()

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
        assert self._child.stdin is not None
        what = {"path": str(job.path), "end": job.end, "before": job.before, "in_place": job.in_place}
        line = json.dumps(what).encode() + b"\n"
        self._job = job
        try:
            self._child.stdin.write(line)
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it died, which the end of its stdout reports as well

    def answer(self) -> ClosedSegment | None:
        """Reads the pipe. Returns the segment that is sealed; None: there is none yet."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self._died()
            return None
        self._output += data
        if b"\n" not in self._output:
            return None
        line, _, self._output = self._output.partition(b"\n")
        content = json.loads(line)
        job, self._job = self._job, None
        if "error" in content:
            self.failed(content["error"], content["full"])
            self.stop()  # after an error the state of the HDF5 library is unknown
            return None
        self.last_error, self.full, self.failures = None, False, 0
        return job

    def _died(self) -> None:
        assert self._child is not None
        code = self._child.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = "" if self._job is None else f" at {self._job.path.name}"
        if self._job is not None:
            self.failed(f"the sealer died{what} ({how})", False)
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
        child, self._child, self._job, self._output = self._child, None, None, b""
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                try:
                    if stream is not None:
                        stream.close()
                except BrokenPipeError:
                    pass


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*module_command("writer.server.sealer_main"), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        process_group=0,  # Ctrl-C is for the server
    )
