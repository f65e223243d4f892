from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import holdfast as hold
from factories_traces import LIBRARY, TRAIN, TraceBuilder, leaking_trace
from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.recording import LIBRARY as PRELOADED
from holdfast.process.fdtrace.sites import Statistics, is_library, is_own
from holdfast.process.fdtrace.tables import Table


def test_a_leak_through_a_library_belongs_to_the_line_of_the_user() -> None:
    statistics = Statistics(leaking_trace(60).build())
    first, second = statistics.sites
    assert first.frame[:3] == TRAIN[:3]
    assert (first.live, first.born, first.closed) == (60, 60, 0)
    assert first.per_minute == pytest.approx(60, rel=0.1)
    assert [frame.line for frame in statistics.path_of(first)] == [3, 7]
    assert (second.live, second.growth, second.born, second.closed) == (0, 0.0, 60, 60)
    assert second.peak == 1  # though it is open between two points of the grid
    assert second.lifetime_p50_s == pytest.approx(0.02)
    assert second.closers == {"/home/me/train.py:50": 60}
    assert statistics.verdict().startswith("me/train.py:31 in train leaks: 60 descriptors (pipe) are open")


def test_sites_rank_by_growth_and_not_by_count() -> None:
    made = leaking_trace(20)
    many = made.stack(("/home/me/train.py", 5, "setup", "open(shard)"))
    for fd in range(1000, 1500):
        made.born(0.1, fd, many, "file")
    sites = Statistics(made.build()).sites
    assert [site.frame.line for site in sites[:2]] == [31, 5]
    assert sites[1].growth == 0


def test_what_is_closed_at_shutdown_is_still_a_leak() -> None:
    made = leaking_trace(60)
    made.processes[0] = {"finalizing_s": 59.9}
    for fd in range(10, 70):
        made.closed(60.0, fd)
    site = Statistics(made.build(61.0)).sites[0]
    assert (site.live, site.born, site.closed) == (60, 60, 0)


def test_since_and_until_count_what_happened_in_between() -> None:
    statistics = Statistics(leaking_trace(60).build(), since=20, until=40)
    leak, other = statistics.sites
    assert (leak.born, leak.live) == (21, 41)
    assert other.born == 21
    with pytest.raises(ValueError, match="since < until"):
        Statistics(leaking_trace(60).build(), since=70)


def test_inherited_copies_are_counted_apart() -> None:
    made = leaking_trace(60)
    child = made.process(start_s=10.0)
    made.inherited = [(10.0, child, fd, 1, 3) for fd in range(10, 20)]
    statistics = Statistics(made.build())
    site = statistics.sites[0]
    assert (site.live, site.inherited, statistics.inheritors(site)) == (60, 10, 1)


def test_a_close_in_another_thread_is_counted() -> None:
    made = TraceBuilder()
    stack = made.stack(TRAIN)
    for number in range(10):
        made.born(number, 3, stack)
        made.closed(number + 0.5, 3, stack, tid=1 + number % 2)
    assert Statistics(made.build()).sites[0].closed_elsewhere == 5


def test_what_ends_with_its_process_is_not_live() -> None:
    made = TraceBuilder()
    child = made.process(end_s=30.0)
    for fd in range(5):
        made.born(10, fd, made.stack(TRAIN), process=child)
    site = Statistics(made.build()).sites[0]
    assert (site.live, site.born, site.closed) == (0, 5, 5)


def test_samples_replace_events_that_were_dropped() -> None:
    made = leaking_trace(60)
    made.processes[0] = {"dropped_events": 1000}
    leak = 1
    made.samples = [(float(t), 0, leak, t) for t in range(60)]
    trace = made.build()
    # The ring holds nothing of the leak; the samples and the table at the end do.
    trace = replace(
        trace, events=trace.events.take([at for at, stack in enumerate(trace.events["stack"]) if stack != leak])
    )
    site = Statistics(trace).sites[0]
    assert (site.live, site.born, site.closed) == (60, 60, 0)
    assert site.per_minute == pytest.approx(60, rel=0.1)


def test_a_step_is_no_growth() -> None:
    made = TraceBuilder()
    for fd in range(100):
        made.born(30.0, fd, made.stack(TRAIN))
    site = Statistics(made.build()).sites[0]
    assert (site.live, site.growth) == (100, 0.0)


