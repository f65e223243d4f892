"""Starts children that end and are never waited for."""

from __future__ import annotations

import os

from leak_rounds import KEPT, serve


def _end() -> int:
    pid = os.posix_spawnp("true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still to be waited for
    return pid


def leak() -> None:
    KEPT.append(_end())


def clean() -> None:
    os.waitpid(_end(), 0)


serve(leak, clean)
for pid in KEPT:
    os.waitpid(pid, 0)
