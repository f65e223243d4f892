"""The arithmetic of a plan: what it costs, whether it fits, what to set so that it does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.process import capacity
from holdfast.process.capacity import BASE_FDS, CapacityRequest, Requirement, Sharing, SystemLimits, adjust, make_plan
from holdfast.procfs.limits import Limit

GB = 10**9


def limit(name: str, free: float, used: int = 0) -> Limit:
    return Limit(name=name, used=used, soft=free + used, hard=free + used)


def limits(**changes: Any) -> SystemLimits:
    """Everything in plenty."""
    plenty = SystemLimits(
        nofile=Limit(name="nofile", used=0, soft=1024, hard=1048576),
        file_max=limit("file_max", 10**7),
        pipe_pages=Limit(name="pipe_user_pages", soft=16384, hard=math.inf),
        shm=limit("dev_shm_bytes", 64 * GB),
        tasks=(limit("nproc", 10**5), limit("cgroup_pids", math.inf)),
        memory=(limit("cgroup_memory", 256 * GB), limit("memory_available", 256 * GB)),
        cores=64,
    )
    return replace(plenty, **changes)


def nofile(soft: float, hard: float) -> Limit:
    return Limit(name="nofile", used=0, soft=soft, hard=hard)


# workers, open shards, prefetch, tensors, loaders, sharing -> main, worker, pipes, tasks
D, F = Sharing.DESCRIPTOR, Sharing.FILE
COSTS = [
    ((0, 8, 2, 2, 1, D), (BASE_FDS + 8, 0, 0, 0)),
    ((1, 1, 2, 2, 1, D), (BASE_FDS + 6 + 4 + 2, BASE_FDS + 6 + 2 + 1 + 4, 4, 4)),
    ((4, 16, 2, 2, 1, D), (BASE_FDS + 18 + 16 + 2, BASE_FDS + 18 + 2 + 16 + 4, 13, 16)),
    ((4, 16, 2, 2, 1, F), (BASE_FDS + 18, BASE_FDS + 18 + 2 + 16, 13, 12)),
    ((4, 16, 2, 2, 2, D), (BASE_FDS + 2 * 36, BASE_FDS + 2 * 18 + 2 + 16 + 4, 26, 32)),
]


@pytest.mark.parametrize(("wanted", "costs"), COSTS)
def test_what_it_costs(wanted: tuple[Any, ...], costs: tuple[int, ...]) -> None:
    names = ("workers", "open_shards", "prefetch", "tensors", "loaders", "sharing")
    request = CapacityRequest(**dict(zip(names, wanted, strict=True)))
    assert (
        capacity.main_fds(request),
        capacity.worker_fds(request),
        capacity.pipes(request),
        capacity.tasks(request),
    ) == costs


def test_shared_memory_is_a_batch_for_each_that_is_on_its_way() -> None:
    request = CapacityRequest(workers=4, prefetch=3, batch_bytes=100)
    assert capacity.shm_bytes(request) == 4 * 3 * 100
    assert capacity.memory_bytes(request) == 4 * 3 * 100 + 4 * (capacity.WORKER_BYTES + 100)
    assert capacity.shm_bytes(CapacityRequest(workers=4)) == 0


def test_a_wish_that_fits_needs_nothing_set() -> None:
    made = make_plan(CapacityRequest(workers=8, open_shards=16, batch_bytes=10**6), limits())
    assert (made.fits, made.settings, made.adjusted) == (True, (), made.request)
    assert all(line.enough for line in made.requirements)
    assert {line.name for line in made.requirements} >= {"descriptors, main process", "/dev/shm", "memory"}


CASES = {
    "the soft limit can be raised": (
        CapacityRequest(workers=8, open_shards=1000),
        limits(),
        {"ulimit -n": "2048"},
    ),
    "but not above the hard one, so fewer shards are open": (
        CapacityRequest(workers=8, open_shards=1000),
        limits(nofile=nofile(1024, 1024)),
        {"open shards": "500"},
    ),
    "tensors go by file when descriptors are too few": (
        CapacityRequest(workers=32, open_shards=1, prefetch=8, tensors=4),
        limits(nofile=nofile(512, 512)),
        {"sharing strategy": "file_system"},
    ),
    "less is fetched ahead when /dev/shm is small": (
        CapacityRequest(workers=4, prefetch=8, batch_bytes=10**7),
        limits(shm=limit("dev_shm_bytes", 64 * 10**6)),
        {"prefetch_factor": "1"},
    ),
    "then there are fewer workers": (
        CapacityRequest(workers=8, prefetch=2, batch_bytes=10**7),
        limits(shm=limit("dev_shm_bytes", 64 * 10**6)),
        {"num_workers": "6", "prefetch_factor": "1"},
    ),
    "a group's tasks": (
        CapacityRequest(workers=16),
        limits(tasks=(limit("nproc", 10**5), limit("cgroup_pids", 20))),
        {"num_workers": "6", "sharing strategy": "file_system"},
    ),
    "a group's memory": (
        CapacityRequest(workers=16, batch_bytes=GB),
        limits(memory=(limit("cgroup_memory", 10 * GB),)),
        {"num_workers": "4", "prefetch_factor": "1"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_to_set_when_it_does_not_fit(case: str) -> None:
    request, there, wanted = CASES[case]
    made = make_plan(request, there)
    assert not made.fits
    assert {setting.name: setting.value for setting in made.settings} == wanted
    assert all(setting.why for setting in made.settings)


def test_more_workers_than_cores_fit_but_are_advised_against() -> None:
    made = make_plan(CapacityRequest(workers=8), limits(cores=2))
    assert made.fits
    assert [(one.name, one.value) for one in made.settings] == [("num_workers", "2")]


def test_pipes_past_their_soft_limit_are_slow_and_not_refused() -> None:
    made = make_plan(
        CapacityRequest(workers=32), limits(pipe_pages=Limit(name="pipe_user_pages", soft=160, hard=math.inf))
    )
    [line] = [line for line in made.requirements if not line.enough]
    assert (line.name, line.have, line.must, made.fits) == ("pipes of this user", 10, False, True)
    unbound = make_plan(CapacityRequest(workers=32), limits(pipe_pages=Limit(name="p", soft=160), privileged=True))
    assert all(line.enough for line in unbound.requirements)


def test_what_nobody_can_tell_is_taken_as_enough() -> None:
    unknown = Limit(name="?")
    there = limits(nofile=unknown, file_max=unknown, shm=unknown, pipe_pages=unknown, tasks=(unknown,), memory=())
    assert make_plan(CapacityRequest(workers=9, batch_bytes=GB), there).fits
    assert Requirement(name="x", need=1, have=None, why="").enough


def test_a_small_shm_may_be_made_larger_where_memory_allows() -> None:
    small = Limit(name="dev_shm_bytes", used=0, soft=1 << 20, hard=1 << 20)
    request = CapacityRequest(workers=1, batch_bytes=64_000_000)
    [setting] = make_plan(request, limits(shm=small)).settings
    assert setting.why.startswith("not even one fits, there is too little of this: /dev/shm; or keep them with 128 MB")
    tight = Limit(name="memory_available", used=0, soft=1 << 20, hard=1 << 20)
    [setting] = make_plan(request, limits(shm=small, memory=(tight,))).settings
    assert "shm-size" not in setting.why


def test_nothing_fits_where_not_even_python_does() -> None:
    made = make_plan(CapacityRequest(workers=1), limits(nofile=nofile(16, 16)))
    assert (made.fits, made.adjusted) == (False, None)
    [setting] = made.settings
    assert "not even" in setting.why


@given(
    request=st.builds(
        CapacityRequest,
        workers=st.integers(0, 64),
        open_shards=st.integers(0, 5000),
        prefetch=st.integers(1, 32),
        batch_bytes=st.none() | st.integers(1, 10**9),
        tensors=st.integers(1, 20),
        loaders=st.integers(1, 3),
        sharing=st.sampled_from(Sharing),
    ),
    soft=st.integers(16, 4096),
    more=st.integers(0, 10**6),
    shm=st.integers(0, 10**11),
    tasks=st.integers(0, 4000),
)
def test_what_is_settled_on_fits_and_is_never_more_than_was_wished(
    request: CapacityRequest, soft: int, more: int, shm: int, tasks: int
) -> None:
    there = limits(nofile=nofile(soft, soft + more), shm=limit("s", shm), tasks=(limit("t", tasks),))
    adjusted = adjust(request, there)
    if adjusted is None:
        assert soft + more < BASE_FDS + request.open_shards + 1
        return
    raised = replace(there, nofile=nofile(soft + more, soft + more))
    assert capacity.fits(adjusted, raised)
    assert adjusted.workers <= request.workers
    assert adjusted.prefetch <= request.prefetch
    if capacity.fits(request, raised):
        assert adjusted == request
