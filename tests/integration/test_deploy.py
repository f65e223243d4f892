"""The files in docs/deploy, as they are shipped, with real workers under a real supervisord, supervise and watch."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from log_cases import kill_all

from holdfast._util.text import parse_seconds
from holdfast.process.guard.heartbeat import GuardState, read_heartbeat
from holdfast.process.guard.service_manager import ServiceManager, find_service_manager
from holdfast.process.guard.supervisor.config import make_options, read_config
from holdfast.procfs.procfs import REAL
from process_tree import children, descendants

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "docs" / "deploy"
EXAMPLES = TOP / "examples"
BIN = Path(sys.executable).parent
TIMEOUT_S = 60.0
DRAIN_S = 60.0  # of the Guard in guard_worker.py


def wait_until(what: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> Any:
    """Returns the first true value of `what`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        if found := what():
            return found
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /srv/worker of the files, with a short path for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    for name in ("log", "run", "jobs/new", "venv/bin", "runtime"):
        (folder / name).mkdir(parents=True)
    for name, program in (("python", sys.executable), ("holdfast", f"{sys.executable} -m holdfast")):
        script = folder / "venv" / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        script.chmod(0o755)
    shutil.copy(EXAMPLES / "guard_worker.py", folder / "worker.py")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "runtime"))
    yield folder
    shutil.rmtree(folder)


def installed(name: str, place: Path) -> Path:
    """Puts a file where its comment says that it belongs."""
    made = place / name
    made.write_text((DEPLOY / name).read_text().replace("/srv/worker", str(place)))
    return made


def add_jobs(place: Path, first: int, count: int) -> None:
    for number in range(first, first + count):
        (place / "jobs" / "new" / f"job-{number:04d}").touch()


def ledger(place: Path) -> Counter[str]:
    path = place / "jobs" / "ledger"
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


def is_done(place: Path, count: int) -> bool:
    return len(list(place.glob("jobs/done/*"))) == count


@contextlib.contextmanager
def running(command: list[str], output: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=os.environ | env
        )
    try:
        yield process
    finally:
        kill_all(process)
        process.wait()


# ---- supervisord -------------------------------------------------------------------------------------------


