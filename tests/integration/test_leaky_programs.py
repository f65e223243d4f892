"""The verdict names the leak of every leaky program, and finds nothing in its clean counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import pytest
from leaky_process import PROGRAMS, LeakyProcess, LoopbackServer

from holdfast.process.doctor.diagnose import SEVERITY, Diagnosed, Observation
from holdfast.process.doctor.fd_profile import grown
from holdfast.process.doctor.model import Diagnosis, FdProfile, Match, Sample, Verdict
from holdfast.process.doctor.resources import RESOURCES as ROWS
from holdfast.process.doctor.signatures import SIGNATURES, match
from holdfast.process.doctor.verdict import classify

ROUNDS = 20
WATCHED_S = 660.0
WORK_EVERY_S = 20.0
LOADER_ROUNDS = 12
GROWS = {Verdict.GROWING, Verdict.LEAK}
CALM = {Verdict.OK, Verdict.SETTLING}

# What a round of each program leaks: how many of what its row counts, and how many dead descriptors.
PER_ROUND = {
    "ended-processes": (4, 4),
    "unread-output": (2, 2),
    "queues-never-closed": (4, 4),
    "workers-never-joined": (2, 0),
    "responses-never-closed": (4, 4),
    "client-per-call": (4, 0),
    "event-loops-never-closed": (6, 0),
    "unix-sockets-kept": (4, 0),
    "sockets-never-closed": (4, 0),
    "shared-memory-kept": (8, 0),  # mmap has a descriptor of its own
    "one-path-many-times": (4, 0),
    "files-never-closed": (4, 0),
    "deleted-files-kept": (4, 0),
    "memfds-kept": (4, 0),
    "watchers-kept": (2, 0),
    "pidfds-kept": (2, 0),
    "eventfds-kept": (4, 0),
    "timerfds-kept": (4, 0),
    "ptys-kept": (4, 0),
}
NO_DESCRIPTORS = ("zombies", "children-never-ended", "threads-never-ended")
# Recognised only by their growth: the resource that each of them uses up.
RESOURCES = {
    "threads-never-ended": "threads",
    "zombies": "zombies",
    "children-never-ended": "children",
    "memory-grows": "memory",
    "copy-on-write": "memory",
    "shm-files-kept": "shm_files",
    "watches-kept": "inotify_watches",
}

# Ways to misuse a DataLoader with two workers: the row, what a round leaks, how much of that is dead; the correct way.
LOADERS = {
    "kept_iterator": ("workers-never-joined", 10, 0, "dropped_iterator"),
    "exhausted_iterator": ("dead-dataloader-iterators", 6, 6, "epoch"),
    "kept_exception": ("workers-never-joined", 10, 0, "dropped_exception"),
    "reference_cycle": ("dead-dataloader-iterators", 6, 6, "collected_cycle"),
    "kept_tensors": ("torch-tensors-kept", 6, 0, "cloned_tensors"),
    "loader_per_batch": ("workers-never-joined", 10, 0, "one_loader"),
}

# Without a GPU nothing opens its devices; what cannot be seen depends on permissions.
BY_HAND_ONLY = {"gpu-handles-kept", "pipes-not-seen-through"}


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as one:
        yield one


@pytest.fixture(scope="module")
def torch_program() -> Iterator[LeakyProcess]:
    if find_spec("torch") is None:
        pytest.skip("needs the Python package torch")
    with LeakyProcess("torch_loader") as one:
        yield one


class Seen:
    """A program before and after its rounds, and the verdict on it."""

    def __init__(self, program: LeakyProcess, rounds: int, line: str = "") -> None:
        self.before = program.snapshot()
        self.samples = program.rounds(rounds, line)
        self.after = program.snapshot()

    @property
    def found(self) -> Match | None:
        return match(self.after, grown(self.before, self.after))

    @property
    def found_at_once(self) -> Match | None:
        return match(self.after)

    def processes(self) -> Diagnosis:
        return _classify(self.after, self.found, self.samples, self.before)

    def judged_at_once(self) -> Diagnosis:
        return _classify(self.after, self.found_at_once)


def _classify(
    profile: FdProfile, found: Match | None, samples: Sequence[Sample] = (), first: FdProfile | None = None
) -> Diagnosis:
    return classify(
        fds=profile.fds,
        soft=1024,
        hard=4096,
        samples=samples,
        profile=profile,
        first_profile=first,
        match=found,
    )


def _see(name: str, how: str, server: LoopbackServer) -> Seen:
    with LeakyProcess(name.replace("-", "_"), how, str(server.port)) as program:
        return Seen(program, ROUNDS)


def _is_accused_of(seen: Seen, name: str, count: int, dead: int) -> None:
    assert seen.found is not None
    assert (seen.found.name, seen.found.count) == (name, pytest.approx(count, abs=2))
    assert seen.found.dead == pytest.approx(dead, abs=2)
    diagnosis = seen.processes()
    assert diagnosis.verdict in ({Verdict.LEAK} if dead else GROWS), diagnosis.evidence
    assert set(seen.found.advice) <= set(diagnosis.advice)
    if dead:  # one snapshot is enough
        assert seen.found_at_once is not None
        assert seen.found_at_once.name == name


def _is_not_accused(seen: Seen) -> None:
    assert seen.found is None
    assert seen.processes().verdict in CALM
    assert seen.found_at_once is None
    assert seen.judged_at_once().verdict is Verdict.OK


# ---- one program for each row ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PER_ROUND)
def test_a_leaky_program_is_named(name: str, server: LoopbackServer) -> None:
    count, dead = PER_ROUND[name]
    _is_accused_of(_see(name, "leak", server), name, count * ROUNDS, dead * ROUNDS)


@pytest.mark.parametrize("name", NO_DESCRIPTORS)
def test_growth_without_descriptors_is_named_too(name: str, server: LoopbackServer) -> None:
    seen = _see(name, "leak", server)
    assert seen.found is not None
    assert (seen.found.name, seen.found.count, seen.found.dead) == (name, ROUNDS, 0)
    assert seen.processes().verdict is Verdict.OK


@pytest.mark.parametrize("name", [*PER_ROUND, *NO_DESCRIPTORS])
def test_the_clean_counterpart_is_not_accused(name: str, server: LoopbackServer) -> None:
    _is_not_accused(_see(name, "clean", server))


# ---- what runs out besides descriptors ---------------------------------------------------------------------


def _watch(name: str, how: str) -> list[Diagnosed]:
    """Returns the verdicts after eleven minutes on a clock that runs while the program works."""
    now_s = 0.0
    worked = 0
    with LeakyProcess(name.replace("-", "_"), how) as program:

        def wait(seconds: float) -> None:
            nonlocal now_s, worked
            now_s += seconds
            while worked < now_s // WORK_EVERY_S:
                program.round()
                worked += 1

        seen = Observation(program.pid, clock=lambda: now_s, wait=wait)
        seen.watch(WATCHED_S)
        return seen.conclude()


@pytest.mark.parametrize("name", RESOURCES)
def test_what_else_runs_out_is_named(name: str) -> None:
    found = max(_watch(name, "leak"), key=lambda one: SEVERITY[one.diagnosis.verdict]).diagnosis
    assert found.verdict is (Verdict.LEAK if name == "zombies" else Verdict.GROWING), found.evidence
    assert found.decisive is not None
    assert (found.decisive.name, found.decisive.match.name) == (RESOURCES[name], name)
    assert found.evidence[0] == found.decisive.sentence
    assert found.match is not None
    assert found.match.name == name
    assert found.advice == found.match.advice
    assert found.next_step


@pytest.mark.parametrize("name", RESOURCES)
def test_its_clean_counterpart_is_calm(name: str) -> None:
    found = [one.diagnosis for one in _watch(name, "clean")]
    assert {one.verdict for one in found} <= CALM, [one.evidence for one in found]
    assert not any(one.resources for one in found)


def test_every_row_has_a_program() -> None:
    by_loader = {row for row, _, _, _ in LOADERS.values()}
    assert {row.name for row in SIGNATURES} == {*PER_ROUND, *NO_DESCRIPTORS, *by_loader, *BY_HAND_ONLY}
    assert {row.name for row in ROWS} == {*RESOURCES.values(), "inotify_instances"}
    programs = {path.stem.replace("_", "-") for path in PROGRAMS.glob("*.py")} - {"leak-rounds", "torch-loader"}
    assert programs == {*PER_ROUND, *NO_DESCRIPTORS, *RESOURCES}


# ---- torch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", LOADERS)
def test_a_misused_loader_is_named(way: str, torch_program: LeakyProcess) -> None:
    name, count, dead, _ = LOADERS[way]
    seen = Seen(torch_program, LOADER_ROUNDS, way)
    torch_program.round("release")
    _is_accused_of(seen, name, count * LOADER_ROUNDS, dead * LOADER_ROUNDS)
    assert torch_program.snapshot().fds == seen.before.fds


@pytest.mark.parametrize("way", LOADERS)
def test_a_loader_used_correctly_is_not_accused(way: str, torch_program: LeakyProcess) -> None:
    right = LOADERS[way][3]
    seen = Seen(torch_program, LOADER_ROUNDS, right)
    torch_program.round("release")
    _is_not_accused(seen)
