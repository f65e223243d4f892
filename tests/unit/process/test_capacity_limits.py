"""What this machine gives to a run: read from a fake one, and from the real one."""

from __future__ import annotations

import math
import os
import resource

import pytest
from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.process.capacity import parse_cpu_max, read_limits
from holdfast.procfs.limits import number_after

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             500                  unlimited            processes
Max open files            1024                 524288               files
"""


def machine() -> FakeProc:
    fake = FakeProc(own=20)
    fake.add_process(20, 1, threads=7)
    fake.stats["/proc/20"] = FakeStat(st_uid=1000)
    fake.stats["/proc/20/task"] = FakeStat(st_nlink=7 + 2)
    group = "/sys/fs/cgroup/job"
    fake.files |= {
        "/proc/20/limits": LIMITS,
        "/proc/20/cgroup": "0::/job\n",
        "/proc/meminfo": "MemTotal:  64000000 kB\nMemAvailable:   9765625 kB\n",
        "/proc/sys/fs/file-nr": "1504\t0\t100000\n",
        "/proc/sys/fs/pipe-user-pages-soft": "16384\n",
        "/proc/sys/fs/pipe-user-pages-hard": "0\n",
        f"{group}/memory.max": "1000000000\n",
        f"{group}/memory.current": "900000000\n",
        f"{group}/memory.stat": "anon 1\ninactive_file 300000000\n",
        f"{group}/pids.max": "64\n",
        f"{group}/pids.current": "14\n",
        f"{group}/cpu.max": "150000 100000\n",
    }
    return fake


def test_everything_is_read() -> None:
    limits = read_limits(machine(), uid=1000)
    assert (limits.nofile.soft, limits.nofile.hard, limits.file_max.headroom) == (1024, 524288, 98496)
    assert limits.pipe_pages.soft == 16384
    assert limits.shm.headroom == 75 * 4096
    tasks = {limit.name: limit.headroom for limit in limits.tasks}
    assert (tasks["nproc"], tasks["cgroup_pids"]) == (493, 50)
    # Files that were read can be let go: 900 MB are used, 300 MB of that are files.
    assert [limit.headroom for limit in limits.memory] == [400_000_000, 10**10]
    assert limits.cores == min(1.5, len(os.sched_getaffinity(0)))
    assert not limits.privileged


def test_root_is_not_held_to_the_limits_of_a_user() -> None:
    limits = read_limits(machine(), uid=0)
    assert limits.privileged
    assert "nproc" not in {limit.name for limit in limits.tasks}


def test_the_files_of_a_group_may_be_at_the_mount() -> None:
    fake = machine()
    for path in [path for path in fake.files if path.startswith("/sys/fs/cgroup/job/")]:
        fake.files[path.replace("/job/", "/")] = fake.files.pop(path)
    assert read_limits(fake, uid=1000).memory[0].headroom == 400_000_000


def test_nothing_to_be_read_is_unknown() -> None:
    limits = read_limits(FakeProc(own=20), uid=1000, cores=4)
    assert (limits.nofile.soft, limits.file_max.headroom, limits.memory[1].headroom, limits.cores) == (
        None,
        None,
        None,
        4,
    )


def test_this_machine() -> None:
    limits = read_limits()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limits.nofile.soft == (math.inf if soft < 0 else soft)
    assert 0 < limits.cores <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", math.inf), ("", math.inf), ("5 0", math.inf)]
)
def test_cpu_max(text: str, cores: float) -> None:
    assert parse_cpu_max(text) == cores


def test_meminfo_without_the_row() -> None:
    assert number_after("MemTotal: 5 kB\n", "MemAvailable:") is None
