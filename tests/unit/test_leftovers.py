"""The per-test check sees each kind of thing left behind, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import leftovers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's /proc")


def test_nothing_is_nothing() -> None:
    assert leftovers.wait_until_clean(leftovers.take()) == {}


def test_a_descriptor_shows_with_its_target(tmp_path: Path) -> None:
    before = leftovers.take()
    with (tmp_path / "held").open("w") as file:
        left = leftovers.wait_until_clean(before, grace_s=0)
        assert left == {"fd": [f"{file.fileno()} -> {tmp_path / 'held'}"]}


def test_a_number_given_to_another_file_shows(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    before = leftovers.take()
    os.close(fd)
    assert os.open(tmp_path.parent, os.O_RDONLY) == fd
    left = leftovers.wait_until_clean(before, grace_s=0)
    os.close(fd)
    assert left == {"fd": [f"{fd} -> {tmp_path.parent}"]}


def test_a_file_renamed_while_open_does_not_show(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w"):
        before = leftovers.take()
        (tmp_path / "a").rename(tmp_path / "b")
        assert leftovers.wait_until_clean(before, grace_s=0) == {}


def test_what_only_a_cycle_holds_is_collected_first(tmp_path: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.fd = os.open(tmp_path, os.O_RDONLY)

        def __del__(self) -> None:
            os.close(self.fd)

    before = leftovers.take()
    Holder()
    assert leftovers.wait_until_clean(before) == {}


def test_a_child_shows_alive_and_as_a_zombie() -> None:
    before = leftovers.take()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert leftovers.wait_until_clean(before, grace_s=0)["process"] == [f"{child.pid} cat"]
        child.communicate()
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert leftovers.wait_until_clean(before, grace_s=0) == {"process": [f"{child.pid} (zombie)"]}
    child.wait()
    assert leftovers.wait_until_clean(before, grace_s=0) == {}


def test_a_thread_shows_and_gets_the_time_to_end() -> None:
    before = leftovers.take()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="kept")
    thread.start()
    assert leftovers.wait_until_clean(before, grace_s=0) == {"thread": ["kept"]}
    stop.set()
    assert leftovers.wait_until_clean(before) == {}
    thread.join()


def test_a_shared_memory_file_shows() -> None:
    before = leftovers.take()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        left = leftovers.wait_until_clean(before, grace_s=0)
        assert left["shm"] == [Path(file.name).name]
    assert leftovers.wait_until_clean(before) == {}


def test_the_message_names_every_thing() -> None:
    told = leftovers.describe({"thread": ["kept"], "fd": ["7 -> /dev/null", "8 -> /dev/zero"]})
    assert told.splitlines() == [
        "left behind by this test:",
        "  fd: 7 -> /dev/null",
        "  fd: 8 -> /dev/zero",
        "  thread: kept",
    ]