def short_run(born: int, is_open: Callable[[int], bool]) -> Statistics:
    """A run of half a second that no sample was taken of, and whose ring has dropped the events."""
    made = TraceBuilder()
    stack = made.stack(TRAIN)
    for number in range(born):
        made.born(0.1 + 0.4 * number / born, number, stack)
        if not is_open(number):
            made.closed(0.1 + 0.4 * (number + 0.5) / born, number)
    made.processes[0] = {"dropped_events": 100_000}
    return Statistics(replace(made.build(0.5), events=Table(trace_file.EVENTS)))


@pytest.mark.parametrize(
    ("born", "is_open", "grows"),
    [
        (500, lambda number: True, True),
        (20_000, lambda number: number % 40 == 0, True),  # one line that closes most of what it opens
        (20_000, lambda number: number >= 20_000 - 64, False),  # a cache of 64 that closes what it evicts
        (20_000, lambda number: number >= 20_000 - 1_000, False),
        (20_000, lambda number: number >= 20_000 - 4_000, False),
        (20_000, lambda number: number < 500, False),  # opened at the start, and kept
        (20_000, lambda number: 10_000 <= number < 10_500, False),
        (20_000, lambda number: number % 6_000 == 0, False),  # too few
    ],
)
def test_a_leak_shows_in_the_ages_of_what_is_open(born: int, is_open: Callable[[int], bool], grows: bool) -> None:
    [site] = short_run(born, is_open).sites
    assert site.live == sum(map(is_open, range(born)))
    assert (site.growth > 0) is grows


def late_run(births: Sequence[float], closed_before: int, dropped: bool = False, samples: int = 0) -> Statistics:
    """A run of 100 s. A line opens and closes, and then opens what stays open at the end."""
    made = TraceBuilder()
    stack = made.stack(TRAIN)
    for number in range(closed_before):
        made.born(80 * number / closed_before, 5_000, stack)
        made.closed(80 * (number + 0.5) / closed_before, 5_000)
    for fd, t in enumerate(births):
        made.born(t, fd, stack)
    if dropped:
        made.processes[0] = {"dropped_events": 100_000}
        made.samples = [(float(t), 0, stack, max(samples, sum(one <= t for one in births))) for t in range(1, 100)]
    trace = made.build(100.0)
    return Statistics(replace(trace, events=Table(trace_file.EVENTS)) if dropped else trace)


def test_a_leak_that_begins_late_is_named() -> None:
    for tenth in (np.linspace(90, 99.9, 200), np.linspace(97, 99.9, 200), np.linspace(60, 99.9, 200)):
        for before, dropped in ((0, False), (500, False), (500, True)):
            statistics = late_run(tenth.tolist(), before, dropped)
            [site] = statistics.sites
            assert site.growth > 64, (tenth[0], before, dropped)
            assert site.per_minute == pytest.approx(60 * 200 / (99.9 - tenth[0]), rel=0.2)
            assert statistics.weights("growth")
    late = late_run(np.linspace(97, 99.9, 200).tolist(), 500)
    assert late.verdict().endswith(" in the last 3.1 s.")
    # Half as many will do where the line had closed all that it opened.
    assert late_run(np.linspace(90, 99.9, 60).tolist(), 500).sites[0].growth > 0


def test_what_is_opened_at_the_end_is_no_leak() -> None:
    clean = [
        late_run(np.linspace(99.95, 99.99, 1_000).tolist(), 500),  # at once, and at the very end
        late_run(np.linspace(99, 99.1, 1_000).tolist(), 500),
        late_run(np.linspace(95, 95.5, 1_000).tolist(), 0),
        late_run(np.linspace(97, 99.9, 60).tolist(), 0),  # a pool of connections that take long to make
        late_run(np.linspace(93, 99.9, 20).tolist(), 500),
        late_run(np.linspace(95, 99.9, 200).tolist(), 500, dropped=True, samples=200),  # a cache that evicts
    ]
    assert [statistics.sites[0].growth for statistics in clean] == [0.0] * len(clean)


