"""Plays the ways torch reads a holdfast dataset, in one process with a real torch, and says what came out."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
import torch.distributed as distributed
import torch.utils.data
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

import holdfast as hold
import holdfast.torch
import leftovers
import line_server
from factories_dtypes import ROWS, bits_of, made
from factories_dtypes import SCHEMA as COLUMNS
from holdfast.data.formats.columns import RaggedColumn
from holdfast.data.torch_loader.torch_dataset import RaggedTensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "data" / "loader"))

from factories_files import SCHEMA, make_shards

LOADERS = {"torch": torch.utils.data.DataLoader, "holdfast": holdfast.torch.DataLoader}


def dataset(ask: dict[str, Any]) -> hold.Dataset:
    ds = hold.read(ask["folder"], SCHEMA).shuffle(seed=7).limits(memory="200MB")
    if ask.get("where"):
        ds = ds.map(doubled, num_workers=1, where=ask["where"])
    if ask.get("shard"):
        ds = ds.shard("auto" if ask["shard"] == "auto" else tuple(ask["shard"]))
    if ask.get("batch", 16):
        ds = ds.batch(ask.get("batch", 16))
    return ds.repeat(ask["repeat"]) if ask.get("repeat") else ds


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"double": sample["emb"] * 2}


def loader(ask: dict[str, Any], data: Any, **more: Any) -> Any:
    options = {name: ask[name] for name in ("num_workers", "persistent_workers") if name in ask}
    if ask.get("start") and ask.get("num_workers"):
        options["multiprocessing_context"] = ask["start"]
    return LOADERS[ask.get("loader", "torch")](data, batch_size=ask.get("torch_batch"), **options, **more)


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in np.atleast_1d(batch["id"].numpy())]


# ---- the cases ---------------------------------------------------------------------------------------------


def alone(ask: dict[str, Any]) -> Any:
    return ids(dataset(ask).torch(epoch=ask.get("epoch", 0)))


def loaded(ask: dict[str, Any]) -> Any:
    """The samples, in their order, and whether the columns belong together."""
    whole, found = True, []
    for batch in loader(ask, dataset(ask).torch()):
        found += batch["id"].tolist()
        for at, number in enumerate(batch["id"].tolist()):
            whole &= batch["name"][at] == f"sample {number}".encode()
            whole &= batch["emb"][at].tolist() == [number * 3, number * 3 + 1, number * 3 + 2]
            whole &= batch["tags"].rows()[at].tolist() == list(range(number % 4))
            if "double" in batch:
                whole &= batch["double"][at].tolist() == [number * 6, number * 6 + 2, number * 6 + 4]
    return {"ids": found, "whole": bool(whole)}


def decoded(ask: dict[str, Any]) -> Any:
    """Images by their ids, with random crops: read alone, and by each loader with workers."""
    with tempfile.TemporaryDirectory() as folder:
        with hold.TFRecordWriter(f"{folder}/x.tfrecord", {"image": hold.Bytes(), "id": hold.Int64()}) as writer:
            for number in range(20):
                pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
                writer.append(image=simplejpeg.encode_jpeg(pixels), id=number)
        images = hold.read(folder).shuffle(seed=7).decode("image", size=8, crop="random", dtype="float32").batch(4)
        return [
            [[int(i), zlib.crc32(one.numpy())] for b in batches for i, one in zip(b["id"], b["image"], strict=True)]
            for batches in (images.torch(), *(loader(ask | {"loader": name}, images.torch()) for name in LOADERS))
        ]


def epochs(ask: dict[str, Any]) -> Any:
    """Passes one after the other; the second is broken off."""
    data = dataset(ask).torch()
    one = loader(ask, data)
    found = [ids(one)]
    broken = iter(one)
    found.append(ids([next(broken)]))
    del broken
    found.append(ids(one))
    for epoch in (1, 0):
        data.set_epoch(epoch)
        found += [ids(one), ids(one)]
    if ask.get("loader") == "holdfast":
        one.close()
    return found


def renewed(ask: dict[str, Any]) -> Any:
    """Another loader for each pass, with a generator of the same seed: torch gives its workers the same seeds."""
    data = dataset(ask).torch()
    return [ids(loader(ask, data, generator=torch.Generator().manual_seed(0))) for _ in range(3)]


def together(ask: dict[str, Any]) -> Any:
    """Two loaders over one dataset, batch by batch in turn."""
    data = dataset(ask).torch()
    pairs = list(zip(loader(ask, data), loader(ask, data), strict=True))
    return [ids(pair[at] for pair in pairs) for at in (0, 1)]


def killed(ask: dict[str, Any]) -> Any:
    """In the first pass a worker is killed before it begins, when the other one has."""
    begun, spared = multiprocessing.Event(), multiprocessing.Event()

    def tell(batch: Any) -> Any:
        begun.set()
        return batch

    def kill(worker: int) -> None:
        if worker == 1 and not spared.is_set():
            begun.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    data = dataset(ask).map(tell).torch()
    one = loader(ask, data, worker_init_fn=kill)
    try:
        ids(one)
        said = ""
    except RuntimeError as error:
        said = str(error)
    spared.set()
    return {"said": said, "ids": ids(one)}


def length(ask: dict[str, Any]) -> Any:
    data = dataset(ask).torch()
    return [len(data), len(loader(ask, data)), len(list(data))]


def resumed(ask: dict[str, Any]) -> Any:
    """`ask["taken"]` batches by one layout, the rest by another, and the next pass."""
    first = dataset(ask).torch(epoch=ask.get("epoch", 0))
    one = iter(loader(ask, first))
    seen = ids(next(one) for _ in range(ask["taken"]))
    if ask.get("num_workers"):
        try:
            first.state_dict()
            refused = ""
        except hold.errors.StateError as error:
            refused = str(error)
        state = first.state_after(ask["taken"])
    else:
        state, refused = first.state_dict(), "state_after"
        assert state == first.state_after(ask["taken"])
    del one
    then = ask | ask["then"]
    second = dataset(then).torch()
    second.load_state_dict(state)
    again = loader(then, second)
    rest = ids(again)
    return {"seen": seen, "rest": rest, "after": ids(again), "refused": refused}


class Told(IterableDataset[Any]):
    """What a stateful loader does: asks each worker's copy of the dataset after every batch, and tells it before."""

    def __init__(self, data: Any, states: dict[int, Any]) -> None:
        self.data, self.states = data, states

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        if info.id in self.states:
            self.data.load_state_dict(self.states[info.id])
        for batch in self.data:
            yield {"id": batch["id"], "worker": info.id, "state": self.data.state_dict()}


