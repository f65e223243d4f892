"""Which processes near their descriptor limit have used it up, and which only need many."""

from __future__ import annotations

import pytest

from holdfast.process.doctor.model import FdProfile, PathCount
from holdfast.process.guard.supervisor.near_limit import are_useless, is_near
from holdfast.procfs.descriptors import Kind


@pytest.mark.parametrize(
    ("fds", "limit", "near"),
    [
        (1023, 1024, True),
        (1024, 1024, True),
        (973, 1024, True),
        (972, 1024, False),
        (1025, 1024, True),  # the process has lowered its limit: every open fails
        (300, 0, False),  # a sandbox
        (3, 0, False),
        (63, 63, False),
        (64, 64, True),
        (None, 1024, False),
        (1024, None, False),
    ],
)
def test_near_means_nineteen_of_twenty(fds: int | None, limit: int | None, near: bool) -> None:
    assert is_near(fds, limit) is near


def profile(pipes: int = 0, **counts: int | PathCount) -> FdProfile:
    kinds = {Kind.PIPE: pipes} | {kind: counts.pop(kind.value, 0) for kind in Kind if kind.value in counts}
    return FdProfile(fds=1000, kinds=kinds, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "useless"),
    [
        (profile(950, self_pairs=475), True),
        (profile(950, hup=475, err=475), True),
        (profile(950, self_pairs=119, hup=356, err=356), True),  # dead loaders
        (profile(950, live=950), False),  # of a pool of processes
        (profile(950, unknown=950), False),
        (profile(950, live=400, hup=550), True),
        (profile(socket=950, established=950), False),  # of a server
        (profile(socket=950, close_wait=900), True),
        (profile(file=950), False),  # of a dataset with many files
        (profile(file=950, most_opened=PathCount(path="/data/index", times=900)), True),
        (profile(eventfd=500, eventpoll=450), True),
        (profile(shm=950, torch_shm=950), True),
        (profile(300, hup=300, file=600), False),
    ],
)
def test_descriptors_that_may_be_in_use_are_not_useless(what: FdProfile, useless: bool) -> None:
    assert are_useless(what) is useless
