"""The worker that ran out of descriptors on its sixth day, in a `/proc` in memory and on a clock of its own."""

from __future__ import annotations

import dataclasses
import random

from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.process.doctor.fd_profile import profile_of
from holdfast.process.doctor.model import FdProfile
from holdfast.process.doctor.sampler import Watch
from holdfast.procfs.peers import PeerState
from holdfast.procfs.snapshot import take_snapshot

PID = 41231
SOFT = 65536
PER_DAY = 10_000
BASE = 300
# One finished iterator of a loader with one worker: a self-pair, a read end and a write end.
PER_LOADER = 4
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Incident:
    """10,000 descriptors a day stay open; jobs of some minutes and bursts come and go above them."""

    def __init__(self, seed: int = 1) -> None:
        self.now_s = 0.0
        self._chance = random.Random(seed)
        self._burst_until_s = 0.0
        self._burst = 0
        self.fds = BASE
        self.procfs = FakeProc()
        self.procfs.add_process(PID, comm="python")
        self.procfs.files[f"/proc/{PID}/statm"] = "3014 1520 803 1 0 790 0\n"
        self.procfs.stats[f"/proc/{PID}"] = FakeStat()
        self.procfs.stats[f"/proc/{PID}/task"] = FakeStat(st_nlink=5)
        self._folder = self.procfs.stats[f"/proc/{PID}/fd"] = FakeStat()
        self._set()

    def clock(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._set()

    @property
    def leaked(self) -> int:
        return int(self.now_s * PER_DAY / DAY_S) // PER_LOADER * PER_LOADER

    def _set(self) -> None:
        job = int(60 * (self.now_s / 420 % 1))
        if self.now_s >= self._burst_until_s and self._chance.random() < 0.004:
            self._burst, self._burst_until_s = self._chance.randint(50, 600), self.now_s + self._chance.uniform(30, 600)
        burst = self._burst if self.now_s < self._burst_until_s else 0
        self.fds = min(SOFT, BASE + self.leaked + job + burst)
        self._folder.st_size = self.fds

    def watch(self, every_s: float) -> Watch:
        return Watch([PID], self.procfs, self.clock, self.wait, every_s=every_s)

    def profile(self) -> FdProfile:
        """A full look. In memory nothing can be polled: an end without a partner is dead, as poll would say."""
        fake = FakeProc()
        fake.add_process(PID, comm="python")
        fd = 0
        for loader in range(self.leaked // PER_LOADER):
            for pipe, mode in ((0, 0o500), (0, 0o300), (1, 0o500), (2, 0o300)):
                fake.add_fd(PID, fd, f"pipe:[{10 * loader + pipe}]", mode)
                fd += 1
        for number in range(fd, self.fds):
            fake.add_fd(PID, number, f"/data/{number}")
        profile = take_snapshot(PID, procfs=fake).root
        ends = tuple(
            end._replace(peer_state=PeerState.DEAD) if end.peer_state is PeerState.UNKNOWN else end
            for end in profile.ends
        )
        return profile_of(dataclasses.replace(profile, ends=ends))