def workers_states(ask: dict[str, Any]) -> Any:
    """After `taken` batches, each worker's state is that of the last batch of its that was taken."""
    one = iter(loader(ask, Told(dataset(ask).torch(), {})))
    batches = [next(one) for _ in range(ask["taken"])]
    states = {batch["worker"]: batch["state"] for batch in batches}
    del one
    rest = [batch["id"].tolist() for batch in loader(ask, Told(dataset(ask).torch(), states))]
    return {"seen": [batch["id"].tolist() for batch in batches], "rest": rest}


def unbatched(ask: dict[str, Any]) -> Any:
    """torch collates; a list of any length is left out, as its own collation cannot have it."""
    ds = dataset(ask | {"batch": 0}).map(without_tags)
    found = list(loader(ask | {"torch_batch": 10}, ds.torch()))
    first = found[0]
    return {
        "ids": ids(found),
        "types": {name: str(getattr(column, "dtype", type(column[0]).__name__)) for name, column in first.items()},
    }


def without_tags(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "tags"}


def mapped(ask: dict[str, Any]) -> Any:
    """By number, with torch's samplers, after the parent has read."""
    data = hold.read(ask["folder"], SCHEMA).map(without_tags).torch_map()
    assert int(data[3]["id"]) == 3  # files are open here when workers are forked
    generator = torch.Generator().manual_seed(1)
    sampler: Any = RandomSampler(data, generator=generator)
    if ask.get("ranks"):
        found = []
        for rank in range(ask["ranks"]):
            sampler = DistributedSampler(data, num_replicas=ask["ranks"], rank=rank, shuffle=True)
            found += ids(torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler))
        return found
    options = {"multiprocessing_context": ask["start"]} if ask.get("num_workers") else {}
    got = torch.utils.data.DataLoader(
        data, batch_size=8, sampler=sampler, num_workers=ask.get("num_workers", 0), **options
    )
    return ids(got)


