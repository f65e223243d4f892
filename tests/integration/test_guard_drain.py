"""How a worker with a Guard drains: signals, callbacks, the drain timeout."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from guard_child import LOOP, guarded, run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")


# ---- signals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "code", "reason"),
    [
        ([signal.SIGUSR1], 75, "SIGUSR1"),
        ([signal.SIGTERM], 0, "SIGTERM"),
        ([signal.SIGUSR1, signal.SIGTERM], 0, "SIGTERM"),
        ([signal.SIGTERM, signal.SIGUSR1], 0, "SIGTERM"),
        ([signal.SIGTERM, signal.SIGTERM], 0, "SIGTERM"),
    ],
    ids=lambda value: "+".join(one.name for one in value) if isinstance(value, list) else "",
)
def test_signals_drain_and_a_stop_wins_over_a_restart(numbers: list[signal.Signals], code: int, reason: str) -> None:
    with guarded("""
guard = hold.Guard(every=EVERY)
with guard:
    with guard.job("slow"):
        say("ready")
        sys.stdin.readline()
    say(guard.draining, guard.reason, guard.wants_restart)
sys.exit(guard.exit_code)
""") as child:
        child.line()
        for number in numbers:
            os.kill(child.pid, number)
            child.wait_for(lambda: child.page().drain_ns)
        child.wait_for(lambda: child.page().exit_code == code and child.page().reason == reason)
        assert child.page().jobs_active == 1  # it goes on
        child.tell()
        done = child.end()
    assert (done.code, done.out) == (code, [f"True {reason} {code != 0}"])
    assert done.logged[-1] == f"ended after 1 job; {reason}"


def test_a_stop_wins_over_a_restart_that_another_thread_asks_for_at_the_same_time() -> None:
    done = run_guarded("""
from holdfast.process.guard.run import DrainRequests
for _ in range(300):
    drain = DrainRequests()
    gate = threading.Barrier(2)
    def ask():
        gate.wait()
        drain.request("soft cap")
    other = threading.Thread(target=ask)
    other.start()
    gate.wait()
    drain.request("SIGTERM", restart=False)
    other.join()
    assert (drain.is_draining, drain.asks_for_restart) == (True, False)
""")
    assert done.code == 0, done


def test_an_exit_code_of_zero_still_asks_for_a_restart() -> None:
    done = run_guarded(LOOP, "dict(max_age=0.05, exit_code=0)")
    assert (done.code, done.out[2]) == (0, "0 True")
    done = run_guarded(LOOP, "dict(max_age=0.05, exit_code=3)")
    assert (done.code, done.out[2]) == (3, "3 True")


# What a program that had a handler for SIGTERM before the guard does until it ends; `send()` sends it one.
BEFORE = """
import asyncio
said = []
stop = threading.Event()
def leave(number, frame):
    said.append("handler")
    sys.exit(5)
def flag(number, frame):
    said.append("handler")
    stop.set()
def send():
    signal.raise_signal(signal.SIGTERM)
    said.append("sent")
handler = eval(sys.argv[1])
signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
guard = hold.Guard(every=EVERY)
code = None
def job(fails=False):
    with guard.job():
        send()
        samples(3)
        if fails:
            raise ValueError
        said.append("job")
    said.append("posted")
def samples(count):
    for _ in range(count):
        alive = guard._run.page.get("alive_ns")
        until(lambda: guard._run.page.get("alive_ns") > alive)
def asks():
    while not guard.draining:
        job()
    said.append("left")
def asks_not():
    while not stop.is_set():
        with guard.job():
            if not said:
                send()
            samples(3)
            if "job" not in said:
                said.append("job")
def one_job():
    job()
    stop.wait(50)
def in_a_thread():
    thread = threading.Thread(target=lambda: [guard.ok(), guard.job().__enter__(), samples(5), said.append("job"),
                                              next(iter(guard._run.jobs.active.values())).__exit__(None, None, None)])
    thread.start()
    until(lambda: guard._run.jobs.active)
    send()
    stop.wait(50)
