from __future__ import annotations

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bad_descriptor_programs import CLEAN, FAULTY, PRELUDE, Program
from holdfast.process.fdtrace.bad_descriptors import (
    DOUBLE_CLOSE,
    STALE_CLOSE,
    SUSPECTED,
    UNTOLD,
    USE_AFTER_CLOSE,
    NumberHistory,
    find_histories,
)
from holdfast.process.fdtrace.recording import LIBRARY, TraceOptions, record
from holdfast.process.fdtrace.render import Findings

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the tracing library was not built: no C compiler")


def run(folder: Path, program: Program) -> Findings:
    """Records a program with the look at owners, which runs holdfast's own code at the end of it."""
    path = folder / f"{abs(hash(program))}" / "program.py"
    path.parent.mkdir()
    path.write_text(program.source)
    with open(path.with_name("output"), "wb") as output:
        return Findings(record([sys.executable, str(path)], output=output).trace)


def faults_of(found: Findings, program: Program) -> str:
    """Says what is wrong about a report, "" for nothing."""
    if not found.misused:
        return "nothing was found"
    first = found.misused[0]
    numbers = [(one.steps[-1].pid, one.fd) for one in found.misused]
    wrong = {
        f"it is called {first.kind}": first.kind != program.kind,
        f"line {first.culprit.line} is blamed": bool(program.culprits) and first.culprit.line not in program.culprits,
        f"line {first.victim.line} is the victim": bool(program.victims) and first.victim.line not in program.victims,
        f"descriptors are named twice: {numbers}": len(set(numbers)) < len(numbers),
        f"the headline is {found.verdict()!r}": not found.verdict().startswith("Bad file descriptor: "),
        f"the problem is {found.problem!r}": found.problem != "bad descriptor",
    }
    return "; ".join(text for text, is_wrong in wrong.items() if is_wrong)


def test_the_report_names_who_misuses_a_descriptor(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda program: run(tmp_path, program), FAULTY))
    assert len(FAULTY) >= 70
    wrong = {program.name: faults_of(found, program) for program, found in zip(FAULTY, reports, strict=True)}
    assert {name: text for name, text in wrong.items() if text} == {}


def test_correct_programs_are_not_accused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        # The slowest are the last of the table.
        reports = list(pool.map(lambda program: run(tmp_path, program), CLEAN[::-1]))
    assert len(CLEAN) >= 46
    accused = {
        program.name: [one.sentence for one in found.histories]
        for program, found in zip(CLEAN[::-1], reports, strict=True)
        if found.histories
    }
    assert accused == {}
    assert not any(found.problem == "bad descriptor" for found in reports)


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
    script.write_text((PRELUDE if turns else "import os, sys\n") + textwrap.dedent(program))
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
    assert "handed its descriptor over" in one.doubt
    assert "`holdfast trace --no-reuse -- " in one.doubt


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
    assert "twice() in program.py:5 closed it before" in one.sentence
    assert [step.frame.line for step in one.steps] == [4, 5, 7]


def test_a_descriptor_has_one_history_with_all_its_failures(tmp_path: Path) -> None:
    program = """
        def library():
            first = open('/dev/null', 'rb', buffering=0)
            second = os.fdopen(first.fileno(), 'rb', buffering=0)
            first.close()
            for use, arguments in (os.read, (second.fileno(), 1)), (second.close, ()):
                try:
                    use(*arguments)
                except OSError:
                    pass
        library()
        """
    one = only(histories(tmp_path, program, turns=False), USE_AFTER_CLOSE)
    assert [step.what for step in one.steps] == ["opened", "closed", "EBADF in read", "EBADF in close"]
    assert (one.culprit.line, one.victim.line) == (6, 9)


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


def test_a_closing_loop_hides_no_second_close(tmp_path: Path) -> None:
    program = """
        def close_all(fds):
            for fd in fds:
                try:
                    os.close(fd)
                except OSError:
                    pass
        fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(20)]
        close_all(fds)
        close_all(fds)
        for fd in range(3, 256):
            try:
                os.close(fd)
            except OSError:
                pass
        """
    one = only(histories(tmp_path, program, turns=False), DOUBLE_CLOSE)
    assert one.count == 20
    assert (one.culprit.line, one.victim.line) == (11, 6)  # the second call, not the helper


def test_where_the_number_leaves_doubt_the_report_says_how_to_find_out(tmp_path: Path) -> None:
    program = """
        old = os.open('/dev/null', os.O_RDONLY)
        os.close(old)
        new = os.open('/dev/zero', os.O_RDONLY)
        os.close(old if True else new)
        try:
            os.read(new, 1)
        except OSError:
            pass
        """
    one = only(histories(tmp_path, program, turns=False), USE_AFTER_CLOSE)
    assert (one.culprit.line, one.victim.line) == (6, 8)
    assert "program.py:6 meant the descriptor of program.py:3" in one.doubt
    assert f"`holdfast trace --no-reuse -- {sys.executable} -I {tmp_path}/program.py`" in one.doubt


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
