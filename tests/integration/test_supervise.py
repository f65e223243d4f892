"""`holdfast supervise`: starts, restarts, exit codes, signals, and that no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import environment, holdfast, refused
from supervised import COMMAND, SLEEPER, TIMEOUT_S, Supervised, killed_at_end, parent_of, pids_in, python, runs, until

from holdfast.process.guard.supervisor.status import WorkerState, read_supervisor_status
from holdfast.process.guard.supervisor.supervisor import max_descriptors
from process_tree import children

OTHER_USER = 54_321

# Ends with the next code of a list in a file; with none left, it sleeps.
CODES = """
import os, sys, time
with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\n")
codes = open(sys.argv[2]).read().split()
done = len(open(sys.argv[1]).read().splitlines()) - 1
if done < len(codes): os._exit(int(codes[done]))
time.sleep(600)
"""

# Starts a daemon: two forks and a session of its own, so that nothing but the adoption ties it to its starter.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
def lines(path): return len(open(path).readlines()) if os.path.exists(path) else 0
while lines(sys.argv[1]) <= lines(sys.argv[2]): time.sleep(0.01)
with open(sys.argv[2], "a") as file: file.write(f"{os.getpid()}\\n")
"""


def codes(tmp_path: Path, *listed: int) -> list[str]:
    (tmp_path / "codes").write_text(" ".join(map(str, listed)))
    return python(CODES, "pids", "codes")


# ---- starts and ends ---------------------------------------------------------------------------------------


def test_75_restarts_at_once_and_0_is_done(tmp_path: Path) -> None:
    with Supervised(tmp_path, *codes(tmp_path, 75, 75, 0)) as supervised:
        assert supervised.wait() == 0
    assert len(pids_in(tmp_path / "pids")) == 3
    ends = [line for line in supervised.seen if line["kind"] == "ended"]
    assert [line["reason"] for line in ends] == ["recycle", "recycle"]
    assert all("at once" in line["text"] for line in ends)
    assert "is done" in supervised.wait_for("done")["text"]
    assert "2 restarts (2 recycle); exits with 0" in supervised.wait_for("end")["text"]


def test_failures_wait_longer_each_time_and_end_with_1(tmp_path: Path) -> None:
    worker = codes(tmp_path, *[7] * 9)
    with Supervised(tmp_path, "--backoff", "0.02", "--max-failures", 4, *worker) as supervised:
        assert supervised.wait() == 1
    assert len(pids_in(tmp_path / "pids")) == 4
    ended = [line["text"] for line in supervised.seen if line["kind"] == "ended"]
    assert len(ended) == 3
    assert all("exit code 7" in text and "starts again in" in text for text in ended)
    last, final = [line for line in supervised.seen if line["kind"] == "gave-up"]
    assert "exit code 7" in last["text"]
    assert "4 failures at its start in 10 min" in last["text"]
    assert (final["level"], final["worker"]) == ("error", 0)
    assert "3 restarts (3 exit); exits with 1" in final["text"]


def test_a_signal_is_a_failure_with_its_name(tmp_path: Path) -> None:
    with Supervised(tmp_path, "--backoff", "0.02", *python(SLEEPER, "pids")) as supervised:
        [first] = until(lambda: pids_in(tmp_path / "pids"))
        os.kill(first, signal.SIGSEGV)
        assert "SIGSEGV" in supervised.wait_for("ended", reason="signal")["text"]
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)


def test_restart_always_and_never(tmp_path: Path) -> None:
    with Supervised(tmp_path, "--restart", "always", *codes(tmp_path, 0, 0)) as supervised:
        until(lambda: len(pids_in(tmp_path / "pids")) == 3)
        assert supervised.stop() == 0
    (tmp_path / "pids").unlink()
    with Supervised(tmp_path, "--restart", "never", *codes(tmp_path, 75)) as supervised:
        assert supervised.wait() == 1
    assert len(pids_in(tmp_path / "pids")) == 1


