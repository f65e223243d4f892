"""Both sides of every threshold of the doctor: the last value that counts, and the first that does not."""

from __future__ import annotations

import pytest

from holdfast.process.doctor.messages import _is_tight
from holdfast.process.doctor.model import FdProfile, Match, PathCount, Trend, VerdictInput
from holdfast.process.doctor.signatures import (
    are_many,
    are_most_at_once,
    are_most_of_growth,
    are_mostly_dead_pipes,
    match,
)
from holdfast.process.doctor.verdict import _is_conclusive
from holdfast.procfs.descriptors import Kind

NOTHING = FdProfile(fds=0)


def trend(rise: float, span_s: float, per_hour: float = 100.0, low: float = 50.0) -> Trend:
    return Trend(per_hour=per_hour, low=low, high=200.0, rise=rise, span_s=span_s, bins=12, grows=True, settles=False)


@pytest.mark.parametrize(
    ("profile", "proves"),
    [
        (FdProfile(fds=128, self_pairs=8, hup=24, err=24), True),  # eight loaders, 64 pipes, half of all
        (FdProfile(fds=129, self_pairs=8, hup=24, err=24), False),
        (FdProfile(fds=128, self_pairs=8, hup=24, err=23), False),
        (FdProfile(fds=128, self_pairs=7, hup=25, err=25), False),
        (FdProfile(fds=384, self_pairs=64, hup=32, err=32), True),  # a third of the pipes are dead
        (FdProfile(fds=384, self_pairs=65, hup=32, err=32), False),
        (FdProfile(fds=512, hup=256), True),
        (FdProfile(fds=510, hup=255), False),
        (FdProfile(fds=2048, close_wait=1024), True),
        (FdProfile(fds=2049, close_wait=1024), False),
        (FdProfile(fds=1023, close_wait=1023), False),
    ],
)
def test_one_snapshot_proves_a_leak(profile: FdProfile, proves: bool) -> None:
    assert are_most_at_once(profile) is proves


@pytest.mark.parametrize(
    ("fds", "hup", "suspicious", "many"),
    [
        (31, 16, True, False),
        (32, 16, False, False),
        (20, 15, False, False),
        (127, 64, True, True),
        (128, 64, False, True),
        (129, 64, False, False),
        (100, 63, True, False),
    ],
)
def test_dead_pipes_are_suspicious(fds: int, hup: int, suspicious: bool, many: bool) -> None:
    profile = FdProfile(fds=fds, hup=hup)
    assert (are_mostly_dead_pipes(profile), are_many(profile)) == (suspicious, many)


@pytest.mark.parametrize(
    ("first", "last", "rise", "span_s", "proves"),
    [
        (FdProfile(fds=100), FdProfile(fds=132, hup=16), 32, 60, True),  # half of the rise, and 16
        (FdProfile(fds=100), FdProfile(fds=133, hup=16), 33, 60, False),
        (FdProfile(fds=100), FdProfile(fds=115, hup=15), 15, 60, False),
        (FdProfile(fds=100), FdProfile(fds=164, hup=32), 100, 60, True),  # the smaller of both rises counts
        (FdProfile(fds=100), FdProfile(fds=200, hup=32), 64, 60, True),
        (FdProfile(fds=100), FdProfile(fds=160, hup=10, self_pairs=10), 60, 60, True),  # a third of the pipes
        (FdProfile(fds=100), FdProfile(fds=160, hup=10, self_pairs=11), 60, 60, False),
        (FdProfile(fds=100), FdProfile(fds=120, close_wait=20), 20, 600.0, True),  # the start is over
        (FdProfile(fds=100), FdProfile(fds=120, close_wait=20), 20, 599.9, False),
        (None, FdProfile(fds=200, hup=64), 128, 60, True),
        (None, FdProfile(fds=200, hup=64), 129, 60, False),
        (None, FdProfile(fds=200, hup=63), 100, 60, False),
    ],
)
def test_growth_that_is_dead(
    first: FdProfile | None, last: FdProfile, rise: float, span_s: float, proves: bool
) -> None:
    assert are_most_of_growth(trend(rise, span_s), last, first, None) is proves


@pytest.mark.parametrize(("dead", "rise", "proves"), [(64, 128, True), (64, 129, False), (63, 100, False)])
def test_growth_that_only_a_match_explains(dead: int, rise: float, proves: bool) -> None:
    found = Match(name="x", cause="y", advice=(), count=dead, dead=dead, share=1.0)
    assert are_most_of_growth(trend(rise, 60), None, None, found) is proves


@pytest.mark.parametrize(
    ("grown", "name"),
    [
        (FdProfile(fds=48, hup=16, live=32), "unread-output"),  # dead ones, as long as they are a third
        (FdProfile(fds=49, hup=16, live=33), "workers-never-joined"),
        (FdProfile(fds=50, hup=40, err=10), "unread-output"),
        (FdProfile(fds=51, hup=40, err=11), "ended-processes"),
        (FdProfile(fds=18, kinds={Kind.FILE: 18}, most_opened=PathCount(path="/x", times=2)), "files-never-closed"),
        (FdProfile(fds=18, kinds={Kind.FILE: 18}, most_opened=PathCount(path="/x", times=3)), None),
    ],
)
def test_which_signature_matches(grown: FdProfile, name: str | None) -> None:
    found = match(NOTHING, grown)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("span_s", "per_hour", "low", "fds", "soft", "uptime_s", "conclusive"),
    [
        (180.0, 100, 50, None, None, None, True),
        (179.9, 100, 50, None, None, None, False),
        (60, 100, 60, 990, 1000, None, True),  # ten in ten minutes, and ten are left
        (60, 100, 59, 990, 1000, None, False),
        (60, 100, 50, 100, 65536, 4 * 3600, True),  # since a quarter of its life
        (60, 101, 50, 100, 65536, 4 * 3600, False),
    ],
)
def test_a_short_watch_is_conclusive(
    span_s: float,
    per_hour: float,
    low: float,
    fds: int | None,
    soft: float | None,
    uptime_s: float | None,
    conclusive: bool,
) -> None:
    assert _is_conclusive(trend(50, span_s, per_hour, low), fds, soft, uptime_s) is conclusive


@pytest.mark.parametrize(("fds", "tight"), [(800, True), (799, False), (None, False)])
def test_a_limit_is_tight(fds: int | None, tight: bool) -> None:
    assert _is_tight(VerdictInput(fds=fds, soft=1000, hard=4000)) is tight
