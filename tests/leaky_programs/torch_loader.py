"""Misuses a torch DataLoader in every way that costs descriptors, and uses it correctly.

torch takes seconds to import, so one process runs all variants: each line on stdin names one, and `release` frees
everything that was kept.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

KEPT: list[Any] = []
WORKERS = 2


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, length: int = 2) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise ValueError("a bad item")


class Holder:
    iterator: Any
    itself: Any


def _loader(data: Numbers | None = None, persistent: bool = False) -> DataLoader[torch.Tensor]:
    return DataLoader(
        data or Numbers(), num_workers=WORKERS, persistent_workers=persistent, multiprocessing_context="fork"
    )


# ---- misused -----------------------------------------------------------------------------------------------


def kept_iterator() -> None:
    iterator = iter(_loader())
    next(iterator)
    KEPT.append(iterator)


def exhausted_iterator() -> None:
    iterator = iter(_loader())
    for _ in iterator:
        pass
    KEPT.append(iterator)


def kept_exception() -> None:
    """Raised in a worker and again in the iterator: its traceback holds the iterator's own frame."""
    try:
        next(iter(_loader(Broken())))
    except ValueError as error:
        KEPT.append(error)


def reference_cycle() -> None:
    """Stays until the cyclic garbage collector runs."""
    gc.disable()
    holder = Holder()
    holder.itself = holder
    holder.iterator = iter(_loader())
    for _ in holder.iterator:
        pass


def kept_tensors() -> None:
    KEPT.extend(_loader(Numbers(6)))


def loader_per_batch() -> None:
    loader = _loader(persistent=True)
    for _ in loader:
        pass
    KEPT.append(loader)


# ---- used correctly ----------------------------------------------------------------------------------------


def dropped_iterator() -> None:
    iterator = iter(_loader())
    next(iterator)


def epoch() -> None:
    for _ in _loader():
        pass


def dropped_exception() -> None:
    try:
        next(iter(_loader(Broken())))
    except ValueError as error:
        KEPT.append(str(error))
        _free(error)


def _free(kept: object) -> None:
    """torch raises from a variable of its own frame: a cycle. Left to the collector, each live worker costs 5 s."""
    if isinstance(kept, BaseException):
        kept.__traceback__ = None


def collected_cycle() -> None:
    reference_cycle()
    gc.collect()


def cloned_tensors() -> None:
    KEPT.extend(tensor.clone() for tensor in _loader(Numbers(6)))


def one_loader() -> None:
    if not KEPT:
        KEPT.append(_loader(persistent=True))
    for _ in KEPT[0]:
        pass


def release() -> None:
    while KEPT:
        _free(KEPT.pop())
    gc.enable()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join()  # it closes its end of the pipe last


VARIANTS: dict[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        kept_iterator,
        exhausted_iterator,
        kept_exception,
        reference_cycle,
        kept_tensors,
        loader_per_batch,
        dropped_iterator,
        epoch,
        dropped_exception,
        collected_cycle,
        cloned_tensors,
        one_loader,
        release,
    )
}

torch.set_num_threads(1)
print("ready", flush=True)
for number, line in enumerate(sys.stdin, 1):
    VARIANTS[line.strip()]()
    print("done", number, flush=True)
release()
