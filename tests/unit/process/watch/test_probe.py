"""Health and readiness."""

from __future__ import annotations

import pytest

import state_samples
from holdfast.process.watch.probe import check_health, check_readiness
from state_samples import NOW, document, guard, target


def test_healthy_targets() -> None:
    answer = check_health(state_samples.healthy(), now=NOW)
    assert (answer.ok, answer.status, answer.reasons) == (True, 200, ())
    assert check_readiness(state_samples.healthy(), now=NOW).ok


def test_out_of_descriptors_and_failing() -> None:
    answer = check_health(state_samples.exhausted(), now=NOW)
    assert answer.status == 503
    assert answer.reasons[0] == "worker: it is out of descriptors"
    assert answer.reasons[1].startswith("worker: it is failing")


def test_leak_counts_only_below_the_threshold() -> None:
    leaking = document(target(verdict="LEAK", eta_s=[3000.0, None]))
    assert check_health(leaking, now=NOW).reasons == ("worker: it leaks, and is out of descriptors in 50 min or more",)
    assert check_health(leaking, now=NOW, eta_s=1000).ok
    assert check_health(document(target(verdict="GROWING", eta_s=[3000.0, None])), now=NOW).ok
    assert check_health(document(target(verdict="LEAK", eta_s=None)), now=NOW).ok


@pytest.mark.parametrize("health", ["stopped", "frozen", "hung", "failing"])
def test_ill_guards(health: str) -> None:
    ill = document(target(guard=guard(health=health, sentence="it is ill")))
    assert check_health(ill, now=NOW).reasons == ("worker: it is ill",)
    assert not check_readiness(ill, now=NOW).ok


@pytest.mark.parametrize("health", ["starting", "draining"])
def test_draining_is_healthy_but_not_ready(health: str) -> None:
    busy = document(target(guard=guard(health=health, sentence="it drains")))
    assert check_health(busy, now=NOW).ok
    assert check_readiness(busy, now=NOW).reasons == ("worker: it drains",)


def test_ended_pid_is_ill_and_ended_process_of_a_name_is_not_while_another_is_there() -> None:
    assert check_health(document(target(alive=False)), now=NOW).reasons == ("worker: it has ended",)
    old, new = target("a", alive=False, source="name:train"), target("b", source="name:train")
    assert check_health(document(old, new), now=NOW, names=["train"]).ok
    assert check_health(document(old), now=NOW, names=["train"]).reasons == (
        "no process has 'train' in its command line",
    )
    assert not check_health(document(), now=NOW, names=["train"]).ok


def test_one_target_of_several() -> None:
    both = document(target("a", alive=False), target("b"))
    assert check_health(both, now=NOW, target="b").ok
    assert not check_health(both, now=NOW, target="a").ok


def test_watch_that_does_not_sample_is_ill() -> None:
    assert check_health(state_samples.healthy(), now=NOW + 61).reasons == ("watch has not sampled for 1 min 1 s",)
