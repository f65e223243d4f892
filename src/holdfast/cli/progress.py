"""The bar on stderr: bytes done, rate, time left. It appears once the work has taken a second."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from .screen import Screen

AFTER_S = 1.0


class Bar:
    """`advance(n)` from any thread. Nothing stays of it after the `with` block."""

    def __init__(self, doing: str, total_bytes: int, *, shown: bool, after_s: float = AFTER_S) -> None:
        self._doing = doing
        self._total = total_bytes
        self._shown = shown
        self._since = time.monotonic()
        self._after_s = after_s
        self.done = 0.0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, n: float) -> None:
        with self._lock:
            self.done = min(self.done + n, self._total)
            if not self._shown:
                return
            if self._progress is None and time.monotonic() - self._since >= self._after_s:
                self._show()
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=self.done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task(self._doing, total=self._total)
        self._progress.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._shown = False
            if self._progress is not None:
                self._progress.stop()


def bar_for(screen: Screen, doing: str, total_bytes: int) -> Bar:
    return Bar(doing, total_bytes, shown=sys.stderr.isatty() and not screen.quiet)
