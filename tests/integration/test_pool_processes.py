"""Pools seen from outside: their program is killed, interrupted, badly written, or a worker itself."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("pool_child.py")
WAIT_S = 60


def start(tmp_path: Path, context: str, deed: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program at work, and a pidfd of each process of its pool."""
    here = [str(tmp_path / name) for name in ("one", "two")]
    for path in here:
        os.mkfifo(path)
    program = subprocess.Popen(
        [sys.executable, str(CHILD), context, deed, *here],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        pytest.fail(f"the program ended: {program.communicate()[1]}")
    return program, [os.pidfd_open(pid) for pid in json.loads(line)]


def all_end(pidfds: list[int]) -> bool:
    try:
        return all(select.select([fd], [], [], WAIT_S)[0] for fd in pidfds)
    finally:
        for fd in pidfds:
            os.close(fd)


@pytest.mark.parametrize("deed", ["hang", "hold"])
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_die_with_a_killed_program(tmp_path: Path, context: str, deed: str) -> None:
    program, pidfds = start(tmp_path, context, deed)
    program.kill()
    program.communicate(timeout=WAIT_S)
    assert all_end(pidfds)


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_ctrl_c_is_clean(tmp_path: Path, context: str) -> None:
    program, pidfds = start(tmp_path, context, "hang")
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=WAIT_S)
    assert program.returncode == -signal.SIGINT  # a shell shows it as 130
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert all_end(pidfds)


def test_a_program_that_ends_without_closing_leaves_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(CHILD), "forkserver", "leave open"], capture_output=True, text=True, timeout=WAIT_S
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not [pid for pid in json.loads(result.stdout) if os.path.exists(f"/proc/{pid}")]


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=WAIT_S, cwd=folder)


NO_GUARD = """
from holdfast.data.loader.workers import ProcessPool, Task

def work(data, tell):
    return data

pool = ProcessPool(work, 2, context={context!r})
print(list(pool.run([Task(1)])))
"""


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_script_without_a_guard_is_reported_so(tmp_path: Path, context: str) -> None:
    result = run_script(tmp_path, NO_GUARD.format(context=context))
    assert result.returncode == 1
    assert "WorkerError" in result.stderr
    assert 'if __name__ == "__main__":' in result.stderr
    assert "or move the work to a module of its own" in result.stderr


MAIN_WORK = """
import sys
from holdfast.data.loader.workers import ProcessPool, Task

class Thing:
    def __init__(self, n):
        self.n = n

def work(data, tell):
    return Thing(data.n + 1), __name__

if __name__ == "__main__":
    with ProcessPool(work, 2) as pool:
        for thing, name in pool.run(Task(Thing(n)) for n in range(3)):
            print(type(thing) is Thing, thing.n, name)
"""


def test_work_and_data_may_be_of_the_main_script(tmp_path: Path) -> None:
    result = run_script(tmp_path, MAIN_WORK)
    assert (result.stdout.splitlines(), result.stderr) == ([f"True {n} __mp_main__" for n in (1, 2, 3)], "")


LAZY_MAIN = """
import wave  # stands for a framework: the work has no use for it
import sys
import elsewhere
from holdfast.data.loader.workers import ProcessPool, Task

with ProcessPool(elsewhere.work, 1) as pool:  # no guard needed: this script is not imported by workers
    print(list(pool.run([Task("wave")])))
"""


def test_a_main_script_that_is_not_needed_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("import sys\ndef work(data, tell):\n    return data in sys.modules\n")
    result = run_script(tmp_path, LAZY_MAIN)
    assert (result.stdout, result.stderr) == ("[False]\n", "")


def test_work_that_was_typed_in_is_refused() -> None:
    code = "from holdfast.data.loader.workers import ProcessPool\ndef work(data, tell): pass\nProcessPool(work, 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert "TypeError: expected work that another process can import, got work from an interactive" in result.stderr


def test_work_whose_module_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import os\nif os.environ.get('IN_WORKER'):\n    raise ImportError('no such library')\n"
        "def work(data, tell):\n    return data\n"
    )
    script = LAZY_MAIN.replace("import sys", "import os").replace(
        "with Proc", "os.environ['IN_WORKER'] = '1'\nwith Proc"
    )
    result = run_script(tmp_path, script)
    assert "cannot load its work" in result.stderr
    assert "ImportError: no such library" in result.stderr


NESTED = """
import elsewhere
from torch.utils.data import DataLoader, IterableDataset
from holdfast.data.loader.workers import ProcessPool, Task

class Nested(IterableDataset):
    def __init__(self, outer):
        self.outer = outer  # open in the parent already

    def __iter__(self):
        with ProcessPool(elsewhere.work, 1) as pool:
            yield from pool.run(Task(n) for n in range(4))

if __name__ == "__main__":
    with ProcessPool(elsewhere.work, 1) as outer:
        list(outer.run([Task(1)]))
        loader = DataLoader(Nested(None), batch_size=None, num_workers=1, multiprocessing_context={context!r})
        print(list(loader), list(outer.run([Task(9)])))
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_pool_works_within_a_worker_of_torch(tmp_path: Path, context: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "elsewhere.py").write_text("def work(data, tell):\n    return data * 2\n")
    result = run_script(tmp_path, NESTED.format(context=context))
    assert (result.stdout, result.stderr) == ("[0, 2, 4, 6] [18]\n", "")
