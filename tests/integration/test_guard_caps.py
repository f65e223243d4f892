"""Caps, leaks, jobs and age of a worker with a Guard: when it drains and when it ends at once."""

from __future__ import annotations

import re
import resource

import pytest

from guard_child import LEAKS_TO_THE_HARD_CAP, LOOP, guarded, run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")


# ---- caps --------------------------------------------------------------------------------------------------


def test_the_soft_cap_drains() -> None:
    done = run_guarded(LOOP, "dict(fds=hold.Cap(soft=100, hard=400), eta=None)", 2, nofile=512)
    assert done.code == 75
    assert done.out[0] == "ready"
    assert re.fullmatch(r"it uses 1\d\d descriptors, its soft cap is 100 \(limit 448\)", done.out[1])
    assert done.out[2] == "75 True"
    drains, ended = done.logged
    assert drains == f"draining: {done.out[1]}; will exit with 75"
    assert ended == f"ended after 0 jobs; {done.out[1]}"


@pytest.mark.parametrize("how", ["rises", "stays"])
def test_a_peak_above_the_soft_cap_does_not_drain(how: str) -> None:
    """Work in progress comes and goes: only what rises in three samples, or stays for 30, is more."""
    done = run_guarded(
        """
guard = hold.Guard(every="1h", fds=hold.Cap(soft=100), eta=None)
with guard:
    for _ in range(5):
        kept = [os.dup(0) for _ in range(150)]
        for _ in range(29):
            guard._run.tick()
        for fd in kept:
            os.close(fd)
        guard._run.tick()
    assert not guard.draining
    kept = [os.dup(0) for _ in range(150)]
    for at in range(2 if sys.argv[1] == "rises" else 30):
        assert not guard.draining, at
        guard._run.tick()
        kept += [os.dup(0)] if sys.argv[1] == "rises" else []
    assert guard.draining
""",
        how,
    )
    assert done.code == 0, done


def test_the_hard_cap_ends_at_once_with_all_that_is_needed_to_find_the_leak() -> None:
    done = run_guarded(LEAKS_TO_THE_HARD_CAP, nofile=256)
    assert done.code == 70
    lines = done.logged
    assert re.fullmatch(
        r"ends at once with exit code 70: it uses \d+ descriptors, its hard cap is 112 \(limit 224\)", lines[0]
    )
    assert lines[1] == "raised its soft limit of descriptors from 224 to 256"
    assert lines[2] == "stacks of all threads:"
    assert " in work_in_the_job" in done.log
    table = next(line for line in lines if re.match(r"\d+ descriptors: pipe \d+", line))
    assert int(table.split()[0]) > 100  # the sample may have counted write ends that are closed by now
    assert any(re.match(r"\d+ read ends without a writer, ", line) for line in lines)
    owners = [line for line in lines if line.startswith("held by ")]
    assert "__main__ module variable 'holder'" in owners[0]
    assert "pipes" in owners[0]


def test_a_dump_of_which_a_part_fails_goes_on() -> None:
    program = """
import holdfast.process.guard.emergency
def broken(own):
    raise RuntimeError("no table today")
    yield
holdfast.process.guard.emergency.describe_fds = broken
"""
    done = run_guarded(program + LEAKS_TO_THE_HARD_CAP, nofile=256)
    assert done.code == 70
    assert "the descriptors could not be written: RuntimeError: no table today" in done.logged
    assert any(line.startswith("held by ") for line in done.logged)


@pytest.mark.parametrize(
    ("options", "work", "reason"),
    [
        (
            "threads=hold.Cap(soft=12)",
            "[threading.Thread(target=ends.wait, daemon=True).start() for _ in range(12)]",
            r"it uses 1\d threads, its soft cap is 12",
        ),
        (
            "children=hold.Cap(soft=3)",
            "children.extend(subprocess.Popen(['sleep', '60']) for _ in range(3))",
            r"it uses 3 child processes, its soft cap is 3",
        ),
        (
            "children=hold.Cap(soft=4, tree=True)",
            "children.extend(subprocess.Popen(['sh', '-c', 'sleep 60 & wait'], process_group=0) for _ in range(2))",
            r"it uses 4 child processes, its soft cap is 4",
        ),
        (
            "rss=hold.Cap(soft='250MB')",
            "kept.append(b'x' * 250_000_000)",
            r"it uses \d+ MB of memory, its soft cap is 250 MB \(limit .*\)",
        ),
    ],
    ids=["threads", "children", "descendants", "memory"],
)
def test_other_caps(options: str, work: str, reason: str) -> None:
    done = run_guarded(f"""
import subprocess
import holdfast.process.guard.leak_watch
holdfast.process.guard.leak_watch._REST = 1  # looking at all processes is repeated only after some seconds otherwise
ends, children, kept = threading.Event(), [], []
guard = hold.Guard(every=EVERY, {options})
with guard:
    {work}
    until(lambda: guard.draining)
say(guard.reason)
for child in children:
    try:
        os.killpg(child.pid, 9)
    except ProcessLookupError:
        child.kill()
    child.wait()
os._exit(guard.exit_code)
""")
    assert done.code == 75, done
    assert re.fullmatch(reason, done.out[0])


