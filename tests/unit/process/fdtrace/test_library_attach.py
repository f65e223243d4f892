"""The library in a process that is running already: hf_trace_attach redirects what is loaded, hf_trace_stop lets go."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.process.fdtrace.log_format import ATTACHED, BEFORE, BIRTH, LIVE
from traced_process import LIBRARY, Recording, as_array, assert_adds_up, live_numbers, needs_library, read

pytestmark = needs_library

PRELUDE = f"""
import ctypes, fcntl, json, os, sys, threading, time
def attach(folder, options=0):
    os.makedirs(folder, exist_ok=True)
    return library.hf_trace_attach(folder.encode(), options, 0)
def open_numbers():
    found = []
    for number in range(1100):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            continue
        found.append(number)
    return found
def leak(): return os.open("/dev/null", 0)
library = ctypes.CDLL({str(LIBRARY)!r})
"""


def attached(code: str, folder: Path) -> str:
    """Run a program that attaches the library to itself; its first argument is the folder for logs."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return done.stdout


def _leaks(recording: Recording, image: object) -> int:
    births = as_array(image.events, action=BIRTH)  # type: ignore[attr-defined]
    stacks = [recording.frames(image, event) for event in births]  # type: ignore[arg-type]
    return sum(bool(stack) and stack[0].function == "leak" for stack in stacks)


def test_attach_sees_what_was_open_and_all_that_follows(tmp_path: Path) -> None:
    output = attached(
        """
        fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX)  # as a tracer that is alive does
        before = leak()
        assert attach(sys.argv[1]) == 0
        assert library.hf_trace_is_on() == 1
        kept = [leak() for _ in range(7)]
        os.close(kept.pop())
        assert attach(sys.argv[1]) == 16  # EBUSY
        print(json.dumps([before, open_numbers()]), flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    before, numbers = json.loads(output)
    recording = read(tmp_path)
    image = recording.image()
    assert image.header.options == ATTACHED
    assert live_numbers(image) == set(numbers)
    assert image.entries["flags"][before] == LIVE | BEFORE
    assert _leaks(recording, image) == 7
    assert_adds_up(image)


def test_start_stop_and_start_again_with_threads_that_go_on(tmp_path: Path) -> None:
    output = attached(
        """
        stop = False
        def work():
            while not stop:
                fds = [os.open("/dev/null", 0) for _ in range(3)]
                for fd in fds: os.close(fd)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        kept, ends = [], []
        for turn in range(12):
            folder = f"{sys.argv[1]}/{turn}"
            assert attach(folder) == 0
            kept.append(leak())
            time.sleep(0.01)
            library.hf_trace_stop()
            assert library.hf_trace_is_on() == 0
            kept.append(os.dup(0))  # not seen
        stop = True
        for thread in threads: thread.join()
        maps = open("/proc/self/maps").read()
        assert ".log" not in maps, maps
        print(len(kept))
        """,
        tmp_path,
    )
    assert output == "24\n"
    for turn in range(12):
        recording = read(tmp_path / str(turn))
        image = recording.image()
        assert image.header.end_kind == 3
        assert _leaks(recording, image) == 1
        assert image.header.live == len(live_numbers(image))


def test_children_of_a_fork_after_attach_are_recorded(tmp_path: Path) -> None:
    output = attached(
        """
        assert attach(sys.argv[1]) == 0
        kept = leak()
        pid = os.fork()
        if not pid:
            os.close(kept)
            leak(), leak()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        library.hf_trace_stop()
        late = os.fork()
        if not late:  # attaches anew, in a process of its own
            assert attach(sys.argv[1]) == 0
            leak()
            assert threading.get_native_id() == os.getpid()
            os._exit(0)
        assert os.waitpid(late, 0)[1] == 0
        print(json.dumps([os.getpid(), pid, late]))
        """,
        tmp_path,
    )
    recording = read(tmp_path)
    parent, child, late = map(recording.image, json.loads(output))
    assert (child.header.parent, late.header.parent) == (parent.key, None)
    assert [_leaks(recording, image) for image in (parent, child, late)] == [1, 2, 1]
    assert late.events["tid"].tolist() == [late.header.pid] * len(late.events)
    assert (parent.header.end_kind, child.header.end_kind) == (3, 2)


def test_a_library_that_is_loaded_later_is_recorded_too(tmp_path: Path) -> None:
    output = attached(
        """
        assert attach(sys.argv[1]) == 0
        import sqlite3, socket, mmap, multiprocessing.shared_memory as shared
        def connect():
            for turn in range(5):
                connection = sqlite3.connect(f"{sys.argv[1]}/db")
                connection.execute(f"create table t{turn} (x)")
                connection.commit()
                connection.close()
        connect()
        segment = shared.SharedMemory(create=True, size=4096)
        segment.close(), segment.unlink()
        socket.socketpair()
        print(json.dumps(open_numbers()), flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    recording = read(tmp_path)
    image = min(recording.images.values(), key=lambda image: image.header.start_ns)
    assert live_numbers(image) == set(json.loads(output))
    connects = [
        event["action"]
        for event in as_array(image.events)
        if (stack := recording.frames(image, event)) and stack[0].function == "connect"
    ]
    assert len(connects) >= 20
    assert not image.header.counts["close_unseen"] | image.header.counts["birth_unseen"]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs the Python package torch")
def test_torch_is_loaded_into_an_attached_process_and_the_library_into_one_with_torch(tmp_path: Path) -> None:
    output = attached(
        """
        assert attach(sys.argv[1] + "/before") == 0
        import torch
        file = f"{sys.argv[1]}/tensor.pt"
        def save(): torch.save(torch.ones(8), file)
        save()
        library.hf_trace_stop()
        began = time.monotonic()
        assert attach(sys.argv[1] + "/after") == 0
        took = time.monotonic() - began
        save()
        library.hf_trace_stop()
        print(took)
        """,
        tmp_path,
    )
    assert float(output) < 1
    for name in ("before", "after"):
        recording = read(tmp_path / name)
        image = recording.image()
        # torch writes the file in C++, below the line that saves it.
        saved = [(event, recording.frames(image, event)) for event in as_array(image.events)]
        saved = [(event, stack) for event, stack in saved if any(frame.function == "save" for frame in stack)]
        births = [stack for event, stack in saved if event["action"] == BIRTH]
        assert sum(stack[0].function.startswith("_open_zipfile_writer") for stack in births) == 1
        assert len(saved) == 2 * len(births)
