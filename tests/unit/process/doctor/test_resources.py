"""What runs out besides descriptors: every row grows by the same rule, and healthy shapes do not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from unit.process.doctor.factories_series import HEALTHY
from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.process.doctor.model import Sample, Verdict
from holdfast.process.doctor.resources import RESOURCES, find_full, find_uses, with_uses
from holdfast.process.doctor.sampler import ShmFiles, Watch
from holdfast.process.doctor.verdict import classify, confidence_of
from holdfast.procfs.limits import Limit
from holdfast.procfs.processes import Identity, parse_smaps_rollup, read_stat

MIB = 1 << 20
EVERY_S = 5.0
FIELD = {
    "threads": "threads",
    "zombies": "zombies",
    "children": "children",
    "memory": "private_bytes",
    "shm_files": "shm_files",
    "inotify_watches": "watches",
}
LIMITS = [
    Limit(name="cgroup_pids", used=500, soft=10_000),
    Limit(name="cgroup_memory", used=4 << 30, soft=16 << 30),
    Limit(name="inotify_watches", used=100, soft=8192),
]


def series(name: str, value: Callable[[float], float], minutes: float = 15, **more: int) -> list[Sample]:
    times = [at * EVERY_S for at in range(int(minutes * 60 / EVERY_S) + 1)]
    return [Sample(at_s=at_s, fds=10, **{FIELD[name]: int(value(at_s)), **more}) for at_s in times]


def step_of(name: str) -> int:
    return next(row.step for row in RESOURCES if row.name == name)


@pytest.mark.parametrize("name", FIELD)
def test_each_grows_alone(name: str) -> None:
    step = step_of(name)
    [use] = find_uses(series(name, lambda at_s: (20 + at_s / 10) * step), LIMITS, uptime_s=10_000, pid=7)
    assert (use.name, use.verdict) == (name, Verdict.LEAK if name == "zombies" else Verdict.GROWING)
    assert use.trend is not None
    assert use.trend.per_hour == pytest.approx(360 * step, rel=0.05)
    assert "7" in use.next_step or name == "shm_files"
    found = with_uses(classify(fds=10, soft=1024, hard=4096), [use], 7)
    assert (found.verdict, found.decisive, found.match) == (use.verdict, use, use.match)
    assert confidence_of(found).conclusive


# A daily cycle and a warm-up that lasts for hours look like growth in 15 minutes, as they do for descriptors.
@pytest.mark.parametrize("shape", [shape for shape in HEALTHY if shape not in ("diurnal", "warm-up")])
@pytest.mark.parametrize("name", FIELD)
def test_healthy_shapes_do_not_grow(name: str, shape: str) -> None:
    """Watched for 15 minutes, the longest that `--for auto` takes; jobs of the sawtooth take up to a minute."""
    step = step_of(name)
    for seed in range(10):
        curve = HEALTHY[shape](random.Random(seed))
        faster = 15 if shape == "sawtooth" else 1
        samples = series(name, lambda at_s: curve(8 + faster * at_s / 3600) * step)  # noqa: B023 - used at once
        assert find_uses(samples, LIMITS, uptime_s=100_000, pid=7) == [], seed


def test_a_pool_that_is_full_and_a_cache_that_was_filled_do_not_grow() -> None:
    filled = lambda at_s: min(20 + at_s / 10, 72)  # noqa: E731 - full after 9 of 12 minutes
    assert find_uses(series("threads", filled, 12), LIMITS, uptime_s=10_000, pid=7) == []
    files = [Sample(at_s=one.at_s, fds=one.threads or 0) for one in series("threads", filled, 12)]
    assert classify(fds=72, soft=1024, hard=4096, samples=files, uptime_s=10_000).verdict is Verdict.SETTLING


def test_memory_in_a_short_watch_may_be_data_that_is_loaded() -> None:
    """It is GROWING only if the memory is used up soon."""
    loading = series("memory", lambda at_s: 1e9 + at_s * 4 * MIB, minutes=2)
    [use] = find_uses(loading, LIMITS, uptime_s=130, pid=7)
    assert use.verdict is Verdict.UNCLEAR
    assert "ordinary work" in use.sentence
    assert "--for 10m" in with_uses(classify(fds=10, soft=1024, hard=4096), [use], 7).advice[-1]
    faster = series("memory", lambda at_s: 1e9 + at_s * 64 * MIB, minutes=2)
    assert [one.verdict for one in find_uses(faster, LIMITS, uptime_s=130, pid=7)] == [Verdict.GROWING]
    slow = series("memory", lambda at_s: 1e9 + at_s * MIB / 100, minutes=120)
    assert find_uses(slow, [Limit(name="cgroup_memory", used=1, soft=1 << 50)], uptime_s=1e6, pid=7) == []


def test_copied_pages_are_distinguished_from_new_ones() -> None:
    def forked(at_s: float) -> Sample:
        copied = int(at_s * MIB)
        return Sample(at_s=at_s, fds=10, private_bytes=100 * MIB + copied, shared_bytes=900 * MIB - copied)

    samples = [forked(at * EVERY_S) for at in range(13)]
    [use] = find_uses(samples, LIMITS, uptime_s=70, pid=7, forked=True)
    assert (use.verdict, use.match.name) == (Verdict.GROWING, "copy-on-write")
    assert "numpy" in use.match.advice[0]
    assert "hold.read" in use.match.advice[1]
    assert find_uses(samples, LIMITS, uptime_s=70, pid=7) == []  # its parent, whose pages become private as well


@pytest.mark.parametrize(
    ("limit", "own", "is_full"),
    [
        (Limit(name="cgroup_pids", used=995, soft=1000), 800, True),
        (Limit(name="cgroup_pids", used=995, soft=1000), 20, False),  # others use it up
        (Limit(name="cgroup_pids", used=700, soft=1000), 700, False),
        (Limit(name="cgroup_pids", used=700, soft=float("inf")), 700, False),
        (Limit(name="inotify_instances", used=126, soft=128), 126, True),
        (Limit(name="dev_shm_bytes", used=64 * MIB, soft=64 * MIB), 64 * MIB, True),
        (Limit(name="cgroup_memory", used=990 * MIB, soft=1000 * MIB), 900 * MIB, True),
        (Limit(name="cgroup_memory", used=900 * MIB, soft=1000 * MIB), 900 * MIB, False),
        (Limit(name="cgroup_memory", used=990 * MIB - 1, soft=1000 * MIB), 900 * MIB, False),  # 99 %
        (Limit(name="cgroup_pids", used=996, soft=1000), 249, True),  # a quarter of what is used
        (Limit(name="cgroup_pids", used=996, soft=1000), 248, False),
    ],
)
def test_a_limit_that_is_reached(limit: Limit, own: int, is_full: bool) -> None:
    found = find_full([limit], {limit.name: own}, 7)
    assert [one.verdict for one in found] == [Verdict.EXHAUSTED] * is_full
    assert with_uses(classify(fds=10, soft=1024, hard=4096), found, 7).verdict is (
        Verdict.EXHAUSTED if is_full else Verdict.OK
    )


def test_descriptors_that_are_worse_keep_the_verdict() -> None:
    [use] = find_uses(series("threads", lambda at_s: 20 + at_s / 10), LIMITS, uptime_s=10_000, pid=7)
    found = with_uses(classify(fds=1020, soft=1024, hard=4096, pid=7), [use], 7)
    assert (found.verdict, found.decisive, found.resources) == (Verdict.EXHAUSTED, None, (use,))
    assert use.sentence in found.evidence
    assert found.next_step.endswith("holdfast trace --attach 7 --for 60s")


# ---- reading -----------------------------------------------------------------------------------------------


def test_the_rows_of_smaps_rollup() -> None:
    text = "00400000-7fff [rollup]\nRss: 999 kB\nPrivate_Dirty: 112 kB\nPrivate_Clean: 40 kB\nSwapPss: 8 kB\n"
    found = parse_smaps_rollup(f"{text}Shared_Clean: 30 kB\nShared_Dirty: 5 kB\n")
    assert found is not None
    assert (found.private_bytes, found.shared_bytes) == (120 * 1024, 35 * 1024)
    assert parse_smaps_rollup("") is None


def test_files_in_dev_shm_belong_to_who_made_them() -> None:
    fake = FakeProc()
    for pid, parent in ((7, 1), (8, 7), (9, 1)):
        fake.add_process(pid, parent)
    for name in ("torch_7_1_0", "torch_7_2_0", "torch_9_1_0", "psm_ab12", "psm_cd34", "sem.mp-x", "other"):
        fake.files[f"/dev/shm/{name}"] = ""
    stats = {pid: one for pid in (7, 8, 9) if (one := read_stat(fake, pid))}
    assert ShmFiles(fake).count(stats) == {7: 2, 9: 1}
    fake.files["/proc/8/cmdline"] = "python\0-c\0from multiprocessing.resource_tracker import main;main(4)\0"
    assert ShmFiles(fake).count(stats) == {7: 4, 9: 1}
    fake.files["/proc/9/cmdline"] = fake.files["/proc/8/cmdline"]  # of which of the two are they?
    assert ShmFiles(fake).count(stats) == {7: 2, 9: 1}


def test_a_watch_of_all_resources_sees_zombies_watches_and_private_memory() -> None:
    fake = FakeProc()
    for pid, parent in ((7, 1), (8, 7)):
        fake.add_process(pid, parent, start=500)
        fake.stats[f"/proc/{pid}/fd"] = FakeStat(st_size=3)
    fake.files["/proc/8/stat"] = fake.files["/proc/8/stat"].replace(") S ", ") Z ")
    fake.files["/proc/7/smaps_rollup"] = "Private_Dirty: 100 kB\nShared_Dirty: 50 kB\n"
    fake.links["/proc/7/fd/3"] = ("anon_inode:inotify", 0o500)
    fake.files["/proc/7/fdinfo/3"] = "pos: 0\ninotify wd:1 ino:2\ninotify wd:2 ino:3\n"
    watch = Watch([7], fake, clock=lambda: 0.0, all_resources=True)
    watch.sample()
    latest = watch.series[Identity(7, 500)].latest
    assert latest is not None
    assert (latest.children, latest.zombies, latest.watches) == (1, 1, 2)
    assert (latest.private_bytes, latest.shared_bytes) == (100 << 10, 50 << 10)
