"""A helper process: its messages, how it ends, and what is left of it."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast._util.helper_process import HelperProcess, module_command

ECHO = """
import os, sys
from holdfast._util.framing import *
jobs = MessageReceiver(0)
while (job := jobs.receive()) is not None:
    send_message(1, {"group": os.getpgrp()} | job.head, job.body)
    if "die" in job.head:
        os.write(1, b"cut"), os.kill(os.getpid(), 9)
sys.exit(7)
"""


def helper() -> HelperProcess:
    return HelperProcess([sys.executable, "-c", ECHO])


def test_it_answers_and_ends_after_its_input() -> None:
    child = helper()
    assert child.send({"a": 1}, b"body")
    assert child.receive(60) == ({"group": child.pid, "a": 1}, b"body")
    child.close_stdin()
    assert child.receive(60) is None
    assert child.wait() == 7
    child.close()
    child.close()


def test_one_that_is_killed_in_the_middle_of_a_message() -> None:
    child = helper()
    assert child.send({"die": 1})
    while child.read():
        pass
    assert child.take() is not None
    assert child.take() is None
    assert child.wait() == -9
    assert not child.send({})
    child.close()


def test_closing_kills_what_does_not_end() -> None:
    child = helper()
    assert child.send({})
    assert child.receive(60) is not None
    child.close(0.01)
    assert child.wait() == -9


def test_a_module_of_this_package_is_run_whatever_the_working_directory_holds(tmp_path: Path) -> None:
    (tmp_path / "holdfast.py").write_text("raise SystemExit('not this one')")
    child = HelperProcess([*module_command("__main__"), "--version"], cwd=tmp_path)
    assert child.wait() == 0
    child.close()
