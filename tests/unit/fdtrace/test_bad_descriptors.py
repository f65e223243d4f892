from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.fdtrace.bad_descriptors import (
    DOUBLE_CLOSE,
    NEVER_OPEN,
    STALE_CLOSE,
    SUSPECTED,
    UNTOLD,
    USE_AFTER_CLOSE,
    NumberHistory,
    find_histories,
)
from holdfast.fdtrace.recording import LIBRARY, TraceOptions, record

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the tracing library was not built: no C compiler")

# Threads that take turns: `turn(n)` waits for step n, `done()` begins the next one.
TURNS = """
import os, socket, sys, threading, time
step, changed = 0, threading.Condition()
def turn(n):
    with changed:
        changed.wait_for(lambda: step == n, 10)
def done():
    global step
    with changed:
        step += 1
        changed.notify_all()
def run(*functions):
    threads = [threading.Thread(target=f) for f in functions]
    [t.start() for t in threads]
    [t.join() for t in threads]
"""

ABA = """
def offender():
    turn(0); fd = os.open('/dev/null', os.O_RDONLY)
    os.close(fd); done()
    turn(2)
    os.close(fd); done()
def victim():
    turn(1)
    fd = os.open('/dev/zero', os.O_RDONLY); done()
    turn(3)
    try:
        os.read(fd, 1)
    except OSError:
        pass
run(offender, victim)
"""


def histories(folder: Path, program: str, *, turns: bool = True, no_reuse: bool = False) -> list[NumberHistory]:
    script = folder / "program.py"
    script.write_text((TURNS if turns else "import os, sys\n") + textwrap.dedent(program))
    outcome = record([sys.executable, "-I", str(script)], TraceOptions(no_reuse=no_reuse, owners=False))
    assert outcome.returncode == 0
    return find_histories(outcome.trace)


def only(found: list[NumberHistory], kind: str) -> NumberHistory:
    assert [one.kind for one in found] == [kind], [one.sentence for one in found]
    return found[0]


def test_a_victim_that_fails_names_the_offender(tmp_path: Path) -> None:
    found = only(histories(tmp_path, ABA), STALE_CLOSE)
    assert found.sentence.startswith("offender() in program.py:")
    assert "a second time, after offender()" in found.sentence
    assert "by then it belonged to victim() in program.py:" in found.sentence
    assert "EBADF in read" in found.sentence
    assert [step.what for step in found.steps] == ["opened", "closed", "opened", "closed", "EBADF in read"]
    assert [step.frame.function for step in found.steps] == ["offender", "offender", "victim", "offender", "victim"]
    assert found.steps[3].note
    assert not found.steps[1].note
    assert len({step.tid for step in found.steps}) == 2
    assert [step.lifetime - found.steps[0].lifetime for step in found.steps] == [0, 0, 1, 1, 1]


def test_without_reuse_the_second_close_fails_itself(tmp_path: Path) -> None:
    found = only(
        histories(tmp_path, ABA.replace("    os.close(fd); done()\ndef victim", _GUARDED), no_reuse=True), DOUBLE_CLOSE
    )
    assert "offender()" in found.sentence
    assert "a second time" in found.sentence
    assert "victim" not in found.sentence
    assert "Without --no-reuse this close could have reached another descriptor" in found.sentence


_GUARDED = """    try:
        os.close(fd)
    except OSError:
        pass
    done()
def victim"""


def test_a_chain_of_closes_that_nobody_notices(tmp_path: Path) -> None:
    found = histories(
        tmp_path,
        """
        def offender():
            turn(0); fd = os.open('/dev/null', os.O_RDONLY); os.close(fd); done()
            turn(2); os.close(fd); done()
        def victim():
            turn(1); fd = os.open('/dev/zero', os.O_RDONLY); done()
            turn(4); os.close(fd); done()
        def third():
            turn(3); fd = os.open('/dev/full', os.O_RDONLY); done()
        run(offender, victim, third)
        """,
    )
    one = only(found, STALE_CLOSE)
    assert "offender()" in one.sentence.partition(" closes ")[0]
    assert "No call failed: victim()" in one.sentence
    assert "third()" in one.sentence


def test_a_file_closed_by_its_number_s_last_owner_is_suspected(tmp_path: Path) -> None:
    silent = ABA.replace("os.read(fd, 1)", "pass")
    one = only(histories(tmp_path, silent), SUSPECTED)
    assert "probably closes descriptor" in one.sentence
    assert "handed its descriptor over" in one.sentence


def test_double_close_in_one_function(tmp_path: Path) -> None:
    program = """
        def twice():
            fd = os.open('/dev/null', os.O_RDONLY)
            os.close(fd)
            try:
                os.close(fd)
            except OSError:
                pass
        for _ in range(30):
            twice()
        """
    one = only(histories(tmp_path, program, turns=False), DOUBLE_CLOSE)
    assert one.count == 30
    assert one.sentence.startswith("twice() in program.py:7 closes descriptor")
    assert "after twice() in program.py:5" in one.sentence
    assert [step.frame.line for step in one.steps] == [4, 5, 7]


def test_two_file_objects_of_one_descriptor(tmp_path: Path) -> None:
    program = """
        def library():
            first = open('/dev/null', 'rb', buffering=0)
            second = os.fdopen(first.fileno(), 'rb', buffering=0)
            first.close()
            try:
                second.read(1)
            except OSError:
                pass
            second_number = second.fileno()
            try:
                second.close()
            except OSError:
                pass
        library()
        """
    found = histories(tmp_path, program, turns=False)
    assert {one.kind: one.call for one in found} == {USE_AFTER_CLOSE: "read", DOUBLE_CLOSE: "close"}
    assert all("after library() in program.py:6" in one.sentence for one in found)