class Supervisord:
    def __init__(self, conf: Path, process: subprocess.Popen[bytes]) -> None:
        self.conf = conf
        self.process = process

    def ctl(self, *words: str) -> str:
        command = [str(BIN / "supervisorctl"), "-c", str(self.conf), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout

    def state(self, name: str) -> tuple[str, int]:
        """Returns the state of a program and its pid, 0 if it has none."""
        words = self.ctl("status", f"worker:{name}").split()
        return (words[1], int(words[3].rstrip(",")) if words[1] == "RUNNING" else 0) if len(words) > 1 else ("", 0)

    def wait_for(self, name: str, state: str, other_than: int = -1) -> int:
        def is_there() -> bool:
            nonlocal found
            found = self.state(name)
            return found[0] == state and found[1] != other_than

        found = ("", 0)
        wait_until(is_there, self.process)
        return found[1]


@contextlib.contextmanager
def supervisord(place: Path) -> Iterator[Supervisord]:
    conf = installed("supervisord.conf", place)
    for name in ("log", "run"):
        (place / name).rmdir()  # as on a new machine: the comment says what to do
    [make_folders] = re.findall(r"^;\s+(mkdir .*)$", conf.read_text(), re.M)
    subprocess.run(shlex.split(make_folders), check=True, timeout=TIMEOUT_S)
    with running([str(BIN / "supervisord"), "-n", "-c", str(conf)], place / "log" / "out.txt") as process:
        wait_until(lambda: (place / "run" / "supervisor.sock").exists(), process)
        yield Supervisord(conf, process)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def wait_for_guard(pid: int) -> None:
    wait_until(lambda: (page := read_heartbeat(pid)) is not None and page.state is GuardState.RUNNING)


def test_supervisord_restarts_on_75_and_not_on_0_and_a_stop_drains(place: Path) -> None:
    with supervisord(place) as boss:
        first, second = (boss.wait_for(name, "RUNNING") for name in ("worker_00", "worker_01"))
        for pid in (first, second):
            wait_for_guard(pid)
        above = find_service_manager(REAL, first)
        assert above is not None
        assert (above.kind, above.pid) == ("supervisord", boss.process.pid)
        assert above.restart == "supervisorctl restart worker:worker_00"
        os.kill(first, signal.SIGUSR1)  # as a cap does: it exits with 75
        again = boss.wait_for("worker_00", "RUNNING", other_than=first)
        os.kill(second, signal.SIGTERM)  # as an operator does: it exits with 0
        boss.wait_for("worker_01", "EXITED")

        wait_for_guard(again)
        os.mkfifo(place / "jobs" / "ledger")  # the job lasts until somebody reads
        add_jobs(place, 0, 1)
        wait_until(lambda: (page := read_heartbeat(again)) is not None and page.jobs_active)
        with subprocess.Popen([str(BIN / "supervisorctl"), "-c", str(boss.conf), "stop", "worker:worker_00"]) as stop:
            wait_until(lambda: (page := read_heartbeat(again)) is not None and page.state is GuardState.DRAINING)
            assert stop.poll() is None
            with open(place / "jobs" / "ledger") as reader:
                assert reader.read() == f"job-0000 {again}\n"
            assert stop.wait(TIMEOUT_S) == 0
        assert is_done(place, 1)
    said = (place / "log" / "supervisord.log").read_text()
    assert "exited: worker_00 (exit status 75; not expected)" in said
    assert "exited: worker_01 (exit status 0; expected)" in said
    assert "stopped: worker_00 (exit status 0)" in said


def test_leaking_workers_are_replaced_under_supervisord_and_no_job_is_lost(place: Path) -> None:
    shipped = "worker.py /srv/worker/jobs"
    text = (DEPLOY / "supervisord.conf").read_text()
    assert text.count(shipped) == 1
    leaky = f'#!/bin/sh\nulimit -n 1024\nexec {sys.executable} "$@" --leak 3\n'
    (place / "venv" / "bin" / "python").write_text(leaky)
    with supervisord(place) as boss:
        count = 0

        def is_enough() -> bool:
            nonlocal count
            add_jobs(place, count, 2)
            count += 2
            time.sleep(0.05)  # not more than a worker can hold until its guard looks
            return (place / "log" / "supervisord.log").read_text().count("(exit status 75; not expected)") >= 2

        wait_until(is_enough, boss.process)
        wait_until(lambda: is_done(place, count), boss.process)
        for name in ("worker_00", "worker_01"):
            boss.wait_for(name, "RUNNING")  # supervisord loses a signal to a child that has not called exec yet
    assert set(ledger(place).values()) == {1}
    assert len(ledger(place)) == count
    assert "exit status 70" not in (place / "log" / "supervisord.log").read_text()


def test_the_stop_times_are_longer_than_the_drain() -> None:
    conf = configparser.RawConfigParser(inline_comment_prefixes=None)
    conf.read(DEPLOY / "supervisord.conf")
    program = dict(conf["program:worker"])
    assert float(program["stopwaitsecs"]) > DRAIN_S
    assert (program["autorestart"], program["exitcodes"]) == ("unexpected", "0")
    assert (program["stopasgroup"], program["killasgroup"]) == ("false", "true")
    assert f'drain_timeout="{DRAIN_S:.0f}s"' in (EXAMPLES / "guard_worker.py").read_text()


# ---- systemd -----------------------------------------------------------------------------------------------

UNITS = ("holdfast-worker.service", "holdfast-worker-direct.service")


def unit(name: str) -> configparser.SectionProxy:
    found = configparser.RawConfigParser(strict=True)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(DEPLOY / name)
    return found["Service"]


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units_without_a_warning(name: str, place: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", installed(name, place)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_units_say_what_a_guard_needs() -> None:
    supervised, direct = map(unit, UNITS)
    limits = make_options(read_config(str(DEPLOY / "supervise.toml")))
    assert supervised["Type"] == "notify"
    assert parse_seconds(supervised["TimeoutStopSec"]) > (limits.drain_s or 0) + limits.stop_s
    assert parse_seconds(direct["TimeoutStopSec"]) > DRAIN_S
    assert direct["RestartForceExitStatus"] == direct["SuccessExitStatus"] == "75"
    assert {one["KillMode"] for one in (supervised, direct)} == {"mixed"}
    assert {one["Restart"] for one in (supervised, direct)} == {"on-failure"}


def test_the_command_of_the_unit_runs_the_workers_and_tells_systemd(place: Path) -> None:
    """The test is systemd: it has the socket that READY=1 and WATCHDOG=1 are sent to, and sends SIGTERM."""
    command = unit(UNITS[0])["ExecStart"].replace("/srv/worker", str(place)).split()
    installed("supervise.toml", place)
    add_jobs(place, 0, 20)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place / "run" / "notify"))
        listener.settimeout(TIMEOUT_S)
        more = {"NOTIFY_SOCKET": str(place / "run" / "notify"), "WATCHDOG_USEC": "2000000"}
        with running(command, place / "log" / "out.txt", **more) as process:
            said: list[str] = []

            def hear(word: str) -> None:
                while not any(word in one for one in said):
                    said.append(listener.recv(4096).decode())

            hear("READY=1")
            wait_until(lambda: is_done(place, 20), process)
            hear("WATCHDOG=1")
            before, after = set(workers_of(process.pid)), len(said)
            reload = unit(UNITS[0])["ExecReload"].replace("$MAINPID", str(process.pid))
            subprocess.run(shlex.split(reload), check=True, timeout=TIMEOUT_S)
            hear("RELOADING=1")
            wait_until(lambda: "READY=1" in said[after:] or said.append(listener.recv(4096).decode()), process)
            assert not before & set(workers_of(process.pid))
            process.terminate()
            hear("STOPPING=1")
            assert process.wait(TIMEOUT_S) == 0, (place / "log" / "out.txt").read_text()
    assert set(ledger(place).values()) == {1}