def test_a_line_that_makes_several_kinds() -> None:
    made = TraceBuilder()
    stack = made.stack(TRAIN)
    for number, kind in enumerate(["pipe", "pipe", "file", "socket"] * 10):
        made.born(number, number, stack, kind)
    for number in range(4):
        made.closed(50, number)
    for dropped in (0, 1):
        made.processes[0] = {"dropped_events": dropped}
        statistics = Statistics(made.build())
        [site] = statistics.sites
        assert site.kinds == {"pipe": 18, "file": 9, "socket": 9}
    assert {kind: int(live[-1]) for kind, live in statistics.by_kind.items()} == site.kinds


def test_kinds_over_time() -> None:
    """Each kind has its own curve, not only its last value; the largest comes first; kinds without one are left out."""
    made = TraceBuilder()
    files, pipes = made.stack(TRAIN), made.stack(("/home/me/train.py", 5, "setup", "os.pipe()"))
    for number in range(10):
        made.born(10, number, files, "file")
        made.closed(40, number)
    for number in range(10, 14):
        made.born(30, number, pipes, "pipe")
    statistics = Statistics(made.build())
    at = [int(np.searchsorted(statistics.grid, t)) for t in (5, 20, 35, 50)]
    got = {kind: [live[point] for point in at] for kind, live in statistics.by_kind.items()}
    assert list(got.items()) == [("file", [0, 10, 10, 0]), ("pipe", [0, 0, 4, 4])]


def test_the_peak_of_a_line_with_two_stacks() -> None:
    made = TraceBuilder()
    stacks = [made.stack(TRAIN, ("/home/me/train.py", line, "main", "train()")) for line in (1, 2)]
    for number in range(20):
        made.born(10.0 + number / 1e6, number, stacks[number % 2])
    for number in range(20):
        made.closed(10.001, number)
    [site] = Statistics(made.build()).sites
    assert (site.live, site.peak) == (0, 20)


def test_unknown_origins_are_grouped_and_lower_the_coverage() -> None:
    made = leaking_trace(60)
    made.processes[0] = {"unknown": ("pipe:[4711]", "pipe:[4712]", "/dev/nvidia0"), "counts": {"birth_unseen": 27}}
    statistics = Statistics(made.build())
    assert [(one.target, one.count) for one in statistics.unknown] == [("pipe:…", 2), ("/dev/nvidia0", 1)]
    assert statistics.coverage == pytest.approx(120 / 150)


def test_the_verdict_counts_many_unknown_origins() -> None:
    made = TraceBuilder()
    made.processes[0] = {"unknown": tuple(f"/data/{i}.h5" for i in range(40))}
    assert Statistics(made.build()).verdict().endswith(" s. 40 more have an unknown origin.")


def test_failed_calls_are_listed_by_line() -> None:
    made = TraceBuilder()
    stack = made.stack((LIBRARY, 3, "make"), TRAIN)
    for t in range(3):
        made.failed(t, stack)
    statistics = Statistics(made.build())
    (one,) = statistics.failed
    assert (one.frame.line, one.call, one.error, one.count) == (31, "openat", "EMFILE", 3)
    assert "3 calls failed because no descriptor was free" in statistics.verdict()


def test_weights_of_stacks() -> None:
    statistics = Statistics(leaking_trace(60).build())
    assert statistics.weights("live") == {1: 60}
    assert statistics.weights("born") == {1: 60, 2: 60}
    assert list(statistics.weights("growth")) == [1]


def test_a_recording_without_processes_has_no_sites() -> None:
    made = TraceBuilder()
    made.processes.clear()
    statistics = Statistics(made.build(0.0))
    assert statistics.sites == []
    assert statistics.verdict() == "Nothing was recorded."


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/usr/lib/python3.11/socket.py", True),
        ("/venv/lib/python3.11/site-packages/torch/x.py", True),
        ("<frozen importlib._bootstrap>", True),
        ("/home/me/lib/train.py", False),
        ("/home/me/train.py", False),
        ("/home/me/holdfast/train.py", False),
        (hold.__file__, True),
    ],
)
def test_library_files(file: str, expected: bool) -> None:
    assert is_library(file) is expected


def test_files_of_holdfast_are_found_where_they_are() -> None:
    package = Path(hold.__file__).parent
    assert PRELOADED.parent == package / "_native"
    assert is_library(str(package / "data" / "x.py"))
    assert is_own(trace_file.__file__)
    assert not is_own(str(package / "data" / "x.py"))