def test_three_workers_know_their_number(tmp_path: Path) -> None:
    program = """
import os, sys, time
open("worker-" + os.environ["HOLDFAST_WORKER"] + "-of-" + os.environ["HOLDFAST_WORKERS"], "w").close()
if os.environ["HOLDFAST_WORKER"] != "2": time.sleep(600)
"""
    with Supervised(tmp_path, "-n", 3, *python(program)) as supervised:
        supervised.wait_for("done", "worker 2 ")
        until(lambda: len(list(tmp_path.glob("worker-*-of-3"))) == 3)
        assert len(children(supervised.pid)) == 2
        assert supervised.stop() == 0
        assert supervised.kinds().count("ended") == 2


def test_one_copy_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    program = "import os, sys, time; os.environ['HOLDFAST_WORKER'] == '1' and sys.exit(3); time.sleep(600)"
    with Supervised(tmp_path, "-n", 2, "--max-failures", 1, *python(program)) as supervised:
        supervised.wait_for("gave-up", "worker 1")
        status = until(lambda: _status_with(supervised.pid, WorkerState.GIVEN_UP, supervised.runtime))
        assert [row.state for row in status.workers] == [WorkerState.GIVEN_UP, WorkerState.RUNNING]
        assert supervised.stop() == 0


def _status_with(pid: int, state: WorkerState, runtime: Path) -> object:
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        status = read_supervisor_status(pid)
    finally:
        os.environ.pop("XDG_RUNTIME_DIR")
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before
    return status if status is not None and state in [row.state for row in status.workers] else None


def test_the_status_file_says_what_happened_and_goes_away(tmp_path: Path) -> None:
    with Supervised(tmp_path, "--name", "mine", *codes(tmp_path, 75)) as supervised:
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)
        status = until(lambda: _status_with(supervised.pid, WorkerState.RUNNING, supervised.runtime))
        assert (status.name, status.pid, dict(status.restarts)) == ("mine", supervised.pid, {"recycle": 1})
        assert until(lambda: _status_with(supervised.pid, WorkerState.RUNNING, supervised.runtime).workers[0].pid)
        assert [event.kind for event in status.events][:3] == ["begin", "start", "ended"]
        assert supervised.stop() == 0
    assert list((supervised.runtime / "holdfast").iterdir()) == []


