"""`holdfast rescue` on real processes: at their limit, guarded, stopped, not Python, of other users."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import COMMAND, document, environment, holdfast, on_terminal, refused, wait_for, without_styles
from test_cli_failures import NOBODY as AS_NOBODY

from holdfast.process.guard.heartbeat import GuardState, read_heartbeat
from holdfast.process.guard.rescue import Rescue
from holdfast.procfs.processes import read_status
from holdfast.procfs.procfs import REAL

MAY_RAISE = bool(int(read_status(REAL, os.getpid())["CapEff"], 16) >> 24 & 1)  # CAP_SYS_RESOURCE
NO_HARD_LIMIT = "its hard limit was not raised to 4,096: that needs root with CAP_SYS_RESOURCE"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes processes of other users, or raises limits")
DRAINING = GuardState.DRAINING
TIMEOUT_S = 60
NOBODY = 65534
GONE = 2**22 + 1  # above the highest pid there can be

# Takes what there is, then polls: what it prints is the only sign of whether its work succeeds.
WEDGED = """
import ctypes, os, resource, sys
import holdfast.process.fd_owners.agent
soft, hard, listens = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "listen"
if len(sys.argv) > 4:
    os.setgroups([]); os.setgid(int(sys.argv[4])); os.setuid(int(sys.argv[4]))
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as after an exec
if listens:
    listener = holdfast.process.fd_owners.agent.listen()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
leaked = []
try:
    while True:
        reader, writer = os.pipe()
        os.close(writer)
        leaked.append(os.fdopen(reader, "rb", buffering=0))
except OSError:
    pass
with open("/dev/null") as last:  # a pipe needs two
    def polls_in_vain():
        while True:
            try:
                os.close(os.open("/dev/null", os.O_RDONLY))
                said = "ok"
            except OSError as error:
                said = error.strerror
            print(said, flush=True)
            if not sys.stdin.readline():
                return
    polls_in_vain()
"""


class Wedged:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.said = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0]
        return self.process.stdout.readline().strip()

    def poll(self) -> str:
        """Lets it try once more, and returns what it says."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.said = self._line()
        return self.said

    @property
    def limits(self) -> tuple[int, int]:
        [row] = [line for line in Path(f"/proc/{self.pid}/limits").read_text().splitlines() if "open files" in line]
        soft, hard = row.split()[3:5]
        return int(soft), int(hard)


