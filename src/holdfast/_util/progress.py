"""Adapts progress callbacks, which are called with the number of bytes done since the last call."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]


def scaled(progress: Progress | None, factor: float) -> Progress:
    """Returns a callback that counts every unit as `factor` of those that `progress` counts."""
    if progress is None:
        return lambda n: None
    return lambda n: progress(n * factor)


class ProgressLimit:
    """Progress that counts every byte exactly once, although the work may count too few or too many."""

    def __init__(self, progress: Progress, size_bytes: float) -> None:
        self._progress = progress
        self.left = size_bytes

    def advance(self, n: float) -> None:
        n = min(n, self.left)
        self.left -= n
        self._progress(n)

    def finish(self) -> None:
        self.advance(self.left)