def test_the_second_file_object_closes_the_file_of_another_function(tmp_path: Path) -> None:
    program = """
        def library():
            first = open('/dev/null', 'rb', buffering=0)
            second = os.fdopen(first.fileno(), 'rb', buffering=0)
            first.close()
            yield
            second.close()
            yield
        def user():
            running = library()
            next(running)
            fd = os.open('/dev/zero', os.O_RDONLY)
            next(running)
            try:
                os.read(fd, 1)
            except OSError:
                pass
        user()
        """
    one = only(histories(tmp_path, program, turns=False), STALE_CLOSE)
    assert one.sentence.startswith("library() in program.py:8 closes descriptor")
    assert "belonged to user() in program.py:13" in one.sentence


def test_a_use_after_close_in_another_thread(tmp_path: Path) -> None:
    program = """
        left, right = socket.socketpair()
        number = left.fileno()
        def closer():
            turn(0); left.close(); done()
        def reader():
            turn(1)
            try:
                os.read(number, 1)
            except OSError:
                pass
        run(closer, reader)
        """
    one = only(histories(tmp_path, program), USE_AFTER_CLOSE)
    assert one.sentence.startswith("closer() in program.py:")
    assert "while reader() in program.py:" in one.sentence
    assert "in another thread (read)" in one.sentence


def test_a_forked_child_goes_on_with_the_history_of_its_parent(tmp_path: Path) -> None:
    program = """
        def parent():
            fd = os.open('/dev/null', os.O_RDONLY)
            os.close(fd)
            return fd
        def child(fd):
            try:
                os.read(fd, 1)
            except OSError:
                os._exit(0)
        fd = parent()
        pid = os.fork()
        if not pid:
            child(fd)
        os.waitpid(pid, 0)
        """
    one = only(histories(tmp_path, program, turns=False), USE_AFTER_CLOSE)
    assert "child() in program.py:" in one.sentence
    assert "after parent()" in one.sentence
    assert len({step.pid for step in one.steps}) == 2


def test_a_number_that_was_never_open(tmp_path: Path) -> None:
    program = """
        for fd in range(500, 900):
            try:
                os.close(fd)
            except OSError:
                pass
        """
    one = only(histories(tmp_path, program, turns=False), NEVER_OPEN)
    assert one.count == 400
    assert "was not open before in process" in one.sentence


def test_a_history_that_the_ring_has_dropped_cannot_be_told(tmp_path: Path) -> None:
    program = """
        fd = os.open('/dev/null', os.O_RDONLY)
        keep = os.open('/dev/null', os.O_RDONLY)
        os.close(fd)
        os.dup2(keep, 100); os.close(100)
        for _ in range(20_000):
            os.close(os.open('/dev/null', os.O_RDONLY))
        try:
            os.close(100)
        except OSError:
            pass
        """
    one = only(histories(tmp_path, program, turns=False), UNTOLD)
    assert "It cannot be told who closed it: the recording no longer holds its history" in one.sentence


CLEAN = {
    "hand over once": """
        def worker():
            turn(0); own(); done()
            turn(2); close(handed[0]); done()
        handed = []
        def own():
            fd = os.open('/dev/null', os.O_RDONLY)
            os.close(fd)
        def close(fd):
            os.close(fd)
        def maker():
            turn(1); handed.append(os.open('/dev/zero', os.O_RDONLY)); done()
        run(worker, maker)
        """,
    "a queue of descriptors": """
        import queue
        items = queue.Queue()
        def worker():
            while (fd := items.get()) is not None:
                mine = os.open('/dev/null', os.O_RDONLY)
                os.close(fd)
                os.close(mine)
        def maker():
            for _ in range(300):
                items.put(os.open('/dev/zero', os.O_RDONLY))
            items.put(None); items.put(None)
        run(worker, worker, maker)
        """,
    "two threads that hand descriptors to each other": """
        import queue
        def exchange(mine, theirs):
            for n in range(100):
                theirs.put(os.open('/dev/null', os.O_RDONLY))
                if n % 3 == 0:
                    fd = os.open('/dev/zero', os.O_RDONLY); os.close(fd)
                os.close(mine.get())
        one, two = queue.Queue(), queue.Queue()
        run(lambda: exchange(one, two), lambda: exchange(two, one))
        """,
    "a pool that opens and closes files": """
        from concurrent.futures import ThreadPoolExecutor
        def load(n):
            with open('/dev/zero', 'rb') as file:
                file.read(10)
            return open('/dev/null')
        with ThreadPoolExecutor(6) as pool:
            for file in pool.map(load, range(300)):
                file.close()
        """,
    "files left to the garbage collector": """
        import gc
        class Node:
            def __init__(self):
                self.me, self.file = self, open('/dev/null', 'rb', buffering=0)
        def work():
            for n in range(200):
                Node()
                fd = os.open('/dev/zero', os.O_RDONLY); os.close(fd)
                if n % 7 == 0:
                    gc.collect()
        run(work, work, work)
        """,
    "a shell": """
        import subprocess
        subprocess.run(['bash', '-c', 'exec 7</dev/null; exec 7<&-; exec 7</dev/zero 8>&1; true >&8'])
        """,
    "children": """
        import subprocess
        def work():
            for _ in range(3):
                subprocess.run(['true'], stdout=subprocess.PIPE)
        run(work, work)
        pid = os.fork()
        if not pid:
            os.close(os.open('/dev/null', os.O_RDONLY)); os._exit(0)
        os.waitpid(pid, 0)
        """,
}


@pytest.mark.parametrize("name", CLEAN)
def test_correct_programs_have_no_history(tmp_path: Path, name: str) -> None:
    assert [one.sentence for one in histories(tmp_path, CLEAN[name])] == []
