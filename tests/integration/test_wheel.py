"""The wheel that `make wheel` builds: whole, and used in an environment that has it and not the sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran(tool: str, *arguments: str | Path) -> str:
    command = [str(ROOT / "tools" / tool), sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_for_every_python_passes_tests_where_there_are_no_sources(tmp_path: Path) -> None:
    wheel = Path(ran("wheel.sh", tmp_path, "--no-build-isolation").strip())
    assert wheel.name.startswith("holdfast_io-")
    assert "-cp311-abi3-linux_" in wheel.name
    said = ran("wheel-test.sh", wheel, "tests/unit/native/test_crc32c.py", "tests/unit/test_import.py")
    assert said.startswith("holdfast ")
    assert "compiled codec" in said.splitlines()[0]
