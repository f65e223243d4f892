"""A pytest plugin that fails a test that leaves descriptors, child processes, threads or files in /dev/shm behind.

    pytest --fd-leaks              every test; --fd-leaks=2 lets each test leave two resources
    @pytest.mark.fd_leaks(max=0)   this test, also without the option; max=None: not this one
    fd_leaks = 0                   in the ini file: every test
    pytest --fd-leaks-trace        every test, and shows which lines opened what was left
    fd_leaks_trace = true          in the ini file: shows the lines for the tests that are checked

It is off by default and then imports nothing. The check runs after the test's own fixtures were torn down. What
fixtures of a wider scope open during their setup does not count. A failed test is not checked: its traceback keeps
everything in it alive.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .process.leakcheck.births import Births
    from .process.leakcheck.no_leaks import Check

_WITHIN_S = 1.0
_check = pytest.StashKey["Check"]()
_births = pytest.StashKey["Births | None"]()
_failed = pytest.StashKey[bool]()
_MARK = "fd_leaks(max=0, kinds=None): fails if the test leaves more than `max` resources behind; max=None: no check"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--fd-leaks",
        nargs="?",
        const=0,
        type=_number,
        metavar="N",
        help="Fail tests that leave more than N (default 0) descriptors, child processes, threads or /dev/shm files "
        "behind. Before a path write --fd-leaks=0.",
    )
    group.addoption(
        "--fd-leaks-trace",
        action="store_true",
        help="Like --fd-leaks, and show which lines opened the descriptors that a test left behind.",
    )
    parser.addini(
        "fd_leaks_trace", "Like --fd-leaks-trace, for the tests that are checked.", type="bool", default=False
    )
    parser.addini("fd_leaks", "Like --fd-leaks: how many resources a test may leave behind; empty is off.", default="")


def _number(text: str) -> int:
    if not text.isdigit():
        raise pytest.UsageError(f"expected --fd-leaks or --fd-leaks=N, got {text!r}; before a path write --fd-leaks=0")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    _allowed_by_config(config)


def _record_births(config: pytest.Config) -> None:
    """Begins with the first checked test and goes on to the end: to begin costs more than to record."""
    if _births not in config.stash and (config.getoption("--fd-leaks-trace") or config.getini("fd_leaks_trace")):
        from .process.leakcheck.births import start_recording

        config.stash[_births] = start_recording()


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(_births, None) is not None:
        from .process.leakcheck.births import stop_recording

        stop_recording(config.stash[_births])
        del config.stash[_births]


def _allowed_by_config(config: pytest.Config) -> int | None:
    given: int | None = config.getoption("--fd-leaks")
    text = str(config.getini("fd_leaks")).strip()
    if given is not None:
        return given
    if not text:
        return 0 if config.getoption("--fd-leaks-trace") else None
    if not text.isdigit():
        raise pytest.UsageError(f"expected fd_leaks to be a number in the ini file, got {text!r}")
    return int(text)


def _options(item: pytest.Item) -> tuple[int | None, Any]:
    """Returns how many resources may be left (None: no check), and which kinds are checked."""
    mark = item.get_closest_marker("fd_leaks")
    if mark is None:
        return _allowed_by_config(item.config), None
    given: dict[str, Any] = dict(zip(("max", "kinds"), mark.args, strict=False)) | dict(mark.kwargs)
    maximum = given.pop("max", 0)
    kinds = given.pop("kinds", None)
    if given or len(mark.args) > 2 or not (maximum is None or (type(maximum) is int and maximum >= 0)):
        raise pytest.UsageError(f"expected fd_leaks(max=0, kinds=None), got {mark.args} {mark.kwargs}")
    return maximum, kinds


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    maximum, kinds = _options(item)
    if maximum is not None:
        from .process.leakcheck.no_leaks import Check

        item.stash[_failed] = False
        _record_births(item.config)
        try:
            item.stash[_check] = Check(kinds)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    item = getattr(request, "_pyfuncitem", None)
    check = item.stash.get(_check, None) if isinstance(item, pytest.Item) else None
    if check is None or fixturedef.scope == "function":
        return (yield)
    with check.ignoring():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        check = item.stash.get(_check, None)
        if check is not None:
            del item.stash[_check]
            check.stop()
    if check is not None and not item.stash.get(_failed, False):
        _raise_if_leaked(check, _options(item)[0] or 0, item.config.stash.get(_births, None))


def _raise_if_leaked(check: Check, maximum: int, births: Births | None) -> None:
    for wait_s in check.waits(maximum, _WITHIN_S, collect=True):
        time.sleep(wait_s)
    if left := check.over(maximum):
        from .process.leakcheck.no_leaks import describe_leaks

        pytest.fail(describe_leaks(left, maximum, births)[0], pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        item.stash[_failed] = True
    return (yield)
