"""`holdfast trace` runs any program untouched, follows its processes, and saves what they opened and closed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_process import COMMAND, environment, holdfast, refused

from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.log_format import BIRTH, FAIL, INHERITED
from holdfast.process.fdtrace.sites import Site, Statistics
from holdfast.process.fdtrace.trace_file import Trace, TracedProcess
from traced_process import as_array, needs_library

pytestmark = needs_library

SHM = Path("/dev/shm")
LEAK = "import os\nkeep = []\nfor _ in range(30):\n    keep.append(os.open('/dev/null', os.O_RDONLY))\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def traced(folder: Path, *arguments: str | Path, **env: str) -> tuple[subprocess.CompletedProcess[str], Trace]:
    """Run a program under the command. Returns how it ended, and the recording."""
    output = folder / "run.hft"
    done = holdfast("trace", "-o", output, *arguments, cwd=folder, **env)
    assert output.exists(), done
    return done, trace_file.load(output)


@contextmanager
def running(folder: Path, *arguments: str | Path, group: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and wait until the program has printed its first line."""
    command = [*COMMAND, "trace", "-o", str(folder / "run.hft"), *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def site_at(trace: Trace, place: str) -> Site:
    """Return the site whose file and line end with `place`."""
    sites = Statistics(trace).sites
    found = [site for site in sites if site.where.endswith(place)]
    assert len(found) == 1, [(site.where, site.live) for site in sites]
    return found[0]


def process_of(trace: Trace, word: str) -> TracedProcess:
    [found] = [process for process in trace.processes if word in process.command]
    return found


def folders() -> set[str]:
    return {path.name for path in SHM.glob("holdfast-trace-*")}


# ---- what can be run


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "import sys\nprint(sys.argv, __name__)")
    done, trace = traced(tmp_path, "a.py", "-o", "x", "--json", "--", "-q", "ü")
    assert done.stdout == "['a.py', '-o', 'x', '--json', '--', '-q', 'ü'] __main__\n"
    assert trace.command.endswith("a.py -o x --json -- -q ü")
    assert trace.exit_code == 0
    assert not trace.is_partial
    assert [process.ended for process in trace.processes] == ["exit"]


def test_a_module_a_piece_of_code_and_any_command(tmp_path: Path) -> None:
    write(tmp_path / "mod.py", "import sys; print(sys.argv[1:], __name__)")
    assert traced(tmp_path, "-m", "mod", "-c", "-m")[0].stdout == "['-c', '-m'] __main__\n"
    assert traced(tmp_path, "-c", "import sys; print(sys.argv)", "-o", "y")[0].stdout == "['-c', '-o', 'y']\n"
    done, trace = traced(tmp_path, "--", "sh", "-c", 'exec 7</dev/null; echo "$@"; exit 9', "sh", "-o", "z")
    assert (done.stdout, done.returncode) == ("-o z\n", 9)
    assert trace.processes[0].python == ""


