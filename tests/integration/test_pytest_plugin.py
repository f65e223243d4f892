"""The plugin in a real pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = """
import os, socket, subprocess, sys, threading
from multiprocessing.shared_memory import SharedMemory
import pytest
keep = []

def test_clean():
    with socket.socket():
        pass

def test_socket():
    keep.append(socket.socket())

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="left").start()

def test_child():
    keep.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_shm():
    SharedMemory(create=True, size=10, name="hf_plugin_test").close()
"""


def run(
    tmp_path: Path, text: str, *arguments: str, ini: str = "", plugins: Sequence[str] = ("holdfast.pytest",)
) -> tuple[int, str]:
    """With the named plugins and no others."""
    return pytest_in(tmp_path, text, *_named(plugins), *arguments, ini=ini, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def _named(plugins: Sequence[str]) -> list[str]:
    return [word for plugin in plugins for word in ("-p", plugin)]


def pytest_in(tmp_path: Path, text: str, *arguments: str, ini: str = "", **env: str) -> tuple[int, str]:
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers\n{ini}\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=tmp_path,
        env=clean | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def outcomes(said: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in said.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] in ("PASSED", "ERROR", "FAILED", "SKIPPED", "XFAIL") and "::" in words[1]:
            found.setdefault(words[1].rpartition("::")[2], set()).add(words[0])
    return found


@pytest.fixture
def _no_shm_left() -> object:
    yield
    Path("/dev/shm/hf_plugin_test").unlink(missing_ok=True)


@pytest.mark.usefixtures("_no_shm_left")
def test_every_kind_of_leftover_fails_its_test(tmp_path: Path) -> None:
    code, said = run(tmp_path, TESTS, "--fd-leaks")
    left = {"PASSED", "ERROR"}
    assert code == 1, said
    assert outcomes(said) == {
        "test_clean": {"PASSED"},
        "test_socket": left,
        "test_thread": left,
        "test_child": left,
        "test_shm": left,
    }
    assert "left behind: 1 socket" in said
    assert "held by test_it.py:5 module variable 'keep'[0] → socket(fd " in said
    assert "thread: left (daemon)" in said
    assert f"{sys.executable} -c input()" in said
    assert "module variable 'keep'[1] → Popen.stdin → BufferedWriter(fd " in said
    assert "shm_file: /dev/shm/hf_plugin_test" in said


@pytest.mark.usefixtures("_no_shm_left")
def test_it_is_off_until_asked_for(tmp_path: Path) -> None:
    code, said = run(
        tmp_path,
        TESTS
        + "\ndef test_light():\n    assert not any('holdfast.' in m for m in sys.modules if m != 'holdfast.pytest')\n",
    )
    assert code == 0, said
    assert "6 passed" in said


def test_some_may_stay(tmp_path: Path) -> None:
    text = "import os\ndef test_two():\n    os.pipe()\ndef test_four():\n    os.pipe(); os.pipe()\n"
    code, said = run(tmp_path, text, "--fd-leaks=2")
    assert code == 1
    assert outcomes(said) == {"test_two": {"PASSED"}, "test_four": {"PASSED", "ERROR"}}
    assert "left behind: 4 pipe (allowed: 2)" in said
    assert "no Python object owns it: opened by C code or as a bare number, or its owner is lost  [4 ×]" in said
    code, said = run(tmp_path, text, ini="fd_leaks = 2")
    assert outcomes(said) == {"test_two": {"PASSED"}, "test_four": {"PASSED", "ERROR"}}
    code, said = run(tmp_path, text, "--fd-leaks=4", ini="fd_leaks = 2")
    assert code == 0, said


def test_the_mark(tmp_path: Path) -> None:
    text = """
import os, pytest
@pytest.mark.fd_leaks
def test_none():
    os.pipe()
@pytest.mark.fd_leaks(max=2)
def test_two():
    os.pipe()
@pytest.mark.fd_leaks(kinds=["socket"])
def test_sockets():
    os.pipe()
@pytest.mark.fd_leaks(max=None)
def test_not_looked_at():
    os.pipe()
def test_unmarked():
    os.pipe()
"""
    code, said = run(tmp_path, text)
    assert code == 1
    assert [name for name, seen in outcomes(said).items() if "ERROR" in seen] == ["test_none"]
    code, said = run(tmp_path, text, "--fd-leaks")
    assert [name for name, seen in outcomes(said).items() if "ERROR" in seen] == ["test_none", "test_unmarked"]


FIXTURES = """
import os, socket, pytest
@pytest.fixture(scope="session")
def wide():
    with socket.socket() as one:
        yield one
