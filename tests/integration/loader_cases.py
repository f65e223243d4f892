"""Plays the ways to use and misuse a loader, and says what each left behind. One torch for all of them.

A request names a case; the answer is {"left": {kind: […]}, …}. No collection happens between: what hangs in a cycle
stays there.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import signal_handling

import leftovers
import line_server
from holdfast.torch import DataLoader
from pretended_accelerator import pretended_accelerator

KEPT: list[Any] = []
WORKERS = 2
SEMAPHORES = f"loader-cases-{os.getpid()}"


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index))


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("a bad item")
        return super().__getitem__(index)


class Counted(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 10, info.num_workers))


class Suicidal(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Endless(Numbers):
    """Stands still at sample 5 until it is killed."""

    def __getitem__(self, index: int) -> torch.Tensor:
        while index == 5:
            time.sleep(3600)
        return super().__getitem__(index)


class Marked(torch.Tensor):
    """A tensor subclass."""


class Mixed(Numbers):
    """Samples as a detector has them: without boxes now and then, in subclasses, with a part of something large."""

    def __init__(self) -> None:
        self.table = torch.arange(600_000.0).reshape(6, -1)

    def __getitem__(self, index: int) -> Any:
        dense = torch.full((3, 4), float(index))
        return [
            torch.zeros(0, 4),
            dense[:0].as_subclass(Marked),
            [dense.clone().as_subclass(Marked) for _ in range(3)],
            self.table.clone().as_subclass(Marked),
            self.table[index % 6],
            torch.nn.Parameter(torch.zeros(0)),
            torch.zeros(3, 4).to_sparse(),
            dense.untyped_storage(),
            self.table.untyped_storage(),
        ]


class Sending(Numbers):
    """Sends a tensor of its own to the trainer, by file name, past the loader."""

    def __init__(self) -> None:
        self.queue = torch.multiprocessing.get_context("fork").Queue()

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            torch.multiprocessing.set_sharing_strategy("file_system")
            self.queue.put(torch.full((1000,), 7.0))
        return super().__getitem__(index)


class Holder:
    iterator: Any
    itself: Any


def bad_collate(samples: list[Any]) -> Any:
    raise KeyError("no such column")


def loader(data: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(data or Numbers(), **({"num_workers": WORKERS, "batch_size": 2} | options))


# ---- ways to end -------------------------------------------------------------------------------------------


def exhausted(**options: Any) -> None:
    for _ in loader(**options):
        pass


def exhausted_iterator_kept(**options: Any) -> None:
    iterator = iter(loader(**options))
    assert len(list(iterator)) == 12
    KEPT.append(iterator)


def exhausted_iterable_kept(**options: Any) -> None:
    iterator = iter(loader(Counted(), **options))
    assert sum(batch.numel() for batch in iterator) == 10
    KEPT.append(iterator)


def broken_off(**options: Any) -> None:
    for _ in loader(**options):
        break


def raised_in_body(**options: Any) -> None:
    try:
        for _ in loader(**options):
            raise LookupError("in the body")
    except LookupError as error:
        KEPT.append(error)


def raised_in_body_of_with(**options: Any) -> None:
    try:
        with loader(**options) as opened:
            iterator = iter(opened)
            next(iterator)
            raise LookupError("in the body")
    except LookupError as error:
        KEPT.append(error)


def raised_in_worker(**options: Any) -> None:
    try:
        for _ in loader(Broken(), **options):
            pass
    except ValueError as error:
        KEPT.append(error)
    assert "a bad item" in str(KEPT[-1])


def raised_in_collate(**options: Any) -> None:
    try:
        next(iter(loader(collate_fn=bad_collate, **options)))
    except KeyError as error:
        KEPT.append(error)


def raised_in_sampler(**options: Any) -> None:
    def sampler() -> Iterator[int]:
        yield from range(12)
        raise ArithmeticError("in the sampler")

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            return sampler()

    iterator = iter(loader(sampler=Sampler(), **options))
    try:
        list(iterator)
    except ArithmeticError as error:
        KEPT.extend([error, iterator])


def cycle_exhausted(**options: Any) -> None:
    holder = Holder()
    holder.itself = holder
    holder.iterator = iter(loader(**options))
    for _ in holder.iterator:
        pass


def cycle_collected(**options: Any) -> None:
    """Live when the collector finds it, with its queues in the same garbage."""
    holder = Holder()
    holder.itself = holder
    holder.iterator = iter(loader(**options))
    holder.iterator.holder = holder
    next(holder.iterator)
    del holder
    gc.collect()


def _fails_in_its_own_code(data: Any) -> None:
    iterator = iter(data)
    for _ in iterator:
        raise ArithmeticError("the training step failed")


def own_errors_kept(lives: int) -> dict[str, Any]:
    """Descriptors after each of some training steps failed, with the iterator in a variable and the error kept."""
    counts = []
    beside = iter(loader())  # one that is in use, and must stay so
    first = next(beside)
    try:
        for _ in range(lives):
            try:
                _fails_in_its_own_code(loader())
            except ArithmeticError as error:
                KEPT.append(error)
            counts.append(len(os.listdir("/proc/self/fd")))
        rest = 1 + sum(1 for _ in beside)
    finally:
        KEPT.clear()
        gc.collect()
    return {"counts": counts, "beside": rest, "first": first is not None}


def cycles_alive(lives: int) -> dict[str, Any]:
    """Descriptors after each of some live iterators was lost in a cycle, with the collector switched off."""
    counts = []
    gc.disable()
    try:
        for _ in range(lives):
            holder = Holder()
            holder.itself = holder
            holder.iterator = iter(loader())
            next(holder.iterator)
            del holder
            counts.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
        gc.collect()
    return {"counts": counts}


def killed(**options: Any) -> None:
    iterator = iter(loader(Suicidal(), **options))
    try:
        list(iterator)
    except RuntimeError as error:
        KEPT.extend([iterator, error])
    told = str(KEPT[-1])
    assert "is killed by signal: Killed" in told, told
    assert "sample" in told, told


def persistent_closed(**options: Any) -> None:
    opened = loader(persistent_workers=True, **options)
    pids = set()
    for _ in range(3):
        iterator = iter(opened)
        pids.add(tuple(worker.pid for worker in iterator._workers))
        assert len(list(iterator)) == 12
    assert len(pids) == 1
    opened.close()
    KEPT.extend([opened, iterator])


def persistent_killed(**options: Any) -> None:
    """Dead between two epochs: said at the next one, and the one after that has new workers."""
    opened = loader(persistent_workers=True, **options)
    iterator = iter(opened)
    list(iterator)
    worker = iterator._workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(30)
    try:
        iter(opened)
    except RuntimeError as error:
        KEPT.append(error)
    else:
        raise AssertionError("nobody said it")
    assert len(list(opened)) == 12
    opened.close()
    KEPT.append(opened)


def kept_batches(**options: Any) -> None:
    KEPT.extend(loader(**options))


def kept_views(**options: Any) -> None:
    KEPT.extend(batch[0].numpy() for batch in loader(**options))


def kept_for_epochs(**options: Any) -> None:
    """A service that makes a loader for each job and keeps what it should not."""
    for _ in range(6):
        KEPT.append(iter(loader(batch_size=12, num_workers=1, **options)))
        assert len(list(KEPT[-1])) == 2


def errors_kept(**options: Any) -> None:
    for _ in range(5):
        try:
            list(loader(Broken(), **options))
        except ValueError as error:
            KEPT.append(error)
    assert len(KEPT) % 5 == 0


def in_threads(**options: Any) -> None:
    """Made, used and dropped in threads, two loaders each at the same time."""
    counts: list[int] = []

    def use() -> None:
        pairs = zip(loader(num_workers=1, **options), loader(num_workers=1, **options), strict=True)
        counts.append(sum(len(left) + len(right) for left, right in pairs))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [48] * 3


def copy_closed(**options: Any) -> None:
    """Copies share persistent workers: the one that is closed ends them, and the other one starts its own."""
    opened = loader(persistent_workers=True, **options)
    twin = copy.copy(opened)
    list(opened)
    twin = copy.copy(opened)
    assert len(list(twin)) == 12
    twin.close()
    assert len(list(opened)) == 12
    opened.close()
    KEPT.extend([opened, twin])


def started_in_vain(**options: Any) -> None:
    """The worker cannot be sent its dataset: queues and pipes are there by then."""
    data = Numbers()
    data.unpicklable = lambda: None  # type: ignore[attr-defined]
    try:
        iter(loader(data, multiprocessing_context="forkserver"))
    except (AttributeError, TypeError) as error:
        KEPT.append(error)
        return
    raise AssertionError("nobody said it")


ENDS: dict[str, Callable[..., None]] = {
    way.__name__: way
    for way in (
        exhausted,
        exhausted_iterator_kept,
        exhausted_iterable_kept,
        broken_off,
        raised_in_body,
        raised_in_body_of_with,
        raised_in_worker,
        raised_in_collate,
        raised_in_sampler,
        cycle_exhausted,
        cycle_collected,
        killed,
        persistent_closed,
        persistent_killed,
        kept_batches,
        kept_views,
        kept_for_epochs,
        errors_kept,
        in_threads,
        copy_closed,
        started_in_vain,
    )
}


def end(way: str, sharing: str = "file_descriptor", **options: Any) -> dict[str, Any]:
    """Played twice: what torch, Python or a framework sets up once is there after the first."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    gc.disable()
    try:
        with pretended_accelerator() if options.get("pin_memory") else contextlib.nullcontext():
            ENDS[way](**options)
            before = leftovers.take()
            ENDS[way](**options)
            return {"left": _added(before)}
    finally:
        KEPT.clear()
        gc.enable()
        gc.collect()