def test_wrong_usage_runs_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "print('ran')")
    for arguments, sentence in (
        ((), "expected a script to run, -m MODULE, -c CODE or -- COMMAND"),
        (("ls",), "expected a Python script, got ls; write `-- ls` to trace another program"),
        (("--attach", "1", "a.py"), "expected --attach PID or a program to run, got both"),
        (("--for", "1s", "a.py"), "expected --for only with --attach; a program is traced until it ends"),
    ):
        done = holdfast("trace", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert sentence in done.stderr
    assert refused("trace", "no.py", code=3, cwd=tmp_path) == "no.py: no such script"
    assert "not on PATH" in refused("trace", "--", "no-such-command", code=3, cwd=tmp_path)
    assert "may not be executed" in refused("trace", "--", "./a.py", code=3, cwd=tmp_path)
    assert "--arm-above" in refused("trace", "--arm-above", "-1", "a.py", code=2, cwd=tmp_path)


def test_short_options_may_be_written_together(tmp_path: Path) -> None:
    write(tmp_path / "mod.py", "import sys; print(sys.argv[1:])")
    done = holdfast("trace", "-qorun.hft", "-mmod", "-x", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['-x']\n", "")
    done = holdfast("trace", "-qc", "print(5)", "-x", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("5\n", "")


def test_the_verdict_reports_a_descriptor_that_was_closed_twice(tmp_path: Path) -> None:
    code = "import os\nfd = os.open('/dev/null', 0)\nos.close(fd)\ntry: os.close(fd)\nexcept OSError: pass"
    done, _ = traced(tmp_path, "-c", code)
    assert "holdfast: Bad file descriptor: <string>:4 closes descriptor" in done.stderr
    assert "a second time: <string>:3 closed it before." in done.stderr


def test_a_shell_script_does_not_leak_what_its_short_processes_had_open(tmp_path: Path) -> None:
    done, _ = traced(tmp_path, "--", "sh", "-c", "for i in 1 2 3 4 5 6; do cat /dev/null | head -1 | wc -c; done")
    assert "No site grows" in done.stderr, done


def test_code_without_a_file_is_blamed_for_what_it_opens_through_a_library(tmp_path: Path) -> None:
    _, trace = traced(tmp_path, "-c", "import tempfile\nkeep = [tempfile.TemporaryFile() for _ in range(9)]")
    assert site_at(trace, "<string>:2").live == 9


def test_the_first_close_of_the_shutdown_is_part_of_it(tmp_path: Path) -> None:
    _, trace = traced(tmp_path, "--", sys.executable, "-I", "-S", "-c", "keep = [open('/dev/null') for _ in range(9)]")
    assert site_at(trace, "<string>:1").live == 9


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_a_child_that_cannot_reach_the_logs_is_counted(tmp_path: Path) -> None:
    code = "import os\nos.chroot('.')\nif os.fork() == 0: os._exit(0)\nos.wait()"
    _, trace = traced(tmp_path, "-c", code)
    assert any("folder of the logs was out of reach" in line for line in trace.warnings), trace.warnings


def test_the_page_is_not_written_over_the_recording(tmp_path: Path) -> None:
    traced(tmp_path, "-c", "1")
    said = refused("report", "run.hft", "--html", "run.hft", code=3, cwd=tmp_path)
    assert said == "run.hft is also an input; name another output"


# ---- streams, exit code, messages


def test_the_streams_and_the_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1]); sys.stderr.write('E'); sys.exit(7)"
    data = bytes(range(256)) * 400
    done = subprocess.run(
        [*COMMAND, "trace", "-q", "-o", tmp_path / "run.hft", "-c", code], input=data, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, data[::-1], b"E")
    assert trace_file.load(tmp_path / "run.hft").exit_code == 7


def test_messages_go_to_stderr(tmp_path: Path) -> None:
    done, _ = traced(tmp_path, "-c", LEAK)
    assert done.stdout == ""
    *_, verdict, saved = done.stderr.splitlines()
    assert verdict.startswith("holdfast: ")
    output = tmp_path / "run.hft"
    assert saved == f"holdfast: saved {output}; see `holdfast report {output}`"
    done, _ = traced(tmp_path, "--json", "-c", "print('mine')")
    assert done.stdout == "mine\n"
    said = json.loads(done.stderr)
    assert said["file"] == str(output)
    assert said["warnings"] == []
    assert traced(tmp_path, "-q", "-c", "")[0].stderr == ""


def test_without_a_name_the_recording_has_the_number_of_the_command(tmp_path: Path) -> None:
    done = holdfast("trace", "-c", "", cwd=tmp_path)
    [path] = tmp_path.iterdir()
    assert path.match("trace-*.hft")
    assert path.name in done.stderr


# ---- signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT", "SIGQUIT", "SIGWINCH"])
def test_a_signal_to_the_command_is_the_program_s(name: str, tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        f"signal.signal(signal.{name}, lambda *_: (print('got it'), sys.exit(5)))\n"
        "print('ready'); signal.pause()"
    )
    with running(tmp_path, "-q", "-c", code) as process:
        process.send_signal(getattr(signal, name))
        assert ended(process) == (5, "got it\n", "")
    assert trace_file.load(tmp_path / "run.hft").exit_code == 5


def test_ctrl_c_reaches_both_and_ends_the_program_only(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "try:\n    print('ready')\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('once')\n"
        "time.sleep(0.2); raise SystemExit(4)"
    )
    with running(tmp_path, "-q", "-c", code, group=True) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process) == (4, "once\n", "")


