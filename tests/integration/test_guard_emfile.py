"""Every function of a Guard with no free descriptor, at the hard limit: it samples, logs, drains and exits."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

import holdfast as hold
from guard_child import TAKEN, guarded, run_guarded
from holdfast.process.fd_owners.agent import ask_owners

pytestmark = pytest.mark.usefixtures("guard_runtime")

LIMIT = 128
PUBLIC = {
    *("draining", "reason", "wants_restart", "exit_code", "ok", "fail", "step", "job", "on_drain", "drain", "wait"),
    "after_fork_in_child",  # tested with forks
}

# Fills the table, and checks at the end that it still is full, that nothing was imported and nothing was opened.
AT_ZERO = """
opened = []
def hook(event, arguments):
    if event == "open" and watching:
        opened.append(arguments[0])
watching = False
sys.addaudithook(hook)
def nothing_free():
    global watching, modules
    kept.extend(fill())
    assert is_full()
    modules = set(sys.modules)
    watching = True
def still_nothing():
    assert is_full()
    assert set(sys.modules) == modules, set(sys.modules) - modules
kept = []
"""

EVERYTHING = (
    AT_ZERO
    + """
guard = hold.Guard("worker", every=EVERY, fds=None, eta=None, reserve_fds=0, progress_timeout="1h", max_jobs=10_000)
called = []
with guard:
    nothing_free()
    guard.on_drain(lambda why: called.append(why))
    guard.on_drain(functools.partial(called.append))
    until(lambda: guard._run.page.get("fds") == int(sys.argv[1]))  # it samples
    guard.ok()
    guard.step()
    guard.fail(ValueError("x"))
    guard.fail(ConnectionError(errno.ECONNREFUSED, "refused"))
    guard.fail(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    guard.fail("a text")
    guard.fail()
    with guard.job("one"):
        guard.step()
    try:
        with guard.job("two"):
            raise KeyError("two")
    except KeyError:
        pass
    assert not guard.draining and not guard.wants_restart and guard.exit_code == 0 and guard.reason == ""
    assert guard.wait(0) is False and guard.wait(0.001) is False
    assert repr(guard) == "<Guard worker: active, 1 job done>"
    still_nothing()
    os.kill(os.getpid(), signal.SIGUSR2)
    guard.drain("enough")
    assert guard.wait() is True
    assert guard.reason == "enough" and guard.exit_code == 75 and guard.wants_restart
    os.kill(os.getpid(), signal.SIGTERM)
    assert guard.exit_code == 0
    still_nothing()
watching = False
assert set(sys.modules) == modules, set(sys.modules) - modules
os.write(1, f"{called} {opened}\\n".encode())
os._exit(guard.exit_code)
"""
)


def test_every_public_name_is_in_this_suite() -> None:
    assert {name for name in dir(hold.Guard) if not name.startswith("_")} == PUBLIC
    assert all(f"guard.{name}" in EVERYTHING for name in PUBLIC - {"after_fork_in_child"})


def test_every_function() -> None:
    done = run_guarded("import functools\n" + EVERYTHING, LIMIT, nofile=LIMIT)
    assert (done.code, done.out) == (0, ["['enough', 'enough'] []"]), done
    assert done.logged == [
        "draining: enough; will exit with 75",
        "draining: SIGTERM; will exit with 0",
        "ended after 1 job, 6 failures; SIGTERM",
    ]
    assert "Current thread" in done.log  # SIGUSR2


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ("fds=None", 75, r"draining: EXHAUSTED: .*; its limit is reached; will exit with 75"),
        ("fds=hold.Cap(soft=0.9), eta=None", 75, r"draining: it uses 128 descriptors, .*"),
        ("fds=hold.Cap(hard=0.9)", 70, r"ends at once with exit code 70: it uses 128 descriptors, .*"),
        (
            "fds=None, eta=None, max_age=0.5",
            75,
            r"draining: it is .* old \(max_age less jitter\); will exit with 75",
        ),
        ("fds=None, eta=None, rss=hold.Cap(soft='5MB', tree=True)", 75, r"draining: it uses .* of memory, .*"),
        ("fds=None, eta=None, children=hold.Cap(soft=1)", 75, r"draining: it uses 1 child processes, .*"),
        ("fds=None, eta=None, threads=hold.Cap(soft=4)", 75, r"draining: it uses 4 threads, .*"),
    ],
    ids=["exhausted", "soft", "hard", "age", "tree", "children", "threads"],
)
def test_each_sample_finds_its_cause(options: str, code: int, line: str) -> None:
    done = run_guarded(
        AT_ZERO
        + f"""
import subprocess
import holdfast.process.guard.run
holdfast.process.guard.run.GuardRun._refuse_low_caps = lambda self: None
guard = hold.Guard(every=EVERY, reserve_fds=0, {options})
child = subprocess.Popen(["sleep", "20"], **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL))
with guard:
    threading.Thread(target=lambda: guard.wait(), daemon=True).start()
    nothing_free()
    guard.wait()
    still_nothing()
