"""Classification by the heartbeat alone: a table without processes and clocks."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from holdfast.process.guard.health import (
    OUTAGE_FAILS,
    OUTAGE_S,
    Health,
    HealthFinding,
    HealthLimits,
    OutageWatch,
    classify_health,
)
from holdfast.process.guard.heartbeat import GuardState, Heartbeat

NOW_S = 10_000.0
TIMEOUT_S = 600.0


def page(*, state: GuardState = GuardState.RUNNING, **ages_and_counts: Any) -> Heartbeat:
    """A page whose clocks (`…_s`) are that many seconds old. It beats now and started an hour ago."""
    clocks = {"alive_s": 0.0, "started_s": 3600.0}
    counts = {}
    for name, value in ages_and_counts.items():
        (clocks if name.endswith("_s") else counts)[name] = value
    numbers = {f"{name[:-2]}_ns": int((NOW_S - age) * 1e9) for name, age in clocks.items()}
    return Heartbeat(pid=1, start_ticks=1, state=state, progress_timeout_ns=int(TIMEOUT_S * 1e9), **numbers, **counts)


def classify(one: Heartbeat, process_state: str = "S", **limits: Any) -> HealthFinding:
    return classify_health(one, int(NOW_S * 1e9), HealthLimits(**limits), process_state)


@pytest.mark.parametrize(
    ("one", "health", "sentence"),
    [
        (page(state=GuardState.STARTING), Health.STARTING, "it has reported no success yet"),
        (page(state=GuardState.STARTING, started_s=9999), Health.STARTING, "it has reported no success yet"),
        (page(ok_s=5, ok_calls=9), Health.OK, "it works, last success 5 s ago"),
        (page(ok_s=0.5, jobs_done=1), Health.OK, "1 job done, last success less than 1 s ago"),
        (page(step_s=5), Health.OK, "it works"),
        # failing: the loop goes on, nothing succeeds
        (
            page(ok_s=601, ok_calls=1),
            Health.FAILING,
            "it is failing: it runs, but nothing has succeeded for 10 min",
        ),
        (
            page(
                begun_s=601,
                fails=3,
                fails_in_row=3,
                fail_s=1,
                error="OSError: [Errno 24] Too many open files",
                errno=24,
            ),
            Health.FAILING,
            "it is failing: it runs, but nothing has succeeded for 10 min (3 failures, last: EMFILE: "
            "OSError: [Errno 24] Too many open files)",
        ),
        # failures in a row alone are an outage, which a restart does not end
        (page(ok_s=30, ok_calls=1, fails=20, fails_in_row=20, fail_s=0), Health.OK, "it works, last success 30 s ago"),
        (
            page(ok_s=600, ok_calls=1, fails=9999, fails_in_row=9999, fail_s=0),
            Health.OK,
            "it works, last success 10 min ago",
        ),
        # hung: a job or the loop does not go on
        (
            page(jobs_active=1, job="7", job_started_s=601, ok_s=700, ok_calls=5),
            Health.HUNG,
            "it is hung: job 7 made no step for 10 min",
        ),
        (page(jobs_active=1, job_started_s=601), Health.HUNG, "it is hung: its job made no step for 10 min"),
        (
            page(jobs_active=1, job_started_s=9000, step_s=5, ok_s=9000, ok_calls=1),
            Health.OK,
            "it works, last success 2 h 30 min ago",
        ),
        (page(step_s=601), Health.HUNG, "it is hung: its loop made no step for 10 min"),
        (page(step_s=601, ok_s=500, ok_calls=1), Health.OK, "it works, last success 8 min 20 s ago"),
        # a loop that steps and fails is failing, not hung
        (
            page(step_s=1, ok_s=601, ok_calls=1, fails=1, fail_s=1),
            Health.FAILING,
            "it is failing: it runs, but nothing has succeeded for 10 min",
        ),
        # a worker that runs jobs only, and has none just now, is idle
        (page(ok_s=9000, jobs_done=5), Health.OK, "5 jobs done, last success 2 h 30 min ago"),
        # also if one has failed, before its last success or after it
        (page(ok_s=700, jobs_done=5, fails=1, fail_s=800), Health.OK, "5 jobs done, last success 12 min ago"),
        (
            page(ok_s=9000, jobs_done=5, fails=1, fails_in_row=1, fail_s=601),
            Health.OK,
            "5 jobs done, last success 2 h 30 min ago",
        ),
        (
            page(ok_s=601, jobs_done=5, fails=9, fails_in_row=2, fail_s=599, error="x"),
            Health.FAILING,
            "it is failing: it runs, but nothing has succeeded for 10 min (2 failures, last: x)",
        ),
        # the steps of other jobs do not count for the one that makes none
        (
            page(jobs_active=2, job="7", job_started_s=601, job_step_s=601, step_s=0),
            Health.HUNG,
            "it is hung: job 7 made no step for 10 min",
        ),
        (page(jobs_active=2, job="7", job_started_s=9000, job_step_s=599, step_s=0), Health.OK, "it works"),
        # a long start before the first failure is not a time without success
        (page(started_s=9000, begun_s=1, fails=1, fails_in_row=1, fail_s=1), Health.OK, "it works"),
        # draining comes before what it would otherwise be called
        (
            page(state=GuardState.DRAINING, drain_s=60, ok_s=9000, ok_calls=1, reason="SIGTERM"),
            Health.DRAINING,
            "it drains: SIGTERM",
        ),
        (page(state=GuardState.DRAINING, drain_s=60), Health.DRAINING, "it drains"),
    ],
)
def test_health(one: Heartbeat, health: Health, sentence: str) -> None:
    found = classify(one)
    assert (found.health, found.sentence) == (health, sentence)


@pytest.mark.parametrize("state", GuardState)
@pytest.mark.parametrize("letter", "Tt")
def test_a_stopped_process_is_stopped_whatever_its_page_says(state: GuardState, letter: str) -> None:
    for alive_s in (0.0, 61.0):
        found = classify(page(state=state, alive_s=alive_s), letter)
        assert (found.health, found.since_s) == (Health.STOPPED, alive_s)
        assert found.sentence == "it is stopped by a signal or a debugger (SIGCONT resumes it)"


@pytest.mark.parametrize("state", GuardState)
@pytest.mark.parametrize(
    ("letter", "why"),
    [
        ("R", "C code holds the GIL"),
        ("S", "C code holds the GIL"),
        ("D", "the kernel keeps it waiting for a disk or a network mount"),
    ],
)
def test_a_frozen_process_is_frozen_in_every_state(state: GuardState, letter: str, why: str) -> None:
    found = classify(page(state=state, alive_s=61, ok_s=61, ok_calls=1), letter)
    assert (found.health, found.since_s) == (Health.FROZEN, 61)
    assert found.sentence == f"it is frozen: no Python thread ran for 1 min 1 s; {why}"


def test_boundaries_belong_to_the_healthy_side() -> None:
    assert classify(page(alive_s=60)).health is Health.OK
    assert classify(page(ok_s=TIMEOUT_S, ok_calls=1)).health is Health.OK
    assert classify(page(step_s=TIMEOUT_S)).health is Health.OK
    assert classify(page(jobs_active=1, job_started_s=TIMEOUT_S)).health is Health.OK
    assert classify(page(alive_s=60.001)).health is Health.FROZEN
    assert classify(page(ok_s=TIMEOUT_S + 0.001, ok_calls=1)).health is Health.FAILING
    assert classify(page(step_s=TIMEOUT_S + 0.001)).health is Health.HUNG
    assert classify(page(jobs_active=1, job_started_s=TIMEOUT_S + 0.001)).health is Health.HUNG


def test_limits_of_the_reader_come_before_those_of_the_guard() -> None:
    late = page(ok_s=100, ok_calls=1)
    assert classify(late).health is Health.OK
    assert classify(late, progress_s=99).health is Health.FAILING
    assert classify(page(ok_s=700, ok_calls=1), progress_s=800).health is Health.OK
    assert classify(page(alive_s=3), alive_s=2).health is Health.FROZEN
    assert classify_health(late, int(NOW_S * 1e9)).health is Health.OK  # without limits


def test_without_a_timeout_nothing_is_overdue() -> None:
    failing = page(ok_s=9000, ok_calls=1, fails=900, fails_in_row=900, fail_s=0)
    for one in (page(ok_s=9000, ok_calls=1), page(step_s=9000), page(jobs_active=1, job_started_s=9000), failing):
        endless = Heartbeat(**{name: getattr(one, name) for name in one.__slots__} | {"progress_timeout_ns": 0})
        assert classify(endless).health is Health.OK


def test_clocks_from_the_future_are_now() -> None:
    """Another time namespace, or a page from before a restore of the machine."""
    one = page(alive_s=-500, ok_s=-500, step_s=-500, started_s=-500, ok_calls=1)
    found = classify(one)
    assert (found.health, found.since_s) == (Health.OK, 0)
    assert classify(page(state=GuardState.DRAINING, drain_s=-5)).since_s == 0


@pytest.mark.parametrize("number", [0, errno.EMFILE, 99_999, (1 << 64) - 1])
def test_any_errno_of_a_page_is_shown(number: int) -> None:
    found = classify(page(ok_s=601, ok_calls=1, errno=number, fails=1, fails_in_row=1))
    assert found.health is Health.FAILING
    assert found.sentence.endswith("(1 failure, last: EMFILE)" if number == errno.EMFILE else "(1 failure)")


def test_a_name_that_the_message_has_already_is_not_repeated() -> None:
    found = classify(page(ok_s=601, ok_calls=1, fails=1, fails_in_row=1, errno=errno.EMFILE, error="EMFILE: no"))
    assert found.sentence.endswith("(1 failure, last: EMFILE: no)")


def test_which_states_need_action() -> None:
    assert {one for one in Health if one.is_bad} == {Health.STOPPED, Health.FROZEN, Health.HUNG, Health.FAILING}


def test_a_page_full_of_wild_numbers_is_classified() -> None:
    wild = Heartbeat(
        **{
            name: "x" if isinstance(getattr(page(), name), str) else (1 << 64) - 1
            for name in Heartbeat.__slots__
            if name not in ("state", "jobs")
        },
        state=GuardState.RUNNING,
    )
    for now in (0, int(NOW_S * 1e9), 1 << 63):
        assert classify_health(wild, now).health in Health


def test_an_outage_is_reported_when_it_begins_and_when_it_ends() -> None:
    watch = OutageWatch()

    def told(row: int, before: int = 3, **clocks: float) -> str:
        one = page(fails_in_row=row, fails=before + row, fail_s=0.0, error="ConnectionError: refused", **clocks)
        return watch.check(one, int(NOW_S * 1e9))

    assert told(OUTAGE_FAILS - 1, ok_s=500.0) == ""
    assert told(9999, ok_s=OUTAGE_S - 1) == ""
    assert told(0, ok_s=0.0) == ""
    assert told(OUTAGE_FAILS, ok_s=240.0) == (
        "nothing has succeeded for 4 min (20 failures, last: ConnectionError: refused): this may be an outage, "
        "which a restart does not end, so it keeps trying; it drains if nothing succeeds for 10 min"
    )
    assert told(200, ok_s=240.0) == ""  # once
    assert told(2, before=803, ok_s=0.0) == "succeeds again after 800 failures in 4 min"
    assert told(0, before=805, ok_s=0.0) == ""
    assert told(OUTAGE_FAILS, begun_s=30.0)  # the next one, of a worker that had no success yet
