"""Plays one case with torch's own DataLoader and with holdfast's: both answers go back, as plain lists."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import inspect
import multiprocessing
import pickle
import random
import re
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.utils.data as torch_data
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import holdfast.torch
import line_server
from pretended_accelerator import pretended_accelerator

Pair = namedtuple("Pair", "left right")
LOADERS: dict[str, Any] = {"torch": torch_data.DataLoader, "holdfast": holdfast.torch.DataLoader}


class Numbers(Dataset[Any]):
    def __init__(self, length: int = 23) -> None:
        self.length = length
        self.table = torch.arange(4000.0).reshape(-1, 4)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index))


class Random(Numbers):
    """What a worker's three generators give."""

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), int(torch.initial_seed() % 1000)


class Batched(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [torch.tensor(index * 10) for index in indices]


class Shapes(Numbers):
    """Everything a batch may be made of."""

    def __getitem__(self, index: int) -> Any:
        tensor = torch.arange(6.0).reshape(2, 3) + index
        return {
            "turned": tensor.t(),
            "same": (tensor, tensor),
            "text": f"sample {index}",
            "bytes": bytes([index]),
            "none": torch.zeros(0),
            "pair": Pair(index, torch.tensor(index, dtype=torch.int16)),
            "flag": torch.tensor([True, False]),
        }


@dataclasses.dataclass
class Card:
    face: torch.Tensor
    rank: int


class Odd(Numbers):
    """What no collate of torch's makes a batch of, sample by sample."""

    def __getitem__(self, index: int) -> Any:
        dense = torch.eye(3) * index
        odd = [
            dense.to_sparse(),
            Card(dense[0], index),
            None,
            {"texts": ["a", f"{index}"], "deep": [{"row": dense[1]}]},
            np.arange(4, dtype=np.int16) * index,
            Pair(np.float32(index), "text"),
            torch.ones(2, dtype=torch.complex64).conj(),
        ]
        return odd[index % len(odd)]


class Marked(torch.Tensor):
    """A tensor subclass, as torchvision has them for images and boxes."""


class Kinds(Numbers):
    """Every kind of tensor and storage that torch can send, small and over a megabyte, whole, empty and in part."""

    def __init__(self) -> None:
        self.kinds = [kind for items in (12, 300_000) for kind in self.of(torch.arange(float(items)).reshape(3, -1))]
        super().__init__(len(self.kinds))

    def __getitem__(self, index: int) -> Any:
        return self.kinds[index]

    @staticmethod
    def of(dense: torch.Tensor) -> list[Any]:
        table = torch.arange(4.0 * dense.numel()).reshape(-1, dense.shape[1])
        with_attribute = dense[:1].clone()
        with_attribute.more = [dense, table[3]]  # type: ignore[attr-defined]
        return [
            dense,
            torch.zeros(0, 4),
            dense[:0],
            [torch.zeros(0), dense, torch.zeros(0, dtype=torch.int64)],
            dense.as_subclass(Marked),
            [table[4].as_subclass(Marked), dense[:0].as_subclass(Marked), table[5]],
            torch.nn.Parameter(dense),
            torch.nn.Parameter(torch.zeros(0)),
            torch.zeros(3, requires_grad=True),
            dense.to_sparse(),
            torch.zeros(3, 4).to_sparse(),
            dense.to_sparse_csr(),
            torch.zeros(3, 4).to_sparse_csr(),
            torch.nested.nested_tensor([dense, dense[:1]]),
            torch.nested.nested_tensor([dense, dense[:1]], layout=torch.jagged),
            torch.complex(dense, dense).conj(),
            torch.complex(dense, dense).conj().imag,
            torch.ones(1).expand(100),
            torch.ones(1).expand(0),
            [dense, dense, dense[1], dense.t(), dense[:, 1], dense[:0]],
            [table[1], table[2], table],
            dense.untyped_storage(),
            [dense, dense.untyped_storage(), table.untyped_storage(), table[1]],
            dense.storage(),
            [dense.storage(), dense],
            torch.FloatStorage([1.0, 2.0]),
            torch.UntypedStorage(0),
            dense.numpy().copy(),
            with_attribute,
            Card(dense, 3),
            dense.to(torch.float8_e4m3fn),
            dense.to(torch.uint16),
        ]


class Large(Numbers):
    """200 MB a sample."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((200 << 20,), index, dtype=torch.uint8)


class Rows(Numbers):
    """Small views of one large tensor, as they are."""

    def __getitem__(self, index: int) -> Any:
        return self.table[index]


class Broken(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index % 5 == 4:
            raise ValueError(f"bad item {index}")
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """Each worker gives its own part; workers end at different times."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        at, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(at, 17 + at * 5, step)

    def __len__(self) -> int:
        return 40


class Short(Stream):
    """Says that it is shorter than it is."""

    def __len__(self) -> int:
        return 9


class Evens(torch_data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 20, 2))

    def __len__(self) -> int:
        return 10


