from __future__ import annotations

import math
import os
import resource

from fake_proc import FakeProc

from holdfast.procfs.limits import (
    Limit,
    memory_limit,
    parse_cgroup,
    parse_file_nr,
    parse_limits,
    parse_loadavg_threads,
    pids_limit,
    process_limits,
    shared_limits,
    shm_limit,
    threads_by_user,
    tightest,
)
from holdfast.procfs.procfs import REAL

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             63204                unlimited            processes
Max open files            1024                 524288               files
Max open
"""
HERE = "/sys/fs/cgroup"


def test_headroom_and_ratio() -> None:
    some = Limit(name="a", used=30, soft=40)
    assert (some.headroom, some.ratio) == (10, 0.75)
    assert Limit(name="a", used=50, soft=40).headroom == 0
    assert Limit(name="a", used=50, soft=math.inf).headroom == math.inf
    assert Limit(name="a", used=0, soft=0).ratio == 1.0
    for unknown in (Limit(name="a", soft=40), Limit(name="a", used=3)):
        assert (unknown.headroom, unknown.ratio) == (None, None)
    assert tightest([Limit(name="u", soft=1), Limit(name="b", used=1, soft=9), some]) is some
    assert tightest([Limit(name="u", soft=1)]) is None


def test_texts() -> None:
    rows = parse_limits(LIMITS)
    assert (rows["nofile"].soft, rows["nofile"].hard) == (1024, 524288)
    assert (rows["nproc"].soft, rows["nproc"].hard) == (63204, math.inf)
    assert parse_file_nr("1504\t4\t9223\n") == (1504, 4, 9223)
    assert parse_file_nr("") is None
    assert parse_loadavg_threads("0.20 0.18 0.12 1/80 11206\n") == 80
    assert parse_loadavg_threads("") is None
    assert parse_cgroup("12:pids:/a\n5:cpu,cpuacct:/\n0::/b:c\ntorn\n") == {
        "pids": "/a",
        "cpu": "/",
        "cpuacct": "/",
        "": "/b:c",
    }


def test_this_process() -> None:
    nofile, nproc = process_limits(REAL, os.getpid(), 7, threads_by_user(REAL)[os.getuid()])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (nofile.soft, nofile.hard) == (soft, hard)
    assert nofile.used == 7
    assert nproc.used
    by_name = {limit.name: limit for limit in shared_limits(REAL, os.getpid())}
    assert set(by_name) == {
        "file_max",
        "nr_open",
        "threads_max",
        "pid_max",
        "cgroup_pids",
        "cgroup_memory",
        "pipe_user_pages",
        "inotify_instances",
        "inotify_watches",
        "dev_shm_bytes",
    }
    assert by_name["file_max"].headroom
    assert by_name["pid_max"].headroom


def test_nothing_to_be_read_is_unknown() -> None:
    fake = FakeProc(denied={"/proc"})
    assert process_limits(fake, 7, None, None) == (Limit(name="nofile"), Limit(name="nproc"))
    known = {limit.name for limit in shared_limits(fake, 7) if limit.headroom is not None}
    assert known == {"dev_shm_bytes"}
    assert shm_limit(fake) == Limit(name="dev_shm_bytes", used=25 * 4096, soft=409600, hard=409600)


def test_limits_are_asked_for_where_no_descriptor_is_free() -> None:
    fake = FakeProc(full=True, rlimits={7: (64, -1)})
    nofile, nproc = process_limits(fake, 7, 1, None)
    assert nofile == Limit(name="nofile", used=1, soft=64, hard=math.inf)
    assert (nproc.used, nproc.soft) == (None, 64)


def test_the_users_threads_are_counted() -> None:
    fake = FakeProc()
    fake.add_process(7)
    fake.add_process(8)
    for pid in (7, 8):
        fake.stats[f"/proc/{pid}/task"] = type(fake.stat("/proc/7"))(st_nlink=5)
    fake.add_process(9)
    fake.stats["/proc/9"] = type(fake.stat("/proc/7"))(st_uid=0)
    assert threads_by_user(fake) == {1000: 6, 0: 0}


def test_cgroup_v2_takes_the_tightest_group_above() -> None:
    fake = FakeProc(
        files={
            "/proc/7/cgroup": "0::/a/b\n",
            f"{HERE}/a/b/pids.max": "max\n",
            f"{HERE}/a/b/pids.current": "10\n",
            f"{HERE}/a/pids.max": "40\n",
            f"{HERE}/a/pids.current": "30\n",
            f"{HERE}/a/b/memory.max": "max\n",
            f"{HERE}/a/b/memory.current": "4096\n",
        }
    )
    assert pids_limit(fake, 7) == Limit(name="cgroup_pids", used=30, soft=40, hard=40)
    assert memory_limit(fake, 7) == Limit(name="cgroup_memory", used=4096, soft=math.inf, hard=math.inf)


def test_cgroup_v1_and_a_group_outside_of_the_container() -> None:
    fake = FakeProc(
        files={
            "/proc/7/cgroup": "3:memory:/docker/x\n2:pids:/../other\n",
            f"{HERE}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{HERE}/memory/memory.usage_in_bytes": "8192\n",
            f"{HERE}/pids/pids.max": "100\n",
        }
    )
    assert memory_limit(fake, 7) == Limit(name="cgroup_memory", used=8192, soft=math.inf, hard=math.inf)
    assert pids_limit(fake, 7) == Limit(name="cgroup_pids", soft=100, hard=100)


def test_no_cgroup_at_all() -> None:
    assert pids_limit(FakeProc(), 7) == Limit(name="cgroup_pids")
