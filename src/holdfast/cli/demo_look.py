"""The demo's last step: a worker that leaks, and a look at it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from ..diagnose.facts import Verdict
from ..look.diagnose import diagnose
from ..look.examine import Examination
from .demo_stage import Outcome, Stage

_WATCH_S = 2.0

# What a loader that is never closed does: the reading ends of pipes whose writers are long gone stay in a list.
_WORKER = """\
import multiprocessing as mp, sys, time
import holdfast

kept = []

def epoch():
    reader, writer = mp.Pipe(duplex=False)
    writer.close()  # as when the process that had it ended
    if sys.argv[1] == "leak":
        kept.append(reader)
    else:
        reader.close()

with holdfast.listen():
    for _ in range(50):
        epoch()
    print("ready", flush=True)
    while True:
        epoch()
        time.sleep(0.004)
"""


def look(stage: Stage, out: Outcome) -> None:
    """Two workers do the same work; one of them forgets to close what it opened."""
    script = stage.folder / "worker.py"
    script.write_text(_WORKER)
    with _Worker(script, "leak") as leaking, _Worker(script, "honest") as honest:
        seen = Examination([leaking.pid], role="worker")
        seen.watch(_WATCH_S)
        [target] = seen.conclude()
        [other, *_] = diagnose(honest.pid, _WATCH_S)
    found = target.worst.diagnosis
    out.facts = {"verdict": str(found.verdict), "honest_verdict": str(other.diagnosis.verdict), "fds": found.fds}
    out.say("A worker keeps the reading ends of pipes whose writers are gone. Seen from outside:")
    growth = f"+{found.trend.per_hour:,.0f} an hour" if found.trend else "not known"
    out.table(
        ["", ""],
        [
            ("verdict", str(found.verdict)),
            ("growth", growth),
            *_wrapped("evidence", found.evidence[0]),
            *_wrapped("cause", f"looks like {found.match.cause}" if found.match else ""),
            *_wrapped("held by", target.held_by[0] if target.held_by else ""),
        ],
    )
    out.check("the leak was told from a working set", found.verdict is Verdict.LEAK)
    out.check("the variable that keeps the descriptors was named", any("'kept'" in line for line in target.held_by))
    out.check("a worker that closes what it opens was not accused", other.diagnosis.verdict is Verdict.OK)


def _wrapped(name: str, text: str) -> list[tuple[str, str]]:
    lines = textwrap.wrap(text, 60) or [""]
    return [(name, lines[0]), *(("", line) for line in lines[1:])]


class _Worker:
    """A child that is gone when the block ends, however it ends."""

    def __init__(self, script: Path, how: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), how], stdout=subprocess.PIPE, env=_environment(), text=True
        )
        self.pid = self._process.pid

    def __enter__(self) -> _Worker:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _environment() -> dict[str, str]:
    """It finds this package wherever it was imported from."""
    source = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
