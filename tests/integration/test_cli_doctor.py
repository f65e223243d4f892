"""`holdfast doctor` on real processes: its page, its document, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid

import pytest
from cli_process import COMMAND, document, environment, holdfast, on_terminal, refused, without_styles
from leaking_process import Leaker, leaker

from python_child import python

KEYS = {
    "verdict",
    "evidence",
    "advice",
    "fds",
    "limit",
    "kinds",
    "dead_pipes",
    "self_pairs",
    "growth_per_hour",
    "eta_s",
    "signature",
    "tree",
}


def test_a_healthy_process_is_ok() -> None:
    with leaker() as healthy:
        found = document("doctor", str(healthy.pid))
        done = holdfast("doctor", healthy.pid)
    assert found.keys() >= KEYS
    assert (found["verdict"], found["signature"], found["eta_s"]) == ("OK", None, None)
    assert (found["pid"], found["about"], found["limit"]) == (healthy.pid, healthy.pid, 1024)
    [row] = found["tree"]
    assert row["fds"] == found["fds"] == sum(found["kinds"].values())
    assert done.returncode == 0
    assert done.stdout.startswith(f"process {healthy.pid}  ")
    assert "✓ OK" in done.stdout.splitlines()[0]


def test_one_snapshot_proves_a_leak_of_dead_pipes() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        found = document("doctor", str(leaking.pid), code=11)
        done = holdfast("doctor", leaking.pid)
    assert (found["verdict"], found["dead_pipes"]) == ("LEAK", 300)
    assert found["evidence"]
    assert found["advice"][-2].endswith("see docs/doctor.md.")
    command = f"holdfast trace --attach {leaking.pid} --for 60s"
    assert found["advice"][-1].endswith(f": {command}")
    assert found["signature"]
    assert done.returncode == 11
    assert "300: the other end is closed in every process (read ends)" in done.stdout
    assert "write         with hold.no_leaks(): job()" in done.stdout
    assert "              (docs/doctor.md)\n" in done.stdout
    assert done.stdout.rstrip().endswith(command)


def test_without_descriptors_left_it_is_exhausted() -> None:
    with leaker(limit=128) as leaking:
        leaking.leak(128 - 8)
        found = document("doctor", str(leaking.pid), code=12)
    assert found["verdict"] == "EXHAUSTED"


def test_growth_and_its_end_show_when_it_is_watched() -> None:
    """The leak goes on for as long as doctor watches: how fast does not matter, only that it never stops."""
    with leaker() as leaking:
        ended = threading.Event()
        feeder = threading.Thread(target=_leak_until, args=(leaking, ended))
        feeder.start()
        try:
            done = holdfast("doctor", leaking.pid, "--for", "3s", "--json")
        finally:
            ended.set()
            feeder.join()
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) in ((11, "LEAK"), (12, "EXHAUSTED"))
    assert found["evidence"][-1].startswith("certain: ")
    assert found["watched_s"] >= 2.9
    assert found["growth_per_hour"] > 0
    low, high = found["eta_s"]
    assert 0 <= low <= (low if high is None else high)


THREADS = """
import sys, threading
never, ended = threading.Event(), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
print("ready", flush=True)
while not ended.wait(0.05):
    threading.Thread(target=never.wait, daemon=True).start()