# Looking at all processes costs milliseconds, and is repeated only after some seconds: not in these tests.
OFTEN = "import holdfast.process.guard.leak_watch\nholdfast.process.guard.leak_watch._REST = 1\n"

SHARED = """
import mmap
block = mmap.mmap(-1, 40 << 20)
block.write(b"x" * len(block))  # 40 MiB that all children share
bound = "150MB"  # four times the resident size is more, what is used is less
guard = hold.Guard(every=EVERY, rss=hold.Cap(hard=bound, tree=True))
ours, theirs = os.pipe()
with guard:
    pids = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            os.close(theirs)
            assert sum(block[::4096])  # maps all pages in
            say("mapped")
            if sys.argv[1] == "own":
                more = b"y" * (50 << 20)
                say("took")
            os.read(ours, 1)
            os._exit(0)
        pids.append(pid)
    os.close(ours)
    until(lambda: guard._run.tree.shared > (80 << 20))
    say("shared", guard.draining)
    os.close(theirs)
    for pid in pids:
        os.waitpid(pid, 0)
"""


def test_memory_that_children_share_counts_once() -> None:
    done = run_guarded(OFTEN + SHARED, "shared")
    assert (done.code, done.out) == (0, ["mapped"] * 3 + ["shared False"]), done


def test_memory_of_children_counts() -> None:
    with guarded(
        OFTEN + SHARED.replace("until(lambda: guard._run.tree.shared > (80 << 20))", "until(lambda: False)"), "own"
    ) as child:
        done = child.end()
    assert done.code == 70
    assert re.match(r"ends at once with exit code 70: it uses \d+ MB of memory, its hard cap is 150 MB", done.logged[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("fds=3", r"it uses \d+ descriptors, its hard cap is 3 \(limit 448\)\. Raise fds=, or"),
        ("fds=hold.Cap(soft='1%')", r"it uses \d+ descriptors, its soft cap is 4 \(limit 448\)\. Raise fds=, or"),
        ("rss=2_000_000", r"it uses .* MB of memory, its hard cap is 2.00 MB \(limit .*\)\. Raise rss=, or"),
        ("threads=1", r"it uses \d threads?, its hard cap is 1\. Raise threads=, or"),
    ],
)
def test_a_cap_that_is_exceeded_at_the_start_is_refused(options: str, said: str) -> None:
    """Otherwise it would drain and be restarted again and again."""
    done = run_guarded(
        f"""
def state():
    return os.listdir("/proc/self/fd"), signal.getsignal(signal.SIGTERM), resource.getrlimit(resource.RLIMIT_NOFILE)
before = state()
try:
    with hold.Guard({options}):
        pass
except ValueError as error:
    say(error)
assert before == state()
with hold.Guard():
    pass
""",
        nofile=512,
    )
    assert done.code == 0, done
    assert re.fullmatch(
        rf"expected a cap above what the process uses at its start, but {said} start the guard earlier", done.out[0]
    )


def test_parts_follow_a_limit_that_is_raised_from_outside() -> None:
    with guarded(
        LOOP, "dict(fds=hold.Cap(soft=0.5, hard=0.85), eta=None, reserve_fds=0)", 0, nofile=(256, 1024)
    ) as child:
        assert child.line() == "ready"
        child.wait_for(lambda: child.page().fd_soft_cap == 128)
        assert child.page().fd_hard_cap == 217
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (1000, 1024))
        child.wait_for(lambda: child.page().fd_soft_cap == 500)
        assert child.page().fd_hard_cap == 850
        child.process.terminate()
        assert child.end().code == 0


# ---- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reserve", "inside"),
    [
        ((1024, 1024), 64, 960),
        ((1000, 1024), 64, 960),
        ((900, 1024), 64, 900),  # far enough below
        ((1024, 1024), 0, 1024),
        ((256, 256), 64, 224),  # an eighth of a small limit
    ],
)
def test_the_soft_limit_is_lowered_and_restored(limits: tuple[int, int], reserve: int, inside: int) -> None:
    done = run_guarded(
        f"""
with hold.Guard(reserve_fds={reserve}):
    say(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
say(*resource.getrlimit(resource.RLIMIT_NOFILE))
""",
        nofile=limits,
    )
    assert (done.code, done.out) == (0, [f"{inside}", f"{limits[0]} {limits[1]}"])


def test_a_limit_that_the_program_changed_is_left_alone() -> None:
    done = run_guarded(
        """
with hold.Guard():
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, 1024))
say(*resource.getrlimit(resource.RLIMIT_NOFILE))
""",
        nofile=1024,
    )
    assert done.out == ["500 1024"]


# ---- leaks -------------------------------------------------------------------------------------------------


