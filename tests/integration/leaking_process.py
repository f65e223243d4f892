"""A process that leaks on demand, for the commands that look at processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Leaks `n` read ends of pipes whose writer is gone for every number it is told; `listen` also answers questions.
LEAKER = """
import os, resource, sys
mode, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
if mode == "listen":
    import holdfast.process.fd_owners.agent
    listener = holdfast.process.fd_owners.agent.listen()
keep = []
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        reader, writer = os.pipe()
        os.close(writer)
        keep.append(os.fdopen(reader, "rb", buffering=0))
    print("done", flush=True)
"""


class Leaker:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self._expect("ready")

    def leak(self, descriptors: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{descriptors}\n")
        self._process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == f"{word}\n"


@contextmanager
def leaker(name: str = "leaker", *, listens: bool = False, limit: int = 1024) -> Iterator[Leaker]:
    """`name` is in its command line."""
    command = [sys.executable, "-c", LEAKER, "listen" if listens else "quiet", str(limit), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Leaker(process)
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait(60)