def test_no_descriptor_is_lost_over_restarts(tmp_path: Path) -> None:
    def count(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    worker = codes(tmp_path, *[75] * 8, *[1] * 22)
    with Supervised(
        tmp_path, "--backoff", "0.01", "--backoff-limit", "0.02", "--max-failures", 0, *worker
    ) as supervised:
        supervised.wait_for("start")
        before = until(lambda: count(supervised.pid))
        until(lambda: len(pids_in(tmp_path / "pids")) == 31)
        supervised.wait_for("start", str(pids_in(tmp_path / "pids")[-1]))
        until(lambda: count(supervised.pid) <= before)
        assert before <= max_descriptors(1)


# ---- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "expected a command to run"),
        (["--", "/no/such/program"], 3, "cannot run /no/such/program: No such file or directory"),
        (["--", "/etc"], 3, "cannot run /etc: Permission denied"),
        (["--", "./script"], 3, "Exec format error (does the script begin with #! ?)"),
        (["--", "worker.py", "a b"], 3, "needs its interpreter: holdfast supervise -- python worker.py 'a b')"),
        (
            ["--", "./worker.py"],
            3,
            "Permission denied (a script needs its interpreter: holdfast supervise -- python ./w",
        ),
        (["--", "python worker.py"], 3, "(without the quotes: holdfast supervise -- python worker.py)"),
        (["--workers", "0", "true"], 2, "--workers: expected a number from 1 to 1,000, got '0'"),
        (["--fds", "2.5", "true"], 2, "--fds: expected SOFT, SOFT:HARD or :HARD"),
        (["--fds", "0.9:0.5", "true"], 2, "expected a soft cap of at most the hard one"),
        (
            ["--rss", "24", "true"],
            2,
            "--rss: expected SOFT, SOFT:HARD or :HARD: expected a size with its unit, such as 24GiB",
        ),
        (["--rss", "0.5", "true"], 2, "--rss: expected a size such as 24GiB, got the part 0.5"),
        (["--stop-timeout", "x", "true"], 2, "--stop-timeout: expected a time such as 30s"),
        (["--progress-http", "ftp://x/", "true"], 2, "--progress-http: expected a URL such as http"),
        (["--progress-file", "a", "--progress-http", "http://x", "true"], 2, "got both"),
        (["--config", "no.toml"], 3, "no.toml: cannot open: No such file or directory"),
        (["--config", "typo.toml"], 2, "typo.toml: no such key: 'worker'. Did you mean 'workers'?"),
        (["--config", "value.toml"], 2, "value.toml: rss: expected SOFT, SOFT:HARD or :HARD"),
        (["--config", "broken.toml"], 2, "broken.toml: expected TOML"),
        (["--config", "other.toml"], 2, "other.toml: expected a table [supervise], got tool"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    (tmp_path / "typo.toml").write_text("[supervise]\nworker = 3")
    (tmp_path / "value.toml").write_text("[supervise]\nrss = [1]")
    (tmp_path / "broken.toml").write_text("[supervise")
    (tmp_path / "other.toml").write_text("[tool]\nx = 1")
    (tmp_path / "script").write_text("echo")
    (tmp_path / "script").chmod(0o755)
    (tmp_path / "worker.py").write_text("")
    assert text in refused("supervise", "-q", *arguments, code=code, cwd=tmp_path)


def test_options_win_over_the_config_file(tmp_path: Path) -> None:
    program = 'import os, sys; open("workers", "w").write(os.environ["HOLDFAST_WORKERS"])'
    command = json.dumps([sys.executable, "-I", "-S", "-c", program])
    (tmp_path / "worker.toml").write_text(f'[supervise]\nworkers = 3\nstop_timeout = "5s"\ncommand = {command}\n')
    done = holdfast("supervise", "--config", "worker.toml", "--workers", "2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "workers").read_text() == "2"
    assert "runs 2 workers" in done.stderr


def test_a_program_that_vanishes_later_is_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "worker"
    script.write_text(f"#!{sys.executable}\nimport os; os.unlink({str(script)!r}); raise SystemExit(75)")
    script.chmod(0o755)
    with Supervised(tmp_path, "--max-failures", 2, "--backoff", "0.02", "--", script) as supervised:
        assert supervised.wait() == 1
    assert "cannot run" in supervised.wait_for("gave-up", reason="exit")["text"]


@pytest.mark.needs("setpriv")
@pytest.mark.needs("prlimit")
@pytest.mark.skipif(os.getuid() != 0, reason="another user needs root")
def test_a_machine_without_a_free_process_is_tried_again(tmp_path: Path) -> None:
    """The limit on processes counts those of a user, and not for root."""
    (tmp_path / "runtime").mkdir()
    os.chown(tmp_path / "runtime", OTHER_USER, OTHER_USER)
    rights = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")  # to the folder of the test
    user = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", *rights)
    options = ("-n", 2, "--backoff", "0.05s", "--backoff-limit", "0.1s", "--max-failures", 1)
    with Supervised(
        tmp_path, *options, *python(SLEEPER, "pids"), prefix=("prlimit", "--nproc=2:100", *user)
    ) as supervised:
        for name in ("worker 1", "worker 2"):
            text = supervised.wait_for("ended", f"{name} cannot be started now")["text"]
            assert "Resource temporarily unavailable" in text
            assert "it is tried again in" in text
        subprocess.run([*user, "prlimit", f"--pid={supervised.pid}", "--nproc=100:100"], check=True, timeout=TIMEOUT_S)
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)
        assert supervised.stop() == 0


def test_too_few_descriptors_for_the_workers(tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "-", *COMMAND, "-n", "50", "true"]
    done = subprocess.run(limited, capture_output=True, text=True, env=environment(), timeout=TIMEOUT_S, check=False)
    assert done.returncode == 3
    assert "expected a limit of at least 424 descriptors for 50 workers, got 64" in done.stderr


def test_the_worker_gets_its_own_limit_back_and_default_signals(tmp_path: Path) -> None:
    program = """
import json, resource, signal
mask = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
lines = dict(line.split(":") for line in open("/proc/self/status").read().splitlines() if line.startswith("Sig"))
facts = {"limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "mask": mask, "ignored": int(lines["SigIgn"], 16)}
json.dump(facts, open("facts", "w"))
"""
    script = "trap '' CHLD HUP USR1; ulimit -Sn 30; exec \"$@\""
    with Supervised(tmp_path, *python(program), prefix=("bash", "-c", script, "-")) as supervised:
        assert supervised.wait() == 0
    facts = json.loads((tmp_path / "facts").read_text())
    # Python itself ignores SIGPIPE and SIGXFSZ. 32 and 33 belong to the C library: nobody else can change them.
    python_own = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    facts["ignored"] &= ~(1 << 31 | 1 << 32)
    assert facts == {"limit": 30, "mask": [], "ignored": python_own}


# ---- no process is left behind -----------------------------------------------------------------------------


def _daemon(tmp_path: Path, then: str) -> list[str]:
    return python(DAEMON + then, tmp_path / "daemons", tmp_path / "workers")


def test_a_daemon_is_gone_after_a_restart(tmp_path: Path) -> None:
    then = "\nraise SystemExit(75) if len(open(sys.argv[2]).readlines()) == 1 else time.sleep(600)"
    with killed_at_end(lambda: pids_in(tmp_path / "daemons")):
        with Supervised(tmp_path, "--stop-timeout", "0.2s", *_daemon(tmp_path, then)) as supervised:
            until(lambda: len(pids_in(tmp_path / "workers")) == 2)
            first, second = pids_in(tmp_path / "daemons")
            assert (runs(first), runs(second)) == (False, True)
            assert parent_of(second) == children(supervised.pid)[0]  # the reaper has adopted it
            assert supervised.stop() == 0
            assert not runs(second)


@pytest.mark.parametrize("victim", ["supervisor", "supervisor of a stopped reaper", "reaper", "worker"])
def test_a_daemon_is_gone_after_a_sigkill(tmp_path: Path, victim: str) -> None:
    def started() -> list[int]:
        return pids_in(tmp_path / "daemons") + pids_in(tmp_path / "workers") + reapers

    reapers: list[int] = []
    with killed_at_end(started):
        options = ["--stop-timeout", "0.2s", "--backoff", "0.05s"]
        with Supervised(tmp_path, *options, *_daemon(tmp_path, "\ntime.sleep(600)")) as supervised:
            [worker] = until(lambda: pids_in(tmp_path / "workers"))
            [daemon] = pids_in(tmp_path / "daemons")
            [reaper] = reapers[:] = children(supervised.pid)
            if "stopped" in victim:
                os.kill(supervised.pid, signal.SIGSTOP)  # it would wake the reaper
                os.kill(reaper, signal.SIGSTOP)
                until(lambda: Path(f"/proc/{reaper}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            os.kill({"reaper": reaper, "worker": worker}.get(victim, supervised.pid), signal.SIGKILL)
            until(lambda: not runs(worker) and not runs(daemon))
            if victim not in ("reaper", "worker"):
                until(lambda: not runs(reaper))
                return
            ended = supervised.wait_for("ended", reason="signal")["text"]
            assert ("reaper process was killed" in ended) == (victim == "reaper")
            until(lambda: len(pids_in(tmp_path / "workers")) == 2)


def test_a_reaper_that_is_stopped_at_its_fork_ends_with_its_supervisor(tmp_path: Path) -> None:
    """It had no time to ask for a parent-death signal: 15 of 20 such reapers stayed."""
    reapers: list[int] = []
    with killed_at_end(lambda: reapers):
        for _ in range(3):
            with Supervised(tmp_path, *python(SLEEPER, "pids")) as supervised:
                while not (found := children(supervised.pid)):
                    assert supervised.process.poll() is None
                os.kill(supervised.pid, signal.SIGSTOP)  # it would wake the reaper
                os.kill(found[0], signal.SIGSTOP)
                reapers.extend(found)
                os.kill(supervised.pid, signal.SIGKILL)
                until(lambda: not any(map(runs, reapers)))
    assert not any(map(runs, pids_in(tmp_path / "pids")))


def test_a_stopped_reaper_is_resumed(tmp_path: Path) -> None:
    """It could not say that its worker has ended."""
    with Supervised(tmp_path, "--backoff", "0.05s", *python(SLEEPER, "pids")) as supervised:
        [worker] = until(lambda: pids_in(tmp_path / "pids"))
        [reaper] = children(supervised.pid)
        os.kill(reaper, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        supervised.wait_for("health", "was stopped by a signal, and goes on")
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)


def test_supervisor_and_reaper_are_killed_together(tmp_path: Path) -> None:
    with killed_at_end(lambda: pids_in(tmp_path / "pids")):
        with Supervised(tmp_path, *python(SLEEPER, "pids")) as supervised:
            [worker] = until(lambda: pids_in(tmp_path / "pids"))
            for pid in (*children(supervised.pid), supervised.pid):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not runs(worker))


def test_a_worker_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3): os.fork()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""
    with killed_at_end(lambda: pids_in(tmp_path / "pids")):
        with Supervised(tmp_path, "--stop-timeout", "0.2s", *python(program, "pids")) as supervised:
            pids = until(lambda: len(pids_in(tmp_path / "pids")) == 8 and pids_in(tmp_path / "pids"))
            assert supervised.stop() == 0
            assert "SIGKILL to its 8 processes" in supervised.wait_for("kill")["text"]
        assert not any(map(runs, pids))


@pytest.mark.needs("unshare")
@pytest.mark.skipif(os.getuid() != 0, reason="a pid namespace needs root")
def test_as_pid_1_it_reaps_the_zombies_of_others(tmp_path: Path) -> None:
    namespace = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    program = "import time; open('up', 'w').close(); time.sleep(600)"
    with Supervised(tmp_path, *python(program), prefix=namespace) as supervised:
        assert supervised.wait_for("begin")["pid"] == 1
        until((tmp_path / "up").exists)
        [first] = children(supervised.pid)
        # Others in the container: a shell whose children end after it, and one that must be left alone.
        inside = ["nsenter", "--target", str(first), "--pid", "--mount", "bash", "-c"]
        subprocess.run([*inside, "(sleep 0.05 & sleep 0.05 & sleep 599 &) ; exit"], check=True, timeout=TIMEOUT_S)

        def of_pid_1() -> list[str]:
            return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in children(first) if runs(pid))

        until(lambda: len(children(first)) == 2)  # the reaper, and the process that is not its business
        assert of_pid_1() == ["holdfast-reaper", "sleep"]
        os.kill(first, signal.SIGTERM)
        assert supervised.wait() == 0
    assert "worker (pid" in supervised.log()


# ---- signals -----------------------------------------------------------------------------------------------


def test_hup_replaces_the_workers_one_after_the_other(tmp_path: Path) -> None:
    program = SLEEPER.replace("sys.argv[1]", "'pids-' + os.environ['HOLDFAST_WORKER']")
    with Supervised(tmp_path, "-n", 2, *python(program)) as supervised:
        until(lambda: pids_in(tmp_path / "pids-1") and pids_in(tmp_path / "pids-2"))
        supervised.process.send_signal(signal.SIGHUP)
        supervised.wait_for("signal", "has ended")
        lines = [(line["kind"], line["worker"]) for line in supervised.seen if line["kind"] in ("ended", "start")]
        assert lines[2:] == [("ended", 1), ("start", 1), ("ended", 2), ("start", 2)]
        assert {line["reason"] for line in supervised.seen if line["kind"] == "ended"} == {"recycle"}
        assert supervised.stop() == 0


def test_user_signals_never_reach_a_worker_without_a_guard(tmp_path: Path) -> None:
    with Supervised(tmp_path, *python(SLEEPER, "pids")) as supervised:
        until(lambda: pids_in(tmp_path / "pids"))
        supervised.process.send_signal(signal.SIGUSR2)
        supervised.wait_for("stacks")
        supervised.process.send_signal(signal.SIGUSR1)
        assert "SIGTERM" in supervised.wait_for("ended", reason="recycle")["text"]
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)


