from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._util import atomic
from holdfast.errors import ForkedWriterError, LockTimeoutError, WriteError, WriterBusyError
from holdfast.process.filelocks.holders import locks
from holdfast.process.filelocks.lock import Locked, locked
from holdfast.process.filelocks.lock_file import filesystem_of, read_note
from holdfast.procfs.locks import LockKind
from python_child import TIMEOUT_S, python, read_line, run_forked

HOLDS = """
import sys
from holdfast.process.filelocks.lock import locked
with locked(sys.argv[1], shared=sys.argv[2] == "shared"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def is_free(path: Path) -> bool:
    """As another open file sees it."""
    try:
        with locked(path, timeout=0):
            return True
    except LockTimeoutError:
        return False


# ---- taking and giving back


def test_one_at_a_time_and_nothing_is_left(path: Path) -> None:
    with locked(path) as lock:
        assert lock.held
        lock.check()
        [seen] = locks(path.with_name("run.h5.lock"))
        assert (seen.pid, seen.kind, seen.exclusive) == (os.getpid(), LockKind.OFD, True)
        assert seen.since is not None
        assert abs(seen.since - time.time()) < TIMEOUT_S
    assert not lock.held
    assert not path.exists()
    assert path.with_name("run.h5.lock").read_bytes() == b""
    with lock:  # it may be used again
        pass


def test_the_holder_is_named_on_time_out(path: Path) -> None:
    with python(HOLDS, path, "exclusive") as child:
        for shared in (False, True):
            with pytest.raises(LockTimeoutError) as caught, locked(path, shared=shared, timeout=0.02):
                pass
            assert caught.value.holders == (child.pid,)
            assert f"within 0.02 s: process {child.pid} ({sys.executable[:10]}" in str(caught.value)
            assert isinstance(caught.value, TimeoutError)
            again = pickle.loads(pickle.dumps(caught.value))
            assert (str(again), again.holders) == (str(caught.value), (child.pid,))
    assert is_free(path)


def test_shared_ones_go_together_and_shut_out_the_exclusive(path: Path) -> None:
    with python(HOLDS, path, "shared") as first, python(HOLDS, path, "shared") as second:
        with locked(path, shared=True, timeout=0):
            pass
        with pytest.raises(LockTimeoutError) as caught, locked(path, timeout=0):
            pass
        assert set(caught.value.holders) == {first.pid, second.pid}
    assert is_free(path)


def test_it_waits_until_the_holder_lets_go(path: Path) -> None:
    with python(HOLDS, path, "exclusive") as child:
        assert child.stdin is not None
        threading.Timer(0.05, child.stdin.close).start()
        with locked(path, timeout=TIMEOUT_S):
            pass


def test_a_killed_holder_lets_go_and_its_note_counts_no_more(path: Path) -> None:
    with python(HOLDS, path, "exclusive") as child:
        child.kill()
        child.wait(TIMEOUT_S)
        note = read_note(f"{path}.lock")
        assert note is not None
        assert note.pid == child.pid
        assert not locks(f"{path}.lock")
        with locked(path, timeout=TIMEOUT_S):
            pass


COUNTS = """
import sys
from holdfast.process.filelocks.lock import locked
for _ in range(int(sys.argv[2])):
    with locked(sys.argv[1], timeout=60):
        with open(sys.argv[1], "r+") as file:
            number = int(file.read())
            file.seek(0)
            file.write(str(number + 1))
"""


def test_processes_count_together(path: Path) -> None:
    path.write_text("0")
    command = [sys.executable, "-c", COUNTS, str(path), "100"]
    for child in [subprocess.Popen(command) for _ in range(3)]:
        assert child.wait(TIMEOUT_S) == 0
    assert path.read_text() == "300"


def test_threads_exclude_each_other(path: Path) -> None:
    path.write_text("0")

    def count() -> None:
        for _ in range(50):
            with locked(path, timeout=TIMEOUT_S):
                path.write_text(str(int(path.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert path.read_text() == "150"


def test_the_file_may_be_replaced_under_the_lock(path: Path) -> None:
    path.write_text("old")
    with locked(path) as lock:
        new = path.with_name("new")
        new.write_text("new")
        os.replace(new, path)
        lock.check()
        with pytest.raises(LockTimeoutError):
            in_thread(lambda: locked(path, timeout=0).__enter__())


def in_thread(work: Callable[[], object]) -> None:
    """Another thread's exception, here."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(TIMEOUT_S)
    if wrong:
        raise wrong[0]


def test_symbolic_links_are_the_same_lock(path: Path, tmp_path: Path) -> None:
    path.write_text("x")
    (tmp_path / "link.h5").symlink_to(path)
    with locked(path), pytest.raises(WriterBusyError), locked(tmp_path / "link.h5"):
        pass


# ---- what is refused


def test_a_thread_does_not_wait_for_itself(path: Path) -> None:
    with locked(path) as lock:
        with pytest.raises(WriterBusyError, match="already locked by this thread"), locked(path, shared=True):
            pass
        with pytest.raises(WriterBusyError), lock:
            pass
        lock.check()
    assert is_free(path)


def test_one_object_in_two_threads(path: Path) -> None:
    with locked(path) as lock, pytest.raises(WriterBusyError, match="already locked by this object"):
        in_thread(lock.__enter__)