def _added(before: leftovers.Picture) -> dict[str, list[str]]:
    """At once, without a collection: what hangs in a cycle counts."""
    after = leftovers.take()
    added = {
        kind: [text for key, text in getattr(after, kind).items() if key not in getattr(before, kind)]
        for kind in leftovers.KINDS
    }
    added["shm"] = [name for name in added["shm"] if _is_ours(name)]
    return {kind: told for kind, told in added.items() if told}


def _is_ours(name: str) -> bool:
    """Others on this machine use torch as well: theirs have another name or a process, or go by themselves."""
    path = f"/dev/shm/{name}"
    if name.startswith("sem."):
        return name.startswith(f"sem.{SEMAPHORES}-")
    return name.startswith("torch_") and not leftovers._is_of_strangers(path) and os.path.exists(path)


# ---- workers that do not answer ----------------------------------------------------------------------------


def stopped(sharing: str, timeout_s: float, context: str, after: int, pin_memory: bool = False) -> dict[str, Any]:
    """A worker is stopped after some batches; how the loader says so."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    options = {"timeout": 100, "multiprocessing_context": context, "pin_memory": pin_memory}
    before = leftovers.take()
    with pretended_accelerator() if pin_memory else contextlib.nullcontext():
        iterator = iter(loader(num_workers=1, **options))
        for _ in range(after):
            next(iterator)
        iterator._timeout = timeout_s  # to begin with, a busy machine had more
        if pin_memory:
            iterator._pin_queue._timeout_s = timeout_s
        pid = iterator._workers[0].pid
        os.kill(pid, signal.SIGSTOP)
        error = _drain(iterator)
    told = {"pid": pid, "named": getattr(error, "pid", None), "error": str(error), "type": type(error).__name__}
    return told | {"threads": _added(before).get("thread", [])}


def hung(timeout_s: float) -> dict[str, Any]:
    iterator = iter(loader(Endless(), timeout=timeout_s))
    pids = [worker.pid for worker in iterator._workers]
    error = _drain(iterator)
    again = _drain(iterator)
    return {"pids": pids, "error": str(error), "again": type(again).__name__}


def _drain(iterator: Any) -> Exception | None:
    try:
        for _ in iterator:
            pass
    except Exception as error:  # noqa: BLE001 whatever it is, the test looks at it
        return error
    return None


def struck(seed: int, sharing: str) -> dict[str, Any]:
    """A worker is killed or stopped at a random moment. Either all batches come, or an error does: never a hang."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    dice = random.Random(seed)
    before = leftovers.take()
    iterator = iter(loader(timeout=2, batch_size=1))
    at, blow = dice.randrange(20), dice.choice([signal.SIGKILL, signal.SIGSTOP])
    got, error = [], None
    try:
        for number, batch in enumerate(iterator):
            got.append(int(batch[0, 0]))
            if number == at:
                os.kill(dice.choice(iterator._workers).pid, blow)
    except RuntimeError as raised:
        error = raised
    whole = got == list(range(len(got))) and (len(got) == 24 or error is not None)
    return {"whole": whole, "left": _added(before), "error": str(error)}