LEAKS = """
import holdfast.process.guard.leak_watch
holdfast.process.guard.leak_watch.START_UPS = 0  # its start takes longer than all of its jobs
kept = []
guard = hold.Guard(every=EVERY, fds=hold.Cap(soft=0.9, hard=0.95), eta=sys.argv[1])
with guard:
    number = 0
    while not guard.draining and number < int(sys.argv[3]):
        number += 1
        with guard.job(number):
            kept += os.pipe() if sys.argv[2] == "leaks" else ()
            while sys.argv[2] == "cache" and len(kept) > 62:
                os.close(kept.pop(0))
            kept += [os.dup(0)] if sys.argv[2] == "cache" else []
        time.sleep(0.01)
say(number, guard.reason)
sys.exit(guard.exit_code)
"""


def test_a_leak_by_jobs_drains_above_four_fifths_of_the_limit() -> None:
    done = run_guarded(LEAKS, "1h", "leaks", "1000", nofile=512)
    assert done.code == 75
    number, reason = done.out[0].split(" ", 1)
    assert 0.8 * 448 <= 2 * int(number) + 30 < 0.95 * 448
    assert reason.startswith("LEAK: every job leaves 2 descriptors open (over "), reason
    assert re.search(r"; its limit is reached in (\d+ s|\d+ min.*|less than 1 s)$", reason)


@pytest.mark.parametrize("work", ["cache", "clean"])
def test_jobs_without_a_leak_do_not_drain(work: str) -> None:
    """A cache of 64 handles holds one more after each of 64 jobs."""
    done = run_guarded(LEAKS, "365d", work, "150", nofile=512)
    assert (done.code, done.out) == (0, ["150 "])


def test_by_default_a_worker_that_stays_at_three_quarters_of_its_limit_goes_on() -> None:
    steady = """
guard = hold.Guard(every=EVERY)
with guard:
    kept = [os.dup(0) for _ in range(340)]
    guard.ok()
    seen = set()
    while len(seen) < 60 and not guard.draining:
        seen.add(guard._run.page.get("alive_ns"))
        time.sleep(0.001)
say(guard.reason)
"""
    done = run_guarded(steady, nofile=512)
    assert (done.code, done.out) == (0, [""])


def test_a_soft_cap_says_what_leaks() -> None:
    done = run_guarded(LEAKS.replace("soft=0.9", "soft=0.45"), "1h", "leaks", "1000", nofile=512)
    assert done.code == 75
    cap = r"it uses \d+ descriptors, its soft cap is 201 \(limit 448\)"
    assert re.fullmatch(rf"\d+ LEAK: every job leaves 2 descriptors open \(.*\); {cap}", done.out[0]), done.out


# ---- jobs and age ------------------------------------------------------------------------------------------


JOBS = """
guard = hold.Guard(every=EVERY, **eval(sys.argv[1]))
done = 0
with guard:
    while not guard.draining:
        try:
            with guard.job(done):
                done += 1
                if done % 3 == 0:
                    raise KeyError(done)
        except KeyError:
            pass
say(done, guard.reason)
sys.exit(guard.exit_code)
"""


def test_max_jobs_counts_failed_ones_too() -> None:
    done = run_guarded(JOBS, "dict(max_jobs=7, jitter=0)")
    assert (done.code, done.out) == (75, ["7 7 jobs done (max_jobs)"])
    assert done.logged[-1] == "ended after 5 jobs, 2 failures; 7 jobs done (max_jobs)"


def test_a_bound_that_jitter_shortened_is_named() -> None:
    done = run_guarded(JOBS, "dict(max_jobs=1000, jitter=0.9)")
    assert done.code == 75
    assert done.out[0].endswith(" jobs done (max_jobs=1,000 less jitter)"), done.out


def test_jitter_only_shortens_and_differs_between_forked_workers() -> None:
    """A server may make one Guard and fork its workers, each of which starts it."""
    done = run_guarded("""
def started(guard):
    with guard:
        return guard._run.max_jobs, guard._run.max_age_s
jobs, ages = zip(*(started(hold.Guard(max_jobs=1000, max_age="1000s", jitter=0.5)) for _ in range(50)))
assert 500 <= min(jobs) < 750 < max(jobs) <= 1000, jobs
assert 500 <= min(ages) < 750 < max(ages) <= 1000, ages
assert {started(hold.Guard(max_jobs=1)) for _ in range(5)} == {(1, float("inf"))}
assert started(hold.Guard(max_jobs=100, max_age=100, jitter=0)) == (100, 100)
guard, found = hold.Guard(max_jobs=1_000_000), set()
for _ in range(5):
    ours, theirs = os.pipe()
    if not os.fork():
        os.write(theirs, str(started(guard)[0]).encode())
        os._exit(0)
    os.wait()
    found.add(os.read(ours, 100))
assert len(found) == 5, found
""")
    assert done.code == 0, done


def test_max_age() -> None:
    done = run_guarded(LOOP, "dict(max_age=1.2, jitter=0)")
    assert (done.code, done.out[1]) == (75, "it is 1 s old (max_age)")
