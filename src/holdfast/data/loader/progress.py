"""hold.progress: how far an epoch is, as a line on stderr that is updated in a terminal, or repeated in a file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any, TextIO

from ..._util.text import time_argument
from .dataset import Dataset
from .iterator import Iteration

_TERMINAL_S = 0.2
_FILE_S = 30.0


def progress(
    batches: Iteration | Dataset, *, out: TextIO | None = None, every: float | str | None = None
) -> Iterator[Any]:
    """Yields the same batches, and shows how far the epoch is, how fast, and how long it will take.

        for batch in hold.progress(it): ...

    Args:
        out: Where the line goes, by default stderr.
        every: How often, in seconds or as a text such as "1min"; by default five times a second in a terminal, and
            every half minute in a file.
    """
    if isinstance(batches, Dataset):
        batches = batches.iterate()
    if not isinstance(batches, Iteration):
        raise TypeError(f"progress: expected a dataset, or what ds.iterate() returns, got {type(batches).__name__}")
    every_s = None if every is None else time_argument(every, "every")
    return _with_progress(batches, sys.stderr if out is None else out, every_s)


def _with_progress(it: Iteration, out: TextIO, every_s: float | None) -> Iterator[Any]:
    live = out.isatty()
    interval_s = every_s if every_s is not None else _TERMINAL_S if live else _FILE_S
    last = monotonic()
    written = False
    try:
        for batch in it:
            yield batch
            if monotonic() - last >= interval_s:
                last = monotonic()
                written = _write(it, out, live)
    finally:
        if written or not live:
            _write(it, out, live)
        if live and written:
            out.write("\n")


def _write(it: Iteration, out: TextIO, live: bool) -> bool:
    text = str(it.progress())
    if live:
        width = shutil.get_terminal_size().columns - 1
        text = f"\r{text[:width]:<{width}}"
    try:
        out.write(text if live else f"{text}\n")
        out.flush()
    except (OSError, ValueError):  # a closed stderr is no reason to stop training
        return False
    return True