def no_job():
    send()
    until(stop.is_set)
def has_callback():
    guard.on_drain(lambda: said.append("callback"))
    send()
    until(lambda: "callback" in said)
def job_fails():
    guard.wait(0)
    job(fails=True)
def on_usr1():
    with guard.job():
        os.kill(os.getpid(), signal.SIGUSR1)
    guard.wait()
try:
    with guard:
        eval(sys.argv[2])()
    said.append("after")
except SystemExit as error:
    code = error.code
except ValueError:
    said.append("ValueError")
if code is None and "ValueError" not in said:
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
say(*said, code, guard.exit_code)
"""


@pytest.mark.parametrize(
    ("handler", "work", "said"),
    [
        # the program asks whether it drains: it is called at the end of the block
        ("leave", "asks", "sent job posted left handler 5 0"),
        ("flag", "asks", "sent job posted left handler after None 0"),
        ("leave", "has_callback", "sent callback handler 5 0"),
        ("leave", "job_fails", "sent ValueError None 0"),
        # it does not ask: it is called as soon as no job runs
        ("leave", "asks_not", "sent job handler 5 0"),
        ("flag", "asks_not", "sent job handler after None 0"),
        ("flag", "one_job", "sent job posted handler after None 0"),
        ("flag", "in_a_thread", "sent job handler after None 0"),
        ("leave", "no_job", "handler 5 0"),
        ("flag", "no_job", "handler sent after None 0"),
        ("flag", "on_usr1", "after None 75"),
    ],
)
def test_a_handler_of_before_aborts_no_job_and_is_called(handler: str, work: str, said: str) -> None:
    done = run_guarded(BEFORE, handler, work)
    assert (done.code, done.out) == (0, [said]), done


LATER = """
import asyncio, functools
guard = hold.Guard("w", every=EVERY)
stop = threading.Event()
def later(number, frame):
    exec(sys.argv[2])
def until_logged():
    with open(sys.argv[1]) as log:
        until(lambda: "any more" in log.read())
def by_signal():
    signal.signal(signal.SIGTERM, later)
async def by_loop():
    called = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, called.set)
    await asyncio.to_thread(until_logged)
    os.kill(os.getpid(), signal.SIGTERM)
    await called.wait()
def by_default():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
guard = hold.Guard(every=EVERY, log=sys.argv[1])
with guard:
    if sys.argv[3] == "by_loop":
        asyncio.run(by_loop())
    else:
        eval(sys.argv[3])()
        until_logged()
        if sys.argv[3] == "by_signal":
            os.kill(os.getpid(), signal.SIGTERM)
            guard.wait(20)
    say(guard.draining, guard.exit_code)
assert signal.getsignal(signal.SIGTERM) != guard._run.signals._on_signal
"""


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("by_signal", 'later(); call guard.drain("SIGTERM", restart=False) in it, or install it before the guard'),
        ("by_loop", "loop.add_signal_handler(); use guard.on_drain() instead of it"),
        ("by_default", "SIG_DFL; leave it to the guard"),
    ],
)
def test_a_handler_that_the_program_sets_later_is_left_alone_and_logged(how: str, line: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run_guarded(LATER, log, "guard.drain('SIGTERM', restart=False)", how)
    assert (done.code, done.out) == (0, ["True 0" if how == "by_signal" else "False 0"]), done
    [said] = [one for one in log.read_text().splitlines() if "any more" in one]
    assert said.endswith(
        f"SIGTERM does not drain it any more: the program has replaced the guard's handler with {line}"
    )


def test_a_handler_of_an_event_loop_from_before_is_logged() -> None:
    done = run_guarded("""
