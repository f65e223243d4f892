"""With `trace`, a leak check says which lines opened what was left, and otherwise reports the same."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

import holdfast as hold
from holdfast.errors import LeakError
from holdfast.process.fdtrace.recording import LIBRARY
from holdfast.process.leakcheck import births


@pytest.fixture(params=["library", "partial"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "partial":
        monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    elif not LIBRARY.exists():
        pytest.skip("the tracing library was not built (no C compiler)")
    return str(request.param)


@pytest.fixture
def kept() -> Iterator[list[int]]:
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def leak(kept: list[int]) -> int:
    kept.append(os.dup(0))
    return sys._getframe().f_lineno - 1


def test_the_error_names_the_lines(kept: list[int]) -> None:
    with pytest.raises(LeakError) as caught:
        with hold.no_leaks(within=0, trace=True):
            first, here = leak(kept), sys._getframe().f_lineno
            [leak(kept) for _ in range(2)]
    lines = [line for line in str(caught.value).splitlines() if "opened at" in line]
    assert f"  opened at {__file__}:{first} in leak ← {__file__}:{here} in test_the_error" in "\n".join(lines)
    assert lines[0].endswith(f"(2 descriptors: {kept[1]}, {kept[2]})")
    assert lines[1].endswith(f"(fd {kept[0]})")
    without = [line for line in str(caught.value).splitlines() if "opened at" not in line]
    assert without[0] == "left behind: 3 " + without[0].split()[-1]


def test_nothing_else_is_reported_differently() -> None:
    for trace in (False, True):
        with hold.no_leaks(trace=trace):
            left, right = socket.socketpair()
            with left, right, open("/dev/null"):
                os.close(os.dup(0))


def test_the_note_of_an_exception(kept: list[int]) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        with hold.no_leaks(trace=True):
            leak(kept)
            raise ValueError("mine")
    assert f"opened at {__file__}" in caught.value.__notes__[0]


def test_blocks_within_blocks_and_functions(kept: list[int]) -> None:
    @hold.no_leaks(within=0, trace=True)
    def leaks() -> None:
        leak(kept)

    with pytest.raises(LeakError, match=f"opened at {__file__}"):
        with hold.no_leaks(max=1, trace=True):
            leaks()
    assert births._births is None
    assert births._users == 0


def test_a_process_that_is_traced_already_is_checked_without(kept: list[int]) -> None:
    with hold.Tracer():
        with pytest.raises(LeakError) as caught:
            with hold.no_leaks(within=0, trace=True):
                leak(kept)
    assert "opened at" not in str(caught.value)


def test_what_was_open_before_has_no_line(kept: list[int]) -> None:
    with hold.no_leaks(max=1, trace=True):
        found = births._births
        assert found is not None
        assert found.describe([0, 1, 99_999]) == []
        leak(kept)
        assert len(found.describe(kept)) == 1
