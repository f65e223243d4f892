"""A short turn of `make fuzz`: long enough to catch a bound that was forgotten, in every run of the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SECONDS = os.environ.get("HOLDFAST_FUZZ_SECONDS") or ("60" if os.environ.get("CI") == "true" else "10")
NO_FUZZER = 3


@pytest.mark.needs("clang")
def test_garbage_does_not_break_the_codec() -> None:
    done = subprocess.run(
        ["tools/fuzz.sh", SECONDS],
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == NO_FUZZER:
        pytest.skip(f"needs the system package libclang-rt-*-dev ({done.stdout.strip()})")
    assert done.returncode == 0, done.stdout
    targets = {path.stem for path in (TOP / "native/fuzz").glob("fuzz_*.c")}
    assert {line.split(":")[0] for line in done.stdout.splitlines() if "executions" in line} == targets
