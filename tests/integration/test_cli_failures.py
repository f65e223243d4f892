"""What goes wrong around the command: pipes, full disks, permissions, signals, streams that are closed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli_process import (
    COMMAND,
    TIMEOUT_S,
    environment,
    everything_in,
    holdfast,
    large_file,
    on_terminal,
    refused,
    wait_for,
    without_styles,
)

from holdfast.cli.console import AFTER_S


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def shell(line: str, *paths: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of shell in which `holdfast` is the command and $1, $2, … are the paths."""
    script = 'holdfast() { "$PYTHON" -W error -m holdfast "$@"; }\n' + line
    return subprocess.run(
        ["bash", "-c", script, "bash", *map(str, paths)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(PYTHON=sys.executable, **env),
        timeout=TIMEOUT_S,
        check=False,
    )


# ---- streams -----------------------------------------------------------------------------------------------


def test_nobody_reads_on(shards: list[Path]) -> None:
    """The reader of the pipe is gone before anything is written: silence, and the command's own exit code."""
    shards[0].write_bytes(b"x")
    for command in ('verify "$@"', 'verify --json "$@"', 'inspect "$@"'):
        done = shell(f"holdfast {command} | true; echo ${{PIPESTATUS[0]}}", *shards)
        assert (done.stdout, done.stderr) == ("1\n", ""), command
    assert shell("holdfast --help | true; echo ${PIPESTATUS[0]}").stderr == ""


def test_the_first_line_of_a_pipe(shards: list[Path]) -> None:
    shards[0].write_bytes(b"x")
    done = shell('holdfast verify "$@" | head -1', *shards)
    assert (done.stdout, done.stderr) == (f"{shards[0]}\n", "")


def test_output_that_cannot_be_written(shards: list[Path]) -> None:
    done = shell('holdfast verify "$@" > /dev/full', *shards)
    assert (done.returncode, done.stderr) == (3, "holdfast: cannot write to the output: No space left on device\n")


def test_closed_streams(shards: list[Path], tmp_path: Path) -> None:
    """No file of ours gets the number of stdout or stderr, where something might be printed into it."""
    out = tmp_path / "all.tfrecord"
    done = shell('holdfast merge "$2" "$3" -o "$1" >&- 2>&- <&-', out, *shards[:2])
    assert done.returncode == 0
    assert out.read_bytes() == shards[0].read_bytes() + shards[1].read_bytes()


# ---- errors ------------------------------------------------------------------------------------------------


def test_with_json_an_error_is_a_document_too(tmp_path: Path) -> None:
    missing = tmp_path / "nix"
    done = holdfast("merge", "--json", missing, "-o", tmp_path / "out")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"error": f"{missing}: cannot open: No such file or directory"}
    assert done.stderr == f"holdfast: {missing}: cannot open: No such file or directory\n"
    done = holdfast("verify", "--json", "--frobnicate")
    assert done.returncode == 2
    assert "no such option" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("order", [("--debug", "merge"), ("merge", "--debug")])
def test_only_debug_shows_a_traceback(order: tuple[str, str], tmp_path: Path) -> None:
    arguments = (tmp_path / "nix", "-o", tmp_path / "out")
    assert "Traceback" not in holdfast("merge", *arguments).stderr
    done = holdfast(*order, *arguments)
    assert done.returncode == 3
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "holdfast.errors.MissingFileError: " in done.stderr
    assert done.stderr.splitlines()[-1] == f"holdfast: {tmp_path / 'nix'}: cannot open: No such file or directory"