# ---- going on ----------------------------------------------------------------------------------------------


class Unreadable:
    """Raises in the trainer, when its batch is unpickled."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return _raise, (self.kind, "of the batch")


def _raise(kind: type[Exception], text: str) -> None:
    raise kind(text)


def unreadable(pin_memory: bool) -> dict[str, Any]:
    """What is raised, and how it is chained."""
    found = {}
    for kind in (OSError, TimeoutError, BlockingIOError, ConnectionResetError, FileNotFoundError, EOFError):
        iterator = iter(loader([Unreadable(kind)] * 4, collate_fn=list, pin_memory=pin_memory))
        error = _drain(iterator)
        assert error is not None
        found[kind.__name__] = [repr(error), repr(error.__cause__)]
    return found


def goes_on() -> dict[str, Any]:
    """torch's goes on after an item that could not be made."""
    iterator = iter(loader(Broken(), batch_size=1))
    got: list[Any] = []
    while True:
        try:
            got.append(int(next(iterator)[0, 0]))
        except ValueError:
            got.append("bad")
        except StopIteration:
            return {"got": got}


def closed_and_used_again() -> dict[str, Any]:
    opened = loader()
    iterator = iter(opened)
    next(iterator)
    opened.close()
    opened.close()
    error = _drain(iterator)
    return {"error": type(error).__name__, "again": len(list(opened))}


