"""Waits for children through pidfds that stay open."""

from __future__ import annotations

import os
import subprocess

from leak_rounds import serve


def _run() -> int:
    with subprocess.Popen(["true"]) as process:
        pidfd = os.pidfd_open(process.pid)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    return pidfd


def leak() -> None:
    for _ in range(2):
        _run()


def clean() -> None:
    os.close(_run())


serve(leak, clean)
