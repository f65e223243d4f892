"""The rules every test lives by, shown on small suites that break them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with our settings, our conftest and no test yet."""
    shutil.copytree(TOP / "tests" / "support", tmp_path / "tests" / "support")
    shutil.copy(TOP / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "system-packages.txt").write_text("no-such-command  its-package\n")
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    return tmp_path


def run(suite: Path, source: str, **env: str) -> tuple[dict[str, int], str]:
    """How many tests passed, failed, … and all that was said."""
    (suite / "tests" / "test_it.py").write_text("import os, pytest, threading\n" + source)
    clean = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("HOLDFAST_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "--color=no",
    ]
    done = subprocess.run(command, cwd=suite, env=clean | env, capture_output=True, text=True, check=False)
    words = done.stdout.strip().splitlines()[-1].strip("= ").split(" in ")[0].replace(",", "").split()
    return dict(zip(words[1::2], map(int, words[::2]), strict=True)), done.stdout + done.stderr


def test_a_descriptor_left_behind_fails_its_test_alone(suite: Path) -> None:
    counts, said = run(suite, "def test_leaves(): os.open('/dev/zero', 0)\ndef test_next(): pass\n")
    assert counts == {"passed": 2, "error": 1}
    assert "left behind by this test:" in said
    assert "-> /dev/zero" in said
    assert "ERROR tests/test_it.py::test_leaves" in said


def test_a_failing_test_is_not_blamed_for_what_its_traceback_holds(suite: Path) -> None:
    counts, _ = run(suite, "def test_fails():\n    file = open('/dev/zero')\n    assert not file\n")
    assert counts == {"failed": 1}


def test_what_a_wider_fixture_holds_is_not_the_tests(suite: Path) -> None:
    source = (
        "@pytest.fixture(scope='module')\n"
        "def held():\n    with open('/dev/zero') as file:\n        yield file\n"
        "def test_one(held): pass\ndef test_two(held): pass\n"
    )
    assert run(suite, source)[0] == {"passed": 2}


def test_may_leave_needs_a_known_kind_and_a_reason(suite: Path) -> None:
    leaves = "def test_leaves(): os.open('/dev/zero', 0)\n"
    assert run(suite, "@pytest.mark.may_leave('fd', 'kept by the kernel')\n" + leaves)[0] == {"passed": 1}
    counts, said = run(suite, "@pytest.mark.may_leave('fd')\n" + leaves)
    assert counts == {"error": 1}
    assert "expected may_leave(kind, reason)" in said


def test_a_missing_command_skips_naming_its_package(suite: Path) -> None:
    source = "@pytest.mark.needs('no-such-command')\ndef test_it(): pass\n"
    counts, said = run(suite, source)
    assert counts == {"skipped": 1}
    assert "needs the system package its-package (no command no-such-command)" in said


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "@pytest.mark.needs('no-such-command')\ndef test_it(): pass\n",
            "needs the system package its-package",
        ),
        ("def test_it(): pytest.skip('not today')\n", "not today"),
        ("@pytest.mark.skip(reason='never')\ndef test_it(): pass\n", "never"),
        ("pytest.skip('the whole module', allow_module_level=True)\n", "the whole module"),
    ],
    ids=["needs", "call", "mark", "module"],
)
def test_a_skip_fails_in_ci(suite: Path, source: str, reason: str) -> None:
    counts, said = run(suite, source, CI="true")
    assert "skipped" not in counts
    assert f"skipped with CI=true: {reason}" in said


def test_an_expected_failure_stays_one_in_ci(suite: Path) -> None:
    source = "@pytest.mark.xfail(reason='known')\ndef test_it(): assert False\n"
    assert run(suite, source, CI="true")[0] == {"xfailed": 1}


def test_the_users_settings_and_cache_stay_out(suite: Path) -> None:
    source = (
        "def test_it():\n"
        "    assert [name for name in os.environ if name.startswith('HOLDFAST_')] == ['HOLDFAST_NATIVE']\n"
        "    assert os.environ['XDG_CACHE_HOME'] != '/precious'\n"
    )
    env = {"HOLDFAST_NATIVE": "0", "HOLDFAST_WHATEVER": "1", "XDG_CACHE_HOME": "/precious"}
    assert run(suite, source, **env)[0] == {"passed": 1}


def test_a_process_of_a_test_can_be_interrupted_whatever_the_suite_was_started_with(suite: Path) -> None:
    """As a background job of a script is: with SIGINT ignored."""
    source = (
        "import signal, subprocess, sys\n"
        "def test_it():\n"
        "    code = 'import os, signal; os.kill(os.getpid(), signal.SIGINT); print(1)'\n"
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True)\n"
        "    assert b'KeyboardInterrupt' in done.stderr\n"
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run(suite, source)[0] == {"passed": 1}
    finally:
        signal.signal(signal.SIGINT, before)