def test_ctrl_c_of_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\ngot = []\nsignal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('got', len(got), flush=True), sys.exit(4)))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(0.01)\n"
    )
    main, terminal = os.openpty()
    command = [sys.executable, "-m", "holdfast", "trace", "-q", "-o", str(tmp_path / "run.hft"), "-c", code]
    start = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execv(sys.executable, sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *command],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    with open(main, "r+b", buffering=0) as keyboard, process:
        assert b"ready" in keyboard.read(1000)
        keyboard.write(b"\x03")
        said = b""
        while b"^C" not in said:
            said += keyboard.read(1000)
        process.send_signal(signal.SIGTERM)  # passed after what came before it
        while not re.search(rb"got \d+\r\n", said):
            said += keyboard.read(1000)
        assert process.wait(60) == 4
    assert b"got 1\r\n" in said, said


def test_a_leaking_program_that_ctrl_c_ends_still_ends_by_the_signal(tmp_path: Path) -> None:
    code = "import time\nkeep = [open('/dev/null') for _ in range(30)]\nprint('ready')\ntime.sleep(60)"
    with running(tmp_path, "-q", "-c", code, group=True) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process)[0] == -signal.SIGINT
    assert site_at(trace_file.load(tmp_path / "run.hft"), "<string>:2").owners


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGINT", "SIGTERM"])
def test_the_command_ends_by_the_signal_that_ended_the_program(name: str, tmp_path: Path) -> None:
    code = f"{LEAK}import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.{name})"
    done, trace = traced(tmp_path, "-c", code)
    assert done.returncode == trace.exit_code == -getattr(signal, name)
    assert [process.ended for process in trace.processes] == ["killed"]
    assert len(as_array(trace.events, action=BIRTH, kind=1)) >= 30
    assert trace.open["flags"].count(1) == 30


# ---- processes

WORK = """
import multiprocessing, os, sys, subprocess
def leak():
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(25)]  # line 4
def work(how, ready=None):
    kept = leak()
    if ready is not None:
        ready.send(how)
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_are_followed(how: str, tmp_path: Path) -> None:
    main = f"""
if __name__ == "__main__":
    context = multiprocessing.get_context({how!r})
    first, second = context.Pipe(False)
    process = context.Process(target=work, args=({how!r}, second))
    process.start()
    print(first.recv()); process.join()
"""
    write(tmp_path / "a.py", WORK + main)
    done, trace = traced(tmp_path, "a.py")
    assert (done.returncode, done.stdout) == (0, f"{how}\n"), done.stderr
    site = site_at(trace, "a.py:4")
    assert (site.born, len(site.processes)) == (25, 1)
    assert site.processes[0] != trace.processes[0].pid


def test_a_forked_child_shows_the_stacks_of_its_parent(tmp_path: Path) -> None:
    write(tmp_path / "a.py", f"{WORK}kept = leak()\nif not os.fork(): os._exit(0)\nos.wait()\n")
    _, trace = traced(tmp_path, "a.py")
    site = site_at(trace, "a.py:4")
    assert (site.born, site.live, site.inherited) == (25, 25, 25)
    parent, child = trace.processes
    assert (child.parent, child.ended) == (0, "_exit")
    assert parent.parent is None
    assert sum(flags & INHERITED > 0 for flags in trace.open["flags"]) >= 25


def test_subprocess_and_exec_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "b.py", f"{WORK}kept = leak()\nos.execv(sys.executable, [sys.executable, 'c.py'])\n")
    write(tmp_path / "c.py", "import os\nkept = [os.pipe() for _ in range(15)]\n")
    write(tmp_path / "a.py", "import subprocess, sys\nsubprocess.run([sys.executable, 'b.py'], check=True)\n")
    _, trace = traced(tmp_path, "a.py")
    first, second = process_of(trace, "b.py"), process_of(trace, "c.py")
    assert (first.pid, first.ended, second.ended) == (second.pid, "exec", "exit")
    assert site_at(trace, "b.py:4").born == 25
    assert site_at(trace, "c.py:2").born == 30


def test_what_comes_by_exec_keeps_its_site(tmp_path: Path) -> None:
    write(
        tmp_path / "a.py",
        f"""{WORK}
