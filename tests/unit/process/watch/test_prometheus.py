"""The alert rules and the dashboard: read, and the rules also tested, by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.process.watch.metrics import FAMILIES
from holdfast.process.watch.prometheus import FILES, read_integration, write_integrations

NAMES = {f"holdfast_{family.name}" for family in FAMILIES}


def promtool(*arguments: str, cwd: Path | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bholdfast_\w+", expression))


@pytest.mark.needs("promtool")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(read_integration("alerts.yml"))
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    promtool("check", "rules", "alerts.yml", cwd=tmp_path)
    promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def test_alerts_use_metrics_that_exist_and_each_is_tested() -> None:
    rules = [rule for group in yaml.safe_load(read_integration("alerts.yml"))["groups"] for rule in group["rules"]]
    tests = Path(__file__).with_name("alerts_test.yml").read_text()
    for rule in rules:
        assert names_in(rule["expr"]) <= NAMES
        assert names_in(rule["expr"])
        assert tests.count(rule["alert"]) >= 2
        assert set(rule["annotations"]) == {"summary", "description"}


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yield from (one["expr"] for one in dashboard["annotations"]["list"])


def filled(expression: str) -> str:
    return expression.replace("$target", ".*").replace("$instance", ".*")


def test_dashboard_tells_the_targets_of_two_watches_apart() -> None:
    dashboard = json.loads(read_integration("grafana.json"))
    assert all('instance=~"$instance"' in one for one in expressions(dashboard))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert "{{instance}}" in target["legendFormat"]
            assert all("instance" in by for by in re.findall(r"\bby \(([^)]*)\)", target["expr"]))


@pytest.mark.needs("promtool")
def test_dashboard_has_valid_queries_on_metrics_that_exist(tmp_path: Path) -> None:
    dashboard = json.loads(read_integration("grafana.json"))
    found = list(expressions(dashboard))
    used = set().union(*map(names_in, found))
    assert used <= NAMES
    assert NAMES - used <= {"holdfast_watch_samples_total", "holdfast_process_tree_processes"}
    rules = [{"record": f"x:{number}", "expr": filled(one)} for number, one in enumerate(found)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    promtool("check", "rules", "rules.yml", cwd=tmp_path)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    boxes = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    assert all(x + w <= 24 for x, _, w, _ in boxes)
    for at, (x, y, w, h) in enumerate(boxes):
        assert not any(x < a + c and a < x + w and y < b + d and b < y + h for a, b, c, d in boxes[:at])


@pytest.mark.needs("promtool")
def test_verdict_panel_shows_the_worst(tmp_path: Path) -> None:
    panel = json.loads(read_integration("grafana.json"))["panels"][0]
    series = [
        {
            "series": f'holdfast_leak_verdict{{instance="{instance}",target="a",verdict="{name}"}}',
            "values": str(int(name == found)),
        }
        for instance, found in (("x:1", "LEAK"), ("y:1", "OK"), ("z:1", "OK"))
        for name in ("OK", "UNCLEAR", "SETTLING", "GROWING", "LEAK", "EXHAUSTED")
    ]
    series.append({"series": 'holdfast_restart_loop{instance="z:1",target="a"}', "values": "1"})
    case = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": filled(panel["targets"][0]["expr"]),
                "eval_time": "0m",
                "exp_samples": [
                    {"labels": f'{{instance="{instance}",target="a"}}', "value": value}
                    for instance, value in (("x:1", 3), ("y:1", 0), ("z:1", 5))
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    promtool("test", "rules", "test.yml", cwd=tmp_path)


def test_files_are_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    paths = write_integrations(folder)
    assert [path.name for path in paths] == [f"holdfast-{name}" for name in FILES]
    assert paths[0].read_text() == read_integration("alerts.yml")
    with pytest.raises(FileExistsError):
        write_integrations(folder)
