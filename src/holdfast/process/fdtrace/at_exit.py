"""Runs in a traced program at its end: writes what keeps the descriptors of its largest sites open.

It imports the standard library and `fd_owners` only, and reads of the log only the entries: to load what reads the rest
would cost the program more than the search itself.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from ..fd_owners.owners import find_paths

_LEAST = 4  # any program has that many files of one line open
_MAX_SITES = 8
_A_SITE = 3
_WITHIN_S, _OF_RUN, _MAX_S = 1.0, 0.05, 5.0  # a second, or a twentieth of the time that the program ran
_ENTRY = struct.Struct("<QIIIHHiI")


def write_owners(at_ns: int) -> None:
    """Writes `owners.PID.json` into the folder of the logs. The program's own work ended at `at_ns`."""
    folder = Path(os.environ.get("HOLDFAST_FDTRACE_DIR", ""))
    pid = os.getpid()
    logs = sorted(folder.glob(f"fd.{pid}.*.log"), key=lambda path: int(path.name.split(".")[2]))
    if not logs:
        return
    by_stack = {stack: fds for stack, fds in _live_by_stack(logs[-1]).items() if stack and len(fds) >= _LEAST}
    largest = sorted(by_stack, key=lambda stack: -len(by_stack[stack]))[:_MAX_SITES]
    examples = {stack: _spread(by_stack[stack]) for stack in largest}
    if not examples:
        return
    ran_s = (at_ns - int(logs[-1].name.split(".")[2])) / 1e9
    within_s = min(max(_WITHIN_S, _OF_RUN * ran_s), _MAX_S)
    paths = find_paths([fd for fds in examples.values() for fd in fds], within_s=within_s, clock=time.thread_time)
    owners: dict[int, list[str]] = {}
    for stack, fds in examples.items():
        lines = [str(path) for path in paths if path.fd in fds]
        owners[stack] = list(dict.fromkeys(lines))[:_A_SITE]
    found = {"pid": pid, "start_ns": int(logs[-1].name.split(".")[2]), "at_ns": at_ns, "owners": owners}
    (folder / f"owners.{pid}.json").write_text(json.dumps(found))


def _live_by_stack(log: Path) -> dict[int, list[int]]:
    found = defaultdict(list)
    with open(log, "rb") as file:
        head = file.read(160)
        (entries_at,) = struct.unpack_from("<Q", head, 64)
        (fds_end,) = struct.unpack_from("<I", head, 128)
        file.seek(entries_at)
        data = file.read(fds_end * _ENTRY.size)
    for fd in range(len(data) // _ENTRY.size):
        _, stack, _, _, _, flags, _, _ = _ENTRY.unpack_from(data, fd * _ENTRY.size)
        if flags == 1:  # open, and neither inherited nor there before
            found[stack].append(fd)
    return found


def _spread(fds: Sequence[int]) -> list[int]:
    """Takes the first, a middle and the last one: a list that keeps them all is found from any."""
    return sorted({fds[0], fds[len(fds) // 2], fds[-1]})
