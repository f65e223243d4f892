from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.process.doctor.model import FdProfile, PathCount
from holdfast.process.doctor.signatures import SIGNATURES, match
from holdfast.procfs.descriptors import Kind

NOTHING = FdProfile(fds=0)


def name_of(profile: FdProfile, grown: FdProfile | None = None) -> str | None:
    found = match(profile, grown)
    return found.name if found else None


def pipes(
    self_pairs: int = 0, hup: int = 0, err: int = 0, live: int = 0, unknown: int = 0, more: int = 10
) -> FdProfile:
    """A process with these pipes and some files."""
    ends = 2 * self_pairs + hup + err + live + unknown
    kinds = {Kind.PIPE: ends, Kind.FILE: more}
    return FdProfile(fds=ends + more, kinds=kinds, self_pairs=self_pairs, hup=hup, err=err, live=live, unknown=unknown)


# ---- pipes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_dead_loaders_whatever_their_workers(workers: int) -> None:
    found = match(pipes(self_pairs=40, hup=40 * workers, err=40 * workers))
    assert found is not None
    assert found.name == "dead-dataloader-iterators"
    assert found.count == found.dead == 80 + 80 * workers


def test_the_incident() -> None:
    """15,960 dead iterators of one worker, and little else."""
    found = match(pipes(self_pairs=15_960, hup=15_960, err=15_960, live=31, more=41))
    assert found is not None
    assert (found.name, found.count) == ("dead-dataloader-iterators", 63_840)
    assert found.share > 0.99


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (pipes(hup=40, err=40), "ended-processes"),
        (pipes(err=40), "ended-processes"),
        (pipes(hup=40, err=20), "ended-processes"),  # Popen with three pipes
        (pipes(self_pairs=1, hup=40, err=40), "ended-processes"),  # beside a wake-up pipe
        (pipes(hup=40), "unread-output"),
        (pipes(self_pairs=2, hup=60, err=4), "unread-output"),
        (pipes(self_pairs=40), "queues-never-closed"),
        (pipes(self_pairs=40, hup=2, err=2), "queues-never-closed"),
        (pipes(live=400), "workers-never-joined"),
        (pipes(unknown=400), "pipes-not-seen-through"),
    ],
)
def test_pipes_by_their_far_ends(seen: FdProfile, name: str) -> None:
    assert name_of(seen) == name


def test_a_live_loader_is_a_working_set() -> None:
    """Sixteen workers: 66 pipe ends, every one with somebody at the other end."""
    assert match(pipes(live=66)) is None


# ---- the other rows: what no program here can do, and what is told -------------------------------------------


def test_handles_of_a_gpu() -> None:
    """By hand only: it needs a GPU."""
    kinds = {Kind.DEVICE: 500, Kind.FILE: 20}
    assert name_of(FdProfile(fds=520, kinds=kinds, nvidia=500)) == "gpu-handles-kept"
    assert name_of(FdProfile(fds=520, kinds=kinds, nvidia=200)) is None
    more = FdProfile(fds=40, kinds={Kind.DEVICE: 40}, nvidia=40)
    assert name_of(FdProfile(fds=60), more) == "gpu-handles-kept"


def test_the_path_and_the_address_are_named() -> None:
    maximum = PathCount(path="/data/{a}.h5", times=200)
    found = match(FdProfile(fds=210, kinds={Kind.FILE: 210}, most_opened=maximum))
    assert found is not None
    assert found.cause.startswith("/data/{a}.h5 is open many times")
    peer = PathCount(path="10.0.0.7:5432", times=200)
    found = match(FdProfile(fds=210, kinds={Kind.SOCKET: 200}, established=200, established_to=peer))
    assert found is not None
    assert "10.0.0.7:5432" in found.cause


def test_a_device_opened_again_and_again_takes_nothing_from_the_files() -> None:
    often = PathCount(path="/dev/urandom", times=40)
    kinds = {Kind.DEVICE: 40, Kind.FILE: 50}
    assert name_of(NOTHING, FdProfile(fds=90, kinds=kinds, most_opened=often)) == "files-never-closed"


@pytest.mark.parametrize(
    "kinds",
    [
        {Kind.EVENTPOLL: 40, Kind.SOCKET: 80},
        {Kind.EVENTPOLL: 40, Kind.EVENTFD: 40},
    ],
    ids=["socketpair", "eventfd"],
)
def test_event_loops_by_what_wakes_them(kinds: dict[Kind, int]) -> None:
    seen = FdProfile(fds=sum(kinds.values()), kinds=kinds, unix_sockets=kinds.get(Kind.SOCKET, 0))
    found = match(seen)
    assert found is not None
    assert (found.name, found.count) == ("event-loops-never-closed", seen.fds)


# ---- what stands out -----------------------------------------------------------------------------------------


def test_a_few_are_nothing_to_speak_of() -> None:
    assert match(pipes(hup=15)) is None
    assert name_of(pipes(hup=16)) == "unread-output"
    assert name_of(NOTHING, pipes(hup=15, more=0)) is None


def test_a_small_part_is_nothing_to_speak_of() -> None:
    assert name_of(pipes(hup=100, more=301)) is None
    assert name_of(pipes(hup=100, more=300)) == "unread-output"


