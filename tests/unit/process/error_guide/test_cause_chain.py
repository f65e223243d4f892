from __future__ import annotations

import errno
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from holdfast.process.error_guide.cause_chain import MAX, FoundCause, recognise, walk
from holdfast.process.error_guide.context import paths_in, paths_of
from holdfast.process.error_guide.explanation import of_unknown_exception


class MaxRetryError(Exception):
    """As urllib3's."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__("Max retries exceeded")
        self.reason = reason


class SSLError(OSError):
    """As requests': an OSError with another exception as its only argument."""


def emfile() -> OSError:
    return OSError(errno.EMFILE, "Too many open files", "cert.pem")


def found(error: BaseException) -> FoundCause:
    one = recognise(walk(error))
    assert one is not None
    return one


def raised(inner: Exception, outer: Exception, *, cause: bool | None) -> BaseException:
    with pytest.raises(type(outer)) as caught:
        try:
            raise inner
        except type(inner):
            if cause is None:
                raise outer from None
            if cause:
                raise outer from inner
            raise outer  # noqa: B904 - the context is the point
    return caught.value


def test_the_errno_behind_three_wrappers() -> None:
    one = found(SSLError(MaxRetryError(SSLError(emfile()))))
    assert one.rule.name == "EMFILE"
    assert one.link.errno == errno.EMFILE
    assert one.link.chain == "SSLError ← MaxRetryError.reason ← SSLError ← OSError(24)"


@pytest.mark.parametrize(
    ("cause", "chain"),
    [
        (True, "RuntimeError.__cause__ ← OSError(24)"),
        (False, "RuntimeError.__context__ ← OSError(24)"),
        (None, "RuntimeError.__context__ ← OSError(24)"),
    ],
)
def test_causes_and_contexts_even_hidden_ones(cause: bool | None, chain: str) -> None:
    assert found(raised(emfile(), RuntimeError("failed"), cause=cause)).link.chain == chain


def test_groups() -> None:
    group = ExceptionGroup("many", [ValueError("x"), ExceptionGroup("inner", [KeyError(1), emfile()])])
    chain = found(group).link.chain
    assert chain == "ExceptionGroup.exceptions[1] ← ExceptionGroup.exceptions[1] ← OSError(24)"


def test_rings_end() -> None:
    one, other = MaxRetryError(emfile()), RuntimeError("x")
    one.__cause__, other.__cause__ = other, one
    one.reason = one
    assert [type(link.error) for link in walk(one)] == [MaxRetryError, RuntimeError]
    assert len(walk(ExceptionGroup("x", [ValueError(at) for at in range(MAX + 9)]))) == MAX


def test_a_long_chain_is_walked_and_its_middle_is_not_shown() -> None:
    error: Exception = emfile()
    for at in range(500):
        outer = RuntimeError(str(at))
        outer.__context__ = error
        error = outer
    chain = found(error).link.chain
    assert chain.endswith("← RuntimeError.__context__ ← OSError(24)")
    assert chain.count("←") == 12


def test_the_text_of_another_process_is_read() -> None:
    text = (
        "Caught OSError in DataLoader worker process 0.\nOriginal Traceback:\nOSError: [Errno 24] Too many open files"
    )
    one = found(RuntimeError(text))
    assert (one.rule.name, one.link.chain) == ("EMFILE", "RuntimeError")
    assert one.line == "OSError: [Errno 24] Too many open files"


def test_the_cause_wins_over_what_came_of_it() -> None:
    error = raised(emfile(), BrokenPipeError(errno.EPIPE, "Broken pipe"), cause=False)
    assert found(error).rule.name == "EMFILE"


def test_what_is_meant_wins_over_what_was_handled_at_the_time() -> None:
    error = raised(OSError(errno.ENOSPC, "No space left on device"), emfile(), cause=False)
    assert found(error).rule.name == "EMFILE"
    error = raised(
        OSError(errno.EBADF, "Bad file descriptor"), RuntimeError("received 0 items of ancdata"), cause=False
    )
    assert found(error).rule.name == "ancdata"


def test_notes_and_the_last_words_of_a_child_are_read() -> None:
    error = RuntimeError("failed")
    error.add_note("worker 3: OSError: [Errno 24] Too many open files")
    assert found(error).rule.name == "EMFILE"
    said = b"x" * 1_000_000 + b"\nOSError: [Errno 28] No space left on device\n"
    assert found(subprocess.CalledProcessError(1, "x", stderr=said)).rule.name == "ENOSPC"
    assert found(subprocess.TimeoutExpired("x", 1, stderr=said.decode())).rule.name == "ENOSPC"


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLError(1, "[SSL: BAD] bad"),
        ssl.SSLCertVerificationError(1, "expired"),
        socket.gaierror(-2, "Name or service not known"),
        OSError(10**30, "huge"),
        OSError(-5, "negative"),
    ],
    ids=repr,
)
def test_numbers_that_are_no_errno(error: OSError) -> None:
    [link] = walk(error)
    assert (link.errno, link.chain) == (None, type(error).__name__)
    assert of_unknown_exception([link]).errno is None


def test_an_errno_without_words() -> None:
    assert found(OSError(errno.EMFILE, "Zu viele offene Dateien")).rule.name == "EMFILE"


class Nasty(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    @property
    def reason(self) -> BaseException:
        raise RuntimeError("no reason")


class Nastier(OSError):
    @property
    def errno(self) -> int:  # type: ignore[override]
        raise ZeroDivisionError

    @property
    def args(self) -> tuple[object, ...]:  # type: ignore[override]
        raise ZeroDivisionError


def test_a_strangers_class_may_do_anything() -> None:
    error = Nasty()
    error.__cause__ = emfile()
    assert found(error).link.chain == "Nasty.__cause__ ← OSError(24)"
    assert recognise(walk(Nasty())) is None
    assert recognise(walk(Nastier("x"))) is None
    assert recognise(walk(KeyboardInterrupt())) is None


def test_frames_tell_a_fork_from_a_lock() -> None:
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    for frames, name in (("    os.fork()", "EAGAIN_tasks"), ("    fcntl.flock(f, 6)", "EAGAIN_lock"), ("", "EAGAIN")):
        one = recognise(walk(error), lambda trace, frames=frames: frames)  # type: ignore[misc]
        assert one is not None
        assert one.rule.name == name


def test_names_in_a_text_of_quotes_and_slashes_are_found_at_once() -> None:
    assert paths_in("'" + "/" * 65_000) == []  # took most of a minute
    assert paths_in("can't open 'a/b.h5', don't") == ["a/b.h5"]


def test_names_of_files() -> None:
    assert paths_of(OSError(2, "No such file", "a", None, "b")) == ["a", "b"]
    assert paths_of(OSError(2, "x", b"\xff")) == ["\udcff"]
    assert paths_of(OSError(9, "Bad file descriptor", 7)) == []
    assert paths_of(ValueError("x")) == []
    assert paths_in("unable to open (name = '/data/a.h5', errno = 2)") == ["/data/a.h5"]
    assert paths_in('  File "/x/train.py", line 3, in f\n    h5py.File("out/a.h5", "a")') == ["out/a.h5"]
    assert paths_in("cannot write /data/b.tfrecord: see /proc/locks") == ["/data/b.tfrecord"]
    assert len(paths_in(" ".join(f"/a/{at}" for at in range(100)))) == 8


def test_h5pys_frames_know_the_name(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "a.h5").write_bytes(b"no")
    with pytest.raises(OSError) as caught:
        h5py.File(tmp_path / "a.h5", "r")
    assert paths_of(caught.value) == [str(tmp_path / "a.h5")]