import asyncio
async def main():
    called = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, called.set)
    with hold.Guard(every=EVERY) as guard:
        os.kill(os.getpid(), signal.SIGTERM)
        await called.wait()
        say(guard.draining)
asyncio.run(main())
""")
    assert (done.code, done.out) == (0, ["True"]), done
    assert done.logged[0] == (
        "SIGTERM drains it, but the event loop calls at once what loop.add_signal_handler() was given for it: use "
        "guard.on_drain() instead"
    )


def test_handlers_of_faulthandler_are_kept_or_their_loss_is_logged() -> None:
    """Python reports the default action for them."""
    done = run_guarded("""
import faulthandler
faulthandler.register(signal.SIGUSR1)
faulthandler.register(signal.SIGUSR2, sys.stdout)
with hold.Guard(every=EVERY) as guard:
    os.kill(os.getpid(), signal.SIGUSR2)
os.kill(os.getpid(), signal.SIGUSR2)
""")
    assert done.code == 0, done
    assert len([line for line in done.out if line.startswith("Current thread")]) == 2
    assert done.logged[0] == "SIGUSR1 drains it from now on: what C code did on it before is replaced"


def test_signal_handlers_may_call_everything() -> None:
    """A handler interrupts ok(), fail() and the end of a job, wherever they are, and calls them itself."""
    done = run_guarded("""
guard = hold.Guard(every=EVERY, progress_timeout=None)
calls = 0
def handler(number, frame):
    global calls
    calls += 1
    guard.ok(); guard.fail("x"); guard.step(); guard.draining; repr(guard)
    with guard.job("in a handler"):
        pass
signal.signal(signal.SIGALRM, handler)
with guard:
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    while calls < 300:
        guard.ok(); guard.fail("y"); guard.step()
        with guard.job("outside"):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
say(guard._run.jobs.active, guard._run.jobs.started == guard._run.jobs.done, guard.draining)
""")
    assert (done.code, done.out) == (0, ["{} True False"]), done


def test_sigusr2_writes_the_stacks_and_the_worker_goes_on() -> None:
    with guarded("""
guard = hold.Guard(every=EVERY)
def waits_for_a_line():
    say("ready")
    sys.stdin.readline()
with guard:
    waits_for_a_line()
""") as child:
        child.line()
        assert child.page().stacks_signal == signal.SIGUSR2
        os.kill(child.pid, signal.SIGUSR2)
        assert child.process.stderr is not None
        log = ""
        while " in waits_for_a_line" not in log:
            log += child.process.stderr.readline()
        child.tell()
        assert child.end().code == 0
    assert "Current thread" in log


def test_started_outside_the_main_thread() -> None:
    done = run_guarded("""
def work():
    global code
    guard = hold.Guard(every=EVERY, max_jobs=1)
    with guard:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with guard.job():
            pass
        guard.wait()
    code = guard.exit_code
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
sys.exit(code)
""")
    assert done.code == 75
    assert done.logged[0].startswith(
        "SIGTERM and SIGUSR1 do not drain it: it was not started in the main thread. Start"
    )


def test_a_guard_that_another_thread_ended_leaves_the_signals_to_others() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        done = run_guarded(
            """
guard = hold.Guard(every=EVERY)
guard.__enter__()
thread = threading.Thread(target=guard.__exit__, args=(None, None, None))
thread.start()
thread.join()
os.kill(os.getpid(), int(sys.argv[1]))
until(lambda: False)
""",
            int(number),
        )
        assert done.code == -number, done


# ---- draining ----------------------------------------------------------------------------------------------


def test_callbacks() -> None:
    done = run_guarded(
        """
import functools
guard = hold.Guard(every=EVERY)
called = []
class Method:
    def stop(self): called.append("method")
    def why(self, reason): called.append("method " + reason)
