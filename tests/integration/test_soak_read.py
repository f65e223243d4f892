"""Strikes and lives, a few of each: `make soak` has hundreds and ten thousand. And the soak notices what it is for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

TOOLS = Path(__file__).parents[2] / "tools"
PROGRAM = """
import sys
sys.path.insert(0, {tools!r})
import soak_read, soak_loaders, soak_strikes

class Leaky(soak_loaders.ReadLoader):
    kept = []
    def open(self, *arguments, **options):
        self.kept.append(open("/dev/null"))
        return super().open(*arguments, **options)

class Forgetful(soak_loaders.ReadLoader):
    def numbers(self, batch):
        return [number for number in super().numbers(batch) if number != 40]

soak_read.make = {loader}
soak_strikes.PATIENCE_S = {patience_s}
soak_strikes.TIMEOUT_S = {timeout_s}
sys.exit(soak_read.main())
"""


def program_with(loader: str, *, patience_s: int = 60, timeout_s: int = 5) -> str:
    return PROGRAM.format(tools=str(TOOLS), loader=loader, patience_s=patience_s, timeout_s=timeout_s)


def ran(*command: object) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, *map(str, command), "--json"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["read", "torch"])
def test_workers_struck_at_random(kind: str) -> None:
    code, found = ran(TOOLS / "soak_read.py", "--kind", kind, "--strikes", 12, "--lives", 0, "--seed", 5)
    strikes = found[kind]["strikes"]
    assert (code, found["left"], strikes["problems"]) == (0, [], [])
    assert strikes["killed"] + strikes["stopped"] == strikes["named"] + strikes["harmless"] == 12
    assert strikes["named"]


@pytest.mark.parametrize("kind", ["read", "threads", "torch"])
def test_loaders_come_and_go(kind: str) -> None:
    code, found = ran(TOOLS / "soak_read.py", "--kind", kind, "--strikes", 0, "--lives", 80)
    lives = found[kind]["lives"]
    assert (code, found["left"], lives["problems"]) == (0, [], [])
    assert lives["lives"] >= 80
    assert lives["grown"] == lives["grown"] | {"descriptors": 0, "threads": 0, "processes": 0}


def test_a_leak_is_noticed() -> None:
    program = program_with("Leaky")
    code, found = ran("-c", program, "--kind", "threads", "--strikes", 0, "--lives", 80)
    assert code == 1
    assert any("descriptors grew" in problem for problem in found["threads"]["lives"]["problems"])


def test_a_lost_sample_is_noticed() -> None:
    program = program_with("Forgetful")
    code, found = ran("-c", program, "--kind", "read", "--strikes", 4, "--lives", 0)
    assert code == 1
    assert found["read"]["strikes"]["problems"]


def test_a_hang_ends_the_soak_with_its_stacks(tmp_path: Path) -> None:
    """A worker that is stopped while nobody has a timeout. It ends at once, and leaves its folder."""
    program = program_with("soak_loaders.make", patience_s=10, timeout_s=300)
    command = [sys.executable, "-c", program, "--kind", "read", "--strikes", "8", "--lives", "0", "--json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 1
    assert "Timeout (0:00:10)!" in done.stderr
