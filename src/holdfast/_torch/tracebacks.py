"""An error that is kept keeps its traceback, that its frames, and those the iterator: unless they are emptied."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from pathlib import Path
from types import TracebackType

import torch

_NOT_OF_THE_USER = tuple(
    str(Path(file).parent) + os.sep for file in (torch.__file__, multiprocessing.__file__, __file__)
)


def let_go(error: BaseException, outer: BaseException | None) -> None:
    """Empties the frames of torch and of this package in the tracebacks: they hold the iterator. Yours stay."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is outer or id(one) in seen:
            continue
        seen.add(id(one))
        _clear(one.__traceback__)
        left.extend(linked for linked in (one.__cause__, one.__context__) if linked is not None)


def _clear(traceback: TracebackType | None) -> None:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_NOT_OF_THE_USER):
            with contextlib.suppress(RuntimeError):  # one that still runs
                traceback.tb_frame.clear()
        traceback = traceback.tb_next
