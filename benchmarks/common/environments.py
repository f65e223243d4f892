"""Environments of the peers: `.venv-peers/NAME` for each that cannot, or should not, share holdfast's.

`python -m benchmarks.common.environments NAME` makes one. What it needs is in `benchmarks/peers/requirements/NAME.txt`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ENVIRONMENTS = TOP / ".venv-peers"
REQUIREMENTS = TOP / "benchmarks" / "peers" / "requirements"


class NotInstalledError(Exception):
    """An environment is missing or cannot be made, and why."""


def has_requirements(name: str) -> bool:
    return _requirements(name).exists()


def environment_python(name: str) -> str:
    """Returns the Python of an environment that exists."""
    home = ENVIRONMENTS / name
    if not (home / "installed.txt").exists():
        raise NotInstalledError(f"{name} is not installed; `python -m benchmarks.common.environments {name}` does that")
    return str(home / "bin" / "python")  # not resolved: the link makes it the environment's Python


def install(name: str) -> None:
    """Makes the environment, or makes it anew if its requirements have changed."""
    home, wanted = ENVIRONMENTS / name, _requirements(name).read_text()
    stamp = home / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {name} into {home.relative_to(TOP)}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    done = subprocess.run([*pip, "-r", _requirements(name)], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalledError(f"not installable here: {_reason(done.stdout + done.stderr)}")
    stamp.write_text(wanted)


def _requirements(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def _reason(output: str) -> str:
    """The last error of a build, or the first of pip, which for a failed build says only that it failed."""
    lines = [line.strip() for line in output.splitlines()]
    raised = [line for line in lines if re.match(r"\w+Error: ", line)]
    errors = [line for line in lines if line.lower().startswith("error:")]
    return (raised[-1:] or errors or lines or ["pip printed nothing"])[0]


if __name__ == "__main__":
    for each in sys.argv[1:]:
        try:
            install(each)
        except NotInstalledError as error:
            sys.exit(f"{each}: {error}")