def dtypes(ask: dict[str, Any]) -> Any:
    """Which columns of any dtype and shape are not the same, bit by bit, on each way to the trainer."""
    data = made(np.random.default_rng(12), ROWS)
    folder = Path(ask["folder"]).with_name("dtypes.hold")
    with hold.write(folder, COLUMNS).part("a") as part:
        part.extend(data)
    ds = hold.read(folder).batch(ROWS)
    strategy = torch.multiprocessing.get_sharing_strategy()
    found = {"alone": _other(data, ds.torch())}
    for name, make_loader in LOADERS.items():
        found[name] = _other(data, make_loader(ds.torch(), batch_size=None, num_workers=1))
    torch.multiprocessing.set_sharing_strategy("file_system")
    found["parcels"] = _other(data, LOADERS["holdfast"](ds.torch(), batch_size=None, num_workers=1))
    torch.multiprocessing.set_sharing_strategy(strategy)
    fixed = {name: column for name, column in COLUMNS.items() if not isinstance(column, hold.Ragged)}
    samples = hold.read(folder, fixed).torch_map()
    [batch] = torch.utils.data.DataLoader(samples, batch_size=ROWS, num_workers=1)  # torch collates
    found["torch_map"] = [name for name in fixed if bits_of(batch[name].numpy()) != bits_of(data[name])]
    return found


def _other(data: dict[str, Any], batches: Any) -> list[str]:
    [batch] = batches
    return [name for name in data if bits_of(_column(batch[name])) != bits_of(data[name])]


def _column(value: Any) -> Any:
    if isinstance(value, RaggedTensor):
        return RaggedColumn(_column(value.values), value.row_splits.numpy())
    return value.numpy()


def misused(ask: dict[str, Any]) -> Any:
    """A loader over what it would read wrongly: what it says, or how many samples it gave."""
    ds, options = dataset(ask), {"num_workers": ask.get("num_workers", 0)}
    give: dict[str, Callable[[Any], Any]] = {
        "dataset": lambda kind: kind(ds, **options),
        "samples": lambda kind: kind(hold.read(ask["folder"], {"id": hold.Int64()}), batch_size=16, **options),
        "batched again": lambda kind: kind(ds.torch(), batch_size=2, **options),
        "default": lambda kind: kind(ds.torch(), **options),
        "mapped": lambda kind: kind(ds.torch_map(), **options),
    }
    found: dict[str, Any] = {}
    for what, make_loader in give.items():
        try:
            found[what] = len(ids(make_loader(LOADERS[ask["loader"]])))
        except TypeError as error:
            found[what] = str(error)
    return found


def shared_memory(ask: dict[str, Any]) -> Any:
    """A tensor is the array's own memory."""
    arrays: list[Any] = []

    def keep(batch: dict[str, Any]) -> dict[str, Any]:
        arrays.append(batch["emb"])
        return batch

    batch = next(iter(dataset(ask).map(keep).torch()))
    batch["emb"][0, 0] = -1
    return {"shared": float(arrays[0][0, 0]) == -1, "writable": bool(arrays[0].flags.writeable)}


