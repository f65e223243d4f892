"""The main job end to end, on data it makes, in under a minute.

Makes a small dataset, damages it in three ways, finds every damage, gets all
intact records back, and reads them into numpy columns; then finds the worker
of two that leaks, and the variable that holds what it leaked. Each step checks
what it shows. Works in a temporary folder that is gone afterwards; needs about
200 MB there.

Example:

  holdfast demo
  holdfast demo --keep /tmp/demo && holdfast verify /tmp/demo/data

With --json:

  {"ok": true, "steps": [{"name": "make", "ok": true, "seconds": 0.41,
   "facts": {"records": 50000}}]}

Exit codes: 0 every step did what it should; 1 one did not; 3 the folder cannot
be written.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..errors import TargetExistsError, WriteError
from ..report.words import counted, printable
from .command import command
from .demo_stage import Outcome, Stage
from .demo_steps import STEPS
from .exits import FINE, FOUND
from .screen import Screen

_WIDTH = 80


@command(__doc__)
@click.option("--keep", metavar="DIR", help="Work in this new or empty folder, and leave everything there.")
def demo(screen: Screen, keep: str | None) -> int:
    outcomes: list[Outcome] = []
    with _folder(keep) as folder:
        stage = Stage(folder)
        for number, step in enumerate(STEPS, 1):
            _title(screen, f"{number} of {len(STEPS)} · {step.__name__}")
            outcome = Outcome(step.__name__)
            since = time.perf_counter()
            step(stage, outcome)
            outcome.seconds = time.perf_counter() - since
            outcome.show(screen)
            outcomes.append(outcome)
    screen.document({"ok": all(one.ok for one in outcomes), "steps": [one.as_dict() for one in outcomes]})
    return _end(screen, outcomes, keep)


def _title(screen: Screen, title: str) -> None:
    if screen.talks:
        from rich.rule import Rule

        screen.print(Rule(title, align="left", style="cyan", characters="─" if screen.terminal else "-"), width=_WIDTH)


def _end(screen: Screen, outcomes: list[Outcome], keep: str | None) -> int:
    if keep is not None:
        screen.print(f"everything is in {printable(keep)}")
    wrong = [f"{one.name}: {what}" for one in outcomes for what, ok in one.checks.items() if not ok]
    if wrong:
        screen.print(screen.styled(f"demo: {counted(len(wrong), 'check')} failed", "bold red"))
        for what in wrong:
            screen.print(f"  {what}")
        return FOUND
    took = sum(one.seconds for one in outcomes)
    screen.print(screen.styled(f"demo: all {len(outcomes)} steps did what they should, in {took:.1f} s", "bold green"))
    return FINE


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            yield Path(folder)
        return
    try:
        os.makedirs(keep, exist_ok=True)
        if os.listdir(keep):
            raise TargetExistsError(f"{keep} is not empty; name a new folder")
    except OSError as error:
        raise WriteError(f"cannot make the folder {keep}: {error.strerror}") from error
    yield Path(keep)
