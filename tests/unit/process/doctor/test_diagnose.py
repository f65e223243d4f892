from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.errors import InputError
from holdfast.process.doctor.diagnose import MAX_S, Observation, diagnose, find_cause
from holdfast.process.doctor.model import FdProfile, JobSample, Verdict
from holdfast.process.doctor.verdict import LEAST_S, confidence_of
from holdfast.procfs.descriptors import Kind
from holdfast.procfs.procfs import REAL, number_or_none

LIMITS = "Max open files            {soft}                 4096               files     \n"

# For each line it reads it leaks so many times two ends of dead pipes.
VICTIM = """
import os, sys
print("ready", flush=True)
kept = []
for line in sys.stdin:
    for _ in range(int(line)):
        for keep in (0, 1):
            ends = os.pipe()
            os.close(ends[1 - keep])
            kept.append(ends[keep])
    print("done", flush=True)
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        if child.poll() is None:
            child.communicate()


def _leak(child: subprocess.Popen[str], times: int) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{times}\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def test_this_process_at_one_snapshot() -> None:
    (own, *_) = diagnose()
    assert own.snapshot.process.pid == os.getpid()
    assert own.diagnosis.fds == own.snapshot.fd_count
    assert own.diagnosis.trend is None
    assert own.diagnosis.profile is not None
    assert own.diagnosis.soft is not None


def test_dead_pipes_at_one_snapshot(victim: subprocess.Popen[str]) -> None:
    _leak(victim, 140)
    (found,) = diagnose(victim.pid)
    assert found.diagnosis.verdict is Verdict.LEAK
    assert found.diagnosis.evidence[0] == (
        "280 of its 283 descriptors are pipes whose other end is closed in every process"
    )
    assert found.diagnosis.match is not None
    assert found.diagnosis.match.dead == 280


def test_mostly_dead_pipes_are_not_ok_though_too_few_to_prove_a_leak(victim: subprocess.Popen[str]) -> None:
    _leak(victim, 40)
    (found,) = diagnose(victim.pid)
    assert found.diagnosis.verdict is Verdict.GROWING
    assert (
        found.diagnosis.evidence[0] == "80 of its 83 descriptors are pipes whose other end is closed in every process"
    )
    assert f"holdfast doctor {victim.pid} --for 10m" in " ".join(found.diagnosis.advice)


class LeakingClock:
    """Time passes only when it is waited for, and the victim leaks one unit meanwhile."""

    def __init__(self, victim: subprocess.Popen[str], times: int) -> None:
        self.now_s = 0.0
        self._victim, self._times = victim, times

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        _leak(self._victim, self._times)


def test_a_watch_sees_it_grow_and_what_grows(victim: subprocess.Popen[str]) -> None:
    clock = LeakingClock(victim, 1)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    assert seen.conclude()[0].diagnosis.verdict is Verdict.OK
    seen.watch(60)
    diagnosis = seen.conclude()[0].diagnosis
    assert diagnosis.verdict is Verdict.LEAK
    assert diagnosis.trend is not None
    assert diagnosis.trend.per_hour == pytest.approx(7200, rel=0.05)
    assert diagnosis.evidence[0].startswith("its baseline rose by")
    assert "120 more are unusable than in the first snapshot" in diagnosis.evidence
    assert diagnosis.forecasts[0].line == "soft limit"
    assert f"prlimit --pid {victim.pid}" in diagnosis.advice[-1]


class SlowLeak(LeakingClock):
    """Two descriptors every 17 seconds: 10,000 a day."""

    def wait(self, seconds: float) -> None:
        before, self.now_s = self.now_s, self.now_s + seconds
        for _ in range(int(self.now_s / 17.28) - int(before / 17.28)):
            _leak(self._victim, 1)


def test_a_leak_of_ten_thousand_a_day_is_not_ok_after_five_minutes(victim: subprocess.Popen[str]) -> None:
    clock = SlowLeak(victim, 0)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    seen.watch(300)
    diagnosis = seen.conclude()[0].diagnosis
    assert diagnosis.trend is not None
    assert 0 < diagnosis.trend.low <= diagnosis.trend.per_hour <= diagnosis.trend.high
    assert diagnosis.verdict in (Verdict.GROWING, Verdict.LEAK)


# ---- until it is clear ---------------------------------------------------------------------------------------


def test_a_watch_ends_when_the_growth_is_clear(victim: subprocess.Popen[str]) -> None:
    clock = SlowLeak(victim, 0)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    heard: list[float] = []
    seen.watch_until_conclusive(heard.append)
    assert LEAST_S <= clock.now_s < MAX_S
    assert heard[0] == 0
    assert heard[-1] == clock.now_s
    assert seen.conclude()[0].diagnosis.verdict in (Verdict.GROWING, Verdict.LEAK)


def test_and_where_one_snapshot_proves_a_leak_nothing_is_waited_for(victim: subprocess.Popen[str]) -> None:
    _leak(victim, 140)
    clock = SlowLeak(victim, 0)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    seen.watch_until_conclusive()
    assert clock.now_s == 0
    assert seen.conclude()[0].diagnosis.verdict is Verdict.LEAK


def test_and_when_the_process_ends(victim: subprocess.Popen[str]) -> None:
    class EndingClock(LeakingClock):
        def wait(self, seconds: float) -> None:
            self.now_s += seconds
            if victim.poll() is None:
                victim.communicate()

    clock = EndingClock(victim, 0)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    seen.watch_until_conclusive()
    assert clock.now_s < MAX_S
    assert seen.conclude()[0].diagnosis.evidence[0].startswith("it ended while it was watched")


@pytest.mark.parametrize(("soft", "conclusive"), [(65536, True), (1024, False)])
def test_a_calm_process_is_clear_when_its_limit_is_far(soft: int, conclusive: bool) -> None:
    """With 924 free, a leak that a quarter of an hour does not show can reach the limit within a week."""
    fake = _fake(100, soft=soft)
    clock = GrowingClock(fake, pace=0)
    seen = Observation(7, procfs=fake, clock=clock, wait=clock.wait)
    seen.watch_until_conclusive()
    found = seen.conclude()[0].diagnosis
    assert found.verdict is Verdict.OK
    assert (clock.now_s < MAX_S, confidence_of(found).conclusive) == (conclusive, conclusive)
    assert clock.now_s <= MAX_S


def test_a_tree_has_its_root_first() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(flush=True); input()'])"
    child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        both = diagnose(child.pid)
        alone = diagnose(child.pid, tree=False)
        child.communicate(b"\n")
    assert both[0].snapshot.process.pid == child.pid
    assert len(both) == 2
    assert both[0].diagnosis.profile is not None
    assert both[0].diagnosis.profile.children == 1
    assert [one.snapshot.process.pid for one in alone] == [child.pid]


def test_one_that_ends_while_it_is_watched(victim: subprocess.Popen[str]) -> None:
    seen = Observation(victim.pid)
    seen.watch(0.05)
    victim.communicate()
    (found,) = seen.conclude()
    assert found.diagnosis.evidence[0] == "it ended while it was watched: this is its last state"


def test_one_that_ends_and_is_not_waited_for_is_reported_as_it_was(victim: subprocess.Popen[str]) -> None:
    """What leaked until it died: a zombie holds nothing, which is neither calm nor a fall."""
    clock = LeakingClock(victim, 1)
    seen = Observation(victim.pid, clock=clock, wait=clock.wait)
    seen.watch(60)
    before = seen.conclude()[0].diagnosis
    _end_without_waiting(victim)
    (found,) = seen.conclude()
    assert found.diagnosis.evidence[0] == "it ended while it was watched: this is its last state"
    assert found.diagnosis.fds == before.fds
    assert found.diagnosis.trend == before.trend
    assert found.diagnosis.verdict is Verdict.GROWING  # which of them were dead, nobody can tell any more


def test_one_that_had_ended_before(victim: subprocess.Popen[str]) -> None:
    _end_without_waiting(victim)
    (found,) = diagnose(victim.pid)
    assert found.diagnosis.evidence[0] == ("it has ended and holds nothing; its parent has not waited for it yet")
    assert diagnose(victim.pid, 0.1)[0].diagnosis.evidence[0] == found.diagnosis.evidence[0]


def _end_without_waiting(child: subprocess.Popen[str]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_real_watch_of_a_calm_process() -> None:
    with socket.socket(), socket.socket():
        found = diagnose(duration=0.3, tree=False)
    assert found[0].diagnosis.verdict in (Verdict.OK, Verdict.SETTLING)


def test_no_such_process_there() -> None:
    nobody = (number_or_none(REAL, "/proc/sys/kernel/pid_max") or 1 << 22) + 1
    with pytest.raises(InputError, match="there is no process"):
        diagnose(nobody)


def test_a_time_to_watch_must_be_one() -> None:
    with pytest.raises(ValueError, match="above zero, got -1"):
        Observation().watch(-1)


@pytest.mark.parametrize("for_s", [-1.0, float("nan"), float("inf")])
def test_a_wrong_duration_is_refused(for_s: float) -> None:
    with pytest.raises(ValueError, match="duration=: expected a time of at least zero"):
        diagnose(duration=for_s)


# ---- in memory ---------------------------------------------------------------------------------------------


def _fake(fds: int, soft: int = 1024, uid: int = 1000) -> FakeProc:
    fake = FakeProc()
    fake.add_process(7)
    fake.stats["/proc/7"] = FakeStat(st_uid=uid)
    fake.files["/proc/7/limits"] = LIMITS.format(soft=soft)
    fake.files["/proc/sys/fs/pipe-user-pages-soft"] = "16384\n"
    fake.files["/proc/sys/fs/pipe-user-pages-hard"] = "0\n"
    fake.files["/proc/uptime"] = "100.0 100.0\n"
    _fill(fake, fds)
    return fake


def _fill(fake: FakeProc, fds: int) -> None:
    for fd in range(fds):
        fake.add_fd(7, fd, f"pipe:[{fd}]", 0o500)


class GrowingClock:
    def __init__(self, fake: FakeProc, pace: float = 1.0) -> None:
        self.now_s = 0.0
        self._fake, self._pace = fake, pace

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        _fill(self._fake, 100 + int(self._pace * self.now_s))


@pytest.mark.parametrize(
    ("uid", "lines"), [(1000, ["soft limit", "guard cap", "pipe shrink"]), (0, ["soft limit", "guard cap"])]
)
def test_the_lines_of_a_user_and_of_root(uid: int, lines: list[str]) -> None:
    """No end could be polled: unknown, so that it is growth and no leak."""
    fake = _fake(100, uid=uid)
    clock = GrowingClock(fake)
    seen = Observation(7, procfs=fake, clock=clock, wait=clock.wait)
    seen.watch(300)
    (found,) = seen.conclude(cap=500)
    assert found.diagnosis.verdict is Verdict.GROWING
    assert [one.line for one in found.diagnosis.forecasts] == lines
    assert {one.line: one.at for one in found.diagnosis.forecasts}.get("pipe shrink", 1024) == 1024


def test_a_full_table() -> None:
    (found,) = Observation(7, procfs=_fake(60, soft=64)).conclude()
    assert found.diagnosis.verdict is Verdict.EXHAUSTED
    assert found.diagnosis.advice[0] == "raise its limit while it runs: prlimit --pid 7 --nofile=4096:"


def test_jobs_are_those_of_the_root() -> None:
    fake = _fake(10)
    fake.add_process(8, ppid=7)
    fake.add_fd(8, 0, "/dev/null")
    jobs = [JobSample(job=job, fds=10 + 3 * job) for job in range(80)]
    root, child = Observation(7, procfs=fake).conclude(jobs=jobs)
    assert (root.diagnosis.verdict, child.diagnosis.verdict) == (Verdict.LEAK, Verdict.OK)


def test_another_users_descriptors_are_counted_and_not_judged() -> None:
    fake = _fake(100)
    fake.denied.add("/proc/7/fd")
    (found,) = Observation(7, procfs=fake).conclude()
    assert (found.diagnosis.fds, found.diagnosis.profile) == (100, None)
    assert found.diagnosis.verdict is Verdict.OK


def test_the_cause_does_not_change_while_a_job_runs() -> None:
    """Each epoch leaves dead pipes, and a running one has files open as well, at most as many again."""
    first = FdProfile(fds=10, kinds={Kind.PIPE: 4, Kind.FILE: 3})

    def after(epochs: int, files: int) -> FdProfile:
        dead = 9 * epochs
        kinds = {Kind.PIPE: 4 + 10 * epochs, Kind.FILE: 3 + files}
        return FdProfile(
            fds=10 + 10 * epochs + files, kinds=kinds, self_pairs=epochs, hup=dead // 2, err=dead - dead // 2
        )

    chance = random.Random(7)
    looks = [after(epochs, chance.randrange(0, 20 * epochs)) for epochs in range(4, 40)]
    causes = [find_cause(look, first, recent) for look, *recent in zip(looks[2:], looks[1:], looks, strict=False)]
    assert {None if cause is None else cause.name for cause in causes} == {"dead-dataloader-iterators"}
    # A job that has opened many files by the last look only is not the cause.
    busy = after(10, 500)
    calm = find_cause(busy, first, [after(9, 0), after(8, 0)])
    assert calm is not None
    assert calm.name == "dead-dataloader-iterators"