def forms(ask: dict[str, Any]) -> Any:
    """What cannot be shared is copied; what has no tensor stays."""
    frozen = np.arange(3)
    frozen.flags.writeable = False
    from holdfast.data.torch_loader.torch_dataset import batch_to_torch

    got = batch_to_torch(
        {
            "frozen": frozen,
            "backwards": np.arange(3)[::-1],
            "foreign": np.arange(3, dtype=">i4"),
            "half": np.zeros(2, np.float16),
            "flags": np.array([True]),
            "text": np.array(["a"]),
            "tensor": torch.ones(1),
            "inner": {"x": np.zeros(1)},
        }
    )
    return {
        name: [str(value.dtype), value.tolist()] if hasattr(value, "dtype") else sorted(value)
        for name, value in got.items()
    }


def in_pairs(sample: dict[str, Any]) -> Any:
    return {"emb": sample["emb"], "deep": (sample["name"], sample["tags"].tolist())}, sample["id"]


def structures(ask: dict[str, Any]) -> Any:
    """The ids of (x, y), in their order, and whether all values are theirs."""
    ds = dataset(ask | {"batch": 0}).map(in_pairs)
    ds = ds.batch(16, collate="ragged") if ask.get("batch", 16) else ds
    whole, found = True, []
    for x, y in loader(ask, ds.torch()):
        names, tags = x["deep"]
        embs, lists = (x["emb"].rows(), tags.rows()) if ds._settings.batched else ([x["emb"]], [torch.tensor(tags)])
        names = names if ds._settings.batched else [names]
        for at, number in enumerate(np.atleast_1d(y.numpy()).tolist()):
            found.append(number)
            whole &= names[at] == f"sample {number}".encode()
            whole &= embs[at].tolist() == [number * 3, number * 3 + 1, number * 3 + 2]
            whole &= lists[at].tolist() == list(range(number % 4))
    return {"ids": found, "whole": bool(whole)}


def nested(ask: dict[str, Any]) -> Any:
    from holdfast.data.formats.columns import RaggedColumn
    from holdfast.data.formats.gather import join_bytes
    from holdfast.data.torch_loader.torch_dataset import batch_to_torch

    numbers = RaggedColumn(RaggedColumn(np.arange(6), np.array([0, 2, 3, 3, 6])), np.array([0, 1, 4]))
    strings = RaggedColumn(join_bytes([b"a", b"bc", b""]), np.array([0, 2, 2, 3]))
    a, b = (pickle.loads(pickle.dumps(batch_to_torch(column))) for column in (numbers, strings))
    assert isinstance(a, RaggedTensor)
    return [
        [[part.tolist() for part in row] for row in a.rows()],
        [[part.decode() for part in row] for row in b.rows()],
    ]


def pickled(ask: dict[str, Any]) -> Any:
    data = dataset(ask).torch()
    data.set_epoch(2)
    return ids(pickle.loads(pickle.dumps(data))) == ids(data)


def under_a_launcher(ask: dict[str, Any]) -> Any:
    """A rank that only torch.distributed knows of reaches workers that are started anew."""
    want = ids(dataset(ask | {"shard": [1, 2]}).torch())
    distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        got = ids(loader(ask, dataset(ask | {"shard": "auto"}).torch()))
    finally:
        distributed.destroy_process_group()
    return {"same": got == want, "samples": len(got)}


def dropped(ask: dict[str, Any]) -> Any:
    before = leftovers.take()
    ds = dataset(ask).map(doubled, num_workers=2).prefetch("1MB")
    data = ds.torch()
    one = iter(data)
    next(one)
    del one
    list(data)
    one = iter(data)
    next(one)
    del one, data, ds
    return leftovers.wait_until_clean(before)


def make(ask: dict[str, Any]) -> None:
    make_shards(Path(ask["folder"]), ask["counts"])


CASES: dict[str, Callable[[dict[str, Any]], Any]] = {
    one.__name__: one
    for one in (
        alone,
        decoded,
        dropped,
        dtypes,
        epochs,
        forms,
        killed,
        length,
        loaded,
        make,
        mapped,
        misused,
        nested,
        pickled,
        renewed,
        resumed,
        shared_memory,
        structures,
        together,
        unbatched,
        under_a_launcher,
        workers_states,
    )
}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch"])  # so that each of its workers does not import it again
    line_server.serve(lambda ask: CASES[ask["case"]](ask))