@contextlib.contextmanager
def wedged(soft: int = 64, hard: int = 512, *, listens: bool = False, user: int | None = None) -> Iterator[Wedged]:
    arguments = [str(soft), str(hard), "listen" if listens else "quiet", *([] if user is None else [str(user)])]
    command = [sys.executable, "-c", WEDGED, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield Wedged(process)
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets and heartbeats are; a socket's path has to be short."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def rescued(*arguments: object, code: int = 0) -> Any:
    return document("rescue", *map(str, arguments), code=code)


# ---- the limit ---------------------------------------------------------------------------------------------


def test_a_wedged_process_goes_on_by_itself() -> None:
    with wedged(listens=True) as worker:
        assert worker.said == worker.poll() == "Too many open files"
        found = rescued(worker.pid)
        assert worker.poll() == "ok"
        assert worker.limits == (512, 512)
    assert found["rescued"]
    limit = {"soft": [64, 512], "hard": [512, 512], "raised": True, "dry_run": False, "problem": None}
    assert found["limit"] == limit
    assert (found["fds"], found["signature"]) == (64, "unread-output")
    assert found["verdict"] == "GROWING"  # no longer EXHAUSTED
    assert found["kinds"]["pipe"] >= found["dead_pipes"] >= 40
    assert {"path": "/dev/null", "count": 4} in found["paths"]  # the reserve of the listener, and `last`
    assert found["stacks"]["source"] == "py-spy"
    assert "polls_in_vain" in found["stacks"]["text"]
    assert [line for line in found["held_by"] if "module variable 'leaked'" in line]
    assert found["health"] is found["guard"] is found["drain"] is None
    assert found["problems"] == []
    assert any("hold.raise_nofile()" in line for line in found["advice"])
    assert any("hold.Guard" in line for line in found["advice"])


def test_the_new_limit_can_be_named_and_is_never_lowered() -> None:
    with wedged() as worker:
        assert rescued(worker.pid, "--limit", "128")["limit"]["soft"] == [64, 128]
        assert worker.limits == (128, 512)
        again = rescued(worker.pid, "--limit", "100")
        assert (again["limit"]["soft"], again["limit"]["raised"]) == ([128, 128], False)
        assert worker.limits == (128, 512)
        maximum = rescued(worker.pid, "--limit", "4096")
        assert maximum["limit"]["soft"] == [128, 512]
        assert "a soft limit of 4,096 is above the hard one, 512: raise that, too, with --hard" in maximum["problems"]
        assert worker.poll() == "ok"


def test_at_the_hard_limit_it_is_still_exhausted() -> None:
    with wedged(64, 64) as worker:
        found = rescued(worker.pid, code=1)
        assert (found["rescued"], found["verdict"]) == (False, "EXHAUSTED")
        assert found["advice"][0] == f"raise its hard limit as root: sudo holdfast rescue {worker.pid} --hard 4096"
        assert worker.poll() == "Too many open files"


def test_only_root_can_raise_the_hard_limit() -> None:
    """And only with CAP_SYS_RESOURCE, which most containers take away."""
    with wedged(64, 64) as worker:
        found = rescued(worker.pid, "--hard", "4096", "--limit", "256", code=0 if MAY_RAISE else 1)
        if MAY_RAISE:
            assert (found["limit"]["soft"], found["limit"]["hard"]) == ([64, 256], [64, 4096])
            assert worker.limits == (256, 4096)
            assert worker.poll() == "ok"
        else:
            assert found["problems"][0] == NO_HARD_LIMIT
            assert worker.poll() == "Too many open files"


def test_a_dry_run_changes_nothing() -> None:
    with wedged() as worker:
        found = rescued(worker.pid, "--dry-run", code=1)
        page = holdfast("rescue", str(worker.pid), "--dry-run")
        assert worker.limits == (64, 512)
        assert worker.poll() == "Too many open files"
    assert (found["limit"]["soft"], found["limit"]["raised"], found["limit"]["dry_run"]) == ([64, 512], False, True)
    assert found["advice"][0] == f"raise its limit: holdfast rescue {worker.pid}"
    assert "soft limit    64 → 512 (dry run: not changed)" in page.stdout
    assert "✗ still exhausted: nothing was changed" in page.stdout


def test_a_healthy_process_is_not_called_rescued() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as healthy:
        dry = holdfast("rescue", str(healthy.pid), "--dry-run", "--limit", "2048")
        first = holdfast("rescue", str(healthy.pid))
        again = rescued(healthy.pid)
        healthy.kill()
    assert (dry.returncode, first.returncode) == (0, 0)
    assert "✓ nothing to rescue: it is not out of descriptors" in first.stdout
    assert "rescued" not in first.stdout + dry.stdout
    assert (again["rescued"], again["limit"]["raised"]) == (False, False)


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_page_in_a_pipe_has_one_line_for_each_fact() -> None:
    with wedged(listens=True) as worker:
        done = holdfast("rescue", str(worker.pid))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"process {worker.pid}  ")
    for start in (
        "  soft limit    64 → 512",
        "  descriptors   64 of 512",
        "  kinds         pipe ",
        "  dead pipes    ",
        "  most opened   4 × /dev/null",
        "  verdict       ▲ GROWING",
        "  cause         looks like ",
        "  held by       __main__ module variable 'leaked'",
        "  stacks        by py-spy",
        "✓ rescued: its limit was raised",
        "  1.  ",
    ):
        assert any(line.startswith(start) for line in lines), (start, done.stdout)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_page_fits_a_terminal(columns: int) -> None:
    with wedged(listens=True) as worker:
        shown, code = on_terminal("rescue", str(worker.pid), columns=columns)
    assert code == 0
    assert "64 → 512" in shown
    assert max(map(len, without_styles(shown).splitlines())) <= columns


def test_the_page_without_utf_8_and_in_silence() -> None:
    with wedged() as worker:
        plain = holdfast("rescue", str(worker.pid), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
        quiet = holdfast("rescue", str(worker.pid), "-q")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.isascii()
    assert "\\u" not in plain.stdout
    assert "64 > 512" in plain.stdout
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_all_of_it_is_saved_to_a_file(tmp_path: Path) -> None:
    text, data = tmp_path / "rescue.txt", tmp_path / "rescue.json"
    with wedged() as worker:
        done = holdfast("rescue", str(worker.pid), "-o", text)
        found = rescued(worker.pid, "-o", data)
        nowhere = holdfast("rescue", str(worker.pid), "-o", tmp_path / "no" / "where")
    assert done.stdout.endswith(f"saved {text}\n")
    saved = text.read_text()
    assert "soft limit    64 → 512" in saved
    assert "\n64 descriptors:\n" in saved
    assert saved.count("pipe       dead     pipe:[") == found["dead_pipes"]
    document = json.loads(data.read_text())
    assert len(document.pop("descriptors")) == 64
    assert document == found
    assert (nowhere.returncode, nowhere.stderr.splitlines()[-1].split(": ")[-1]) == (3, "No such file or directory")
    assert "soft limit" in nowhere.stdout  # the file comes last: the process was rescued
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rescue.json", "rescue.txt"]


# ---- processes of every kind -------------------------------------------------------------------------------


def test_a_program_that_is_not_python() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (32, hard))
            found = rescued(child.pid)
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            assert child.poll() is None
        finally:
            child.kill()
    assert (found["verdict"], found["stacks"]) == ("OK", {"source": None, "text": ""})
    assert found["problems"] == [
        "no stacks: it is not a Python process",
        "no owners: the process does not listen, which hold.listen() and a hold.Guard do",
    ]
    assert found["advice"] == []