def inherited() -> dict[str, Any]:
    """In a forked child the workers are another process's: an iterator is refused, a loader starts its own."""
    opened = loader(persistent_workers=True)
    iterator = iter(opened)
    next(iterator)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        error = _drain(iterator)
        os.write(writer, f"{type(error).__name__} {len(list(opened))}".encode())
        opened.close()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        child = told.read()
    os.waitpid(pid, 0)
    rest = len(list(iterator))
    opened.close()
    return {"child": child, "rest": rest}


def out_of_descriptors() -> dict[str, Any]:
    """Every number is taken while batches are on their way."""
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    before = leftovers.take()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    iterator = iter(loader())
    next(iterator)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        error = _drain(iterator)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    return {"type": type(error).__name__, "error": str(error), "left": _added(before)}


def killed_while_starting(by_handler: bool) -> dict[str, Any]:
    """A worker dies before there is an iterator: while the first batches are asked for, or a moment before."""

    def kill() -> None:
        pid = multiprocessing.active_children()[0].pid or 0
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it is left for the loader to reap

    class Deadly:
        def __iter__(self) -> Iterator[int]:
            kill()
            return iter(range(24))

    set_handler = signal_handling._set_SIGCHLD_handler
    before = leftovers.take()
    if by_handler:

        def set_and_kill() -> None:
            set_handler()
            kill()

        with mock.patch.object(signal_handling, "_set_SIGCHLD_handler", set_and_kill):
            error = _drain(loader())
    else:
        error = _drain(loader(sampler=Deadly()))
    return {"type": type(error).__name__, "error": str(error), "left": _added(before)}


def silent_sentinel() -> dict[str, Any]:
    """A worker's end is not heard: another process holds its pipe open, as one does that is forked by a thread."""
    read_end, write_end = os.pipe()
    try:
        iterator = iter(loader(Suicidal(), num_workers=1))
        iterator._workers[0]._popen.sentinel = read_end
        with mock.patch("holdfast.data.torch_loader.loader_iterator._POLL_S", 0.1):
            error = _drain(iterator)
    finally:
        os.close(read_end)
        os.close(write_end)
    return {"type": type(error).__name__, "error": str(error)}


def shared(copy_batches: bool) -> dict[str, Any]:
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    batches = list(loader(copy_batches=copy_batches))
    held = sum("/dev/shm/torch" in told for told in leftovers.take().fd.values())
    return {"shared": sum(batch.is_shared() for batch in batches), "held": held}


def _leaves(batch: Any) -> Iterator[Any]:
    for one in batch if isinstance(batch, list | tuple) else [batch]:
        yield from _leaves(one) if isinstance(one, list | tuple) else [one]


def mixed(sharing: str, **options: Any) -> dict[str, Any]:
    """Batches of all kinds are kept, and dropped when their loader has ended."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    before = leftovers.take()
    batches = list(loader(Mixed(), batch_size=None, **options))
    left = _added(before)
    shared = sum(one.layout == torch.strided and one.is_shared() for one in _leaves(batches) if hasattr(one, "layout"))
    del batches
    gc.collect()
    return {"left": left, "shared": shared}


def sent_past_the_loader() -> dict[str, Any]:
    """A worker's tensor is still in use here when the loader ends: its file is torch's to remove."""
    data = Sending()
    iterator = iter(loader(data, num_workers=1))
    next(iterator)
    tensor = data.queue.get()
    iterator.close()
    value = float(tensor.sum())
    del tensor
    data.queue.close()
    return {"value": value}


if __name__ == "__main__":
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch"])  # so that each of its workers does not import it again
    multiprocessing.current_process()._config["semprefix"] = f"/{SEMAPHORES}"  # type: ignore[attr-defined]
    cases: dict[str, Callable[..., Any]] = {
        case.__name__: case
        for case in (
            end,
            stopped,
            hung,
            struck,
            goes_on,
            unreadable,
            closed_and_used_again,
            inherited,
            out_of_descriptors,
            killed_while_starting,
            silent_sentinel,
            cycles_alive,
            own_errors_kept,
            shared,
            mixed,
            sent_past_the_loader,
        )
    }
    line_server.serve(lambda request: cases[request.pop("case")](**request))