"""


def test_threads_alone_are_enough_for_a_verdict_and_its_exit_code() -> None:
    with python(THREADS) as leaking:
        done = holdfast("doctor", leaking.pid, "--for", "3s", "--json")
        shown = holdfast("doctor", leaking.pid, "--for", "2s", COLUMNS="80", NO_COLOR="1")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["signature"]) == (10, "GROWING", "threads-never-ended")
    threads = found["resources"]["threads"]
    assert (threads["verdict"], threads["eta_s"][0] > 0) == ("GROWING", True)
    assert found["evidence"][0].startswith("its threads rose by ")
    assert found["advice"][-1] == f"see where they wait: py-spy dump --pid {leaking.pid}"
    lines = shown.stdout.splitlines()
    assert "▲ GROWING · threads: exhausted in about" in lines[1]
    assert max(map(len, lines)) <= 80


def _leak_until(leaking: Leaker, ended: threading.Event) -> None:
    while not ended.wait(0.02):
        leaking.leak(2)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    # One thread moves the bar and one samples: the watch has begun.
    while len(os.listdir(f"/proc/{process.pid}/task")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def test_at_a_terminal_it_watches_until_it_can_tell_and_says_how_sure_it_is() -> None:
    """A healthy process is watched for a minute at least, so that Ctrl-C finds it at work."""
    with leaker() as healthy:
        shown, code = on_terminal("doctor", str(healthy.pid), meanwhile=_interrupt)
    assert code == 0
    assert "watching until it is clear" in shown
    assert "confidence    not sure: the watch was too short, 1 min is the" in without_styles(shown)


def test_ctrl_c_during_the_watch_shows_the_verdict_so_far() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        shown, code = on_terminal("doctor", str(leaking.pid), "--for", "1h", meanwhile=_interrupt)
    assert code == 11
    assert "LEAK" in shown
    assert "interrupted" not in shown


def test_workers_are_found_by_name_and_all_inspected() -> None:
    name = f"trainer-{uuid.uuid4().hex}"
    with leaker(name) as healthy, leaker(name) as leaking:
        leaking.leak(300)
        found = document("doctor", "--name", name, code=11)
        done = holdfast("doctor", "--name", name)
    assert found["verdict"] == "LEAK"
    assert {target["pid"]: target["verdict"] for target in found["targets"]} == {healthy.pid: "OK", leaking.pid: "LEAK"}
    assert f"the worst is {leaking.pid}: LEAK" in done.stdout
    assert f"{name} {leaking.pid}  " in done.stdout


def test_the_worst_of_the_tree_is_reported() -> None:
    """This process is the parent of the one that leaks."""
    with leaker() as leaking:
        leaking.leak(300)
        found = document("doctor", str(os.getpid()), code=11)
        alone = document("doctor", str(os.getpid()), "--no-tree")
    assert (found["pid"], found["about"], found["verdict"]) == (os.getpid(), leaking.pid, "LEAK")
    assert {row["pid"]: row["verdict"] for row in found["tree"]}[os.getpid()] == "OK"
    assert [row["pid"] for row in alone["tree"]] == [os.getpid()]


def test_a_process_that_listens_says_who_holds_them() -> None:
    with leaker(listens=True) as leaking:
        leaking.leak(300)
        found = document("doctor", str(leaking.pid), code=11)
        done = holdfast("doctor", leaking.pid)
    assert any("keep" in line and "300 ×" in line for line in found["held_by"])
    assert "held by       " in done.stdout


GONE = 2**22 + 1  # above the highest pid there can be
WRONG = {
    f"{GONE}": (3, f"there is no process {GONE}"),
    "": (2, "doctor: say which process: its PID, or --name TEXT (see `holdfast doctor --help`)"),
    "--name no-such-process-anywhere-": (
        3,
        "doctor: no process has 'no-such-process-anywhere-' in its command line",
    ),
    "1 --for soon": (
        2,
        "doctor: invalid value for '--for': expected a time such as 30s, 5m or 1h, got 'soon' "
        "(see `holdfast doctor --help`)",
    ),
    "--frobnicate": (2, "doctor: no such option: --frobnicate (see `holdfast doctor --help`)"),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_cannot_be_inspected_is_one_sentence(line: str) -> None:
    code, sentence = WRONG[line]
    assert refused("doctor", *line.split(), code=code) == sentence


def test_and_an_error_in_the_document() -> None:
    line = str(GONE)
    done = subprocess.run(
        [*COMMAND, "doctor", line, "--json"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (3, {"error": WRONG[line][1]})


def test_one_that_is_gone_does_not_hide_the_others() -> None:
    with leaker() as healthy:
        done = holdfast("doctor", healthy.pid, GONE, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (3, "OK")
    assert found["errors"] == [f"there is no process {GONE}"]
    assert [target["pid"] for target in found["targets"]] == [healthy.pid]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_it_fits_the_terminal_with_and_without_colour(columns: int) -> None:
    with leaker() as leaking:
        leaking.leak(300)
        coloured, _ = on_terminal("doctor", str(os.getpid()), columns=columns)
        plain, code = on_terminal("doctor", str(os.getpid()), columns=columns, NO_COLOR="1")
    assert code == 11
    assert "\x1b[1;31m✗ LEAK" in coloured
    assert "\x1b[31m" not in plain
    for shown in (coloured, plain):
        lines = without_styles(shown).splitlines()
        assert max(map(len, lines)) <= columns
        assert any("verdict" in line and "fds / limit" in line for line in lines)


@pytest.mark.parametrize("columns", [80, 100])
def test_a_page_in_a_pipe_is_as_wide_as_columns_says(columns: int) -> None:
    with leaker() as leaking:
        leaking.leak(300)
        for command in (
            ("doctor", str(leaking.pid)),
            ("top", "--once", str(leaking.pid)),
            ("explain", "Too many open files", "--pid", str(leaking.pid)),
        ):
            lines = holdfast(*command, COLUMNS=str(columns)).stdout.splitlines()
            assert columns * 0.6 < max(map(len, lines)) <= columns, command


def test_quiet_reports_by_its_exit_code_alone() -> None:
    with leaker() as leaking:
        leaking.leak(300)
        done = holdfast("doctor", leaking.pid, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (11, "", "")
