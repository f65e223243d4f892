"""Whether a file is still the one that was looked at."""

from __future__ import annotations

import os

from ...errors import CorruptError, cannot_open


def stamp_of(path: str) -> tuple[int, int]:
    """Its size and mtime."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return info.st_size, info.st_mtime_ns


def changed(path: str, how: str) -> CorruptError:
    return CorruptError(path, None, None, f"it has changed since the reading was planned: {how}", "Plan it again")


def difference_in_stamp(then: tuple[int, int], now: tuple[int, int]) -> str:
    if then[0] != now[0]:
        return f"{then[0]:,} bytes then, {now[0]:,} now"
    return "as long as before, but written to meanwhile"
