"""Gives every test a clean environment, fails tests that leak resources, and gives a reason for every skip.

The folder support has what tests share:

leftovers.py        finds the resources that a test leaked
line_child.py       a child process that answers JSON lines (line_server.py: its other end)
tensorflow_*.py     a real TensorFlow in such a child, shared by all tests
document_*.py       runs the code blocks of a page
browser.py          a headless Chromium, driven over a pipe
state_samples.py    documents as watch serves them
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import leftovers
from tensorflow_client import TensorFlowPeer

TOP = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI") == "true"
FRAMEWORKS = {
    "torch",
    "tensorflow",
    "PIL",
    "simplejpeg",
    "google_crc32c",
    "hdf5plugin",
    "cloudpickle",
    "textual",
    "requests",
    "google",
    "prometheus_client",
    "yaml",
}
KEPT_ENVIRONMENT = {"HOLDFAST_NATIVE", "HOLDFAST_FUZZ_SECONDS"}

_call_failed = pytest.StashKey[bool]()


SHARED = os.environ.get("HOLDFAST_TESTS_SHARED")  # two processes share the tests: a folder with a marker for each file
BACKWARDS = os.environ.get("HOLDFAST_TESTS_FROM") == "end"


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the user's settings out of the tests, and the tests out of the user's cache."""
    _handle_signals()
    leftovers.mount_own_shm()
    for name in [name for name in os.environ if name.startswith("HOLDFAST_") and name not in KEPT_ENVIRONMENT]:
        del os.environ[name]
    cache = tempfile.TemporaryDirectory(prefix="holdfast-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = cache.name


def _handle_signals() -> None:
    """Restores default signal handlers. A shell starts background jobs with SIGINT ignored, and nohup with SIGHUP: the
    processes that the tests start and interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


# ---- two processes that share the tests --------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs pytest's loop, but only for files that the other process has not begun (see tools/run-tests.sh)."""
    if not SHARED or session.config.option.collectonly or session.testsfailed:
        return None
    items = _claimed(session.items)
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _claimed(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields the tests of unclaimed files. One process begins with the first file, the other with the last."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for path in reversed(files) if BACKWARDS else files:
        try:
            Path(str(SHARED), str(path.relative_to(TOP)).replace("/", "!")).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from files[path]


# ---- nothing left behind -----------------------------------------------------------------------------------


@pytest.fixture(autouse=sys.platform == "linux")
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaks resources. Fixtures of a wider scope are set up before this one and may keep theirs."""
    allowed = {_allowed_kind(mark) for mark in request.node.iter_markers("may_leave")}
    before = leftovers.take()
    yield
    if request.node.stash.get(_call_failed, False):
        return  # the failure's traceback keeps the objects of its frames alive
    left = leftovers.wait_until_clean(before)
    if left.keys() - allowed:
        pytest.fail(leftovers.describe({kind: left[kind] for kind in left.keys() - allowed}), pytrace=False)


def _allowed_kind(mark: pytest.Mark) -> str:
    arguments = dict(zip(("kind", "reason"), mark.args, strict=False)) | dict(mark.kwargs)
    if arguments.get("kind") not in leftovers.KINDS or not arguments.get("reason"):
        raise pytest.UsageError(
            f"expected may_leave(kind, reason) with a kind of {leftovers.KINDS}, got {mark.args} {mark.kwargs}"
        )
    return str(arguments["kind"])


# ---- without the packages of the full suite ----------------------------------------------------------------


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out files that import a package which is not installed: `make quick` installs none of the frameworks."""
    if IN_CI or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return _lacks_package(collection_path) or None


def _lacks_package(path: Path) -> bool:
    """Returns whether a file, or a helper beside it that it imports, imports a framework that is not installed."""
    tree = ast.parse(path.read_text())
    roots = {alias.name.partition(".")[0] for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    roots |= {(node.module or "").partition(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    beside = [helper for name in roots if (helper := path.with_name(f"{name}.py")).exists() and helper != path]
    return any(name in FRAMEWORKS and find_spec(name) is None for name in roots) or any(map(_lacks_package, beside))


# ---- skips -------------------------------------------------------------------------------------------------


def _packages() -> dict[str, str]:
    lines = (TOP / "tools" / "system-packages.txt").read_text().splitlines()
    return dict(line.split() for line in lines if line.strip() and not line.startswith("#"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for command in mark.args:
            if shutil.which(command) is None:
                pytest.skip(f"needs the system package {_packages().get(command, command)} (no command {command})")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_call_failed] = report.failed
    _skip_without_package(report, call)
    _no_skip_in_ci(report)
    return report


def _skip_without_package(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Turns a failure for want of a framework into a skip: `make quick` installs none."""
    error = call.excinfo.value if call.excinfo else None
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in FRAMEWORKS and find_spec(name) is None:
        report.outcome = "skipped"
        report.longrepr = (
            str(report.location[0]),
            report.location[1] or 0,
            f"Skipped: needs the Python package {name}",
        )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _no_skip_in_ci(report)
    return report


def _no_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip into a failure. An expected failure, which is reported as a skip too, is left alone."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped with CI=true: {str(reason).removeprefix('Skipped: ')}"


# ---- shared fixtures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tensorflow_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorFlowPeer]:
    """Runs a real TensorFlow in a child. Request it as an argument: started inside a test, it would count as a leak."""
    if find_spec("tensorflow") is None:
        pytest.skip("needs the Python package tensorflow-cpu")
    with TensorFlowPeer(tmp_path_factory.mktemp("tensorflow") / "stderr.txt") as peer:
        yield peer
