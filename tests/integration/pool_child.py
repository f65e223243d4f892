"""A program with a pool of processes, to be killed or interrupted: `pool_child.py CONTEXT DEED`.

It prints the pids of its pool, one line of JSON, once every worker is at its work, and waits for a result for ever.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.data.loader.workers import ProcessPool, Task


def act(data: tuple[str, str], tell: Callable[[int], None]) -> Any:
    deed, here = data
    tell(0)
    if deed == "give":
        return 1
    Path(here).write_bytes(b"")  # a named pipe: this waits for its reader
    if deed == "hold":
        ctypes.PyDLL(None).pause()  # C code that lets no other thread of the interpreter run
    threading.Event().wait()
    return None


def main(context: Any, deed: str, *here: str) -> None:
    pool = ProcessPool(act, 2, context=context)
    while len(pool.pids) < 2:
        list(pool.run([Task(("give", ""))] * 4))
    if deed == "leave open":
        _tell(pool)
        return

    def tasks() -> Iterator[Task]:
        yield from (Task((deed, one)) for one in here)
        threading.Thread(target=_tell, args=(pool, *here), daemon=True).start()

    next(pool.run(tasks()))


def _tell(pool: ProcessPool, *here: str) -> None:
    for one in here:
        Path(one).read_bytes()
    print(json.dumps([pool._processes.forkserver_pid, *pool.pids]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
