"""A program that closes all descriptors, as daemonising code does, also closes the Guard's; its own files have their
numbers then. The guard must write nothing into them, close none of them, and go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard_child import run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")

# `take()` closes everything and opens as many files of the program as reach every number that the guard had.
# `untouched()` looks whether each is still the same file, and has nothing in it that the program did not write.
TAKES_ALL = """
from holdfast.process.fd_owners.agent import ask_owners
KINDS = {
    "files": lambda: os.open(f"{folder}/{len(taken)}", os.O_RDWR | os.O_CREAT),
    "appended": lambda: os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    "null": lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),
    "eventfd": lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK),
}
kind, log, folder, first = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def take():
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    os.closerange(first, 4096)
    while not taken or taken[-1] < max(numbers):
        taken.append(KINDS[kind]())
    seen.update({fd: os.fstat(fd) for fd in taken})
taken, seen = [], {}
def untouched():
    for fd in taken:
        now = os.fstat(fd)
        assert (now.st_dev, now.st_ino) == (seen[fd].st_dev, seen[fd].st_ino), fd
        assert kind in ("null", "appended") or now.st_size == 0, (fd, now.st_size)
        if kind == "eventfd":
            try:
                assert not os.eventfd_read(fd), fd
            except BlockingIOError:
                pass
def in_child():
    pid = os.fork()
    if not pid:
        try:
            untouched()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def samples(count):
    for _ in range(count):
        alive = guard._run.page.get("alive_ns")
        until(lambda: guard._run.page.get("alive_ns") > alive)
guard = hold.Guard("worker", every=EVERY, log=log, fds=hold.Cap(hard=2000), eta=None)
"""


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("kind", ["files", "null", "eventfd"])
def test_nothing_of_the_program_is_touched(kind: str, first: int, tmp_path: Path) -> None:
    log, folder, said = tmp_path / "guard.log", tmp_path / "files", tmp_path / "said"
    folder.mkdir()
    done = run_guarded(
        TAKES_ALL
        + f"""
signal.alarm(40)
with guard:
    guard.ok()
    take()
    codes = [in_child()]
    samples(3)
    codes.append(in_child())
    os.kill(os.getpid(), signal.SIGUSR2)
    until(lambda: ask_owners(os.getpid(), [9999]) is not None)
    with guard.job("one"):
        guard.drain("now")
        guard.wait()
    untouched()
untouched()
codes.append(in_child())
open({str(said)!r}, "w").write(f"{{codes}} {{guard._run.page.get('rss_bytes') == 0}}")
os._exit(guard.exit_code)
""",
        kind,
        log,
        folder,
        first,
        nofile=4096,
    )
    assert done.code == 75, done
    assert said.read_text() == "[0, 0, 0] True"
    logged = log.read_text()
    assert "draining: now; will exit with 75" in logged
    assert "ended after 1 job; now" in logged
    assert "Current thread" in logged  # SIGUSR2
    assert not any(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("first", [0, 3])
def test_the_dump_goes_to_the_log_alone(first: int, tmp_path: Path) -> None:
    log, folder = tmp_path / "guard.log", tmp_path / "files"
    folder.mkdir()
    done = run_guarded(
        TAKES_ALL.replace("hard=2000", "hard=3000")
        + """
with guard:
    take()
    taken += [os.dup(taken[-1]) for _ in range(2500)]
    until(lambda: False)
""",
        "files",
        log,
        folder,
        first,
        nofile=4096,
    )
    assert done.code == 70, done
    logged = log.read_text()
    assert "ends at once with exit code 70" in logged
    assert "Thread 0x" in logged
    assert not any(path.stat().st_size for path in folder.iterdir())


def test_a_log_on_stderr_is_found_again_while_stderr_is_open(tmp_path: Path) -> None:
    done = run_guarded(
        TAKES_ALL.replace("log=log", "log=None")
        + """
with guard:
    take()
    guard.drain("now")
    guard.wait()
    untouched()
untouched()
say(in_child())
sys.exit(guard.exit_code)
""",
        "eventfd",
        tmp_path / "log",
        tmp_path,
        3,
        nofile=4096,
    )
    assert (done.code, done.out) == (75, ["0"]), done
    assert done.logged == ["draining: now; will exit with 75", "ended after 1 job; now".replace("1 job", "0 jobs")]


def test_files_of_the_program_that_are_the_guards_log_stay_open(tmp_path: Path) -> None:
    """Its own logging may append to the same file."""
    log = tmp_path / "guard.log"
    done = run_guarded(
        TAKES_ALL
        + """
with guard:
    take()
    samples(3)
    guard.drain("now")
untouched()
say(in_child())
sys.exit(guard.exit_code)
""",
        "appended",
        log,
        tmp_path,
        3,
        nofile=4096,
    )
    assert (done.code, done.out) == (75, ["0"]), done
    assert "ended after 0 jobs; now" in log.read_text()
