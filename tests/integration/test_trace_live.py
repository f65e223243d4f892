"""The live view of `holdfast trace --live`, with a real program behind it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.cli.trace import Watch
from holdfast.process.fdtrace.recording import Outcome, TraceOptions, record
from holdfast.process.fdtrace.trace_file import load
from traced_process import needs_library

pytest.importorskip("textual", reason="needs the Python package textual")

pytestmark = [needs_library, pytest.mark.timeout(120)]

_LEAKS = """
import sys, time
kept = []
for _ in range(600):
    kept.append(open(sys.executable))
    time.sleep(0.02)
"""


async def until(what: Callable[[], bool], pause: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await pause()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_live_view_shows_the_growing_site_and_stops_the_program(tmp_path: Path, size: tuple[int, int]) -> None:
    from textual.widgets import DataTable, Static

    from holdfast.cli.trace_tui import TraceApp

    script = tmp_path / "leaks.py"
    script.write_text(_LEAKS)

    def work(watch: Watch, is_over: Callable[[], bool], started: Callable[[int], None]) -> Outcome:
        with open(tmp_path / "output", "wb") as output:
            command = [sys.executable, str(script)]
            return record(command, TraceOptions(owners=False), watch=watch, started=started, output=output)

    app = TraceApp("leaks.py", work, kills=True)

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            table = app.query_one("#sites", DataTable)
            await until(lambda: table.row_count > 0 and "leaks.py:5" in table.get_row_at(0)[0].plain, pilot.pause)
            await until(lambda: bool(table.get_row_at(0)[3].plain), pilot.pause)
            assert "a second" in table.get_row_at(0)[3].plain
            assert "kept.append(open(sys.executable))" in str(app.query_one("#detail", Static).render())
            await pilot.press("space")
            assert "paused" in str(app.query_one("#status", Static).render())
            await pilot.press("space")
            await pilot.press("q")
            await until(lambda: not app.is_running, pilot.pause)

    asyncio.run(play())
    outcome = app.outcome()
    assert outcome.returncode == -15
    assert sum(outcome.trace.counts["born"]) > 10


def test_error_of_the_program_ends_the_view() -> None:
    from holdfast.cli.trace_tui import TraceApp
    from holdfast.errors import InputError

    def work(watch: Watch, is_over: Callable[[], bool], started: Callable[[int], None]) -> Outcome:
        return record(["/nonexistent/program"], watch=watch, started=started)

    app = TraceApp("nothing", work, kills=True)

    async def play() -> None:
        async with app.run_test() as pilot:
            await until(lambda: not app.is_running, pilot.pause)

    asyncio.run(play())
    with pytest.raises(InputError, match="not on PATH"):
        app.outcome()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "hang-up"])
def test_a_signal_and_a_hang_up_keep_the_recording(tmp_path: Path, how: str) -> None:
    script = tmp_path / "leaks.py"
    script.write_text(f"open({str(tmp_path / 'began')!r}, 'w').close()\n{_LEAKS}")
    output = tmp_path / "run.hft"
    command = [sys.executable, "-m", "holdfast", "trace", "--live", "-o", str(output), str(script)]
    begin = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execv(sys.executable, sys.argv[1:])"
    keyboard, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", begin, *command],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(terminal)
    try:
        _read_until((tmp_path / "began").exists, keyboard)
        if how == "hang-up":
            os.close(keyboard)
            process.wait(60)
        else:
            process.send_signal(getattr(signal, how))
            _read_until(lambda: process.poll() is not None, keyboard)
    finally:
        process.kill()
        process.wait()
        if how != "hang-up":
            os.close(keyboard)
    trace = load(output)
    assert trace.exit_code == {"SIGTERM": -15, "SIGINT": -2, "hang-up": -1}[how]
    assert trace.processes[0].command.endswith("leaks.py")


def _read_until(holds: Callable[[], bool], terminal: int) -> None:
    """Reads what the view draws: it would wait for a terminal that nobody reads."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        if select.select([terminal], [], [], 0.05)[0]:
            with suppress(OSError):  # the other end is closed
                os.read(terminal, 1 << 16)