def test_a_stopped_process_is_rescued_and_stays_stopped() -> None:
    with wedged() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            found = rescued(worker.pid)
            assert Path(f"/proc/{worker.pid}/stat").read_text().split()[2] == "T"
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert worker.poll() == "ok"
    assert "polls_in_vain" in found["stacks"]["text"]
    assert found["advice"][0] == f"resume it, for it is stopped: kill -CONT {worker.pid}"


def test_what_cannot_be_rescued_is_one_sentence() -> None:
    assert refused("rescue", str(GONE), code=3) == f"there is no process {GONE}"
    own = subprocess.run(
        ["sh", "-c", 'exec "$@" rescue $$', "sh", *COMMAND], capture_output=True, text=True, check=False
    )
    assert own.returncode == 3
    assert own.stderr.endswith("which is this command itself\n")
    assert refused("rescue", "0", code=2).startswith("rescue: invalid value for 'PID': 0 is not in the range")
    assert refused("rescue", "1", "--wait", "5s", code=2).startswith("rescue: expected --wait only with --drain")
    maximum = Path("/proc/sys/fs/nr_open").read_text().strip()
    said = refused("rescue", "1", "--hard", str(int(maximum) + 1), code=2)
    assert said.startswith(f"rescue: expected --hard of at most {maximum}, which fs.nr_open of this machine allows")
    said = refused("rescue", "1", "--hard", "100", "--limit", "200", code=2)
    assert said.startswith("rescue: expected --limit of at most --hard 100, got 200")


# ---- other users -------------------------------------------------------------------------------------------


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY, *arguments]
    return subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False
    )


@as_root
def test_another_users_process_is_refused_with_one_sentence() -> None:
    with wedged() as worker:
        done = as_nobody("rescue", str(worker.pid), "--json")
        assert worker.limits == (64, 512)
        assert worker.poll() == "Too many open files"
    sentence = (
        f"process {worker.pid} belongs to root (0), and this command runs as nobody ({NOBODY}); "
        f"run it as that user or as root: sudo holdfast rescue {worker.pid}"
    )
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (
        3,
        f"holdfast: {sentence}\n",
        {"error": sentence},
    )


@as_root
def test_root_rescues_the_process_of_a_user_and_asks_it_as_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with wedged(listens=True, user=NOBODY) as worker:
        found = rescued(worker.pid)
        assert worker.poll() == "ok"
    assert found["user"] == f"nobody ({NOBODY})"
    assert [line for line in found["held_by"] if "module variable 'leaked'" in line]
    assert found["problems"] == []


@as_root
def test_a_user_rescues_his_own_but_not_beyond_the_hard_limit() -> None:
    with wedged(user=NOBODY) as worker:
        done = as_nobody("rescue", str(worker.pid), "--hard", "4096", "--json")
        assert worker.limits == (512, 512)
        assert worker.poll() == "ok"
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert found["problems"][0] == NO_HARD_LIMIT


# ---- with a Guard ------------------------------------------------------------------------------------------

GUARDED = """
import contextlib, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
import holdfast as hold
guard = hold.Guard(name="ami", log=sys.argv[1], progress_timeout="1h")
with guard:
    guard.ok()
    with guard.job("job-17") if sys.argv[2] != "idle" else contextlib.nullcontext():
        print("ready", flush=True)
        if sys.argv[2] != "idle":
            sys.stdin.readline()
        if sys.argv[2] == "deaf":
            import signal
            signal.signal(signal.SIGUSR1, lambda *_: None)
            print("deaf", flush=True)
            sys.stdin.readline()
    print("done", guard.draining, flush=True)
    while not guard.draining:
        guard.ok()
        guard.wait("0.05s")
sys.exit(guard.exit_code)
"""