if len(sys.argv) == 1:
    for fd in leak():
        os.set_inheritable(fd, True)
    os.execv(sys.executable, [sys.executable, "a.py", "again"])
kept = leak()
import time; time.sleep(1.5)  # a look at /proc comes once a second
""",
    )
    _, trace = traced(tmp_path, "a.py")
    assert [process.ended for process in trace.processes] == ["exec", "exit"]
    statistics = Statistics(trace)
    assert statistics.unknown == []
    [site] = [site for site in statistics.sites if site.live]
    assert (site.born, site.closed, site.live, sum(site.kinds.values())) == (50, 0, 50, 50)


def test_a_short_busy_leak_fails_the_check(tmp_path: Path) -> None:
    """The ring has dropped most of it, and no sample was taken."""
    write(
        tmp_path / "a.py",
        f"""{WORK}
def pair(): os.close(os.dup(0))
def one(): kept.append(os.dup(0))
kept = []
for number in range(60_000):
    pair()
    if not number % 300: one()
""",
    )
    _, trace = traced(tmp_path, "a.py")
    assert trace.processes[0].dropped_events
    [grows] = [site for site in Statistics(trace).sites if site.growth > 0]
    assert (grows.frame.function, grows.live) == ("one", 200)
    assert holdfast("report", "run.hft", "--fail-on-growth", "10", cwd=tmp_path).returncode == 1


def test_a_daemon_outlives_the_program(tmp_path: Path) -> None:
    write(
        tmp_path / "a.py",
        f"""{WORK}
read, write_ = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        kept = leak()
        for fd in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        os.write(write_, b"%d" % os.getpid())
        os.close(write_)
        import time; time.sleep(60)
    os._exit(0)
