"""Children are waited for by a pidfd that stays open."""

from __future__ import annotations

import os
import subprocess

from rounds import serve


def _run() -> int:
    with subprocess.Popen(["true"]) as process:
        pidfd = os.pidfd_open(process.pid)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    return pidfd


def leak() -> None:
    for _ in range(2):
        _run()


def honest() -> None:
    os.close(_run())


serve(leak, honest)
