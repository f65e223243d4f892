"""`holdfast top`: one frame on a pipe and on a terminal, and the live view with keys pressed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable

import pytest
from cli_process import document, environment, holdfast, on_terminal, refused, without_styles
from leaking_process import leaker

from holdfast.process.doctor.top_model import TopModel

GONE = 2**22 + 1


def test_one_frame_in_a_pipe_has_the_tree_and_a_summary() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        done = holdfast("top", os.getpid(), "--once")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "/dev/shm" in lines[0]
    [row] = [line for line in lines if str(leaking.pid) in line.split()]
    assert "─ " in row
    assert "LEAK" in row
    assert "1 LEAK" in lines[-1]


def test_one_frame_as_a_document() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        found = document("top", str(leaking.pid))
    assert found["host"].keys() == {"file_max", "pipe_user_pages", "dev_shm_bytes"}
    [row] = found["processes"]
    assert (row["pid"], row["verdict"], row["dead_pipes"], row["limit"]) == (leaking.pid, "LEAK", 300, 1024)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_one_frame_fits_any_terminal(columns: int) -> None:
    with leaker() as leaking:
        leaking.leak(300)
        shown, code = on_terminal("top", str(os.getpid()), "--once", columns=columns)
        plain, _ = on_terminal("top", str(os.getpid()), "--once", columns=columns, NO_COLOR="1")
    assert code == 0
    assert "\x1b[1;31m✗ LEAK" in shown
    assert "\x1b[31m" not in plain
    assert max(map(len, without_styles(shown).splitlines())) <= columns


def test_by_name() -> None:
    name = f"trainer-{uuid.uuid4().hex}"
    with leaker(name) as one, leaker(name) as other:
        found = document("top", "--name", name)
    assert {row["pid"] for row in found["processes"]} == {one.pid, other.pid}


def test_without_arguments_the_busy_ones_of_this_user_are_shown() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        found = document("top")
    rows = {row["pid"]: row for row in found["processes"]}
    assert rows[leaking.pid]["fds"] > 300
    assert os.getpid() in rows  # it has a child


def test_what_is_not_there() -> None:
    assert refused("top", str(GONE), "--once", code=3) == "none of these processes is there"
    said = "no process has 'no-such-process-anywhere-' in its command line"
    assert refused("top", "--name", "no-such-process-anywhere-", "--once", code=3) == said
    said = "top: the live view needs a terminal; --once shows one frame (see `holdfast top --help`)"
    assert refused("top", str(os.getpid()), code=2) == said


WITHOUT_TEXTUAL = """
import sys
sys.modules["textual"] = None  # as if it were not installed
from holdfast.cli import main
sys.exit(main(["top", sys.argv[1], *sys.argv[2:]]))
"""


def without_textual(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TEXTUAL, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )


def test_without_textual_there_is_one_frame_and_a_sentence_for_the_rest() -> None:
    assert without_textual(str(os.getpid()), "--once").returncode == 0
    done = without_textual(str(os.getpid()))
    assert (done.returncode, done.stdout) == (3, "")
    assert "pip install 'holdfast-io[ui]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_one_frame_loads_no_textual() -> None:
    program = (
        "import sys; from holdfast.cli import main; code = main(['top', sys.argv[1], '--once', '-q']); "
        "print(code, 'textual' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(os.getpid())], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "0 False\n"


# ---- the live view -----------------------------------------------------------------------------------------

textual = pytest.importorskip("textual", reason="needs the Python package textual")


async def until(what: Callable[[], bool], pause: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await pause()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_the_live_view_answers_its_keys(size: tuple[int, int]) -> None:
    from textual.widgets import DataTable, Static

    from holdfast.cli.top_tui import DoctorScreen, TopApp
    from holdfast.process.doctor.render_top import SortOrder

    async def play(pid: int) -> None:
        app = TopApp(TopModel([os.getpid()]), every_s=0.1)
        async with app.run_test(size=size) as pilot:
            table = app.query_one("#rows", DataTable)
            await until(lambda: table.row_count >= 2, pilot.pause)
            heads = [str(column.label) for column in table.ordered_columns]
            assert {"pid", "fds", "dead", "verdict", "command"} <= set(heads)
            assert ("history" in heads) == (size[0] >= 120)
            for key, order in (
                ("f", SortOrder.FDS),
                ("g", SortOrder.GROWTH),
                ("m", SortOrder.MEMORY),
                ("v", SortOrder.VERDICT),
            ):
                await pilot.press(key)
                assert app.order is order
            # By verdict the one that leaks is first; the cursor stays on the process it was on.
            assert table.get_row_at(0)[0].plain == str(pid)
            await pilot.press("home", "up")
            await until(lambda: app.chosen is not None and app.chosen.pid == pid, pilot.pause)
            await pilot.press("space")
            assert app.paused
            assert "other end is closed" in _text(app.query_one("#detail", Static), size[0])
            assert "paused" in _text(app.query_one("#summary", Static), size[0])
            await pilot.press("d")
            assert isinstance(app.screen, DoctorScreen)
            page = app.screen.query_one("#doctor", Static)
            await until(lambda: "LEAK" in _text(page, size[0]), pilot.pause)
            assert f"process {pid}" in _text(page, size[0])
            await pilot.press("escape")
            assert not isinstance(app.screen, DoctorScreen)
            await pilot.press("space", "t")
            assert (app.paused, app.order) == (False, SortOrder.TREE)
            await pilot.press("q")

    with leaker() as leaking:
        leaking.leak(300)
        asyncio.run(play(leaking.pid))


def _text(widget: object, width: int) -> str:
    """What a Static was last given, as text."""
    from rich.console import Console

    console = Console(width=width, no_color=True)
    with console.capture() as shown:
        console.print(widget.content)  # type: ignore[attr-defined]
    return shown.get()


def test_on_a_real_terminal_it_starts_draws_and_ends_with_q() -> None:
    with leaker() as leaking:
        shown, code = on_live_terminal(str(leaking.pid))
    assert code == 0
    assert str(leaking.pid) in without_styles(shown)


def on_live_terminal(*arguments: str) -> tuple[str, int]:
    """Waits for the table to be drawn, then presses q."""
    import fcntl
    import pty
    import select
    import struct
    import termios
    import time

    from cli_process import COMMAND

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [*COMMAND, "top", *arguments]
    written = b""
    deadline = time.monotonic() + 90
    pressed = False
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()) as process:
        os.close(theirs)
        while process.poll() is None:
            assert time.monotonic() < deadline, written[-2000:]
            if select.select([ours], [], [], 0.05)[0]:
                try:
                    written += os.read(ours, 1 << 16)
                except OSError:
                    break
            if not pressed and arguments[0].encode() in written:
                os.write(ours, b"q")
                pressed = True
        code = process.wait(30)
    os.close(ours)
    return written.decode(errors="replace"), code