assert set(sys.modules) == modules, set(sys.modules) - modules
child.kill()
child.wait()
os._exit(guard.exit_code)
""",
        nofile=LIMIT,
    )
    assert done.code == code, done
    assert re.fullmatch(line, done.logged[0]), done.logged[0]
    if code == 75:
        assert done.logged[1].startswith("ended after 0 jobs; ")


@pytest.mark.parametrize("kind", ["cap", "fail", "drain timeout"])
def test_the_dump_is_complete(kind: str) -> None:
    done = run_guarded(
        AT_ZERO
        + """
class Holder: pass
holder = Holder()
kind = sys.argv[1]
guard = hold.Guard(every=EVERY, fds=0.9 if kind == "cap" else None, eta=None, reserve_fds=0,
                   drain_timeout=0.1 if kind == "drain timeout" else None)
with guard:
    holder.files = []
    try:
        while True:
            reader, writer = os.pipe()
            os.close(writer)
            holder.files.append(os.fdopen(reader, "rb", buffering=0))
    except OSError as error:
        nothing_free()
        os.write(1, b"full\\n")
        if kind == "drain timeout":
            guard.drain("the reason")
        if kind == "fail":
            guard.fail(error)
    until(lambda: False)
""",
        kind,
        nofile=LIMIT,
    )
    assert done.code == 70, done
    assert "stacks of all threads:" in done.logged
    assert 'File "<string>"' in done.log
    assert any(re.match(r"12[68] descriptors: pipe \d+, ", line) for line in done.logged), done.log
    assert any("read ends without a writer" in line for line in done.logged)
    if kind != "drain timeout":  # searching for owners takes seconds, and the cause is another one
        assert "'holder' → Holder.files[…] → FileIO" in next(
            line for line in done.logged if line.startswith("held by ")
        )
    if kind == "cap":
        assert done.out in ([], ["full"])


def test_the_reserve_below_the_hard_limit_is_used() -> None:
    done = run_guarded(
        AT_ZERO
        + """
guard = hold.Guard(every=EVERY, fds=None, eta=None, reserve_fds=32)
with guard:
    nothing_free()
    guard.fail(OSError(errno.EMFILE, "Too many open files"))
""",
        nofile=256,
    )
    assert done.code == 70
    assert done.logged[1] == "raised its soft limit of descriptors from 224 to 256"
    assert any(re.match(r"22[24] descriptors: ", line) for line in done.logged), done.log


def test_a_thread_that_takes_every_descriptor_that_becomes_free() -> None:
    """What the guard releases for its looks is gone at once; it drains nevertheless."""
    done = run_guarded(
        AT_ZERO
        + """
guard = hold.Guard(every=EVERY, fds=None, reserve_fds=0, rss=hold.Cap(hard=0.99, tree=True), eta="6h")
def steal():
    while True:
        try:
            kept.append(os.dup(0))
        except OSError:
            pass