@pytest.fixture(scope="module")
def late():
    with socket.socket() as one:
        yield one
@pytest.fixture
def narrow():
    with socket.socket() as one:
        yield one
@pytest.fixture
def sloppy():
    ends = os.pipe()
    yield ends
def test_wide(wide): pass
def test_narrow(narrow, wide): pass
def test_late(request): request.getfixturevalue("late")
def test_sloppy(sloppy): pass
def test_capfd(capfd, tmp_path, monkeypatch): print("x")
"""


def test_fixtures(tmp_path: Path) -> None:
    code, said = run(tmp_path, FIXTURES, "--fd-leaks")
    assert code == 1
    assert [name for name, seen in outcomes(said).items() if "ERROR" in seen] == ["test_sloppy"]


def test_a_failure_is_reported_alone(tmp_path: Path) -> None:
    text = """
import os, socket, pytest
def test_fails():
    one = socket.socket()
    assert one is None
@pytest.mark.xfail
def test_expected():
    one = socket.socket()
    assert one is None
def test_skips():
    pytest.skip("why")
@pytest.fixture
def broken():
    one = socket.socket()
    raise KeyError(one)
def test_setup(broken): pass
def test_next(): pass
"""
    code, said = run(tmp_path, text, "--fd-leaks", "-W", "ignore")
    assert code == 1
    assert "left behind" not in said
    assert outcomes(said)["test_next"] == {"PASSED"}
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in said


def test_with_a_timeout(tmp_path: Path) -> None:
    text = (
        "import pytest\n@pytest.mark.timeout(60, method='thread')\ndef test_thread(): pass\ndef test_signal(): pass\n"
    )
    code, said = run(tmp_path, text, "--fd-leaks", "--timeout=60", plugins=["holdfast.pytest", "pytest_timeout"])
    assert code == 0, said


def test_wrong_use(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.fd_leaks(most=3)\ndef test_it(): pass\n"
    code, said = run(tmp_path, text, "--fd-leaks", "test_it.py")
    assert code == 4
    assert "expected --fd-leaks or --fd-leaks=N, got 'test_it.py'; before a path write --fd-leaks=0" in said
    code, said = run(tmp_path, text, ini="fd_leaks = many")
    assert code == 4
    assert "expected fd_leaks to be a number in the ini file, got 'many'" in said
    code, said = run(tmp_path, text)
    assert code == 1
    assert "expected fd_leaks(max=0, kinds=None), got" in said
    code, said = run(tmp_path, text.replace("most=3", "kinds=['pipes']"))
    assert code == 1
    assert "got 'pipes'" in said


def test_it_registers_by_itself_and_may_be_named_as_well(tmp_path: Path) -> None:
    """By the entry point that the package declares, here in a package of its own."""
    about = tmp_path / "registers-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: registers\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nholdfast.pytest = holdfast.pytest\n")
    text = "import os\ndef test_pipe():\n    os.pipe()\n"
    for named in ([], ["-p", "holdfast.pytest"]):
        _, said = pytest_in(tmp_path, text, "--fd-leaks", *named, PYTHONPATH=str(tmp_path))
        assert "left behind: 2 pipe" in said


def test_help_names_it(tmp_path: Path) -> None:
    _, said = run(tmp_path, "", "--help")
    assert "--fd-leaks" in said
    _, said = run(tmp_path, "", "--markers")
    assert "@pytest.mark.fd_leaks(max=0, kinds=None)" in said


def test_it_names_the_lines_that_opened_what_was_left(tmp_path: Path) -> None:
    text = "import os\ndef helper():\n    return os.pipe()\ndef test_pipe():\n    helper()\ndef test_clean(): pass\n"
    path = tmp_path / "test_it.py"
    code, said = run(tmp_path, text, "--fd-leaks", "--fd-leaks-trace")
    assert code == 1
    assert f"  opened at {path}:3 in helper ← {path}:5 in test_pipe (2 descriptors: " in said
    assert outcomes(said) == {"test_pipe": {"PASSED", "ERROR"}, "test_clean": {"PASSED"}}
    assert "opened at" not in run(tmp_path, text, "--fd-leaks")[1]
    assert f"{path}:3 in helper" in run(tmp_path, text, "--fd-leaks-trace")[1]  # alone, it checks every test
    assert run(tmp_path, text, ini="fd_leaks_trace = true")[0] == 0
    assert f"{path}:3 in helper" in run(tmp_path, text, ini="fd_leaks = 0\nfd_leaks_trace = true")[1]
