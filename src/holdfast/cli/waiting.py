"""The bar on stderr for work that takes a time known before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Waiting:
    """`passed(seconds)` shows and moves it. Nothing stays of it after the `with` block."""

    def __init__(self, doing: str, total_s: float, *, shown: bool) -> None:
        self._doing = doing
        self._total_s = total_s
        self._shown = shown
        self._progress: Progress | None = None

    def __enter__(self) -> Waiting:
        return self

    def passed(self, seconds: float) -> None:
        if self._shown and self._progress is None:  # not before: what ends at once shows no bar
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TimeRemainingColumn(),
                TextColumn("Ctrl-C: the verdict so far"),
                console=Console(stderr=True),
                transient=True,
                expand=True,
            )
            self._progress.add_task(self._doing, total=self._total_s)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=seconds)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()
