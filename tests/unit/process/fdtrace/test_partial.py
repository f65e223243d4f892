"""What Python's own hooks see, see late, and cannot see."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import TraceUnavailableError
from holdfast.process.fdtrace.image import Image
from holdfast.process.fdtrace.log_format import BEFORE, BIRTH, CLOSE, CLOSE_UNSEEN, FAIL, KINDS, LIVE
from holdfast.process.fdtrace.partial import PartialRecorder
from traced_process import Recording, as_array, assert_adds_up, history, live_numbers, read


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[PartialRecorder]:
    recorder = PartialRecorder()
    recorder.start(tmp_path, 0, 0)
    yield recorder
    if recorder._log is not None:
        recorder.stop()


def stopped(recorder: PartialRecorder, folder: Path) -> Recording:
    recorder.stop()
    return read(folder)


def births_of(recording: Recording, image: Image) -> Counter[str]:
    """Count the births in functions of this file, by the innermost one."""
    found = Counter[str]()
    for event in as_array(image.events, action=BIRTH):
        frames = [frame for frame in recording.frames(image, event) if frame.file == __file__]
        if frames:
            found[frames[0].function.rpartition(".")[2]] += 1
    return found


def test_the_log_agrees_with_proc(recorder: PartialRecorder, tmp_path: Path) -> None:
    kept = [os.dup(0) for _ in range(5)]
    os.closerange(kept[0], kept[0] + 1)
    os.dup2(0, kept[1])
    here = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    image = stopped(recorder, tmp_path).image()
    assert live_numbers(image) == here
    assert_adds_up(image)
    assert history(image, kept[0]) == [(BIRTH, "dup"), (CLOSE, "dup")]
    for fd in kept[1:]:
        os.close(fd)


def test_a_file_object_s_close_is_noticed_when_its_number_is_used_again(
    recorder: PartialRecorder, tmp_path: Path
) -> None:
    file = open("/dev/null")  # noqa: SIM115
    fd = file.fileno()
    file.close()
    again = socket.socket()
    assert again.fileno() == fd
    again.close()
    image = stopped(recorder, tmp_path).image()
    events = as_array(image.events, fd=fd)
    assert [int(action) for action in events["action"]] == [BIRTH, CLOSE_UNSEEN, BIRTH, CLOSE]
    assert [KINDS[kind] for kind in events["kind"]] == ["file", "file", "socket", "socket"]


def test_sockets_that_python_is_given(recorder: PartialRecorder, tmp_path: Path) -> None:
    with open("/dev/null"):
        pass  # its number seems to be in use
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        numbers = {server.fileno(), client.fileno(), accepted.fileno()}
        accepted.close()
    image = stopped(recorder, tmp_path).image()
    born = as_array(image.events, action=BIRTH, kind=KINDS.index("socket"))
    assert set(born["fd"].tolist()) == numbers
    assert len(born) == 3


def test_what_c_code_opens_has_no_stack(recorder: PartialRecorder, tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.dup(0)
    recorder.reconcile()
    image = read(tmp_path).image()
    assert image.entries["flags"][fd] == LIVE | BEFORE
    assert not image.entries["stack"][fd]
    libc.close(fd)
    image = stopped(recorder, tmp_path).image()
    assert not image.entries["flags"][fd] & LIVE
    assert image.header.counts["close_unseen"] >= 1


def test_a_call_that_finds_no_free_descriptor(recorder: PartialRecorder, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
    kept = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                kept.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            socket.socket()
        if not (child := os.fork()):
            os._exit(0)  # no log can be made for it; it works all the same
        assert os.waitpid(child, 0)[1] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in kept:
        os.close(fd)
    image = stopped(recorder, tmp_path).image()
    failed = as_array(image.events, action=FAIL)
    assert failed["error"].tolist() == [errno.EMFILE] * 2
    assert [image.header.calls[number] for number in failed["aux"]] == ["dup", "socket"]
    assert image.header.counts["failed"] == 2


def test_threads_and_forks(recorder: PartialRecorder, tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(150):
            os.close(os.dup(0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(5):
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(0)
        children.append(child)
    for thread in threads:
        thread.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    recording = stopped(recorder, tmp_path)
    assert len(recording.images) == 6
    assert recording.problems == []
    image = recording.image(os.getpid())
    assert_adds_up(image)
    assert births_of(recording, image) == {"work": 600}
    for child in children:
        image = recording.image(child)
        assert image.header.parent is not None
        assert image.header.parent[0] == os.getpid()
        assert births_of(recording, image) == {"work": 150}


def test_one_at_a_time(recorder: PartialRecorder, tmp_path: Path) -> None:
    with pytest.raises(TraceUnavailableError, match="traced already"):
        PartialRecorder().start(tmp_path, 0, 0)


def test_more_stacks_than_the_log_has_room_for(recorder: PartialRecorder, tmp_path: Path) -> None:
    code = "import os\n" + "".join(f"def f{n}(): os.close(os.dup(0))\n" for n in range(400))
    long = "x" * 4000
    names: dict[str, object] = {}
    for turn in range(3):
        exec(compile(code, f"/{long}{turn}.py", "exec"), names)
        for n in range(400):
            function = names[f"f{n}"]
            assert callable(function)
            function()
    recording = stopped(recorder, tmp_path)
    image = recording.image()
    assert_adds_up(image)
    frames = [recording.frames(image, event) for event in as_array(image.events, action=BIRTH)]
    assert len(frames) >= 1200
    assert any(frame[0].file.startswith(f"/{long[:500]}") for frame in frames if frame)
    assert any(not frame for frame in frames)


def test_equal_code_of_two_files_is_distinguished(recorder: PartialRecorder, tmp_path: Path) -> None:
    """Python says that two code objects are equal if only the name of their file differs."""
    for name in ("/a.py", "/b.py"):
        exec(compile("import os\nos.close(os.dup(0))", name, "exec"), {})
    recording = stopped(recorder, tmp_path)
    image = recording.image()
    files = [recording.frames(image, event)[0].file for event in as_array(image.events, action=BIRTH)]
    assert [file for file in files if file in ("/a.py", "/b.py")] == ["/a.py", "/b.py"]
