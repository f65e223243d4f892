"""Children that end, and that nobody waits for."""

from __future__ import annotations

import os

from rounds import KEPT, serve


def _end() -> int:
    pid = os.posix_spawnp("true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still to be waited for
    return pid


def leak() -> None:
    KEPT.append(_end())


def honest() -> None:
    os.waitpid(_end(), 0)


serve(leak, honest)
for pid in KEPT:
    os.waitpid(pid, 0)
