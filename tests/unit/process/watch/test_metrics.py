"""The exposition, read by Prometheus' own tools."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

import state_samples
from holdfast.process.watch.metrics import FAMILIES, render_metrics
from holdfast.process.watch.state import StateDocument


def series(document: StateDocument) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = render_metrics(document, round_s=0.01, rounds=7)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(document: StateDocument, name: str, **labels: str) -> float:
    return series(document)[f"holdfast_{name}", frozenset(labels.items())]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("make", state_samples.ALL)
def test_promtool_accepts_every_document(make: Callable[[], StateDocument]) -> None:
    text = render_metrics(make())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_family_occurs_and_no_series_twice() -> None:
    text = render_metrics(state_samples.leaking())
    for family in FAMILIES:
        assert f"# TYPE holdfast_{family.name} {family.type}\n" in text
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert all(family.name.endswith("_total") == (family.type == "counter") for family in FAMILIES)


def test_values_are_those_of_the_document() -> None:
    document = state_samples.leaking()
    bad = document["targets"][0]
    assert value(document, "process_fd_limit", target="worker", type="soft") == 1024
    assert bad["eta_s"] is not None
    assert value(document, "process_fd_exhaustion_seconds", target="worker", bound="earliest") == bad["eta_s"][0]
    assert value(document, "process_fd_exhaustion_seconds", target="loader", bound="latest") == math.inf
    assert value(document, "process_fd_growth_per_second", target="worker", bound="estimate") == 290 / 3600
    assert value(document, "leak_verdict", target="worker", verdict="LEAK") == 1
    assert value(document, "leak_verdict", target="worker", verdict="OK") == 0
    assert value(document, "draining", target="worker") == 1
    assert value(document, "restarts_total", target="worker", reason="recycle") == 3
    assert value(document, "jobs_total", target="worker", result="done") == 412
    assert value(document, "last_success_timestamp_seconds", target="worker") == state_samples.NOW - 3
    assert value(document, "watch_samples_total") == 7


@pytest.mark.parametrize("fds", [0, 1, 7, 917, 60001])
def test_kinds_sum_up_to_the_count(fds: int) -> None:
    document = state_samples.document(state_samples.target(fds=fds, kinds={"pipe": 3, "file": 2, "TCP socket": 2}))
    found = [count for (name, _), count in series(document).items() if name == "holdfast_process_open_fds"]
    assert sum(found) == fds


def test_unknown_kinds_are_one_series() -> None:
    document = state_samples.without_guard()
    fds = document["targets"][0]["fds"]
    assert value(document, "process_open_fds", target="worker", kind="unknown") == fds
    assert not any(name == "holdfast_worker_health" for name, _ in series(document))


def test_hostile_text_is_one_label() -> None:
    name = 'a"b\\c\nd'
    document = state_samples.document(state_samples.target(name))
    assert value(document, "target_up", target=name) == 1


def test_ended_target_is_down_and_has_no_other_series() -> None:
    document = state_samples.ended()
    assert value(document, "target_up", target="worker") == 0
    assert not any(name == "holdfast_process_open_fds" for name, _ in series(document))