@contextlib.contextmanager
def guarded(log: Path, how: str = "hears") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", GUARDED, str(log), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_the_health_and_the_owners_of_a_guarded_worker(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    with guarded(log) as worker:
        found = rescued(worker.pid)
        assert found["health"] == "ok"
        expected = {"name": "ami", "state": "running", "job": "job-17", "jobs_done": 0, "log": str(log)}
        assert found["guard"] == expected
        assert found["problems"] == []
        done = holdfast("rescue", str(worker.pid))
        assert "  guard         ami: 0 jobs done, now job job-17" in done.stdout.splitlines()


def test_drain_lets_it_finish_its_job(tmp_path: Path) -> None:
    with guarded(tmp_path / "guard.log") as worker:
        found = rescued(worker.pid, "--drain")
        assert (found["drain"]["draining"], found["drain"]["exited"]) == (True, None)
        assert rescued(worker.pid)["health"] == "draining"
        late = rescued(worker.pid, "--drain", "--wait", "0.3s", code=1)
        assert late["problems"][-1] == "not drained: it drains, but was not done with job job-17 within less than 1 s"
        assert late["advice"][0] == "wait: it drains already, and exits after job job-17"


def test_it_waits_for_the_exit_of_one_that_drains(tmp_path: Path) -> None:
    with guarded(tmp_path / "guard.log") as worker:
        work = Rescue(worker.pid)
        work.scan()
        told: list[str] = []
        work.drain(TIMEOUT_S, until_exit=True, progress=lambda _: told.append(tell(worker)) if not told else None)
        # Its exit code is not read yet, and the process counts as ended.
        assert told == ["done True\n"]
        assert work.drained is not None
        assert (work.drained.exited, work.drained.problem) == (True, "")
        assert worker.wait(TIMEOUT_S) == 75


def test_an_idle_worker_drains_at_once(tmp_path: Path) -> None:
    with guarded(tmp_path / "guard.log", "idle") as worker:
        done = holdfast("rescue", str(worker.pid), "--drain", "--wait", "1min")
        assert worker.wait(TIMEOUT_S) == 75
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ it has drained and exited\n" in done.stdout
    assert "  drain         exited after " in done.stdout


def test_ctrl_c_ends_the_wait_and_not_the_drain(tmp_path: Path) -> None:
    def interrupt(process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: (page := read_heartbeat(worker.pid)) is not None and page.state is DRAINING, process)
        process.send_signal(signal.SIGINT)

    with guarded(tmp_path / "guard.log") as worker:
        shown, code = on_terminal("rescue", str(worker.pid), "--drain", "--wait", "1h", meanwhile=interrupt)
        assert code == 0, shown
        assert "drain         draining" in without_styles(shown)
        assert tell(worker) == "done True\n"
        assert worker.wait(TIMEOUT_S) == 75


def test_a_guard_that_does_not_react_is_reported(tmp_path: Path) -> None:
    with guarded(tmp_path / "guard.log", "deaf") as worker:
        assert tell(worker) == "deaf\n"
        found = rescued(worker.pid, "--drain", "--wait", "0.3s", code=1)
        assert found["drain"]["draining"] is False
        assert found["problems"][-1].startswith("not drained: its Guard did not react within less than 1 s")


def test_without_a_guard_nothing_is_sent() -> None:
    """SIGUSR1 would end the process."""
    with wedged() as worker:
        found = rescued(worker.pid, "--drain", code=3)
        assert worker.poll() == "ok"  # its limit was raised all the same
    assert found["problems"][-1] == "not drained: it has no hold.Guard, so that it cannot be asked to finish its job"
    assert found["drain"] == {"draining": False, "exited": None, "waited_s": 0.0}


# ---- many --------------------------------------------------------------------------------------------------

MANY = """
import os, resource, sys
n, hard = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))
keep = []
try:
    while True:
        reader, writer = os.pipe()
        os.close(writer)
        keep.append(reader)
except OSError:
    pass
parent = os.getpid()
for _ in range(int(sys.argv[2]) - 1):
    if os.getpid() == parent:
        os.fork()
if os.getpid() == parent:
    print("ready", flush=True)
sys.stdin.read()
"""


def test_sixty_thousand_descriptors() -> None:
    """In as few processes as the hard limit allows."""
    total, hard = 60_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    n = min(total, hard - 100)
    command = [sys.executable, "-c", MANY, str(n), str(-(-total // n))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = rescued(process.pid)
        process.communicate()
    assert found["limit"]["soft"] == [n, hard]
    assert found["fds"] in (n - 1, n)
    assert found["dead_pipes"] > n - 100
    assert found["rescued"] == (n + 64 < hard)