print(os.read(read, 10).decode())
""",
    )
    before = folders()
    done, trace = traced(tmp_path, "a.py")
    daemon = int(done.stdout)
    try:
        assert [process.ended for process in trace.processes if process.pid == daemon] == ["running"]
        assert site_at(trace, "a.py:4").live == 25
        assert folders() == before
        assert f"the program went on in the background as process {daemon} (" in done.stderr
    finally:
        os.kill(daemon, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{daemon}").exists() or "Z" in _state(daemon))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


# ---- the folder of the logs


def test_the_logs_are_private_and_gone_afterwards(tmp_path: Path) -> None:
    before = folders()
    with running(tmp_path, "-q", "-c", "import signal; print('ready'); signal.pause()") as process:
        [name] = folders() - before
        folder = SHM / name
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        process.terminate()
        assert ended(process)[0] == -signal.SIGTERM
    assert folders() == before


def test_the_folder_of_a_killed_command_is_removed_by_the_next(tmp_path: Path) -> None:
    before = folders()
    code = "import os, time\nparent = os.getppid()\nprint('ready')\nwhile os.getppid() == parent: time.sleep(0.01)"
    with running(tmp_path, "-c", code) as process:
        [abandoned] = folders() - before
        process.kill()
        assert ended(process)[0] == -signal.SIGKILL
    assert abandoned in folders()
    with running(tmp_path, "-q", "-c", "import signal; print('ready'); signal.pause()") as process:
        [alive] = folders() - before  # the abandoned one is gone
        assert traced(tmp_path, "-c", "")[0].returncode == 0
        assert folders() - before == {alive}  # that of a live command stays
        process.terminate()
        ended(process)
    assert folders() == before


# ---- no room


def mounted(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script that mounts what nobody else sees."""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=folder,
        env=environment(PYTHON=sys.executable, **env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 99 and os.environ.get("CI") != "true":
        pytest.skip("needs to be allowed to mount a tmpfs")
    return done


@pytest.mark.needs("unshare")
def test_without_room_on_dev_shm_the_logs_are_on_disk(tmp_path: Path) -> None:
    write(tmp_path / "a.py", LEAK)
    done = mounted(
        "mount -t tmpfs -o size=1M none /dev/shm || exit 99\n"
        '"$PYTHON" -m holdfast trace -o full.hft a.py && ls -A /dev/shm "$TMPDIR"; umount /dev/shm\n'
        "mount -t tmpfs -o ro none /dev/shm || exit 99\n"
        '"$PYTHON" -m holdfast trace -o missing.hft a.py && ls -A "$TMPDIR"',
        tmp_path,
        TMPDIR=str(_made(tmp_path / "tmp")),
    )
    assert done.stderr.count("the logs are on disk because /dev/shm is full or not writable") == 2, done
    assert "holdfast-trace-" not in done.stdout
    for name in ("full.hft", "missing.hft"):
        assert site_at(trace_file.load(tmp_path / name), "a.py:4").live == 30


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_recording_that_could_not_be_saved_is_an_error_before_the_program_runs(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "open('ran', 'w')")
    assert "is a directory" in refused("trace", "-o", tmp_path, "a.py", code=2, cwd=tmp_path)
    assert "no such folder" in refused("trace", "-o", "no/x.hft", "a.py", code=3, cwd=tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    for name in ("pipe", "stdout"):
        why = f"{name} is a device, a pipe or a socket; expected the name of a file"
        assert refused("trace", "-o", name, "a.py", code=3, cwd=tmp_path) == why
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "stdout").is_symlink()
    assert not (tmp_path / "ran").exists()


@pytest.mark.needs("unshare")
def test_a_full_disk_at_the_end(tmp_path: Path) -> None:
    _made(tmp_path / "disk")
    script = (
        "mount -t tmpfs -o size=4k none disk || exit 99\n"
        "head -c 4096 /dev/zero >disk/full\n"
        '"$PYTHON" -m holdfast trace -o disk/run.hft -c "print(1)"; echo $?; ls -A disk'
    )
    temporary = _made(tmp_path / "tmp")
    done = mounted(script, tmp_path, TMPDIR=str(temporary))
    assert done.stdout.split() == ["1", "3", "full"], done
    [saved] = temporary.glob("*/run.hft")
    why = "cannot write disk/run.hft: No space left on device"
    assert done.stderr == f"holdfast: {why}; the recording was saved as {saved}\n"
    assert trace_file.load(saved).exit_code == 0


INTERRUPTED = """
import os, signal, sys
from holdfast.cli import main
from holdfast.process.fdtrace import recording, trace_file
def interrupt(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("the signal came too late")
setattr(*{"assemble": (recording, "assemble"), "save": (trace_file, "save")}[sys.argv.pop(1)], interrupt)
sys.exit(main())
"""


@pytest.mark.parametrize("during", ["assemble", "save"])
def test_an_interrupt_during_the_end_leaves_nothing(during: str, tmp_path: Path) -> None:
    before = folders()
    command = [sys.executable, "-c", INTERRUPTED, during, "trace", "-c", "print(1)"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "1\n", "holdfast: interrupted\n")
    assert list(tmp_path.iterdir()) == []
    assert folders() == before


# ---- the environment of the program


def test_what_was_set_already_stays(tmp_path: Path) -> None:
    _made(tmp_path / "mine")
    write(tmp_path / "mine" / "sitecustomize.py", "import builtins; builtins.mine = 41")
    write(tmp_path / "mine" / "other.py", "number = 1")
    write(
        tmp_path / "a.py", "import os, other, sys\nprint(mine + other.number, os.environ['PYTHONPATH'].split(':')[-1])"
    )
    own = tmp_path / "mine"
    there = os.environ.get("PYTHONPATH", "")
    done, _ = traced(tmp_path, "a.py", PYTHONPATH=f"{there}:{own}", LD_PRELOAD="libm.so.6")
    assert done.stdout == f"42 {own}\n", done.stderr
    done, trace = traced(tmp_path, "-c", "print('libm.so' in open('/proc/self/maps').read())", LD_PRELOAD="libm.so.6")
    assert done.stdout == "True\n"
    assert trace.processes


@pytest.mark.parametrize("flag", ["-I", "-S", "-E", "-s"])
def test_an_isolated_interpreter_is_traced_too(flag: str, tmp_path: Path) -> None:
    write(tmp_path / "a.py", LEAK)
    done, trace = traced(tmp_path, "--", sys.executable, flag, "a.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert site_at(trace, "a.py:4").live == 30


def test_a_program_may_clear_its_environment_and_close_everything(tmp_path: Path) -> None:
    write(tmp_path / "a.py", f"import os\nos.environ.clear()\nos.closerange(3, 1000)\n{LEAK}os.system('true')\n")
    done, trace = traced(tmp_path, "a.py")
    assert done.returncode == 0
    assert site_at(trace, "a.py:7").live == 30


def test_a_program_without_a_free_descriptor(tmp_path: Path) -> None:
    write(
        tmp_path / "a.py",
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "kept = []\n"
        "try:\n    while True: kept.append(os.dup(0))\n"
        "except OSError as error: print(error.errno)\n"
        "if not os.fork(): os._exit(len(kept) < 50)\n"
        "print(os.wait()[1])\n",
    )
    done, trace = traced(tmp_path, "-q", "a.py")
    assert (done.stdout, done.stderr) == ("24\n0\n", "")
    failed, *_ = as_array(trace.events, action=FAIL)
    assert failed["error"] == 24
    assert trace.frames_of(int(failed["stack"]))[0].line == 5
    [warning] = trace.warnings
    assert warning.startswith("no log could be made for 1 process: no descriptor was free, or ")


# ---- options


def test_owners_are_shown_where_a_torch_loader_leaks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write(
        tmp_path / "a.py",
        """
import torch.utils.data

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return i

if __name__ == "__main__":
    iterators = []
    for _ in range(5):
        iterators.append(iter(torch.utils.data.DataLoader(Data(), num_workers=2)))  # line 13
        next(iterators[-1])
""",
    )
    done, trace = traced(tmp_path, "a.py")
    assert done.returncode == 0, done.stderr
    statistics = Statistics(trace)
    site = max(statistics.sites, key=lambda site: site.live)
    assert site.where.endswith("a.py:13")
    assert site.live >= 30
    assert any("iterators" in line and "_MultiProcessingDataLoaderIter" in line for line in site.owners), site.owners


def test_owners_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "keep = []\nfor _ in range(30):\n    keep.append(open('/dev/null'))\n")
    assert "keep" in site_at(traced(tmp_path, "a.py")[1], "a.py:3").owners[0]
    assert site_at(traced(tmp_path, "--no-owners", "a.py")[1], "a.py:3").owners == ()


# ---- without the library


def test_without_the_library_python_programs_are_traced_in_part(tmp_path: Path) -> None:
    write(tmp_path / "a.py", LEAK + "if not os.fork(): os._exit(0)\nos.wait()\n")
    done, trace = traced(tmp_path, "a.py", HOLDFAST_NATIVE="0")
    assert trace.is_partial
    assert done.stderr.startswith("holdfast: partial: HOLDFAST_NATIVE=0 leaves the tracing library unused")
    assert site_at(trace, "a.py:4").live == 30
    assert len(trace.processes) == 2
    done, trace = traced(tmp_path, "--", "true", HOLDFAST_NATIVE="0")
    assert done.returncode == 0
    assert "nothing was recorded" in done.stderr
