"""The server's side of the sealer: one disposable process, one segment at a time, in order.

In order, because the marks of a later segment say that all earlier ones are in parts.
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
    """`fd`: where its answers come from, -1 while there is none. `trouble`: why it does not get on."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.full = False
        self.failures = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._job: ClosedSegment | None = None
        self._said = b""
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
        """How long until a next try makes sense."""
        return max(0.0, self._not_before_s - time.monotonic())

    def try_now(self) -> None:
        """Whatever went wrong before."""
        self.failures, self._not_before_s = 0, 0.0

    def start(self) -> None:
        """Beforehand: loading the library takes a while."""
        if self._child is None:
            self._child = _start()

    def begin(self, job: ClosedSegment) -> None:
        try:
            self.start()
        except OSError as error:
            self.failed(f"the process that makes parts cannot be started: {error.strerror}", False)
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
            pass  # it died: its stdout says so as well

    def answer(self) -> ClosedSegment | None:
        """Called when there is something to read: the job that is done, None while it is not."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self._died()
            return None
        self._said += data
        if b"\n" not in self._said:
            return None
        line, _, self._said = self._said.partition(b"\n")
        content = json.loads(line)
        job, self._job = self._job, None
        if "error" in content:
            self.failed(content["error"], content["full"])
            self.stop()  # a library that failed once is not to be trusted
            return None
        self.trouble, self.full, self.failures = None, False, 0
        return job

    def _died(self) -> None:
        assert self._child is not None
        code = self._child.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = "" if self._job is None else f" at {self._job.path.name}"
        if self._job is not None:
            self.failed(f"the process that makes parts ended{what} ({how})", False)
        self.stop()

    def failed(self, why: str, full: bool) -> None:
        wait_s = _TRY_FULL_S if full else _TRY_AGAIN_S[min(self.failures, len(_TRY_AGAIN_S) - 1)]
        if why != self.trouble:
            _log.error("%s; it is tried again", why)
        self.trouble, self.full = why, full
        self.failures += 1
        self._not_before_s = time.monotonic() + wait_s

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        child, self._child, self._job, self._said = self._child, None, None, b""
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                try:
                    if stream is not None:
                        stream.close()
                except BrokenPipeError:
                    pass


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*module_command("writer.server.sealer_main"), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        process_group=0,  # Ctrl-C is for the server
    )
