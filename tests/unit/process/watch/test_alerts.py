"""What is told of a target, and when: pure decisions, replayed with a given clock."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from holdfast.process.doctor.model import Verdict
from holdfast.process.watch.alerts import (
    CLEAR_S,
    ENDED,
    LOOP,
    REPEAT_S,
    WELL,
    Alert,
    Announcer,
    Condition,
    RestartWindow,
    VerdictHold,
    condition_of,
)

OK, GROWING, LEAK, EXHAUSTED = Verdict.OK, Verdict.GROWING, Verdict.LEAK, Verdict.EXHAUSTED


def shown(steps: list[tuple[float, Verdict]]) -> list[Verdict]:
    hold = VerdictHold()
    return [hold.step(now, found) for now, found in steps]


def test_a_verdict_rises_at_once_and_falls_after_five_minutes() -> None:
    assert shown([(0, OK), (5, GROWING), (10, LEAK), (15, EXHAUSTED)]) == [OK, GROWING, LEAK, EXHAUSTED]
    assert shown([(0, LEAK), (15, OK), (290, OK), (314, OK), (316, OK)]) == [LEAK, LEAK, LEAK, LEAK, OK]
    # What is lower must stay lower.
    assert shown([(0, LEAK), (15, OK), (300, LEAK), (320, OK), (610, OK), (621, OK)]) == [LEAK] * 5 + [OK]
    # It falls to the worst of the time that it was held for.
    assert shown([(0, LEAK), (15, OK), (30, GROWING), (45, OK), (316, OK)])[-1] == GROWING
    # More descriptors are free, after a rescue say.
    assert shown([(0, EXHAUSTED), (5, OK), (66, OK)]) == [EXHAUSTED, EXHAUSTED, OK]
    calm = [Verdict.OK, Verdict.UNCLEAR, Verdict.SETTLING, Verdict.OK]
    assert shown([(5 * at, one) for at, one in enumerate(calm)]) == calm


def test_a_flapping_verdict_is_shown_once() -> None:
    found = shown([(15 * at, (LEAK, GROWING)[at % 2]) for at in range(200)])
    assert set(found) == {LEAK}
    chance = random.Random(7)
    found = shown([(5 * at, chance.choice([OK, GROWING, LEAK])) for at in range(2000)])
    changes = sum(one != other for one, other in itertools.pairwise(found))
    assert changes <= 2


def loops(times: list[float], reason: str = "exit", until: float = 4000) -> list[float]:
    """The times at which a loop is said, of a target that is restarted at these times; every 5 s."""
    window, said = RestartWindow({reason: 5}), []
    for now in range(0, int(until), 5):
        count = 5 + sum(one <= now for one in times)
        if window.step(now, {reason: count}):
            said.append(now)
    return [float(one) for one in said]


def test_three_unplanned_restarts_in_ten_minutes_are_a_loop() -> None:
    assert loops([]) == []
    assert loops([10, 300]) == []
    assert loops([10, 620, 1300]) == []  # one every ten minutes
    said = loops([10, 300, 500])
    assert (said[0], said[-1]) == (500, 895)  # until all but one are ten minutes old
    assert loops([10, 300, 500], reason="recycle") == []
    assert loops([60.0 * at for at in range(1, 31)], reason="recycle")[0] == 600
    assert loops([300.0 * at for at in range(1, 12)], reason="recycle") == []
    assert loops([100, 101, 102], reason="a reason of the future")[0] == 105


def test_the_sentence_of_a_loop_has_the_reasons() -> None:
    window = RestartWindow({})
    window.step(0, {})
    assert window.step(5, {"exit": 2, "signal": 1, "recycle": 1}) == (
        "it is in a restart loop: 3 unplanned restarts within 10 min (2 exit, 1 signal)"
    )
    assert RestartWindow({"exit": 50}).step(0, {"exit": 50}) == ""  # before this watch
    assert RestartWindow({"exit": 50}).step(0, {"exit": 1}) == ""  # another supervisor


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, WELL),
        ({"verdict": Verdict.UNCLEAR}, WELL),
        ({"verdict": GROWING}, "GROWING"),
        ({"verdict": LEAK, "health": "draining"}, "LEAK"),
        ({"verdict": LEAK, "health": "failing"}, "failing"),
        ({"verdict": EXHAUSTED, "health": "hung"}, "EXHAUSTED"),
        ({"loop": "again", "verdict": EXHAUSTED}, LOOP),
        ({"loop": "again", "is_alive": False}, LOOP),
        ({"is_alive": False}, None),
        ({"is_alive": False, "is_gone": True, "verdict": LEAK}, ENDED),
    ],
)
def test_the_worst_is_the_state(facts: dict[str, object], state: str | None) -> None:
    known = {"loop": "", "is_alive": True, "is_gone": False, "verdict": OK, "health": None, "text": "x"}
    assert condition_of(**(known | facts)).state == state  # type: ignore[arg-type]


def told(steps: list[tuple[float, str | None]]) -> list[tuple[float, str]]:
    """When something is told, and the kind and the state of it."""
    announcer, found = Announcer(), []
    for now, state in steps:
        message = announcer.step(now, Condition(state, "why"))
        announcer = Announcer.restore(json.loads(json.dumps(announcer.as_facts())))  # as if watch was started again
        if message is not None:
            found.append((now, f"{message.kind}: {message.text.partition(' → ')[2].partition(':')[0]}"))
    return found


def test_a_state_is_reported_once_until_the_target_was_well_for_a_while() -> None:
    assert told([(0, WELL), (5, "LEAK"), (10, "LEAK"), (15, WELL), (20, "LEAK")]) == [(5, "verdict: LEAK")]
    worse = [(0.0, "GROWING"), (5.0, "LEAK"), (10.0, "failing"), (15.0, "EXHAUSTED"), (20.0, None), (25.0, ENDED)]
    assert [text for _, text in told([*worse])] == [
        "verdict: GROWING",
        "verdict: LEAK",
        "health: failing",
        "verdict: EXHAUSTED",
        "end: ended",
    ]
    assert told([(0, "EXHAUSTED"), (5, "LEAK"), (10, "GROWING")]) == [(0, "verdict: EXHAUSTED")]  # no news
    assert [text for _, text in told([(5 * at, ("failing", "hung")[at % 2]) for at in range(100)])] == [
        "health: failing",
        "health: hung",
    ]
    again = [(0, "EXHAUSTED"), (5, WELL), (CLEAR_S, WELL), (CLEAR_S + 5, "EXHAUSTED")]
    assert [text for _, text in told(again)] == ["verdict: EXHAUSTED", "recovered: ok", "verdict: EXHAUSTED"]
    # Every process of a worker that leaks and is recycled leaks.
    leak = [(at * 1800 + part, state) for at in range(24) for part, state in ((0, "LEAK"), (5, WELL), (1795, WELL))]
    assert len(told(leak)) == 2 * 12 * 3600 / REPEAT_S
    # A clock that is set back is no reason to be silent for ever.
    back = [(10_000.0, "failing"), (0.0, WELL), (CLEAR_S, WELL), (CLEAR_S + 5, "failing")]
    assert [text for _, text in told(back)] == ["health: failing", "recovered: ok", "health: failing"]


# ---- the incident: 126 messages in 33 minutes, 112 of them of a worker that was recycled as designed

MINUTES = 33


class Replay:
    """One target, stepped as the collector does."""

    def __init__(self) -> None:
        self.hold, self.window, self.announcer = VerdictHold(), RestartWindow({}), Announcer()
        self.restarts = {"recycle": 0, "exit": 0}
        self.messages: list[Alert] = []

    def restart(self, reason: str) -> None:
        self.restarts[reason] += 1
        self.hold = VerdictHold()

    def step(self, now: float, verdict: Verdict = OK, *, health: str = "ok", alive: bool = True) -> None:
        found = condition_of(
            loop=self.window.step(now, self.restarts),
            is_alive=alive,
            is_gone=not alive,
            verdict=self.hold.step(now, verdict),
            health=health,
            text="why",
        )
        if message := self.announcer.step(now, found):
            self.messages.append(message)


def rounds() -> Iterator[int]:
    return iter(range(0, MINUTES * 60, 5))


@pytest.mark.parametrize(("every_s", "maximum"), [(35, 2), (300, 1)])
def test_a_worker_that_is_recycled_as_designed_is_reported_once(every_s: int, maximum: int) -> None:
    """It leaks, which its jobs prove after 20 s, drains, and is replaced: today four messages each time."""
    worker = Replay()
    for now in rounds():
        if now and now % every_s == 0:
            worker.restart("recycle")
        age = now % every_s
        worker.step(now, LEAK if age >= every_s * 0.6 else OK, health="draining" if age >= every_s * 0.8 else "ok")
    kinds = [message.kind for message in worker.messages]
    assert kinds == ["verdict", "loop"][:maximum]  # every 35 s is a loop


def test_the_others_of_the_incident_are_reported_once_for_each_state() -> None:
    flapping, dead, looping, healthy = Replay(), Replay(), Replay(), Replay()
    for now in rounds():
        flapping.step(now, (LEAK, GROWING)[now // 15 % 2] if now > 60 else OK)
        dead.step(now, EXHAUSTED if now > 600 else LEAK if now > 300 else OK, alive=now < 700)
        if now % 60 == 0:
            looping.restart("exit")
        looping.step(now)
        healthy.step(now)
    assert [[message.kind for message in one.messages] for one in (flapping, dead, looping, healthy)] == [
        ["verdict"],
        ["verdict", "verdict", "end"],
        ["loop"],
        [],
    ]
