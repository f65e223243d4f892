"""The states of a worker, when it is started again, and by which steps it is ended: with a simulated clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.process.guard.supervisor.worker_machine import (
    TRANSITIONS,
    EndStep,
    Escalation,
    EscalationPlan,
    RestartMode,
    RestartPolicy,
    RestartReason,
    RestartRules,
    StepTimes,
    WorkerEnd,
    WorkerEvent,
    WorkerMachine,
    WorkerState,
    plan_bad_health,
    plan_recycle,
    plan_stop,
)


def policy(uniform: Callable[[float, float], float] = lambda low, high: 1.0, **rules: float) -> RestartPolicy:
    return RestartPolicy(RestartRules(**rules), uniform)  # type: ignore[arg-type]


# ---- restarts ----------------------------------------------------------------------------------------------


def test_the_wait_doubles_up_to_five_minutes() -> None:
    made = policy(failures=0)
    waits = [made.after_failure(now_s, 1.0) for now_s in range(2_000)]
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(waits[9:]) == {300}


def test_jitter_is_a_tenth() -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    made = policy(uniform)
    assert made.after_failure(0, 0) == pytest.approx(1.1)
    assert bounds == [(0.9, 1.1)]


def test_it_gives_up_at_the_fifth_failure_within_ten_minutes() -> None:
    made = policy()
    assert [made.after_failure(now_s, 1.0) for now_s in (0, 100, 200, 300)] == [1, 2, 4, 8]
    assert made.after_failure(599, 1.0) is None
    assert made.failed_starts == 5


def test_a_cap_that_several_workers_exceed_at_their_start_is_too_low() -> None:
    policy = RestartPolicy(RestartRules())
    assert [policy.is_cap_too_low(age_s) for age_s in (3, 31, 3, 59, 600, 3, 3, 3)] == [
        *(False, False, True, True),
        *(False, False, False, True),
    ]


def test_only_failures_at_the_start_are_given_up() -> None:
    far_apart, after_work, before_success = policy(), policy(), policy()
    assert None not in [far_apart.after_failure(now_s, 1.0) for now_s in range(0, 100_000, 151)]
    assert [after_work.after_failure(now_s, 11.0) for now_s in range(9)] == [2**n for n in range(9)]
    waits = [before_success.after_failure(now_s, 60.0, at_start=True) for now_s in range(5)]
    assert waits == [1, 2, 4, 8, None]


def test_a_lack_of_success_waits_longer_each_time_and_is_never_given_up() -> None:
    made = policy()
    assert [made.after_no_success(had_success=at == 0) for at in range(1_000)] == [
        min(2.0**at, 300) for at in range(1_000)
    ]
    assert (made.unsuccessful, made.failed_starts) == (1_000, 0)
    assert made.after_no_success(had_success=True) == 1


def test_a_machine_that_is_short_of_processes_is_tried_for_ever() -> None:
    made = policy()
    assert [made.after_shortage() for _ in range(12)] == [min(2.0**at, 300) for at in range(12)]


def test_ten_minutes_of_uptime_begin_the_waits_anew() -> None:
    made = policy(failures=0)
    assert [made.after_failure(0, 1.0), made.after_failure(2, 1.0)] == [1, 2]
    assert made.after_failure(700, 600.0) == 1


def test_a_recycle_is_no_failure_and_does_not_wait() -> None:
    made = policy()
    assert made.after_failure(0, 1.0) == 1
    assert {made.after_recycle(3600.0) for _ in range(1_000)} == {0.0}
    assert made.failed_starts == 1


def test_many_quick_recycles_get_a_pause_each() -> None:
    made = policy()
    assert [made.after_recycle(0.01) for _ in range(13)] == [0.0] * 10 + [1.0] * 3
    assert made.after_recycle(60.0) == 0.0
    assert made.after_recycle(0.01) == 0.0


def test_an_operator_who_asks_for_a_restart_clears_the_failures() -> None:
    made = policy()
    for now_s in range(4):
        made.after_failure(now_s, 1.0)
    made.reset()
    assert made.after_failure(5, 1.0) == 1


# ---- escalation --------------------------------------------------------------------------------------------

PLAIN = StepTimes(stop_s=10)
GUARDED = StepTimes(stop_s=10, drain_s=900)


def steps_of(plan: EscalationPlan) -> list[tuple[EndStep, float]]:
    return list(plan.steps)


@pytest.mark.parametrize("reason", [RestartReason.FROZEN, RestartReason.FDS, RestartReason.RSS])
def test_who_cannot_drain_or_is_over_a_hard_cap_does_not(reason: RestartReason) -> None:
    plan = plan_bad_health(reason, "", GUARDED)
    assert steps_of(plan) == [(EndStep.STACKS, 3.0), (EndStep.TERM, 10), (EndStep.KILL, math.inf)]
    assert not plan.is_planned


def test_a_stopped_process_writes_no_stacks() -> None:
    plan = plan_bad_health(RestartReason.STOPPED, "", GUARDED)
    assert steps_of(plan) == [(EndStep.TERM, 10), (EndStep.KILL, math.inf)]


def test_a_worker_without_success_gets_the_time_of_its_guard_to_drain() -> None:
    assert (EndStep.DRAIN, 900) in steps_of(plan_bad_health(RestartReason.FAILING, "", GUARDED))


@pytest.mark.parametrize("reason", [RestartReason.HUNG, RestartReason.PROGRESS])
def test_a_worker_that_does_not_work_gets_seconds_to_drain(reason: RestartReason) -> None:
    assert (EndStep.DRAIN, 3.0) in steps_of(plan_bad_health(reason, "", GUARDED))
    assert EndStep.DRAIN not in dict(steps_of(plan_bad_health(reason, "", PLAIN)))


def test_a_worker_over_a_soft_cap_drains_as_long_as_its_guard_says() -> None:
    plan = plan_recycle(RestartReason.FDS, "", GUARDED)
    assert steps_of(plan)[0] == (EndStep.DRAIN, 900)
    assert plan.is_planned
    assert steps_of(plan_recycle(RestartReason.FDS, "", PLAIN)) == [
        (EndStep.ASK, 10),
        (EndStep.KILL, math.inf),
    ]


def test_a_stop_asks_first() -> None:
    assert steps_of(plan_stop("", PLAIN)) == [(EndStep.ASK, 10), (EndStep.KILL, math.inf)]
    assert steps_of(plan_stop("", GUARDED)) == [
        (EndStep.ASK, 900),
        (EndStep.TERM, 10),
        (EndStep.KILL, math.inf),
    ]


def test_steps_come_when_they_are_due_and_the_kill_is_repeated() -> None:
    escalation = Escalation(plan_bad_health(RestartReason.HUNG, "", GUARDED), 0.0)
    taken = []
    for tenth in range(200):
        step = escalation.next_step(tenth / 10)
        if step is not None:
            taken.append((step, tenth / 10))
    assert taken[:4] == [
        (EndStep.STACKS, 0.0),
        (EndStep.DRAIN, 3.0),
        (EndStep.TERM, 6.0),
        (EndStep.KILL, 16.0),
    ]
    assert {step for step, _ in taken[4:]} == {EndStep.KILL}
    assert escalation.kills == len(taken) - 3 == 8


def test_a_step_that_is_done_makes_the_next_one_due_but_no_later_one() -> None:
    escalation = Escalation(plan_bad_health(RestartReason.HUNG, "", GUARDED), 0.0)
    assert escalation.next_step(0.0) is EndStep.STACKS
    escalation.done(EndStep.STACKS, 0.5)
    assert escalation.next_step(0.5) is EndStep.DRAIN
    escalation.done(EndStep.STACKS, 0.6)  # too late: py-spy has ended after its time
    assert escalation.next_step(0.6) is None
    assert escalation.given_s == 3.0


def test_hurry_leaves_steps_out() -> None:
    escalation = Escalation(plan_stop("", GUARDED), 0.0)
    assert escalation.next_step(0.0) is EndStep.ASK
    escalation.hurry(EndStep.KILL, 1.0)
    assert escalation.next_step(1.0) is EndStep.KILL
    escalation.hurry(EndStep.TERM, 1.1)  # it is over already
    assert escalation.next_step(1.1) is None


# ---- states ------------------------------------------------------------------------------------------------


def machine(mode: RestartMode = RestartMode.ON_FAILURE) -> WorkerMachine:
    return WorkerMachine(RestartRules(), mode, lambda low, high: 1.0)


def test_every_state_is_reached_and_leads_to_the_end() -> None:
    assert set(TRANSITIONS) == set(WorkerState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(WorkerEvent)
    for state in WorkerState:
        reached = {state}
        for _ in WorkerState:
            reached |= {target for one in reached for target in TRANSITIONS[one].values()}
        assert reached == set(WorkerState), state
    assert {state for state in WorkerState if set(TRANSITIONS[state]) == {WorkerEvent.RECYCLE}} == {
        state for state in WorkerState if state.is_final
    }


def test_a_late_event_changes_nothing() -> None:
    worker = machine()
    worker.move(WorkerEvent.STARTED, "too early")
    assert (worker.state, worker.sentence) == (WorkerState.BACKING_OFF, "it was not started yet")


@pytest.mark.parametrize(
    ("mode", "end", "state", "outcome"),
    [
        ("on-failure", {"code": 0}, "done", ("done", None, "info")),
        ("always", {"code": 0}, "backing-off", ("ended", "exit", "info")),
        ("never", {"code": 75}, "given-up", ("ended", "recycle", "error")),
        ("on-failure", {"code": 75}, "backing-off", ("ended", "recycle", "info")),
        ("on-failure", {"code": 70, "asked_code": 70}, "backing-off", ("ended", "exit", "warning")),
        ("on-failure", {"code": 9, "asked_code": 9}, "backing-off", ("ended", "recycle", "info")),
        ("on-failure", {"code": -9}, "backing-off", ("ended", "signal", "warning")),
        ("on-failure", {"code": None}, "backing-off", ("ended", "signal", "warning")),
        ("on-failure", {"code": None, "run_errno": 2}, "backing-off", ("ended", "exit", "warning")),
        ("on-failure", {"code": 75, "drained_without_success": True}, "backing-off", ("ended", "failing", "warning")),
    ],
)
def test_what_follows_an_end(
    mode: str, end: dict[str, Any], state: str, outcome: tuple[str, RestartReason | None, str]
) -> None:
    worker = machine(RestartMode(mode))
    worker.start(0.0)
    worker.move(WorkerEvent.STARTED, "it runs")
    found = worker.ended(WorkerEnd(how="ended", uptime_s=100.0, **end), 100.0)
    assert (worker.state, (found.kind, found.reason, found.level)) == (state, outcome)


def test_a_worker_that_fails_at_its_start_is_given_up_and_an_operator_starts_it_again() -> None:
    worker = machine()
    states = []
    for now_s in range(5):
        worker.start(now_s)
        worker.move(WorkerEvent.STARTED, "it runs")
        found = worker.ended(WorkerEnd(how="ended with exit code 3", code=3, uptime_s=0.5), now_s + 0.5)
        states.append(worker.state)
    assert states == [WorkerState.BACKING_OFF] * 4 + [WorkerState.GIVEN_UP]
    assert (found.kind, worker.restarts) == ("gave-up", {RestartReason.EXIT: 4})
    worker.restart_now("SIGHUP", 10.0)
    assert (worker.state, worker.due_s) == (WorkerState.BACKING_OFF, 10.0)


def test_an_escalation_passes_through_draining_and_ending() -> None:
    worker = machine()
    worker.start(0.0)
    worker.plan_end(plan_recycle(RestartReason.RECYCLE, "SIGHUP", GUARDED), 1.0)  # before it has started
    worker.move(WorkerEvent.STARTED, "it runs")
    assert worker.state is WorkerState.DRAINING
    worker.plan_end(plan_bad_health(RestartReason.HUNG, "it is hung", GUARDED), 2.0)
    assert worker.state is WorkerState.ENDING
    found = worker.ended(WorkerEnd(how="was ended by SIGKILL", code=-9, uptime_s=20.0), 20.0)
    assert (found.reason, worker.state, worker.due_s) == (RestartReason.HUNG, WorkerState.BACKING_OFF, 20.0)
    assert found.text == "was ended by SIGKILL (hung: it is hung) after 20 s; starts again in 0.0 s"
