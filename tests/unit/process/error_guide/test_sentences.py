"""From facts to sentences, without a machine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.process.doctor.model import Match
from holdfast.process.error_guide.explanation import Explanation, body
from holdfast.process.error_guide.log_scanner import LogPosition
from holdfast.process.error_guide.rules import Disk, Fact, NamedFile, Scope, SystemContext
from holdfast.process.error_guide.sentences import sentences
from holdfast.procfs.descriptors import Kind
from holdfast.procfs.limits import Limit
from holdfast.procfs.locks import Lock, LockKind


def limits(**known: tuple[int | None, float]) -> dict[str, Limit]:
    return {name: Limit(name=name, used=used, soft=maximum, hard=maximum) for name, (used, maximum) in known.items()}


def say(ask: Fact, here: SystemContext) -> str:
    return " ".join(sentences([ask], here))


OWN = SystemContext(scope=Scope.OWN, pid=7)


@pytest.mark.parametrize(
    ("used", "end"), [(1024, "None is free."), (1010, "Few are free."), (100, "Enough are free now.")]
)
def test_descriptors(used: int, end: str) -> None:
    here = replace(OWN, limits=limits(nofile=(used, 1024)), kinds={Kind.PIPE: 90, Kind.FILE: 10})
    assert sentences([Fact.DESCRIPTORS], here) == (
        f"This process (7) has {used:,} of 1,024 descriptors. {end}",
        "Of these: pipe 90 · file 10.",
    )


def test_descriptors_of_another_and_of_nobody() -> None:
    nofile = {"nofile": Limit(name="nofile", used=None, soft=64, hard=math.inf)}
    other = replace(OWN, scope=Scope.OTHER, command="train", limits=nofile)
    assert say(Fact.DESCRIPTORS, other).startswith(
        "Process 7 (train) may have 64 descriptors; its hard limit is unlimited"
    )
    assert "A process started from here may have 64" in say(Fact.DESCRIPTORS, replace(other, scope=Scope.SHELL))
    assert say(Fact.DESCRIPTORS, OWN) == ""


def test_the_likely_cause_is_reported() -> None:
    match = Match(name="x", cause="queues are never closed", advice=(), count=60, dead=0, share=0.9)
    here = replace(OWN, limits=limits(nofile=(64, 64)), match=match)
    assert say(Fact.DESCRIPTORS, here).endswith("60 of them look like this: queues are never closed.")


def test_tasks_name_what_is_full_and_only_that() -> None:
    here = replace(OWN, limits=limits(nproc=(10, 1000), cgroup_pids=(99, 100), threads_max=(10, 9999)))
    assert sentences([Fact.TASKS], here) == ("99 of 100 tasks of the control group (pids.max) are in use.",)


def test_tasks_with_room_and_roots_limit() -> None:
    room = replace(OWN, limits=limits(nproc=(10, 1000), cgroup_pids=(9, math.inf)))
    assert say(Fact.TASKS, room).endswith("No task limit is near now, but one may have been when the error occurred.")
    root = replace(OWN, is_root=True, limits=limits(nproc=(1000, 1000)))
    assert "It is not enforced for root. No task limit" in say(Fact.TASKS, root)
    assert say(Fact.TASKS, OWN) == ""


def test_memory() -> None:
    here = replace(
        OWN,
        limits=limits(cgroup_memory=(990_000_000, 1e9)),
        oom_kills=3,
        available_bytes=5_000_000_000,
        overcommit=2,
        address_space_bytes=10**9,
    )
    assert sentences([Fact.MEMORY], here) == (
        "The control group uses 990 MB of 1.00 GB of memory.",
        "The kernel has killed processes of this control group for lack of memory 3 times.",
        "The machine has 5.00 GB of memory available now. Overcommit is disabled (vm.overcommit_memory=2).",
        "`ulimit -v` limits the process to 1.00 GB of address space.",
    )
    assert say(Fact.MEMORY, OWN) == ""


def test_shared_memory_of_dockers_size() -> None:
    here = replace(OWN, limits=limits(dev_shm_bytes=(64 << 20, 64 << 20)))
    assert "67.1 MB of 67.1 MB in use. It is full. 64 MB is docker's default" in say(Fact.SHM, here)
    assert (
        say(Fact.SHM, replace(OWN, limits=limits(dev_shm_bytes=(1, 10**10)))) == "/dev/shm has 1 B of 10.0 GB in use."
    )


def test_maps_and_numbers() -> None:
    assert "65,530 of 65,530 mappings" in say(Fact.MAPS, replace(OWN, maps=65530, max_maps=65530))
    assert "too high for select()" in say(Fact.HIGHEST, replace(OWN, highest_fd=1024))
    assert "low enough for select()" in say(Fact.HIGHEST, replace(OWN, highest_fd=1023))
    assert "its limit (fs.file-max) is unlimited" in say(
        Fact.HOST_FILES, replace(OWN, limits=limits(file_max=(9, 2**63 - 1)))
    )
    assert "128 inotify instances" in say(Fact.INOTIFY, replace(OWN, limits=limits(inotify_instances=(None, 128))))


def test_disks() -> None:
    disk = Disk(path="/data", size_bytes=10**12, free_bytes=0, inodes=1000, free_inodes=0)
    assert say(Fact.DISK, replace(OWN, disks=(disk,))) == (
        "/data is on a file system with 0 B of 1.00 TB free, and 0 of 1,000 inodes."
    )


def test_locks() -> None:
    locks = (
        Lock(41, "python w.py", LockKind.FLOCK, True),
        Lock(7, "me", LockKind.POSIX, False, inherited=True),
        Lock(None, "", LockKind.OFD, True),
        Lock(43, "", LockKind.FLOCK, True, waiting=True),
    )
    here = replace(OWN, files=(NamedFile(path="a.h5", locks=locks),))
    assert sentences([Fact.LOCKS], here) == (
        "Process 41 (python w.py) holds an exclusive flock on a.h5.",
        "This process itself (me) holds a shared lockf lock on a.h5 through an inherited descriptor.",
        "A process that is not visible here (another machine's, user's or container's) holds an exclusive "
        "open-file lock on a.h5.",
        "These processes wait for it: 43.",
    )
    assert say(Fact.LOCKS, replace(OWN, files=(NamedFile(path="a", locks=()),))) == "No process holds a lock on a now."
    assert "cannot be read" in say(Fact.LOCKS, replace(OWN, files=(NamedFile(path="a"),)))
    assert say(Fact.LOCKS, OWN).startswith("Name the file")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x89HDF\r\n\x1a\n\0", "begins with the HDF5 signature"),
        (b"\x1f\x8b\x08", "is compressed with gzip"),
        (b"\x78\x9cxx", "is probably compressed with zlib"),
        (b"version https://git-lfs.github.com/spec/v1", "is a git-lfs pointer"),
        (b"\n<!DOCTYPE HTML>", "is a web page"),
        (b"\0" * 64, "begins with zero bytes"),
        (b"abc", "neither as HDF5 nor as gzip"),
        (None, "is 99 B long."),
    ],
)
def test_what_a_file_is(head: bytes | None, said: str) -> None:
    assert said in say(Fact.HEAD, replace(OWN, files=(NamedFile(path="a", size_bytes=99, head=head),)))


def test_an_empty_file() -> None:
    assert say(Fact.HEAD, replace(OWN, files=(NamedFile(path="a", size_bytes=0, head=b""),))) == "a is empty."


ONE = Explanation(
    name="EMFILE",
    title="Too many open files",
    errno=24,
    says="Word " * 60,
    here=("Fact \x1b[31m" * 20, "Two."),
    mistaken_for="Other " * 20,
    advice=("Do " * 40, "Then."),
    chain="OSError(24)",
    text="x" * 300,
    count=3,
    first=LogPosition("a.log", 5, "10:00:00"),
    last=LogPosition("b.log", 1234, None),
)


def test_it_reads_well_at_80_columns() -> None:
    lines = str(ONE).splitlines()
    assert lines[:2] == ["Too many open files (EMFILE, errno 24)", ""]
    assert max(len(line) for line in lines if "xxx" not in line) <= 80
    assert "\x1b" not in str(ONE)
    assert "  here           Fact" in str(ONE)
    assert "on 3 lines: the first is line 5 of a.log (10:00:00), the last line 1,234 of b.log" in " ".join(
        str(ONE).split()
    )


def test_a_narrow_screen() -> None:
    assert max(len(label + text) for label, text in body(replace(ONE, text=""), 50)) <= 50