with guard:
    threading.Thread(target=steal, daemon=True).start()
    guard.wait()
os._exit(guard.exit_code)
""",
        nofile=LIMIT,
    )
    assert done.code == 75, done
    assert done.logged[0].startswith("draining: EXHAUSTED"), done.log


def test_other_processes_see_and_ask_it() -> None:
    with guarded(
        AT_ZERO
        + """
guard = hold.Guard("worker", every=EVERY, fds=None, eta=None, reserve_fds=0)
files = []
with guard:
    files = [os.fdopen(os.dup(0)) for _ in range(50)]
    nothing_free()
    os.write(1, b"ready\\n")
    guard.wait()
os._exit(guard.exit_code)
""",
        nofile=LIMIT,
    ) as child:
        child.line()
        child.wait_for(lambda: child.page().fds == LIMIT)
        groups = ask_owners(child.pid)
        assert any("'files'" in group.shape and group.count == 50 for group in groups or ())
        os.kill(child.pid, signal.SIGUSR1)
        assert child.end().code == 75


def test_how_many_descriptors_it_takes() -> None:
    done = run_guarded("""
before = set(os.listdir("/proc/self/fd"))
with hold.Guard():
    inside = set(os.listdir("/proc/self/fd"))
    threads = {thread.name for thread in threading.enumerate()}
assert set(os.listdir("/proc/self/fd")) == before
say(len(inside - before), sorted(threads))
""")
    assert done.out == [f"{TAKEN} ['MainThread', 'holdfast-guard', 'holdfast-listen']"]


def test_started_with_few_descriptors_it_works_or_refuses_and_leaves_nothing(guard_runtime: Path) -> None:
    done = run_guarded(
        f"""
import faulthandler, signal
results = []
taken = fill()
def attempt():
    with hold.Guard(every=EVERY, fds=None, reserve_fds=0, log={str(guard_runtime.parent / "log")!r}) as guard:
        guard.ok()
        guard.drain()
    return guard.exit_code
def state():
    return os.stat("/proc/self/fd").st_size, signal.getsignal(signal.SIGTERM), threading.active_count()
attempts = []
for free in range(20):
    before = state()
    try:
        attempts.append(attempt())
    except OSError as error:
        attempts.append(errno.errorcode[error.errno])
    until(lambda: threading.active_count() == before[2])
    assert before == state(), free
    os.close(taken.pop())
say(attempts)
""",
        nofile=64,
    )
    assert done.code == 0, done
    attempts = eval(done.out[0])
    first = attempts.index(75)
    assert set(attempts[:first]) == {"EMFILE"}
    assert set(attempts[first:]) == {75}
    assert first <= TAKEN
    assert not list(guard_runtime.iterdir())


# ---- the error of the incident -----------------------------------------------------------------------------

REQUESTS = """
import socket
import requests
server = socket.create_server(("127.0.0.1", 0))
url = f"https://127.0.0.1:{server.getsockname()[1]}/jobs"
session = requests.Session()
session.trust_env = False
session.verify = sys.argv[1]
def poll():
    return session.get(url, timeout=0.2)
try:
    poll()  # imports what requests imports late
except requests.RequestException:
    pass
session.close()
guard = hold.Guard(every=EVERY, fds=None, eta=None, reserve_fds=0)
with guard:
    kept = fill(keep=1)
    while not guard.draining:
        try:
            poll()
            guard.ok()
        except Exception as error:
            os.write(1, f"{type(error).__name__}\\n".encode())
            guard.fail(error)
"""


def test_an_ssl_error_of_requests_with_one_descriptor_left(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    import certifi

    authorities.write_bytes(Path(certifi.where()).read_bytes())
    done = run_guarded(REQUESTS, authorities, nofile=LIMIT)
    assert (done.code, done.out) == (70, ["SSLError"]), done
    assert done.logged[0].startswith("ends at once with exit code 70: it has no free descriptor: EMFILE (SSLError: ")