@guard.on_drain
def with_reason(reason): called.append("with " + reason)
@guard.on_drain
def without(): called.append("without")
@guard.on_drain
def optional(reason="none"): called.append("optional " + reason)
@guard.on_drain
def raises(reason): raise OSError(24, "Too many open files")
@guard.on_drain
def leaves(): sys.exit(3)
@guard.on_drain
def keywords(*all, **named): called.append(f"keywords {all} {named}")
guard.on_drain(Method().stop)
guard.on_drain(Method().why)
guard.on_drain(functools.partial(called.append))
guard.on_drain(called.append)
guard.on_drain(max)  # no signature is known of it
assert guard.on_drain(print) is print
try:
    guard.on_drain("not a function")
except TypeError as error:
    say(error)
with guard:
    assert without() is None and called.pop() == "without"
    guard.drain("why")
    guard.drain("again")
say(*called, sep=", ")
sys.exit(guard.exit_code)
""".replace('say(*called, sep=", ")', "say(', '.join(called))")
    )
    assert done.code == 75, done
    refused, printed, called = done.out
    assert refused == "expected a function, got 'not a function'"
    assert printed == "why"
    assert called == "with why, without, optional why, keywords ('why',) {}, method, method why, why, why"
    assert "on_drain: raises() failed: OSError: [Errno 24] Too many open files" in done.logged
    assert "on_drain: leaves() failed: SystemExit: 3" in done.logged


def test_the_end_of_the_block_waits_for_a_slow_callback() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY)
order = []
ready, go_on = threading.Event(), threading.Event()
@guard.on_drain
def slow():
    ready.set()
    go_on.wait(50)
    order.append("callback")
with guard:
    guard.drain()
    ready.wait(50)
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)  # it goes on sampling
    threading.Timer(0.2, go_on.set).start()
order.append("end")
say(order)
""")
    assert (done.code, done.out) == (0, ["['callback', 'end']"]), done


def test_ctrl_c_ends_the_wait_for_a_callback_and_the_guard() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, drain_timeout="1min")
@guard.on_drain
def stuck():
    def functions():
        frame, found = sys._current_frames()[threading.main_thread().ident], set()
        while frame:
            found.add(frame.f_code.co_name)
            frame = frame.f_back
        return found
    until(lambda: {"__exit__", "_stop_thread", "join"} <= functions())  # the main thread waits for this one
    assert guard._run.page.get("state") == 2  # it still drains
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(50)
try:
    with guard:
        guard.drain()
except KeyboardInterrupt:
    say(guard.exit_code)
until(lambda: not guard._run.thread.is_alive())
os._exit(guard.exit_code)
""")
    assert (done.code, done.out) == (75, ["75"]), done


@pytest.mark.parametrize(
    "work",
    [
        "guard.drain(); guard.job('stuck').__enter__(); stuck()",
        "guard.drain(); stuck()",
        "guard.on_drain(stuck); guard.drain()",
    ],
    ids=["job", "loop", "callback"],
)
def test_a_drain_that_takes_too_long_ends_at_once(work: str) -> None:
    done = run_guarded(f"""
guard = hold.Guard(every=EVERY, drain_timeout=0.3)
def stuck(): threading.Event().wait(50)
with guard:
    {work.replace("drain()", "drain('the reason')")}
""")
    assert done.code == 70, done
    assert done.logged[0] == "draining: the reason; will exit with 75"
    assert done.logged[1].startswith("ends at once with exit code 70: its drain (the reason) has taken less than 1 s")
    assert " in stuck" in done.log
    assert not any(line.startswith("held by") for line in done.logged)


def test_the_hard_cap_holds_while_it_drains() -> None:
    done = run_guarded(
        """
kept = []
guard = hold.Guard(every=EVERY, fds=hold.Cap(hard=100))
with guard:
    guard.drain("first")
    until(lambda: guard._run.state.name == "DRAINING")
    kept = [os.dup(0) for _ in range(100)]
    until(lambda: False)
