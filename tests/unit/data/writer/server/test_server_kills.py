"""Exactly once under kill -9: at every named place of producer, server and sealer, and at any moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast._util.failpoints import PRODUCER_NAMES, SEALER_NAMES, SERVER_NAMES

SOAK = Path(__file__).parents[5] / "tools" / "soak_write.py"
NAMES = {"producer": PRODUCER_NAMES, "server": SERVER_NAMES, "sealer": SEALER_NAMES}
FINE = {"lost": 0, "doubled": 0, "strange": 0, "wrong": 0, "hangs": 0, "problems": [], "left": []}


def ran(*arguments: object) -> Any:
    command = [sys.executable, "-W", "error", str(SOAK), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.mark.parametrize(("kind", "how"), [*((kind, []) for kind in NAMES), ("producer", ["--shared"])])
def test_killed_at_every_failpoint(tmp_path: Path, kind: str, how: list[str]) -> None:
    found = ran("--everywhere", kind, "--folder", tmp_path, *how)
    assert sorted(found) == sorted(NAMES[kind])
    for name, outcome in found.items():
        assert outcome["kills"][kind] == 1, name
        assert outcome == outcome | FINE, name
        assert outcome["rows"] == 400


@pytest.mark.parametrize("how", [["process"], ["disk"], ["process", "--shared"], ["disk", "--shared"]])
def test_killed_at_any_moment(tmp_path: Path, how: list[str]) -> None:
    found = ran("--kills", 30, "--seed", 3, "--json", "--folder", tmp_path, "--ack", *how)
    assert sum(found["kills"].values()) >= 30
    assert found == found | FINE
    assert found["rows"] > 1000
