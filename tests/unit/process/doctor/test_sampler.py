from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.process.doctor.model import Sample
from holdfast.process.doctor.sampler import Series, Watch
from holdfast.procfs.processes import Identity

DAY_S = 86400.0


class Clock:
    """Time passes only when it is waited for."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self._then = then

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds
        self._then()


def _add(fake: FakeProc, pid: int, fds: int, ppid: int = 1, start: int = 500) -> None:
    fake.add_process(pid, ppid, start=start)
    fake.files[f"/proc/{pid}/statm"] = "3014 1520 803 1 0 790 0\n"
    fake.stats[f"/proc/{pid}/fd"] = FakeStat(st_size=fds)


def _remove(fake: FakeProc, pid: int) -> None:
    for kept in (fake.files, fake.stats, fake.links):
        for path in [path for path in kept if path.startswith(f"/proc/{pid}/")]:
            del kept[path]


# ---- series ------------------------------------------------------------------------------------------------


def _series(seconds: int, every_s: int, fds: Callable[[int], int]) -> Series:
    series = Series(Identity(7, 500), every_s)
    for at in range(0, seconds + 1, every_s):
        series.add(Sample(at_s=float(at), fds=fds(at)))
    return series


def test_a_month_is_a_few_thousand_samples() -> None:
    series = _series(int(40 * DAY_S), 60, lambda at: at)
    found = series.samples
    assert len(found) <= 720 + 2880 + 2880 + 4
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    assert found[-1].at_s == 40 * DAY_S
    assert found[0].at_s == pytest.approx(8 * DAY_S, abs=DAY_S)


def test_the_last_hour_is_kept_as_it_was() -> None:
    found = _series(2 * 3600, 5, lambda at: at).samples
    assert [one.at_s for one in found[-720:]] == [7200.0 - 5 * back for back in range(719, -1, -1)]
    assert found[0].at_s < 60


def test_thinning_keeps_the_floor() -> None:
    found = _series(6 * 3600, 5, lambda at: 10 if at % 300 == 5 else 900).samples
    hours = {int(one.at_s // 3600) for one in found if one.fds == 10}
    assert hours == {0, 1, 2, 3, 4, 5}
    assert min(sum(one.fds == 10 for one in found if one.at_s // 3600 == hour) for hour in hours) == 12


def test_the_latest_is_there_even_if_it_came_too_soon() -> None:
    series = Series(Identity(7, 500), 10)
    for at, fds in ((0.0, 5), (1.0, 9)):
        series.add(Sample(at_s=at, fds=fds))
    assert [one.fds for one in series.samples] == [5, 9]
    assert Series(Identity(7, 500), 10).samples == []


# ---- watch -------------------------------------------------------------------------------------------------


def test_a_tree_is_sampled() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    _add(fake, 8, 5, ppid=7)
    _add(fake, 9, 6)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait, every_s=5)
    watch.run(60)
    assert watch.series.keys() == {Identity(7, 500), Identity(8, 500)} == {one.identity for one in watch.alive.values()}
    samples = watch.series[Identity(7, 500)].samples
    assert len(samples) == 13
    assert (samples[0].at_s, samples[-1].at_s) == (0, 60)
    assert (samples[0].fds, samples[0].children, samples[0].rss_bytes) == (30, 1, 1520 * os.sysconf("SC_PAGE_SIZE"))


def test_samples_are_not_quite_even() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait, every_s=10)
    watch.run(600)
    moments = [one.at_s for one in watch.series[Identity(7, 500)].samples]
    gaps = {round(after - before, 3) for before, after in pairwise(moments)}
    assert len(gaps) > 10
    assert 4.99 <= min(gaps) <= max(gaps) <= 15.01


def test_without_the_tree() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    _add(fake, 8, 5, ppid=7)
    watch = Watch([7], fake, Clock(), tree=False)
    watch.sample()
    assert list(watch.alive) == [7]


def test_a_child_born_later_is_found() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait)
    watch.run(10)
    _add(fake, 8, 5, ppid=7)
    watch.run(20)
    assert list(watch.alive) == [7, 8]


def test_what_ends_stays_as_ended() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    _add(fake, 8, 5, ppid=7)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait)
    watch.run(10)
    _remove(fake, 8)
    watch.run(20)
    ended = watch.series[Identity(8, 500)]
    assert ended.ended_at_s == 10
    assert len(ended.samples) == 3
    assert list(watch.alive) == [7]
    assert watch.series[Identity(7, 500)].ended_at_s is None


def test_a_pid_given_out_again_is_another_series() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait)
    watch.run(10)
    _add(fake, 7, 900, start=777)
    watch.run(10)
    first, second = watch.series[Identity(7, 500)], watch.series[Identity(7, 777)]
    assert first.ended_at_s == 10
    assert {one.fds for one in first.samples} == {30}
    assert {one.fds for one in second.samples} == {900}
    assert watch.alive == {7: second}


def test_the_ended_are_bounded() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait)
    for start in range(600, 1000):
        watch.sample()
        _add(fake, 7, 30, start=start)
        clock.now_s += 1
    watch.sample()
    assert len(watch.series) == 257
    assert Identity(7, 999) in watch.series
    assert Identity(7, 600) not in watch.series


def test_a_start_that_cannot_be_read_is_no_end() -> None:
    """As without a free descriptor: the count is known all the same."""
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    watch = Watch([7], fake, clock, clock.wait)
    watch.run(10)
    fake.full = True
    watch.run(20)
    series = watch.series[Identity(7, 500)]
    assert series.ended_at_s is None
    assert len(series.samples) == 7
    assert series.samples[-1].rss_bytes is None


def test_no_such_process_there() -> None:
    clock = Clock()
    watch = Watch([7], FakeProc(), clock, clock.wait)
    watch.run(10)
    assert (watch.series, dict(watch.alive)) == ({}, {})


def test_it_reports_how_far_it_is_and_can_be_interrupted() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    conclusive: list[float] = []

    def tell(passed_s: float) -> None:
        conclusive.append(passed_s)
        if passed_s > 30:
            raise KeyboardInterrupt

    watch = Watch([7], fake, clock, clock.wait)
    with pytest.raises(KeyboardInterrupt):
        watch.run(60, tell)
    assert conclusive[0] == 0
    assert conclusive == sorted(conclusive)
    assert len(watch.series[Identity(7, 500)].samples) == len(conclusive)


def test_slow_rounds_do_not_add_up() -> None:
    fake = FakeProc()
    _add(fake, 7, 30)
    clock = Clock()
    rounds: list[float] = []

    def tell(passed_s: float) -> None:
        rounds.append(passed_s)
        clock.now_s += 12  # a round that takes longer than the time between two

    Watch([7], fake, clock, clock.wait).run(60, tell)
    assert 5 <= len(rounds) <= 7


def test_a_time_between_samples_must_be_one() -> None:
    with pytest.raises(ValueError, match="above zero, got 0 s"):
        Watch([7], every_s=0)


def test_a_real_child() -> None:
    text = "import os\nprint(flush=True)\nwhile input(): print(len([os.pipe() for _ in range(10)]), flush=True)"
    child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        watch = Watch([child.pid])
        watch.sample()
        child.stdin.write("more\n")
        child.stdin.flush()
        child.stdout.readline()
        watch.sample()
        child.communicate("\n")
    watch.sample()
    (series,) = watch.series.values()
    assert [one.fds for one in series.samples] == [3, 23]
    assert series.ended_at_s is not None
    assert not watch.alive
