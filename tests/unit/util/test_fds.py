from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast._util.fds import OwnFd, Reserve, move_up

# Limits belong to a process: each of these programs is one of its own.
FILL = """
import errno, os, resource
from holdfast._util.fds import Reserve, raise_nofile
def fill():
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE
    return taken
"""


def _run(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FILL + text], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_soft_limit_is_raised_as_far_as_wanted_and_allowed() -> None:
    said = _run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
print(raise_nofile(100), raise_nofile(80), raise_nofile(10_000), raise_nofile())
print(resource.getrlimit(resource.RLIMIT_NOFILE))
""")
    assert said.splitlines() == ["(64, 100) (100, 100) (100, 256) (256, 256)", "(256, 256)"]


def test_raising_needs_no_descriptor() -> None:
    said = _run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
fill()
print(raise_nofile(), os.close(os.open(os.devnull, os.O_RDONLY)))
""")
    assert said == "(64, 256) None"


def test_a_refused_limit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast._util.fds import raise_nofile

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_nofile() == (64, 64)
    with pytest.raises(ValueError, match="at least one"):
        raise_nofile(0)


def test_a_reserve_gives_one_back_when_none_is_free() -> None:
    said = _run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
reserve = Reserve(2)
taken = fill()
with reserve.spend() as spent:
    print(spent, len(reserve), len(os.listdir("/proc/self/fd")) > 60)
print(len(reserve))
with reserve.spend(), reserve.spend():
    kept = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
    with reserve.spend() as third:
        print(third)
    os.close(kept[0])
    with reserve.spend():  # gives nothing, takes nothing
        pass
    kept = os.open(os.devnull, os.O_RDONLY), kept[1]
print(len(reserve), reserve.refill())
os.close(kept[0]); os.close(kept[1])
print(reserve.refill(), len(reserve))
""")
    assert said.splitlines() == ["True 1 True", "2", "False", "0 False", "True 2"]


def test_a_closed_reserve_stays_closed() -> None:
    with Reserve(3) as reserve:
        assert len(reserve) == 3
    reserve.close()
    assert not reserve.refill()
    with reserve.spend() as spent:
        assert not spent
    assert len(reserve) == 0
    with pytest.raises(ValueError, match="at least one"):
        Reserve(0)


def test_a_reserve_can_be_spent_in_a_forked_child() -> None:
    said = _run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
reserve = Reserve(1)
fill()
pid = os.fork()
if pid == 0:
    with reserve.spend() as spent:
        os.close(os.open(os.devnull, os.O_RDONLY))
    os._exit(10 * spent + len(reserve))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(reserve))
""")
    assert said == "11 1"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
def test_a_number_that_became_a_strangers_is_not_closed(flags: int) -> None:
    """Not even if it is /dev/null again."""
    reserve = Reserve(1)
    (fd,) = reserve.fds
    os.close(fd)
    strangers = os.open(os.devnull, flags)
    try:
        assert fd == strangers
        with reserve.spend() as spent:
            assert not spent
            os.fstat(fd)
        reserve.close()
        os.fstat(fd)
    finally:
        os.close(fd)


def test_our_own_descriptors_are_recognised(tmp_path: Path) -> None:
    def opened(name: str = "log", flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
        return os.open(tmp_path / name, flags)

    same_fd = OwnFd(opened())
    number = same_fd.number
    for stranger in (lambda: opened("other"), lambda: opened(flags=os.O_WRONLY), lambda: opened(flags=os.O_RDONLY)):
        os.close(number)
        assert stranger() == number
        assert same_fd.number == -1
        assert not same_fd.close()
        os.fstat(number)
        os.close(number)
        same_fd = OwnFd(opened())
        assert same_fd.number == number
    copy = OwnFd(os.dup(number), is_shared=True)
    os.set_blocking(number, False)  # of the open file, which they share
    assert copy.number >= 0
    assert same_fd.number == -1
    assert copy.close()
    assert not copy.close()
    os.close(number)


def test_a_descriptor_with_a_high_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for limit, least in ((soft, 512), (256, 192)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            moved = move_up(os.open(os.devnull, os.O_RDONLY))
            assert moved >= least
            assert not os.get_inheritable(moved)
            os.close(moved)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