def test_a_bug_is_called_one(shards: list[Path]) -> None:
    program = (
        "import sys; from holdfast.cli import main, verify; verify.verify_files = lambda *a, **k: {}['x']; "
        f"sys.exit(main(['verify', {str(shards[0])!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 70
    assert (
        done.stderr
        == "holdfast: a bug in holdfast: KeyError: 'x'. Please report it with the traceback that --debug shows\n"
    )


NOBODY = """
import contextlib, io, os, sys, importlib, pkgutil
import holdfast.cli
for module in pkgutil.iter_modules(holdfast.cli.__path__, "holdfast.cli."):
    importlib.import_module(module.name)
with contextlib.redirect_stdout(io.StringIO()):
    holdfast.cli.main(["verify", "nix"])  # loads what is loaded late: nobody may not read it
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(holdfast.cli.main(sys.argv[1:]))
"""


def test_no_permission(shards: list[Path]) -> None:
    """Nothing is forbidden to root, so this is done as nobody, in a folder everybody can get at."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "secret.tfrecord").write_bytes(shards[0].read_bytes())
        (folder / "secret.tfrecord").chmod(0)
        (folder / "open.tfrecord").write_bytes(shards[0].read_bytes())
        (folder / "shut").mkdir(mode=0o555)

        def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", NOBODY, *arguments]
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

        done = as_nobody("verify", "secret.tfrecord", "open.tfrecord")
        assert done.returncode == 3
        assert "  cannot open: Permission denied\n" in done.stdout
        done = as_nobody("merge", "open.tfrecord", "-o", "shut/all.tfrecord")
        assert (done.returncode, done.stderr) == (3, "holdfast: cannot write shut/all.tfrecord: Permission denied\n")
        done = as_nobody("split", "open.tfrecord", "-n", "2", "-o", "shut/deep")
        assert (done.returncode, done.stderr) == (3, "holdfast: cannot make the folder shut/deep: Permission denied\n")
        assert list((folder / "shut").iterdir()) == []


# ---- full disks --------------------------------------------------------------------------------------------

FULL = """
import os, resource, sys
from holdfast.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["merge", "split", "salvage"])
def test_no_room_for_a_file(command: str, tmp_path: Path) -> None:
    """A limit on file sizes: everybody can set one, and write fails in the middle as on a full disk."""
    large_file(tmp_path / "in.tfrecord", 1)
    out = tmp_path / "out"
    out.mkdir()
    arguments = {
        "merge": ["in.tfrecord", "-o", "out/x"],
        "split": ["in.tfrecord", "-n", "1", "-o", "out"],
        "salvage": ["in.tfrecord", "out/x"],
    }[command]
    done = subprocess.run(
        [sys.executable, "-c", FULL, command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("holdfast: cannot write out/")
    assert done.stderr.endswith(": File too large; nothing of it was left behind\n")
    assert list(everything_in(out)) == []


def _own_mounts() -> list[str] | None:
    """How to run a command that may mount things nobody else sees."""
    for prefix in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        trial = [*prefix, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
        try:
            if subprocess.run(trial, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return prefix
        except FileNotFoundError:
            return None
    return None


MOUNTED = _own_mounts()


@pytest.mark.skipif(MOUNTED is None and os.environ.get("CI") != "true", reason="needs to be allowed to mount a tmpfs")
@pytest.mark.parametrize("command", ['merge in.tfrecord -o "$1/x"', 'split in.tfrecord -n 2 -o "$1/d"'])
def test_a_full_disk(command: str, tmp_path: Path) -> None:
    assert MOUNTED is not None
    large_file(tmp_path / "in.tfrecord", 3)
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=2M none "$1" || exit 99\n'
        f'"$PYTHON" -m holdfast {command}\ncode=$?\nfind "$1" -mindepth 1\nexit $code'
    )
    done = subprocess.run(
        [*MOUNTED, "sh", "-c", script, "sh", str(disk)],
        cwd=tmp_path,
        env=environment(PYTHON=sys.executable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith(": No space left on device; nothing of it was left behind\n")


# ---- signals -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes seconds to pack."""
    path = tmp_path_factory.mktemp("slow") / "slow.tfrecord"
    large_file(path, 100)
    return path


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "holdfast: interrupted\n"),
        (signal.SIGTERM, 143, "holdfast: terminated by SIGTERM\n"),
    ],
)
@pytest.mark.parametrize("command", ["merge", "split"])
def test_a_command_that_is_ended_leaves_nothing(
    command: str, number: int, code: int, said: str, slow: Path, tmp_path: Path
) -> None:
    target = {"merge": ["-o", tmp_path / "x"], "split": ["-n", "4", "-o", tmp_path / "d" / "e"]}[command]
    with start(command, slow, *target, "--compression", "gzip") as process:
        wait_for(lambda: _has_begun(tmp_path), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (code, "", said)
    assert list(everything_in(tmp_path)) == []


# Ctrl-C while a class is made: Python wraps what comes out of a __set_name__ into a RuntimeError. Another as it ends.
_INTERRUPTING = """
import atexit, functools, os, signal

def interrupt(self, owner, name, whole=functools.cached_property.__set_name__):
    if owner.__name__ == os.environ["INTERRUPTED_CLASS"]:
        atexit.register(signal.raise_signal, signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    return whole(self, owner, name)

functools.cached_property.__set_name__ = interrupt
"""


_INTERRUPTING_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_MODULE"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli", "holdfast.cli.app"])
def test_ctrl_c_while_the_command_itself_is_loaded(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING_IMPORT)
    entry = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"][
        "holdfast"
    ].removesuffix(":main")
    code = f"import sys; from {entry} import main; sys.exit(main())"  # as the installed script
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(PYTHONPATH=path, INTERRUPTED_MODULE=module)
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, env=env, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "holdfast: interrupted\n")