""",
        nofile=512,
    )
    assert done.code == 70
    assert done.logged[1].startswith("ends at once with exit code 70: it uses 1")


def test_wait_returns_when_it_drains_and_when_it_ends() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY)
assert guard.wait(5) is False and guard.wait() is False  # not started: nothing to wait for
found = []
with guard:
    assert guard.wait(0) is False and guard.wait("0.01s") is False and guard.wait(0.01) is False
    waiting = [threading.Thread(target=lambda: found.append(guard.wait())) for _ in range(3)]
    for one in waiting:
        one.start()
for one in waiting:
    one.join(20)
assert found == [False] * 3 and guard.wait() is False
try:
    guard.wait("soon")
except ValueError as error:
    say(error)
guard = hold.Guard(every=EVERY)
with guard:
    threading.Timer(0.05, guard.drain).start()
    assert guard.wait() is True
assert guard.wait() is True
""")
    assert (done.code, done.out) == (0, ["timeout=: expected a time such as 30s, 5m or 1h, got 'soon'"]), done


def test_calls_before_the_start_warn_once() -> None:
    """A worker that forgot `with guard:` would otherwise look guarded."""
    done = run_guarded("""
import warnings
for call in ("ok()", "fail(None)", "step()", "job(1)", "drain()", "wait(0)"):
    guard = hold.Guard()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        eval(f"guard.{call}")
        guard.ok()
    say(*(f"{one.category.__name__} {one.filename} {one.message}" for one in found))
with hold.Guard() as guard:
    if not os.fork():
        warnings.simplefilter("error")
        guard.ok()
        os._exit(0)
    assert os.wait()[1] == 0
guard.ok()
""")
    assert done.code == 0, done
    assert done.out == [
        f"RuntimeWarning <string> {name}() has no effect: this Guard is not started. "
        "Write `with guard:` around the loop"
        for name in ("ok", "fail", "step", "job", "drain", "wait")
    ]


@pytest.mark.parametrize(
    ("end", "is_reminded"),
    [("", True), ("guard.exit_code", False), ("guard.wants_restart", False), ("os.kill(os.getpid(), 15)", False)],
)
def test_a_worker_that_forgets_the_exit_code_is_reminded(end: str, is_reminded: bool) -> None:
    """It exits with 0, and its supervisor takes it for done."""
    done = run_guarded(f"""
with hold.Guard("w", every=EVERY) as guard:
    guard.drain("new version")
    guard.wait()
    {end}
""")
    assert done.code == 0
    assert ("end the program with `raise SystemExit(guard.exit_code)`" in done.log) == is_reminded, done


def test_a_guard_is_used_once_and_alone() -> None:
    done = run_guarded("""
first = hold.Guard("first")
for guard in (first, hold.Guard("second")):
    assert (guard.draining, guard.reason, guard.exit_code, guard.wants_restart) == (False, "", 0, False)
    guard.ok(); guard.fail(OSError(24, "x")); guard.step(); guard.drain()  # nothing happens before the start
    with guard.job("early"): pass
    assert not guard.draining
with first:
    for other in (hold.Guard("second"), first):
        try:
            with other: pass
        except RuntimeError as error:
            say(error)
    first.ok()
    assert repr(first) == "<Guard first: active, 0 jobs done>"
try:
    with first: pass
except RuntimeError as error:
    say(error)
first.ok(); first.fail(OSError(24, "x")); first.step(); first.drain()  # nor after the end
with first.job("late"): pass
assert not first.draining and repr(first) == "<Guard first: not active, 0 jobs done>"
for _ in range(3):
    with hold.Guard("next") as guard:
        guard.ok()
""")
    assert done.code == 0, done
    assert done.out == [
        "expected one active Guard in a process, got a second one beside 'first': pass that one on; several jobs, "
        "threads and tasks may share it",
        "expected a new Guard, got one that was used already: make one for each `with` block",
        "expected a new Guard, got one that was used already: make one for each `with` block",
    ]
