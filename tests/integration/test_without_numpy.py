"""Guard, doctor, trace and supervise in an environment that has click and rich only."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

import holdfast

_ALONE = ("click", "rich", "markdown_it", "mdurl", "pygments")
_WORKER = """
import os, sys
import holdfast as hold

if os.path.exists("drained"):
    sys.exit(0)
with hold.Guard(name="worker", max_jobs=2) as guard:
    done = 0
    while not guard.draining:
        guard.ok()
        with guard.job(done):
            done += 1
assert done == 2, done
os.mkdir("drained")
sys.exit(guard.exit_code)
"""
_LEAKY = """
import os
kept = []
def load():
    kept.append(os.open("/dev/null", os.O_RDONLY))
for _ in range(40):
    load()
os.close(kept[0])
try:
    os.close(kept[0])
except OSError:
    pass
"""


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without-numpy")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages := folder / "packages").mkdir()
    for name in _ALONE:
        (packages / name).symlink_to(_package(name))
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "paths.pth").write_text(f"{Path(holdfast.__file__).parents[1]}\n{packages}\n")
    return folder / "venv" / "bin" / "python"


def _run(python: Path, folder: Path, *arguments: object, status: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE", "COV_"))}
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=folder,
        env=env | {"XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_processes_are_watched_without_numpy_h5py_and_fsspec(python: Path, tmp_path: Path) -> None:
    code = "import importlib.util as i; print([i.find_spec(n) for n in ('numpy', 'h5py', 'fsspec', 'torch')])"
    assert _run(python, tmp_path, "-c", code) == "[None, None, None, None]\n"
    worker, leaky = tmp_path / "worker.py", tmp_path / "leaky.py"
    worker.write_text(_WORKER)
    leaky.write_text(_LEAKY)
    command = ("-m", "holdfast")

    log = _run(python, tmp_path, *command, "supervise", "--tick", "0.1s", "--", python, worker)
    assert (tmp_path / "drained").exists()
    assert "1 restart (1 recycle); exits with 0" in log

    found = json.loads(_run(python, tmp_path, *command, "doctor", "--json", os.getpid()))
    assert (found["pid"], found["verdict"]) == (os.getpid(), "OK")

    _run(python, tmp_path, *command, "trace", "-o", "run.hft", "leaky.py")
    report = json.loads(_run(python, tmp_path, *command, "report", "--json", "run.hft"))
    assert [(site["function"], site["live"]) for site in report["sites"][:1]] == [("load", 39)]
    assert "double close" in _run(python, tmp_path, *command, "report", "run.hft")
    _run(python, tmp_path, *command, "report", "--html", "page.html", "run.hft")
    assert "double close" in (tmp_path / "page.html").read_text()
