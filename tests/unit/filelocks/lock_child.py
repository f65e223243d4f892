"""A child process that holds something until its stdin ends."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TIMEOUT_S = 60


@contextmanager
def python(program: str, *arguments: object, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A child that has said that it is ready; it ends when its stdin does."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert read_line(child) == "ready"
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(TIMEOUT_S)


def read_line(child: subprocess.Popen[str] | Any) -> str:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], TIMEOUT_S)[0]
    return str(child.stdout.readline()).removesuffix("\n")
