"""What keeps the descriptors of real DataLoaders, each case in one process with torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

PROGRAM = """
import gc, json, os, threading
import torch
from torch.utils.data import DataLoader, Dataset
from holdfast.process.fd_owners.owners import owners_summary

keep = []
failures = []

class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.zeros(3)

def opened():
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}

def exhausted(workers):
    iterator = iter(DataLoader(Numbers(), num_workers=workers))
    for _ in iterator:
        pass
    return iterator

def kept():
    keep.extend(exhausted(2) for _ in range(3))

def failing():
    try:
        iterator = exhausted(1)
        raise RuntimeError("after the epoch")
    except RuntimeError as error:
        failures.append(error)

def cycle():
    iterator = exhausted(1)
    iterator.me = iterator

def tensors():
    keep.append(next(iter(DataLoader(Numbers(), num_workers=1))))

def groups(case):
    gc.collect()
    gc.disable()
    before = opened()
    case()
    for thread in threading.enumerate():  # those that feed queues close the ends of their pipes when they end
        if thread is not threading.main_thread():
            thread.join(60)
    found = owners_summary(opened() - before)
    gc.enable()
    keep.clear()
    failures.clear()
    gc.collect()
    return [(group.held, group.count, group.shape) for group in found]

print(json.dumps({case.__name__: groups(case) for case in (kept, failing, cycle, tensors)}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script = tmp_path_factory.mktemp("torch") / "worker.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _line(text: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.startswith(text))


def _queue_ends(how: str, head: str, times: int) -> list[list[Any]]:
    return [
        [how, times, f"{head} → _MultiProcessingDataLoaderIter._worker_result_queue → Queue._{end} → Connection"]
        for end in ("reader", "writer")
    ]


def test_exhausted_iterators_in_a_list(said: Any) -> None:
    """2 workers: 2·2 + 2 descriptors each."""
    head = f"worker.py:{_line('keep')} module variable 'keep'[…]"
    process = f"{head} → _MultiProcessingDataLoaderIter._workers[…] → Process._popen → Popen"
    assert said["kept"] == [["module", 12, process], *_queue_ends("module", head, 3)]


def test_a_kept_exception(said: Any) -> None:
    head = f"worker.py:{_line('failures')} module variable 'failures'[…] → RuntimeError traceback → worker.py:"
    assert sum(count for _, count, _ in said["failing"]) == 4
    for how, _, shape in said["failing"]:
        assert how == "module"
        assert shape.startswith(head)
        assert "failing() local 'iterator' → _MultiProcessingDataLoaderIter." in shape


def test_a_reference_cycle(said: Any) -> None:
    assert sum(count for _, count, _ in said["cycle"]) == 4
    assert {how for how, _, _ in said["cycle"]} == {"cycle"}
    assert all(shape.startswith("only a reference cycle: gc.collect() frees it → ") for _, _, shape in said["cycle"])


def test_kept_tensors_cannot_be_found_by_their_descriptor(said: Any) -> None:
    [[how, count, shape]] = said["tensors"]
    assert (how, count) == ("nobody", 1)
    assert "the shared storage of a torch tensor" in shape
    assert "clone()" in shape