@pytest.mark.parametrize("made", ["platform.uname_result", "numpy.finfo"])
def test_ctrl_c_while_modules_are_loaded(shards: list[Path], tmp_path: Path, made: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = holdfast("inspect", *shards, PYTHONPATH=path, INTERRUPTED_CLASS=made.rpartition(".")[2])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "holdfast: interrupted\n")


def _has_begun(folder: Path) -> bool:
    return any(path.stat().st_size > 0 for path in folder.rglob(".*.partial"))


def test_a_killed_split_shows_no_part_and_can_be_done_again(slow: Path, tmp_path: Path) -> None:
    with start("split", slow, "-n", "4", "-o", tmp_path, "--compression", "gzip") as process:
        wait_for(lambda: _has_begun(tmp_path), process)
        process.kill()
        process.communicate()
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    done = holdfast("split", slow, "-n", "2", "-o", tmp_path)
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "holdfast.manifest.json",
        "slow-00000-of-00002.tfrecord",
        "slow-00001-of-00002.tfrecord",
    ]


def test_a_second_split_into_the_same_place_is_refused(slow: Path, tmp_path: Path) -> None:
    with start("split", slow, "-n", "4", "-o", tmp_path, "--compression", "gzip") as process:
        wait_for(lambda: _has_begun(tmp_path), process)
        said = refused("split", slow, "-n", "2", "-o", tmp_path, code=3)
        process.kill()
        process.communicate()
    assert said == f"another split into {tmp_path} under the name slow is running; wait until it ends, or stop it"


def test_worker_processes_end_with_the_command(tmp_path: Path) -> None:
    """Pure Python verifies in processes. Ctrl-C on a terminal reaches all of them; none may talk, none may stay."""
    for i in range(2):
        large_file(tmp_path / f"{i}.tfrecord", 60)
    env = environment(HOLDFAST_NATIVE="0")
    command = [*COMMAND, "verify", "-j", "2", str(tmp_path)]
    for end in (_interrupt_group, _kill):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
        ) as process:
            wait_for(lambda: len(_session(process.pid)) >= 4, process)  # it, two workers, Python's resource tracker
            end(process)
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert out == ""
        if end is _interrupt_group:
            assert (process.returncode, err) == (130, "holdfast: interrupted\n")
        _wait_until_gone(process.pid)


def _interrupt_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()


def _session(leader: int) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(pid)) == leader:
                found.append(int(pid))
        except OSError:
            continue
    return found


def _wait_until_gone(leader: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as clock:
        wait_for(lambda: not _session(leader), clock)


# ---- progress ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.tfrecord"
    large_file(path, 200)
    return path


def _hold_up(process: subprocess.Popen[Any], file: Path) -> None:
    """Makes its work take more than a second on any machine: stopped with the file open, let go after that second."""
    wait_for(lambda: _has_open(process.pid, file), process)
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(AFTER_S + 0.1)
    finally:
        process.send_signal(signal.SIGCONT)


def _has_open(pid: int, file: Path) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd) == str(file):
                return True
    return False


def test_a_bar_appears_on_a_terminal_and_goes_again(long_work: Path) -> None:
    shown, code = on_terminal(
        "verify", long_work, HOLDFAST_NATIVE="0", meanwhile=lambda process: _hold_up(process, long_work)
    )
    assert code == 0
    frames = [
        line for line in without_styles(shown).replace("\r", "\n").splitlines() if line.startswith("verifying 1 file")
    ]
    assert frames
    assert all(len(frame) <= 80 for frame in frames)
    assert any("/209.7 MB" in frame and "MB/s" in frame and ":" in frame for frame in frames)
    assert shown.endswith("\x1b[2K1 file, 200 records, 210 MB: all intact\n")  # the bar's line was cleared


def test_no_bar_when_quiet_or_when_nobody_watches(long_work: Path) -> None:
    assert on_terminal("verify", "-q", long_work, HOLDFAST_NATIVE="0") == ("", 0)
    done = holdfast("verify", long_work, HOLDFAST_NATIVE="0")
    assert (done.stdout, done.stderr) == ("1 file, 200 records, 210 MB: all intact\n", "")


def test_short_work_has_no_bar(shards: list[Path]) -> None:
    shown, _ = on_terminal("verify", *shards)
    assert "verifying" not in shown
