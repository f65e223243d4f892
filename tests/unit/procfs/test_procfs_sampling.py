from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import ExitStack

import pytest
from fake_proc import FakeProc

from holdfast.procfs.descriptors import Kind
from holdfast.procfs.processes import KindSample, Vitals, parse_statm, read_vitals, sample_kinds
from holdfast.procfs.procfs import REAL

ME = os.getpid()


def test_statm() -> None:
    assert parse_statm("3014 1520 803 1 0 790 0\n") == 1520 * os.sysconf("SC_PAGE_SIZE")
    assert parse_statm("") is None


def test_the_vitals_of_this_process() -> None:
    seen = read_vitals(REAL, ME)
    assert seen.fds == len(os.listdir("/proc/self/fd")) - 1
    assert seen.rss_bytes
    assert seen.threads


def test_the_vitals_of_an_ended_process_are_unknown() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert read_vitals(REAL, child.pid).rss_bytes is not None
        child.communicate(b"\n")
        assert read_vitals(REAL, child.pid) == Vitals(fds=None, rss_bytes=None, threads=None)


def test_few_descriptors_are_all_inspected() -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.callback(os.close, os.eventfd(0))
        seen = sample_kinds(REAL, ME)
    assert seen is not None
    assert seen.fd_count == seen.sampled
    assert seen.estimate[Kind.EVENTFD] >= 3


def _many() -> FakeProc:
    fake = FakeProc()
    for fd in range(1000):
        fake.add_fd(7, fd, "/dev/null" if fd < 250 else f"pipe:[{fd}]", 0o500)
    return fake


def test_a_sample_is_even() -> None:
    seen = sample_kinds(_many(), 7, 100, random.Random(1))
    assert seen == KindSample(fd_count=1000, sampled=100, seen={Kind.PIPE: 75, Kind.DEVICE: 25})
    assert seen.estimate == {Kind.PIPE: 750, Kind.DEVICE: 250}


def test_a_sample_without_a_free_descriptor() -> None:
    fake = _many()
    fake.full, fake.rlimits = True, {7: (1000, 1000)}
    seen = sample_kinds(fake, 7, 100, random.Random(1))
    assert seen is not None
    assert seen.estimate == {Kind.PIPE: 750, Kind.DEVICE: 250}


def test_what_may_not_be_sampled() -> None:
    fake = _many()
    fake.denied.add("/proc/7/fd")
    assert sample_kinds(fake, 7) is None
    assert KindSample(fd_count=3, sampled=0, seen={}).estimate == {}
    with pytest.raises(ValueError, match="at least one"):
        sample_kinds(fake, 7, 0)