def test_a_bad_timeout(path: Path) -> None:
    for bad in (-1, float("nan"), "soon", True):
        with pytest.raises(ValueError, match="timeout=: expected a time"):
            locked(path, timeout=bad)


def test_places_where_no_lock_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No such file or directory"), locked(tmp_path / "none" / "a"):
        pass
    (tmp_path / "b.lock").mkdir()
    with pytest.raises(WriteError, match="b.lock"), locked(tmp_path / "b"):
        pass
    (tmp_path / "c.lock").symlink_to("elsewhere")
    with pytest.raises(WriteError, match="symbolic link"), locked(tmp_path / "c"):
        pass
    os.mkfifo(tmp_path / "d.lock")
    with pytest.raises(WriteError, match="expected a regular file"), locked(tmp_path / "d"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_cannot_lock(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def cannot(fd: int, *, shared: bool) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic, "try_lock", cannot)
    with pytest.raises(WriteError) as caught, locked(path):
        pass
    assert f"locks do not work on this file system ({filesystem_of(str(path))})" in str(caught.value)
    assert os.strerror(number) in str(caught.value)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_system_that_says_yes_to_everybody(path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr(atomic, "try_lock", lambda fd, *, shared: True)
    with pytest.raises(WriteError, match="it granted one lock twice at a time"), locked(path, shared=shared):
        pass


def test_a_lock_file_that_is_taken_away(path: Path) -> None:
    with locked(path) as lock:
        os.unlink(f"{path}.lock")
        with pytest.raises(WriteError, match="removed or replaced"):
            lock.check()
    with locked(path, timeout=0) as lock:
        lock.check()


def test_a_waiter_follows_when_the_lock_file_is_replaced(path: Path) -> None:
    got: list[bool] = []

    def wait() -> None:
        with locked(path, timeout=TIMEOUT_S) as lock:
            lock.check()
            got.append(lock.held)

    with python(HOLDS, path, "exclusive"):
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until_opened(os.getpid())
        os.unlink(f"{path}.lock")
        thread.join(TIMEOUT_S)
    assert got == [True]


def wait_until_opened(pid: int) -> None:
    """Whoever has the lock file open waits for the lock by the next step."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        names = [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        if any(name.endswith("run.h5.lock") for name in names):
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} did not open the lock file in time")


def test_use_outside_its_block(path: Path) -> None:
    lock = locked(path)
    with pytest.raises(WriteError, match="not held"):
        lock.check()


# ---- forked children


def test_a_child_has_no_part_in_it(path: Path) -> None:
    def child() -> None:
        assert not lock.held
        with pytest.raises(ForkedWriterError, match=f"is process {os.getppid()}'s"):
            lock.check()
        with pytest.raises(LockTimeoutError) as caught, locked(path, timeout=0):
            pass
        assert caught.value.holders == (os.getppid(),)
        lock.__exit__(None, None, None)

    with locked(path) as lock:
        assert run_forked(child) == 0
        lock.check()
        with pytest.raises(LockTimeoutError):
            in_thread(lambda: locked(path, timeout=0).__enter__())


def test_a_child_that_no_hook_told_does_not_free_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locked, "after_fork_in_child", lambda self: None)
    with locked(path) as lock:
        assert run_forked(lambda: lock.__exit__(None, None, None)) == 0
        with pytest.raises(LockTimeoutError):
            in_thread(lambda: locked(path, timeout=0).__enter__())


FORKS = """
import os, sys
from holdfast.process.filelocks.lock import locked
with locked(sys.argv[1]):
    if not os.fork():
        sys.stdout.close()
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    print("ready", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_an_orphan_does_not_keep_its_killed_parents_lock(path: Path) -> None:
    with python(FORKS, path) as parent:
        assert parent.wait(TIMEOUT_S) == -9
        with locked(path, timeout=TIMEOUT_S):
            pass


def test_a_child_takes_it_anew_with_the_same_object(path: Path) -> None:
    lock = locked(path, timeout=TIMEOUT_S)
    with lock:
        pass

    def child() -> None:
        with lock:
            lock.check()

    assert run_forked(child) == 0


# ---- interrupts and leaks

WAITS = """
import os, signal, sys
from holdfast.process.filelocks.lock import locked
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    with locked(sys.argv[1]):
        pass
except KeyboardInterrupt:
    names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    print(sum(os.path.realpath(name).endswith(".lock") for name in names), flush=True)
sys.stdin.read()
"""


def test_an_interrupt_while_waiting_leaves_nothing(path: Path) -> None:
    with locked(path), python(WAITS, path) as child:
        wait_until_opened(child.pid)
        child.send_signal(signal.SIGINT)
        assert read_line(child) == "0"


def test_an_exception_in_the_block_frees_it(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(path):
        raise KeyboardInterrupt
    assert is_free(path)


def test_a_lock_that_is_dropped_is_reported_and_freed(path: Path) -> None:
    lock = locked(path)
    lock.__enter__()
    with pytest.warns(ResourceWarning, match="never released"):
        del lock
    assert is_free(path)


def test_descriptors_do_not_add_up(path: Path) -> None:
    with locked(path):
        pass
    before = os.listdir("/proc/self/fd")
    for _ in range(50):
        with locked(path):
            with pytest.raises(WriterBusyError), locked(path):
                pass
        with locked(path, shared=True):
            pass
    assert os.listdir("/proc/self/fd") == before