# ---- supervise ---------------------------------------------------------------------------------------------


def workers_of(pid: int, script: str = "worker.py") -> list[int]:
    found = []
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one}/cmdline").read_text().split("\0")
            if any(word.endswith(script) for word in words[1:3]) and "holdfast" not in words[:3]:
                found.append(one)
    return found


def test_supervise_reads_its_file_and_replaces_a_worker_that_drains(place: Path) -> None:
    conf = installed("supervise.toml", place)
    count = tomllib.loads(conf.read_text())["supervise"]["workers"]
    command = [str(place / "venv" / "bin" / "holdfast"), "supervise", "--config", str(conf)]
    with running(command, place / "log" / "out.txt") as process:
        first = wait_until(lambda: len(found := workers_of(process.pid)) == count and found, process)
        for pid in first:
            wait_for_guard(pid)
        assert find_service_manager(REAL, first[0]) == ServiceManager(kind="supervise", pid=process.pid)
        os.kill(first[0], signal.SIGUSR1)
        wait_until(lambda: len(found := set(workers_of(process.pid)) - {first[0]}) == count and found, process)
        add_jobs(place, 0, 20)
        wait_until(lambda: is_done(place, 20), process)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0, (place / "log" / "out.txt").read_text()
    assert set(ledger(place).values()) == {1}


# ---- Kubernetes --------------------------------------------------------------------------------------------

TOKEN = "a-token-of-the-tests"


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def pod() -> dict[str, Any]:
    [document] = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "Deployment")
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert document["spec"]["selector"]["matchLabels"] == labels
    template: dict[str, Any] = document["spec"]["template"]
    return template


def test_the_pod_shares_what_watch_reads_and_waits_for_the_drain() -> None:
    spec = pod()["spec"]
    worker, watch = spec["containers"]
    assert spec["shareProcessNamespace"] is True
    options = dict(zip(worker["command"][2:-1:2], worker["command"][3:-1:2], strict=True))
    drain_s, stop_s = (parse_seconds(options[name]) for name in ("--drain-timeout", "--stop-timeout"))
    assert drain_s > DRAIN_S
    assert drain_s + stop_s < spec["terminationGracePeriodSeconds"]
    assert {"name": "XDG_RUNTIME_DIR", "value": "/run/holdfast"} in worker["env"]
    assert worker["env"][0] == watch["env"][0]
    assert worker["volumeMounts"][0] == watch["volumeMounts"][0]
    mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    [port] = watch["ports"]
    probes = [
        worker["readinessProbe"]["httpGet"],
        watch["livenessProbe"]["tcpSocket"],
    ]
    assert {probe["port"] for probe in probes} == {port["containerPort"]}
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