def test_what_grew_is_better_evidence_than_what_is_there() -> None:
    there = pipes(hup=100, live=90)
    assert name_of(there) == "unread-output"
    assert name_of(there, pipes(live=40, more=0)) == "workers-never-joined"


def test_where_too_little_grew_the_whole_is_inspected() -> None:
    assert name_of(pipes(hup=100), pipes(hup=3, more=0)) == "unread-output"
    assert name_of(pipes(hup=100), NOTHING) == "unread-output"


def test_a_working_set_that_does_not_grow_is_not_accused() -> None:
    """Seen once it may be a leak; two looks know better."""
    assert name_of(pipes(live=400)) == "workers-never-joined"
    assert name_of(pipes(live=400), NOTHING) is None
    assert name_of(pipes(live=400), pipes(hup=3, more=0)) is None


def test_seen_once_the_ordinary_part_does_not_count() -> None:
    """550 open shards are many but may be meant; 300 dead pipes are not."""
    assert name_of(pipes(hup=300, more=550)) == "unread-output"


def test_what_took_the_place_of_others_grew_too() -> None:
    """Thirty files were closed meanwhile: the sum alone grew by ten."""
    found = match(NOTHING, FdProfile(fds=10, kinds={Kind.PIPE: 40}, hup=40))
    assert found is not None
    assert (found.name, found.share) == ("unread-output", 1.0)


def test_descriptors_come_before_threads_and_children() -> None:
    grew = FdProfile(fds=40, kinds={Kind.PIPE: 40}, live=40, children=60, threads=200)
    assert name_of(NOTHING, grew) == "workers-never-joined"
    assert name_of(NOTHING, FdProfile(fds=2, children=60, threads=200)) == "children-never-ended"
    assert name_of(NOTHING, FdProfile(fds=2, children=60, zombies=50)) == "zombies"
    assert name_of(NOTHING, FdProfile(fds=2, threads=200)) == "threads-never-ended"


def test_an_ordinary_training_process_is_not_accused() -> None:
    kinds = {Kind.FILE: 60, Kind.PIPE: 70, Kind.SOCKET: 40, Kind.EVENTPOLL: 6, Kind.EVENTFD: 20, Kind.DEVICE: 40}
    seen = FdProfile(
        fds=sum(kinds.values()),
        kinds=kinds,
        self_pairs=3,
        live=64,
        established=20,
        established_to=PathCount(path="10.0.0.7:443", times=16),
        unix_sockets=14,
        most_opened=PathCount(path="/dev/null", times=5),
        nvidia=34,
        children=16,
        threads=180,
    )
    assert match(seen) is None


def test_nothing_seen_is_nothing_said() -> None:
    assert match(NOTHING) is None
    assert match(FdProfile(fds=60_000), NOTHING) is None


# ---- the table -----------------------------------------------------------------------------------------------


def test_every_row_says_what_to_do() -> None:
    assert len({row.name for row in SIGNATURES}) == len(SIGNATURES)
    for row in SIGNATURES:
        assert row.cause
        assert row.advice
        assert all(not text.endswith(".") and len(text) < 120 for text in (row.cause, *row.advice)), row.name


few = st.integers(0, 300)


@st.composite
def whole_structures(draw: st.DrawFn) -> FdProfile:
    """Any mixture whose numbers agree with each other."""
    self_pairs, hup, err, live, unknown = (draw(few) for _ in range(5))
    close_wait, established, unix, other = (draw(few) for _ in range(4))
    torch_shm, shm, deleted, files, devices, loops, eventfds, memfds = (draw(few) for _ in range(8))
    children, threads = draw(few), draw(few)
    kinds = {
        Kind.PIPE: 2 * self_pairs + hup + err + live + unknown,
        Kind.SOCKET: close_wait + established + unix + other,
        Kind.SHM: torch_shm + shm,
        Kind.DELETED: deleted,
        Kind.FILE: files,
        Kind.DEVICE: devices,
        Kind.EVENTPOLL: loops,
        Kind.EVENTFD: eventfds,
        Kind.MEMFD: memfds,
    }
    return FdProfile(
        fds=sum(kinds.values()),
        kinds=kinds,
        self_pairs=self_pairs,
        hup=hup,
        err=err,
        live=live,
        unknown=unknown,
        close_wait=close_wait,
        established=established,
        established_to=PathCount(path="a:1", times=draw(st.integers(1, established))) if established else None,
        unix_sockets=unix,
        torch_shm=torch_shm,
        shm=torch_shm + shm,
        deleted=deleted,
        most_opened=PathCount(path="/a", times=draw(st.integers(1, files))) if files else None,
        nvidia=draw(st.integers(0, devices)),
        children=children,
        zombies=draw(st.integers(0, children)),
        threads=threads,
    )


@given(whole_structures())
def test_no_descriptor_is_explained_twice(seen: FdProfile) -> None:
    counts = [row.count(seen) for row in SIGNATURES if row.of == "descriptors"]
    assert min(counts) >= 0
    assert sum(counts) <= seen.fds


@given(whole_structures(), st.none() | whole_structures())
def test_a_match_is_a_share_of_something(seen: FdProfile, grown: FdProfile | None) -> None:
    found = match(seen, grown)
    if found is not None:
        assert 0.25 <= found.share <= 1.0
        assert found.count >= 16
        assert "{what}" not in found.cause
