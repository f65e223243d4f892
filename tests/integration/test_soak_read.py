"""Runs a short soak of faults and churn (`make soak-read` is the long one), and checks that it finds problems."""

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
import soak_read, soak_loaders, soak_faults

class Leaky(soak_loaders.ReadLoader):
    kept = []
    def open(self, *arguments, **options):
        self.kept.append(open("/dev/null"))
        return super().open(*arguments, **options)

class Forgetful(soak_loaders.ReadLoader):
    def numbers(self, batch):
        return [number for number in super().numbers(batch) if number != 40]

soak_read.make = {loader}
soak_faults.HANG_S = {hang_s}
soak_faults.TIMEOUT_S = {timeout_s}
sys.exit(soak_read.main())
"""


def program_with(loader: str, *, hang_s: int = 60, timeout_s: int = 5) -> str:
    return PROGRAM.format(tools=str(TOOLS), loader=loader, hang_s=hang_s, timeout_s=timeout_s)


def ran(*command: object) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, *map(str, command), "--json"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["read", "torch"])
def test_faults_at_random_moments(kind: str) -> None:
    code, found = ran(TOOLS / "soak_read.py", "--kind", kind, "--faults", 12, "--churn", 0, "--seed", 5)
    faults = found[kind]["faults"]
    assert (code, found["left"], faults["problems"]) == (0, [], [])
    assert faults["killed"] + faults["stopped"] == faults["named"] + faults["harmless"] == 12
    assert faults["named"]


@pytest.mark.parametrize("kind", ["read", "threads", "torch"])
def test_churn(kind: str) -> None:
    code, found = ran(TOOLS / "soak_read.py", "--kind", kind, "--faults", 0, "--churn", 80)
    churn = found[kind]["churn"]
    assert (code, found["left"], churn["problems"]) == (0, [], [])
    assert churn["loaders"] >= 80
    assert churn["grown"] == churn["grown"] | {"descriptors": 0, "threads": 0, "processes": 0}


def test_a_leak_is_noticed() -> None:
    program = program_with("Leaky")
    code, found = ran("-c", program, "--kind", "threads", "--faults", 0, "--churn", 80)
    assert code == 1
    assert any("descriptors grew" in problem for problem in found["threads"]["churn"]["problems"])


def test_a_lost_sample_is_noticed() -> None:
    program = program_with("Forgetful")
    code, found = ran("-c", program, "--kind", "read", "--faults", 4, "--churn", 0)
    assert code == 1
    assert found["read"]["faults"]["problems"]


def test_a_hang_ends_the_soak_with_its_stacks(tmp_path: Path) -> None:
    """A worker is stopped while no timeout is set. The soak exits at once and leaves its folder."""
    program = program_with("soak_loaders.make", hang_s=10, timeout_s=300)
    command = [sys.executable, "-c", program, "--kind", "read", "--faults", "8", "--churn", "0", "--json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 1
    assert "Timeout (0:00:10)!" in done.stderr