def test_the_commands_and_probes_of_the_pod(place: Path) -> None:
    worker, watch = pod()["spec"]["containers"]
    changes = {
        "holdfast": f"{place}/venv/bin/holdfast",
        "python": sys.executable,
        "/app/worker.py": f"{place}/worker.py",
    }
    changes |= {"/jobs": f"{place}/jobs", "0.0.0.0:9321": "127.0.0.1:0"}
    commands = [[changes.get(word, word) for word in one["command"] + one.get("args", [])] for one in (worker, watch)]
    output = place / "log" / "watch.txt"
    probe = worker["livenessProbe"]["exec"]["command"]

    def is_alive() -> bool:
        return subprocess.run(probe, check=False, timeout=TIMEOUT_S, capture_output=True).returncode == 0

    assert not is_alive()
    with running(commands[0], place / "log" / "worker.txt") as supervise:
        [pid] = wait_until(lambda: workers_of(supervise.pid), supervise)
        wait_for_guard(pid)
        assert is_alive()
        with running([*commands[1], "--every", "0.2s", "--json"], output, HOLDFAST_TOKEN=TOKEN) as watching:
            first = wait_until(lambda: output.read_text().partition("\n")[0], watching)
            url = json.loads(first)["url"].rstrip("/")
            alive, ready = url + "/healthz", url + worker["readinessProbe"]["httpGet"]["path"]
            wait_until(lambda: get(alive)[0] == get(ready)[0] == 200, watching)
            scrape = url + pod()["metadata"]["annotations"]["prometheus.io/path"]
            assert get(scrape)[0] == 401
            assert "holdfast_process_open_fds{" in get(scrape, Authorization=f"Bearer {TOKEN}")[1]

            os.kill(pid, signal.SIGSTOP)  # frozen, hung and failing are answered alike
            wait_until(lambda: get(alive)[0] == 503, watching)
            assert is_alive()  # supervise is, and will see to it
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda: get(alive)[0] == get(ready)[0] == 200, watching)
            watching.terminate()
            watching.wait(TIMEOUT_S)
        assert is_alive()
        supervise.send_signal(signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{supervise.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        [status] = (place / "runtime" / "holdfast").glob("[0-9]*.supervise.json")
        os.utime(status, (0, time.time() - 1800))
        assert not is_alive()
        supervise.send_signal(signal.SIGCONT)
        supervise.terminate()
        assert supervise.wait(TIMEOUT_S) == 0, (place / "log" / "worker.txt").read_text()
    assert children(os.getpid()) == []


# ---- torchrun ----------------------------------------------------------------------------------------------


def test_the_ranks_of_torchrun_leave_together_and_no_step_is_lost_or_doubled(tmp_path: Path) -> None:
    """The last rank leaks, so that it asks for a restart; all of them go on with the next step."""
    usage = re.search(r"^    export (\S+)\n    (torchrun .*) run$", (EXAMPLES / "guard_torchrun.py").read_text(), re.M)
    assert usage is not None
    name, _, value = usage[1].partition("=")
    words = shlex.split(usage[2])
    assert words[0] == "torchrun"
    steps = 200  # of 20 ms: 4 s or more, of which the guard needs 3
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:-1], str(TOP / words[-1]), str(tmp_path / "run")]
    command += ["--steps", str(steps), "--step-time", "0.02", "--leak", "10", "--cap", "100"]
    output = tmp_path / "out.txt"
    with running(command, output, **{name: value, "OMP_NUM_THREADS": "1"}) as process:
        assert process.wait(3 * TIMEOUT_S) == 0, output.read_text()
    rows = [(tmp_path / "run" / f"ledger-{rank}.txt").read_text().splitlines() for rank in range(2)]
    assert rows[0] == rows[1]  # each generation left after the same step
    found = [line.split() for line in rows[0]]
    assert [int(step) for _, _, _, step in found] == list(range(1, steps + 1))
    assert len({generation for _, generation, _, _ in found}) >= 2
    assert "(exitcode: 75)" in output.read_text()
    assert "(exitcode: 70)" not in output.read_text()


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_page_quotes_the_files_as_they_are() -> None:
    """Each block of text on the page is after a link to a file, and consists of lines of that file."""
    page = (TOP / "docs" / "deploy.md").read_text()
    linked = ""
    quoted = 0
    for part in re.split(r"^```", page, flags=re.M)[:-1]:
        if part.startswith(("text\n", "yaml\n", "toml\n")):
            lines = (TOP / "docs" / linked).read_text().splitlines()
            missing = [line for line in part.splitlines()[1:] if line not in lines and line.strip() not in ("", "…")]
            assert not missing, (linked, missing)
            quoted += 1
        elif links := re.findall(r"\]\((deploy/[^)]+)\)", part):
            linked = links[-1]
    assert quoted >= 4
    shipped = {f"deploy/{path.name}" for path in DEPLOY.iterdir()}
    assert shipped == set(re.findall(r"\]\((deploy/[^)]+)\)", page))