def identity(samples: Any) -> Any:
    return samples


def seed_by_worker(worker_id: int) -> None:
    torch.manual_seed(worker_id)


def failing_init(worker_id: int) -> None:
    raise OSError(f"worker {worker_id} cannot start")


DATA: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (Numbers, Random, Batched, Shapes, Odd, Kinds, Rows, Broken, Stream, Short)
}
NAMED: dict[str, Callable[[], Any]] = {
    "evens": Evens,
    "batches": lambda: [[5, 3], [1], [0, 2, 4]],
    "identity": lambda: identity,
    "seed_by_worker": lambda: seed_by_worker,
    "failing_init": lambda: failing_init,
    "partial": lambda: functools.partial(torch.stack, dim=1),
    "generator": lambda: torch.Generator().manual_seed(77),
}


def pinned(**options: Any) -> list[Any]:
    with pretended_accelerator():
        return epochs(pin_memory=True, **options)


def epochs(loader: str, data: str, count: int = 1, sharing: str = "file_descriptor", **options: Any) -> list[Any]:
    """All batches of some epochs, errors among them, and whether there was a length."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    torch.manual_seed(5)
    made = LOADERS[loader](DATA[data](), **{name: _named(value) for name, value in options.items()})
    told: list[Any] = [len(made)] if data != "Stream" else []
    for _ in range(count):
        told.append(list(_batches(iter(made))))
    told.append(torch.rand(1).item())  # the main process's generator has moved on as far
    if loader == "holdfast":
        made.close()
    elif made._iterator is not None:
        _end_torch_workers(made._iterator)
    return told


def _end_torch_workers(iterator: Any) -> None:
    """Ends persistent workers: after an error they do not end by themselves, and torch would wait 5 s for each."""
    with mock.patch.object(torch_data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1):
        iterator._shutdown_workers()


def _named(value: Any) -> Any:
    return NAMED[value[1:]]() if isinstance(value, str) and value.startswith("@") else value


def _batches(iterator: Any) -> Iterator[Any]:
    while True:
        try:
            yield plain(next(iterator))
        except StopIteration:
            return
        except (ValueError, OSError, UnboundLocalError) as error:  # the last is torch's own, after a failed start
            yield [type(error).__name__, str(error).splitlines()[-1]]


def plain(batch: Any) -> Any:
    if isinstance(batch, torch.TypedStorage):
        return [type(batch).__name__, str(batch.dtype), plain(batch.untyped())]
    if isinstance(batch, torch.UntypedStorage):
        return [type(batch).__name__, plain(torch.empty(0, dtype=torch.uint8).set_(batch))]
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return [str(batch.layout), [plain(one) for one in batch.unbind()]]
    if isinstance(batch, torch.Tensor) and batch.layout != torch.strided:
        return [str(batch.layout), plain(batch.to_dense())]
    if isinstance(batch, torch.Tensor):
        told = [type(batch).__name__, str(batch.dtype), list(batch.shape), list(batch.stride()), batch.requires_grad]
        return [*told, str(batch.tolist()) if batch.numel() < 1000 else _digest(batch), plain(vars(batch))]
    if dataclasses.is_dataclass(batch):
        return [type(batch).__name__, plain(vars(batch))]
    if isinstance(batch, np.ndarray):
        return [str(batch.dtype), plain(torch.from_numpy(batch)), batch.flags.writeable]
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [type(batch).__name__, [plain(value) for value in batch]]
    return repr(batch)


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor).flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()


def refusal(loader: str, **options: Any) -> list[str]:
    try:
        LOADERS[loader](Numbers(), **options)
    except (ValueError, TypeError) as error:
        return [type(error).__name__, str(error)]
    return []


def late(loader: str) -> list[str]:
    try:
        list(LOADERS[loader](Slow(), num_workers=1, timeout=0.2))
    except RuntimeError as error:
        return [str(error).split("; ")[0]]
    return []


class Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        import time

        time.sleep(1)
        return index


def two_at_once(loader: str) -> list[Any]:
    made = LOADERS[loader](Numbers(), num_workers=1, batch_size=8)
    return [[plain(a), plain(b)] for a, b in zip(made, made, strict=True)]


def left_and_resumed(loader: str) -> list[Any]:
    iterator = iter(LOADERS[loader](Numbers(), num_workers=2, batch_size=4))
    got = []
    for batch in iterator:
        got.append(plain(batch))
        break
    got.extend(plain(batch) for batch in iterator)
    return [got, next(iterator, "no more"), iter(iterator) is iterator, len(iterator)]


def workers_asked(loader: str) -> list[Any]:
    """What the processes of iterators answer that have come to their end, however that was."""
    told = []
    for data in (Numbers(), Stream()):
        iterator = iter(LOADERS[loader](data, num_workers=2, batch_size=4))
        workers = list(iterator._workers)
        list(iterator)
        told.append([workers == iterator._workers, *(_answers(worker) for worker in workers)])
    return told


def _answers(worker: Any) -> list[Any]:
    worker.join(10)
    again = worker.terminate(), worker.kill(), worker.join()  # of no account any more
    pid = isinstance(worker.pid, int) and worker.pid == worker.ident
    return [pid, worker.is_alive(), worker.exitcode, again, re.sub(r"\d+", "N", repr(worker))]


def copied(loader: str) -> list[Any]:
    made = LOADERS[loader](Numbers(), num_workers=1, batch_size=4)
    list(made)
    twins = [copy.copy(made), pickle.loads(pickle.dumps(made))]
    return [[plain(batch) for batch in twin] for twin in twins]


def unordered(loader: str) -> list[Any]:
    made = LOADERS[loader](Numbers(), num_workers=2, batch_size=4, in_order=False)
    return [len(made), sorted(int(row[0]) for batch in made for row in batch)]


def distributed(loader: str) -> list[Any]:
    """One of two ranks, each epoch in another order."""
    data = Numbers()
    sampler: Any = torch_data.DistributedSampler(data, num_replicas=2, rank=1, seed=3)
    made = LOADERS[loader](data, sampler=sampler, num_workers=2, batch_size=4)
    told = []
    for epoch in range(3):
        made.sampler.set_epoch(epoch)
        told.append([plain(batch) for batch in made])
    return told


def large(loader: str) -> list[Any]:
    made = LOADERS[loader](Large(), sampler=[3], num_workers=1, batch_size=None)
    return [[batch.numel(), int(batch.min()), int(batch.max())] for batch in made]


def wrapped(loader: str) -> list[Any]:
    """What trainers read of a loader, and one made anew with another sampler from what was read."""
    made = LOADERS[loader](Numbers(), num_workers=1, batch_size=4, drop_last=True, timeout=60)
    names = set(inspect.signature(type(made).__init__).parameters) - {"self", "copy_batches"}
    read = {name: value for name, value in vars(made).items() if name in names}
    assert getattr(made, "copy_batches", True)
    del read["batch_sampler"]
    anew = type(made)(**read | {"sampler": Evens()})
    seen = sorted(name for name in vars(made) if name != "copy_batches")
    return [sorted(names), seen, type(made.sampler).__name__, [plain(batch) for batch in anew]]


def warned(loader: str, data: str, **options: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = LOADERS[loader](DATA[data](), num_workers=1, batch_size=None, **options)
        told = [len(made), [plain(batch) for batch in made]]
    return [told, [re.sub("0x[0-9a-f]+", "", str(warning.message)) for warning in caught]]


def unpickled(loader: str) -> list[Any]:
    """With workers that wait for the next epoch a loader does not pickle; without, it does."""
    made = LOADERS[loader](Numbers(), num_workers=1, batch_size=4, persistent_workers=True)
    told = [len(pickle.loads(pickle.dumps(made)))]
    list(made)
    try:
        pickle.dumps(made)
    except NotImplementedError as error:
        told.append(error.args[0])
    if loader == "holdfast":
        made.close()
        assert len(pickle.loads(pickle.dumps(made))) == 6
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch"])  # so that each of its workers does not import it again
    cases: dict[str, Callable[..., Any]] = {
        case.__name__: case
        for case in (
            epochs,
            pinned,
            refusal,
            late,
            two_at_once,
            left_and_resumed,
            workers_asked,
            copied,
            unordered,
            distributed,
            large,
            wrapped,
            warned,
            unpickled,
        )
    }
    line_server.serve(lambda request: cases[request.pop("case")](**request))