def test_other_signals_are_forwarded_to_the_worker(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGQUIT, lambda *_: open("quit", "w").close())
signal.signal(signal.SIGRTMIN + 3, lambda *_: open("realtime", "w").close())
open("up", "w").close()
while True: time.sleep(600)
"""
    with Supervised(tmp_path, *python(program)) as supervised:
        until((tmp_path / "up").exists)
        for number, name in ((signal.SIGQUIT, "quit"), (signal.SIGRTMIN + 3, "realtime")):
            supervised.process.send_signal(number)
            until((tmp_path / name).exists)
        assert supervised.wait_for("signal", "SIGQUIT was forwarded to 1 worker")


def test_ctrl_c_stops_the_worker_and_again_kills_it(tmp_path: Path) -> None:
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    with Supervised(tmp_path, "--stop-timeout", "600s", *python(program, "pids")) as one:
        [pid] = until(lambda: pids_in(tmp_path / "pids"))
        one.process.send_signal(signal.SIGINT)
        one.wait_for("ask")
        one.process.send_signal(signal.SIGINT)
        assert one.wait() == 130
        assert not runs(pid)


@pytest.mark.needs("setsid")
@pytest.mark.parametrize("how", ["ctrl-c", "closed"])
def test_a_terminal_interrupts_and_goes_away(tmp_path: Path, how: str) -> None:
    ours, theirs = os.openpty()
    command = ["setsid", "--ctty", *COMMAND, *python(SLEEPER, "pids")]
    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    try:
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with subprocess.Popen(command, **streams, cwd=tmp_path, env=env) as process:
            os.close(theirs)
            theirs = -1
            [worker] = until(lambda: pids_in(tmp_path / "pids"))
            if how == "ctrl-c":
                os.write(ours, b"\x03")
            else:
                os.close(ours)
                ours = -1
            assert process.wait(TIMEOUT_S) == {"ctrl-c": 130, "closed": 129}[how]
            assert not runs(worker)
            if how == "ctrl-c":
                assert b"holdfast: stops: the supervisor was interrupted (Ctrl-C again kills" in os.read(ours, 1 << 16)
    finally:
        for fd in (ours, theirs):
            if fd >= 0:
                os.close(fd)


def test_a_stop_before_the_worker_has_started(tmp_path: Path) -> None:
    with Supervised(tmp_path, *python(SLEEPER, "pids")) as supervised:
        supervised.wait_for("begin")
        assert supervised.stop() == 0
    assert not any(map(runs, pids_in(tmp_path / "pids")))


# ---- the log -----------------------------------------------------------------------------------------------


def test_lines_by_default_and_none_with_quiet(tmp_path: Path) -> None:
    done = holdfast("supervise", *python("print('from the worker')"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "from the worker\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert all(line[20:].startswith("holdfast: ") for line in lines)
    assert "whether it makes progress is only known with a hold.Guard in it, --progress-file" in lines[1]
    done = holdfast("supervise", "-q", *python("print('from the worker')"), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "from the worker\n", "")


def test_nobody_reads_the_log(tmp_path: Path) -> None:
    """A full pipe, or a closed one, must not stop the supervisor."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(theirs, True)
    command = [*COMMAND, "--backoff", "0.01", "--max-failures", "3", *codes(tmp_path, 75, 1, 1, 1)]
    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    try:
        with subprocess.Popen(command, stderr=theirs, cwd=tmp_path, env=env) as process:
            assert process.wait(TIMEOUT_S) == 1
        (tmp_path / "pids").unlink()
        os.close(ours)
        ours = -1
        with subprocess.Popen(command, stderr=theirs, cwd=tmp_path, env=env) as process:
            assert process.wait(TIMEOUT_S) == 1
    finally:
        os.close(theirs)
        if ours >= 0:
            os.close(ours)
    assert len(pids_in(tmp_path / "pids")) == 4
