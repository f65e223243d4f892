"""What tests of logging share: workers that are started, waited for and killed; and the log read back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import holdfast as hold
from process_tree import descendants

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 100.0
ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "OMP_NUM_THREADS": "1",
}

Process = subprocess.Popen[bytes]


@contextlib.contextmanager
def started(*command: object, **env: str) -> Iterator[Process]:
    """It says everything on one pipe; at the end of the block it is no more."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | ENV | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: Process) -> None:
    """A launcher that is killed does not take its ranks along."""
    with contextlib.ExitStack() as opened:
        pidfds = []
        for pid in [process.pid, *descendants(process.pid)] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(pid))
                opened.callback(os.close, pidfds[-1])
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in pidfds:
            assert select.select([pidfd], [], [], 20)[0], "a process does not end"
    process.communicate()


def await_text(process: Process, text: str, times: int = 1) -> str:
    assert process.stdout is not None
    said, until = b"", monotonic() + TIMEOUT_S
    while said.count(text.encode()) < times:
        assert select.select([process.stdout], [], [], max(0, until - monotonic()))[0], said.decode()
        more = os.read(process.stdout.fileno(), 1 << 16)
        assert more, f"ended with {process.wait(5)}: {said.decode()}"
        said += more
    return said.decode()


def await_end(process: Process) -> str:
    said = process.communicate(timeout=TIMEOUT_S)[0].decode()
    assert process.returncode == 0, said
    return said


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def logged(logdir: Path | str, name: str = "run") -> dict[int, dict[str, Any]]:
    """By worker, in the order of its rows: the columns as lists. Every byte is checked first."""
    folder = f"{logdir}/{name}.hold"
    report = hold.write(folder).verify()
    assert report.ok, str(report)
    return _by_worker(folder)


def merged(logdir: Path | str) -> dict[int, dict[str, Any]]:
    """The same, of the one file that the command makes of it."""
    command = [sys.executable, "-m", "holdfast", "merge", f"{logdir}/run.hold", "-o", f"{logdir}/log.h5", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return _by_worker(f"{logdir}/log.h5")


def _by_worker(path: str) -> dict[int, dict[str, Any]]:
    workers: dict[int, dict[str, Any]] = {}
    with hold.read(path).shard(None).batch(1).iterate() as rows:
        for row in rows:
            columns = workers.setdefault(int(row["worker"][0]), {column: [] for column in row})
            for column, value in row.items():
                columns[column] += value.tolist()
    return workers


def steps(logdir: Path | str) -> dict[int, list[int]]:
    """By worker."""
    return {worker: columns["step"] for worker, columns in logged(logdir).items()}
