"""The log of a Guard: what must not hold up, end or damage the worker."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from guard_child import LEAKS_TO_THE_HARD_CAP, LOOP, run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")


def test_a_log_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "guard.log"
    path.write_text("earlier\n")
    done = run_guarded(f"""
os.chdir({str(tmp_path)!r})
with hold.Guard("wörker\\nx", log="guard.log") as guard:
    say(guard._run.page.copy()[1920:2048].rstrip(b"\\0").decode())
    guard.drain("a\\x1b[31m\\nb")
""")
    assert (done.code, done.log) == (0, "")
    assert done.out == [str(path)]
    earlier, drains, _, reminder = path.read_text().splitlines()
    assert reminder.endswith("end the program with `raise SystemExit(guard.exit_code)`")
    assert earlier == "earlier"
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d holdfast guard wörker x\[\d+\]: draining: a \[31m b; will exit with 75",
        drains,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, kind in (("no/such/folder", "FileNotFoundError"), ("", "IsADirectoryError"), ("fifo", "OSError")):
        done = run_guarded(f"with hold.Guard(log={str(tmp_path / name)!r}): pass")
        assert done.code == 1
        assert f"{kind}: [Errno" in done.log


def test_a_full_disk_does_not_disturb_the_worker() -> None:
    done = run_guarded(LOOP, "dict(log='/dev/full', max_age=0.1)")
    assert (done.code, done.log) == (75, "")
    done = run_guarded(LEAKS_TO_THE_HARD_CAP.replace('"worker", ', '"worker", log="/dev/full", '), nofile=256)
    assert (done.code, done.log) == (70, "")


STUCK = """
import holdfast.process.guard.emergency
holdfast.process.guard.emergency._MAX_DUMP_S = 1.0
log, ours = sys.argv[1], None
if log == "fifo":
    os.mkfifo(sys.argv[2])
    ours, log = os.open(sys.argv[2], os.O_RDONLY | os.O_NONBLOCK), sys.argv[2]
    filler = os.open(sys.argv[2], os.O_WRONLY | os.O_NONBLOCK)
else:
    ours, filler = os.pipe()
    os.dup2(filler, 2)  # stderr is a pipe that nobody empties
    log = None
os.set_blocking(filler, False)
try:
    while True:
        os.write(filler, b"x" * 4096)
except BlockingIOError:
    pass
os.set_blocking(filler, True)
signal.signal(signal.SIGALRM, lambda *_: None)
guard = hold.Guard(every=EVERY, log=log, fds=hold.Cap(hard=100), eta=None)
with guard:
    guard.drain("one")
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)
    if sys.argv[3] == "hard":
        kept = [os.dup(0) for _ in range(100)]
        until(lambda: False)
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize("log", ["fifo", "stderr"])
def test_a_pipe_that_nobody_empties_does_not_hold_it_up(log: str, tmp_path: Path) -> None:
    assert run_guarded(STUCK, log, tmp_path / "a", "drain").code == 75
    # faulthandler writes the stacks, and waits on stderr; the process ends nevertheless
    assert run_guarded(STUCK, log, tmp_path / "b", "hard", nofile=256).code in (70, 1)


def test_a_closed_stderr(tmp_path: Path) -> None:
    """A file that the program opens then has number 2: the guard must not write into it."""
    data = tmp_path / "data"
    program = f"""
file = open({str(data)!r}, "w")
with hold.Guard(every=EVERY) as guard:
    guard.drain()
os.write(1, f"{{file.fileno()}} {{guard.exit_code}}\\n".encode())
"""
    done = run_guarded(program, before=("sh", "-c", 'exec "$0" "$@" 2>&-'))
    assert (done.code, done.out) == (0, ["2 75"])
    assert data.read_text() == ""
    assert run_guarded("os.close(2)\nwith hold.Guard() as guard: guard.drain()\n").code == 0


@pytest.mark.parametrize("then", ["files", "nothing"])
def test_a_program_that_closes_all_descriptors(then: str) -> None:
    """A library may do so. The guard samples on, and writes nothing into files that have its numbers now."""
    done = run_guarded(
        """
import tempfile
guard = hold.Guard(every=EVERY)
with guard:
    first = os.open(os.devnull, os.O_RDONLY)
    os.closerange(3, first + 1)
    files = [tempfile.TemporaryFile(buffering=0) for _ in range(first if sys.argv[1] == 'files' else 0)]
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)
    guard.drain("now")
    guard.wait()
    samples = set()
    until(lambda: samples.add(guard._run.page.get("alive_ns")) or len(samples) > 10)
    assert max(samples) - min(samples) > 5 * EVERY * 1e9, "it does not rest between two samples"
    sizes = [os.fstat(file.fileno()).st_size for file in files]
    assert guard._run.page.get("rss_bytes") > 1 << 20 or files
    say(sum(sizes), guard.draining)
    os._exit(guard.exit_code)
""",
        then,
    )
    assert (done.code, done.out) == (75, ["0 True"]), done
