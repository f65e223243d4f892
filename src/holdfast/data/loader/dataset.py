"""hold.read, hold.concat, hold.mix, and the Dataset that they return.

Nothing is read before a dataset is iterated; wrong arguments are errors at once.
"""

from __future__ import annotations

import math
import numbers
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex, TypeVar, overload

from ..._util.rank import Launch, find_rank
from ..._util.text import format_bytes, names_there, parse_bytes, time_argument
from ...errors import InputError, StateError
from ...schema import Column, check_schema
from ..formats.base import GivenSchema
from ..formats.columns import Pick
from ..formats.images import Crop, DType, ImageColumn, Layout, image_resize
from ..inputs import find_sources
from .iterator import Iteration, T_co, batch_plan, stop_epoch
from .options import (
    MEMORY_BYTES,
    Cache,
    Collate,
    Each,
    Function,
    OnCorrupt,
    OnError,
    Options,
    Where,
    as_int,
    check_choice,
    is_number,
)
from .order.sharding import Remainder
from .pipeline.sample_cache import SampleCache
from .random_access import RandomAccess
from .sources.catalog import OnProgress
from .sources.file_source import ConcatSource, Files, FileSource, SelectSource, Source, SplitSource
from .sources.mix import MixSource, Until
from .sources.small_files import directory_schema

if TYPE_CHECKING:
    import numpy as np
    import tensorflow

    from ...torch import TorchDataset, TorchSamples


U = TypeVar("U")
Sample = dict[str, Any]
Batch = dict[str, Any]  # of arrays, BytesColumns and RaggedColumns
Path = str | os.PathLike[str]

_MAX_LANES = 1 << 12  # each costs some time in every plan
_MAX_PREFETCHED = 10_000  # batches: a larger number was meant as bytes
_NOT_SHARDED = Launch(0, 1, "not sharded")


class Dataset(Generic[T_co]):
    """Made by `hold.read(...)`. Every method returns another Dataset and leaves this one unchanged.

    It counts the passes over it: `for batch in ds` reads epoch 0 the first time, then epoch 1, also after a pass that
    was broken off. Another Dataset begins with epoch 0; a pickled copy continues where this one is.
    """

    __module__ = "holdfast"

    def __init__(self, source: Source, settings: Options) -> None:
        self._source, self._settings = source, settings
        self._cache: SampleCache | None = None
        self._random_access: RandomAccess | None = None
        self._lengths: dict[Launch, int] = {}
        self._next_epoch = 0
        self._lock = threading.Lock()

    def _with(self, **changes: Any) -> Dataset[T_co]:
        return type(self)(self._source, replace(self._settings, **changes))

    # ---- order

    def shuffle(
        self,
        *,
        seed: int = 0,
        window: str | int = "256MB",
        samples: int | None = None,
        lanes: int | None = None,
    ) -> Dataset[T_co]:
        """Shuffles every epoch in another order, which depends on the seed, the epoch and the data alone.

        Args:
            window: About how many bytes are shuffled together; or `samples` of them.
            lanes: How many streams, from different parts of the data, are interleaved; by default a power of two that
                fits the data, up to 64.
        """
        return self._with(
            seed=as_int("seed", seed),
            window_bytes=parse_bytes(window),
            window_samples=None if samples is None else as_int("samples", samples, 1, 1 << 62),
            lanes=None if lanes is None else as_int("lanes", lanes, 1, _MAX_LANES),
        )

    def shard(
        self, rank: str | tuple[int, int] | None = "auto", *, remainder: Remainder | None = None
    ) -> Dataset[T_co]:
        """Reads this rank's part of the samples.

        Args:
            rank: "auto" asks the framework that runs (torch.distributed, tf.distribute, JAX, Ray Train), then the
                launcher (torchrun, TF_CONFIG, JAX, Open MPI, SLURM), and leaves the sharding to accelerate, datasets or
                webdataset where those do it; or (rank, world); None: every rank reads everything.
            remainder: If the last samples do not fill a batch on every rank: "keep" (the last batches are short, or
                empty), "pad" (samples from the beginning fill them) or "drop".
        """
        if rank is not None and not (isinstance(rank, str) and rank == "auto"):
            rank = find_rank(rank)[:2]  # raises at once what is wrong with it
        if remainder is not None:
            check_choice("remainder", remainder, Remainder)
        return self._with(shard=rank, shard_given=True, remainder=remainder or self._settings.remainder)

    @overload
    def batch(
        self: Dataset[Sample],
        size: int | None = None,
        *,
        drop_last: bool = False,
        collate: Collate | None = None,
        pad_value: float = 0,
        global_size: int | None = None,
    ) -> Dataset[Batch]: ...

    @overload
    def batch(
        self,
        size: int | None = None,
        *,
        drop_last: bool = False,
        collate: Collate | None = None,
        pad_value: float = 0,
        global_size: int | None = None,
    ) -> Dataset[Any]: ...

    def batch(
        self,
        size: int | None = None,
        *,
        drop_last: bool = False,
        collate: Collate | None = None,
        pad_value: float = 0,
        global_size: int | None = None,
    ) -> Dataset[Any]:
        """Makes batches of `size` samples on every rank; or of `global_size` over all ranks.

        Args:
            collate: "stack" expects equal shapes, "pad" pads with `pad_value`, "ragged" keeps lengths. By default
                columns that are Ragged in the schema stay ragged, and all others are stacked.
        """
        if (size is None) == (global_size is None):
            raise TypeError(f"batch: expected a size or a global_size, got {size!r} and {global_size!r}")
        if self._settings.batched:
            raise ValueError("batch: expected a dataset of samples, got one with batch() already")
        size = None if size is None else as_int("batch size", size, 1)
        global_size = None if global_size is None else as_int("global batch size", global_size, 1)
        if not is_number(pad_value) and not isinstance(pad_value, bool):
            raise ValueError(f"expected a number as the pad_value, got {pad_value!r}")
        if collate is not None:
            check_choice("collate", collate, Collate)
        remainder: Remainder = "drop" if drop_last else self._settings.remainder
        return self._with(
            batch=size, global_batch=global_size, collate=collate, pad_value=pad_value, remainder=remainder
        )

    def take(self, n: int) -> Dataset[T_co]:
        """Takes the first `n` samples of an epoch, over all ranks; after batch(), the first `n` batches of every rank.

        They are the first of the epoch's order, wherever shuffle() is called: with it, every epoch has other ones. For
        the same samples in all epochs use split().
        """
        first, stop = self._bounds()
        end = first + as_int("take", n, 0)
        return self._within(first, end if stop is None else min(stop, end))

    def skip(self, n: int) -> Dataset[T_co]:
        """Skips the first `n` samples of an epoch, over all ranks; after batch(), the first `n` batches of every rank.

        As take(), in the epoch's order: skip(100).take(50) has samples 100 to 149 of it.
        """
        first, stop = self._bounds()
        return self._within(first + as_int("skip", n, 0), stop)

    def _bounds(self) -> tuple[int, int | None]:
        one = self._settings
        return (one.first_batch, one.stop_batch) if one.batched else (one.first_sample, one.stop_sample)

    def _within(self, first: int, stop: int | None) -> Dataset[T_co]:
        what = "batch" if self._settings.batched else "sample"
        return self._with(**{f"first_{what}": first, f"stop_{what}": stop})

    def repeat(self, times: int | None = None) -> Dataset[T_co]:
        """Reads `times` epochs in a row, each in its own order. None: for ever."""
        return self._with(repeat=None if times is None else as_int("repeat", times, 1))

    # ---- columns, splits, concatenation

    def select(self, *columns: str | Sequence[str]) -> Dataset[Sample]:
        """Selects columns: `select("image", "label")`, or a list of names.

        Before functions, other columns are not decoded, and not read where the format stores columns separately (HDF5).
        After a function it selects from what that returned, which must be dicts.
        """
        names: list[Any] = []
        for one in columns:
            names += one if isinstance(one, (list, tuple)) else [one]
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"select: expected names of columns, got {columns!r}")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"select: expected each column once, got {repeated[0]!r} twice")
        functions = self._settings.functions
        if not functions:
            selected = SelectSource(self._source, names)
            selected.known_schema()  # raises at once if one is missing
            made: Dataset[Any] = type(self)(selected, self._settings)
            return made
        # Where the last function runs, so that it shares its stage.
        last = functions[-1]
        return self._function(
            "map", Pick(tuple(names)), last.workers, last.where, stall_s=last.stall_s, start=last.start
        )

    def split(self, *, seed: int = 0, **parts: float) -> Splits[T_co]:
        """Splits the samples into disjoint parts: `train, val = ds.split(train=0.9, val=0.1, seed=7)`; or `.train`,
        `["train"]`.

        A part has the same samples in every epoch, on every rank and under every shuffle: they depend on the seed, the
        parts and the numbers of samples of the files. Split before take() and skip().

        Args:
            parts: Fractions of all samples, at most 1 together, rounded so that fractions of 1 together have all
                samples; or numbers of samples, as ints.
        """
        one = self._settings
        if one.first_sample or one.first_batch or one.stop_sample is not None or one.stop_batch is not None:
            raise ValueError("split: expected split() before take() and skip(), which select from an epoch's order")
        shares, seed = _shares(parts), as_int("seed", seed)
        made = [type(self)(SplitSource(self._files("split"), shares, name, seed), one) for name in parts]
        return Splits(parts, made)

    def concat(self, *others: Dataset[T_co]) -> Dataset[T_co]:
        """Concatenates this dataset and others; see hold.concat."""
        return concat([self, *others])

    def _files(self, what: str) -> Files:
        """Returns the source, if its samples have the order of their files."""
        if not isinstance(self._source, Files):
            raise ValueError(f"{what}: expected a dataset of hold.read(), got a mix: call {what}() before mix()")
        return self._source

    # ---- functions

    @overload
    def map(
        self,
        function: Callable[[T_co], U],
        num_workers: int | None = None,
        where: Where | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | float = 100,
        random: Literal[False] = False,
        timeout: float | str | None = 300.0,
        start: Literal["forkserver", "spawn"] = "forkserver",
    ) -> Dataset[U]: ...

    @overload
    def map(
        self,
        function: Callable[[T_co, np.random.Generator], U],
        num_workers: int | None = None,
        where: Where | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | float = 100,
        random: Literal[True],
        timeout: float | str | None = 300.0,
        start: Literal["forkserver", "spawn"] = "forkserver",
    ) -> Dataset[U]: ...

    def map(
        self,
        function: Callable[..., Any],
        num_workers: int | None = None,
        where: Where | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | float = 100,
        random: bool = False,
        timeout: float | str | None = 300.0,
        start: Literal["forkserver", "spawn"] = "forkserver",
    ) -> Dataset[Any]:
        """Replaces every sample by `function(sample)`; after batch(), every batch by `function(batch)`.

        A sample is a dict. A function may return a dict or a tuple, also nested: (x, y) goes into Keras' fit() and
        torch's loops as it is, and a batch has the structure of its samples. A list is a value. Functions after it get
        the tuple as their one argument.

        Args:
            where: "inline", "threads" (the default if num_workers is given), or "processes" for functions that hold the
                GIL.
            on_error: "skip" skips what the function failed on, up to `max_errors` (a number, or a fraction below 1).
            random: function(sample, rng) gets a numpy Generator, seeded by seed, epoch and sample.
            timeout: How long a worker process may take over one sample, in seconds or as a text such as "10min".
        """
        return self._function(
            "map",
            function,
            num_workers,
            where,
            on_error=on_error,
            max_errors=max_errors,
            random=random,
            stall_s=time_argument(timeout, "timeout") if isinstance(timeout, str) else timeout,
            start=start,
        )

    def filter(
        self,
        function: Callable[[T_co], Any],
        num_workers: int | None = None,
        where: Where | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | float = 100,
    ) -> Dataset[T_co]:
        """Keeps samples for which `function(sample)` is true; after batch() it returns one bool for each row.

        Batches get shorter: no sample moves to another batch, so that every rank keeps its number of batches.
        """
        return self._function("filter", function, num_workers, where, on_error=on_error, max_errors=max_errors)

    def decode(
        self,
        column: str,
        *,
        size: int | tuple[int, int] | None = None,
        crop: Crop = None,
        dtype: DType = "uint8",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Layout = "HWC",
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        mode: str = "RGB",
        exact: bool = False,
        num_workers: int | None = None,
        where: Where = "threads",
        on_error: OnError = "raise",
        max_errors: int | float = 100,
    ) -> Dataset[Sample]:
        """Decodes the images of a column, crops and resizes them, on threads without the GIL; before batch().

        The options up to `exact` are those of hold.decode_image; without a `size` images are decoded as they are. A
        random crop depends on the seed of shuffle(), the epoch and the sample alone: it is the same after a resume.

        on_error: "skip" skips corrupt images, up to `max_errors` (a number, or a fraction below 1), and lists them in
                  skipped(); by default one is a MapError that names the file and the record
        """
        if self._settings.batched:
            raise ValueError("decode: expected a dataset of samples, got one of batches: call decode() before batch()")
        known = None if self._settings.functions else self._source.known_schema()
        if known is not None and column not in known:
            raise InputError(f"decode: there is no column {column!r}. {names_there(column, list(known))}")
        options = {"crop": crop, "dtype": dtype, "mean": mean, "std": std, "layout": layout}
        resize = image_resize(size, mode=mode, scale=scale, ratio=ratio, exact=exact, **options)
        return self._function(
            "map",
            ImageColumn(column, resize, mode),
            num_workers,
            where,
            on_error=on_error,
            max_errors=max_errors,
            random=resize is not None and resize.is_random,
        )

    def _function(
        self,
        kind: Literal["map", "filter"],
        function: Callable[..., Any],
        workers: int | None,
        where: Where | None,
        **more: Any,
    ) -> Dataset[Any]:
        each: Each = "batch" if self._settings.batched else "sample"
        where = where or ("threads" if workers else "inline")
        if workers is None:
            workers = 0 if where == "inline" else min(4, os.cpu_count() or 1)
        made = Function(
            kind=kind,
            function=function,
            each=each,
            where=where,
            workers=as_int("num_workers", workers, 0),
            **more,
        )
        return self._with(functions=(*self._settings.functions, made))

    def cache(self, maximum: str | int = "1GB", folder: str | os.PathLike[str] | None = None) -> Dataset[T_co]:
        """Caches samples as the functions before it left them, up to `maximum` bytes, in memory or a file in `folder`.

        What does not fit is made anew in every epoch. The cache lives as long as this dataset.
        """
        if self._settings.batched or self._settings.cache:
            raise ValueError("cache: expected one cache, before batch()")
        if any(function.random for function in self._settings.functions):
            raise ValueError("cache: a random function before it would repeat its result in every epoch: put it after")
        folder = None if folder is None else os.path.abspath(folder)
        cache = Cache(max_bytes=parse_bytes(maximum), folder=folder, after=len(self._settings.functions))
        return self._with(cache=cache)

    # ---- prefetching and limits

    def prefetch(self, maximum: int | str = 2) -> Dataset[T_co]:
        """Prefetches batches in a thread.

        Args:
            maximum: An int is a number of batches (without batch(), of samples), 0 none; a string such as "64MB" is
                bytes. At least one batch is prefetched; a number of them takes at most a quarter of limits(memory=…).
        """
        if isinstance(maximum, str):
            return self._with(prefetch_batches=0, prefetch_bytes=parse_bytes(maximum))._checked()
        maximum = as_int("prefetch", maximum, 0)
        if maximum > _MAX_PREFETCHED:
            raise ValueError(
                f"prefetch: expected at most {_MAX_PREFETCHED:,} batches, got {maximum:,}: a number counts batches. "
                f'For bytes write prefetch("{format_bytes(maximum).replace(" ", "")}")'
            )
        return self._with(prefetch_batches=maximum, prefetch_bytes=0)

    def limits(
        self, *, open_files: int | Literal["auto"] | None = None, memory: str | int | None = None
    ) -> Dataset[T_co]:
        """Limits the files open at once ("auto": half of what this process may still open), and the bytes of memory.

        It must suffice for prefetch() and three batches, and three more for every worker (for at least two; for one
        where functions run inline), as they are read or as functions made them, whichever is larger: so many are made
        however small `memory` is. If blocks do not fit beside them, samples are read one by one: slower, in the same
        order. Compressed shards in the window must fit decompressed.

        Not included: the interpreter and imports, batches you keep, cache(), what functions keep, the index of files
        (8 bytes a record of open TFRecords; up to 32 MB stay for the process), and each worker process's own memory:
        interpreter, imports, its current batch and what it makes of that.

        Args:
            memory: What an iteration adds to this process: blocks that are cached or read ahead, the order of the
                samples in the window (8 bytes each), batches that are being read or are in functions, prefetched
                batches, and the last one you got. RSS may exceed it by a quarter, as allocators keep some memory.
        """
        changes: dict[str, Any] = {}
        if open_files is not None:
            changes["open_files"] = "auto" if open_files == "auto" else as_int("open_files", open_files, 1)
        if memory is not None:
            changes["memory_bytes"] = parse_bytes(memory)
        return self._with(**changes)._checked()

    def _checked(self) -> Dataset[T_co]:
        one = self._settings
        if one.prefetch_bytes >= one.memory_bytes:
            raise ValueError(
                f"expected prefetch() to take less than limits(memory=…), got {format_bytes(one.prefetch_bytes)} of "
                f"{format_bytes(one.memory_bytes)}: raise limits(memory=…) first, or prefetch less"
            )
        return self

    # ---- reading

    def plan(self, progress: OnProgress | None = None) -> Dataset[T_co]:
        """Indexes every shard now instead of before the first batch.

        Args:
            progress: Called with (done, total) after each shard.
        """
        self._source.catalogs(progress)
        self._source.schema()
        return self

    def iterate(self, epoch: int | None = None, *, worker: tuple[int, int] = (0, 1)) -> Iteration[T_co]:
        """Begins a pass over batches, or samples without batch(). Use `with`, so that everything is released at once.

        Args:
            epoch: By default the one after the last pass; with repeat(n) after all its epochs, with repeat() after its
                first. Loading a state into such a pass moves the next one. A pass with a given epoch does not count.
            worker: (number, how many): that many workers share this rank's batches, each taking them in turn.
        """
        epoch = None if epoch is None else as_int("epoch", epoch, 0)
        if not isinstance(worker, tuple) or len(worker) != 2:
            raise ValueError(f"expected worker to be (number, how many), got {worker!r}")
        numbers = as_int("worker", worker[0], 0), as_int("workers", worker[1], 1)
        launch, cache = self._launch(), self._sample_cache()
        on_next_epoch = None
        if epoch is None:
            self.plan()  # a pass that cannot begin does not count
            epoch, on_next_epoch = self._begin_pass(), self._set_next_epoch
        return Iteration(
            self._source,
            self._settings,
            launch,
            epoch=epoch,
            worker=numbers,
            cache=cache,
            on_next_epoch=on_next_epoch,
        )

    def _begin_pass(self) -> int:
        with self._lock:
            epoch = self._next_epoch
            self._next_epoch += self._settings.repeat or 1
        return epoch

    def _set_next_epoch(self, epoch: int) -> None:
        self._next_epoch = epoch

    def __iter__(self) -> Iterator[T_co]:
        return self.iterate()

    def __len__(self) -> int:
        """Returns how many batches (or samples) this rank has in an epoch."""
        launch = self._launch()
        if launch not in self._lengths:
            self._lengths[launch] = len(Iteration(self._source, self._settings, launch))
        return self._lengths[launch]

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> list[T_co]: ...

    def __getitem__(self, index: Any) -> Any:
        """Returns sample `index` in the order of the files, after the functions. A slice or a list returns a list.

        Only where iterating gives the same samples in the same order: after shuffle(), shard(), take(), skip(),
        filter(), repeat() or batch() it is a TypeError.
        """
        self._check_indexing("[]")
        with self._lock:
            if self._random_access is None:
                self._random_access = RandomAccess(self._files("[]"), self._settings)
        return self._random_access[index]

    def _check_indexing(self, what: str) -> None:
        """Raises TypeError if samples by number would differ from those that iterating gives."""
        one = self._settings
        used = {
            "shuffle": one.seed is not None,
            "shard": one.shard is not None,
            "take": one.stop_sample is not None or one.stop_batch is not None,
            "skip": one.first_sample > 0 or one.first_batch > 0,
            "filter": any(function.kind == "filter" for function in one.functions),
            "repeat": one.repeat != 1,
            "batch": one.batched,
        }
        if found := [f"{name}()" for name, is_used in used.items() if is_used]:
            raise TypeError(
                f"{what}: expected a dataset of all samples in the order of the files, got one with "
                f"{', '.join(found)}. For a torch DataLoader write DataLoader(ds.torch(), batch_size=None), which "
                "reads what iterating reads; for samples by number write hold.read(…)[i], or hold.read(…).torch_map() "
                "with torch's samplers and batch_size"
            )

    @property
    def samples(self) -> int:
        """The number of all samples, over all ranks."""
        return sum(self._source.counts())

    @property
    def schema(self) -> dict[str, Column]:
        """The columns that are read."""
        return self._source.schema()

    @property
    def shards(self) -> list[str]:
        """The files, in the order that they are read without shuffle()."""
        return [path for catalog in self._source.catalogs() for path in catalog.paths]

    # ---- frameworks

    def torch(self, *, epoch: int = 0) -> TorchDataset:
        """Returns an IterableDataset of dicts of tensors, also for a DataLoader; see holdfast.torch.TorchDataset."""
        from importlib import import_module

        made: TorchDataset = import_module("holdfast.torch").as_torch(self, epoch=epoch)
        return made

    def torch_map(self) -> TorchSamples:
        """Returns a map-style Dataset of samples by number, for torch's samplers; see holdfast.torch.TorchSamples.

        Torch decides the order, the sharding and the batches there: a dataset with shuffle(), shard(), take(), skip(),
        filter(), repeat() or batch() is a TypeError.
        """
        from importlib import import_module

        made: TorchSamples = import_module("holdfast.torch").as_torch_map(self)
        return made

    def tf(self, *, epoch: int = 0, spec: Mapping[str, Any] | tuple[Any, ...] | None = None) -> tensorflow.data.Dataset:
        """Returns a tf.data.Dataset; see holdfast.tensorflow.Passes."""
        from importlib import import_module

        return import_module("holdfast.tensorflow").as_tf(self, epoch=epoch, spec=spec)

    # ---- internals

    def _launch(self) -> Launch:
        settings = self._settings
        if settings.shard is not None:
            return find_rank(settings.shard)
        if not settings.shard_given:
            _warn_of_launcher()
        return _NOT_SHARDED

    def _sample_cache(self) -> SampleCache | None:
        if self._settings.cache is None:
            return None
        with self._lock:
            if self._cache is None:
                self._cache = SampleCache(self._settings.cache)
            return self._cache

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self._source, "settings": self._settings, "next_epoch": self._next_epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], state["settings"])  # type: ignore[misc]
        self._next_epoch = state["next_epoch"]

    def __repr__(self) -> str:
        one = self._settings
        calls = [f"read({self._source.describe()!r})"]
        if one.seed is not None:
            window = f"{one.window_samples:,} samples" if one.window_samples else format_bytes(one.window_bytes)
            calls.append(f"shuffle(seed={one.seed}, window={window!r})")
        if one.shard is not None:
            calls.append(f"shard({one.shard!r}, remainder={one.remainder!r})")
        calls += _selection_calls(one.first_sample, one.stop_sample)
        if one.cache is not None:
            calls.append("cache()")
        calls += [f"{f.kind}({f.name}, {f.workers} {f.where})" for f in one.functions if f.each == "sample"]
        if one.batched:
            calls.append(f"batch({one.batch})" if one.batch else f"batch(global_size={one.global_batch})")
        calls += _selection_calls(one.first_batch, one.stop_batch)
        calls += [f"{f.kind}({f.name}, {f.workers} {f.where})" for f in one.functions if f.each == "batch"]
        if one.repeat != 1:
            calls.append(f"repeat({'' if one.repeat is None else one.repeat})")
        if one.prefetches:
            calls.append(f"prefetch({one.prefetch_batches or format_bytes(one.prefetch_bytes)!r})")
        if (one.open_files, one.memory_bytes) != ("auto", MEMORY_BYTES):
            calls.append(f"limits(open_files={one.open_files!r}, memory={format_bytes(one.memory_bytes)!r})")
        return ".".join(calls)


def _selection_calls(first: int, stop: int | None) -> list[str]:
    taken = [f"take({stop - first})"] if stop is not None else []
    return ([f"skip({first})"] if first else []) + taken


class Splits(tuple[Dataset[T_co], ...], Generic[T_co]):
    """The parts of a split, in order: `train, val = …`, `parts.train` or `parts["train"]`."""

    names: tuple[str, ...]

    def __new__(cls, names: Iterable[str], parts: Iterable[Dataset[T_co]]) -> Self:
        made = super().__new__(cls, parts)
        made.names = tuple(names)
        return made

    @overload
    def __getitem__(self, which: SupportsIndex | str) -> Dataset[T_co]: ...

    @overload
    def __getitem__(self, which: slice) -> tuple[Dataset[T_co], ...]: ...

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return super().__getitem__(which)
        if which not in self.names:
            raise KeyError(f"there is no part {which!r}. {names_there(which, self.names)}")
        return super().__getitem__(self.names.index(which))

    def __getattr__(self, name: str) -> Dataset[T_co]:
        if name.startswith("_") or name not in self.names:
            raise AttributeError(f"there is no part {name!r}. {names_there(name, self.__dict__.get('names', ()))}")
        return super().__getitem__(self.names.index(name))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.names, tuple(self)

    def __repr__(self) -> str:
        return f"Splits({', '.join(f'{name}={part!r}' for name, part in zip(self.names, self, strict=True))})"


class Mixture(Dataset):
    """A mix of datasets: it is shuffled already, and its epochs may differ in length by a few samples."""

    def shuffle(self, *_: Any, **__: Any) -> Dataset:
        raise ValueError("shuffle: expected shuffle() on the datasets before they are mixed, got it on the mix")


def read(
    paths: Path | Iterable[Path],
    schema: GivenSchema | None = None,
    *,
    verify: str = "all",
    on_corrupt: OnCorrupt = "raise",
    max_corrupt: int = 100,
    keep_doubtful: bool = False,
    labels_from_folders: bool = False,
    allow_external: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    cache_folder: Path | None = None,
    cache_bytes: str | int = "20GB",
) -> Dataset[Sample]:
    """Reads samples from TFRecord, HDF5, tar and other files: a path, a glob, a folder, a URL, or a list of them.

    Args:
        schema: The columns to read; by default those of the files, or of the dataset directory that they are in.
        verify: "all" checks the CRC of every TFRecord, "header" only that of its length.
        on_corrupt: "skip" skips corrupt samples and shards, up to `max_corrupt`, and lists them in skipped(); "salvage"
            also recovers records of which only the header is corrupt.
        keep_doubtful: Also reads TFRecords that might be data of a corrupt record: right if no record holds TFRecords.
        labels_from_folders: Small files in folders get a column "label": the number of their folder.
        allow_external: Lets an HDF5 file have values in other files (external storage and links), which it may choose
            freely: only for files that you trust.
        storage_options: Options for URLs, as fsspec takes them; shards are downloaded to `cache_folder`, up to
            `cache_bytes`.
    """
    columns = None if schema is None else check_schema(schema)
    if verify not in ("all", "header"):
        raise ValueError(f"expected verify to be 'all' or 'header', got {verify!r}")
    check_choice("on_corrupt", on_corrupt, OnCorrupt)
    as_int("max_corrupt", max_corrupt, 0)
    if keep_doubtful and on_corrupt == "raise":
        raise ValueError("keep_doubtful=True goes with on_corrupt='skip' or 'salvage', got on_corrupt='raise'")
    remote = {"folder": cache_folder, "max_bytes": parse_bytes(cache_bytes), "options": storage_options}
    specs = find_sources(paths, storage_options)
    source = FileSource(
        specs,
        directory_schema(specs, storage_options) if columns is None else columns,
        remote,
        verify=verify,
        labels_from_folders=labels_from_folders,
        on_corrupt=on_corrupt,
        max_corrupt=max_corrupt,
        keep_doubtful=bool(keep_doubtful),
        allow_external=bool(allow_external),
    )
    # Salvaging happens when the shards are indexed: after that, "salvage" is "skip".
    return Dataset(source, Options(on_corrupt="raise" if on_corrupt == "raise" else "skip", max_corrupt=max_corrupt))


def mix(
    datasets: Mapping[Dataset, float] | Sequence[tuple[Dataset, float]], *, seed: int = 0, until: Until = "first"
) -> Dataset[Sample]:
    """Mixes datasets, each with its share of the samples: `hold.mix({a: 0.7, b: 0.3})`.

    Args:
        until: An epoch ends with the "first" dataset that ends; or when "all" have, while the others begin again.
    """
    parts = [_weighted(part) for part in (datasets.items() if isinstance(datasets, Mapping) else datasets)]
    if not parts:
        raise ValueError("mix: expected at least one dataset, got none")
    source = MixSource([(dataset._source, dataset._settings, weight) for dataset, weight in parts], seed, until)
    first = parts[0][0]._settings
    return Mixture(source, Options(seed=seed, on_corrupt=first.on_corrupt, max_corrupt=first.max_corrupt))


def _weighted(part: Any) -> tuple[Dataset, float]:
    """Checks a dataset and its weight."""
    try:
        dataset, weight = part
    except TypeError:
        raise TypeError(f"mix: expected datasets with weights, as {{a: 0.7, b: 0.3}}, got {part!r}") from None
    if not isinstance(dataset, Dataset):
        raise TypeError(f"mix: expected datasets of hold.read(), got {dataset!r}")
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not 0 < float(weight) < math.inf:
        raise ValueError(f"mix: expected weights above 0, got {weight!r}")
    allowed = {"seed", "window_bytes", "window_samples", "lanes", "on_corrupt", "max_corrupt"}
    if _changed(dataset._settings, Options()) - allowed:
        raise ValueError(
            "mix: expected datasets with at most a shuffle(), got one with more: call "
            "shard(), map(), take(), repeat(), limits() and batch() on the result of mix()"
        )
    return dataset, float(weight)


def concat(datasets: Sequence[Dataset[U]]) -> Dataset[U]:
    """Concatenates datasets of the same columns: `hold.concat([a, b])`. A shuffle() of the result is over all of them.

    shuffle(), functions, batch() and all other calls come after it.
    """
    listed = list(datasets)
    if not listed or not all(isinstance(one, Dataset) for one in listed):
        raise TypeError(f"concat: expected datasets of hold.read(), got {datasets!r}")
    first = listed[0]._settings
    plain = Options(on_corrupt=first.on_corrupt, max_corrupt=first.max_corrupt)
    for one in listed:
        changed = _changed(one._settings, plain)
        if {"on_corrupt", "max_corrupt"} & changed:
            raise ValueError("concat: expected datasets that were read with the same on_corrupt and max_corrupt")
        if changed:
            raise ValueError(
                "concat: expected datasets of hold.read(), select(), split() and concat(), got one with more: "
                "call shuffle(), shard(), map(), take() and batch() on the result of concat()"
            )
    return Dataset(ConcatSource([one._files("concat") for one in listed]), plain)


def _changed(options: Options, base: Options) -> set[str]:
    """Returns the names of options that differ."""
    return {field.name for field in fields(base) if getattr(options, field.name) != getattr(base, field.name)}


def _shares(parts: Mapping[str, Any]) -> dict[str, Fraction | int]:
    """Checks the parts of a split: fractions, or numbers of samples."""
    given = ", ".join(f"{name}={part!r}" for name, part in parts.items())
    if not parts:
        raise TypeError("split: expected parts by name, as split(train=0.9, val=0.1), got none")
    if taken := [name for name in parts if hasattr(Splits, name) or name == "names"]:
        raise ValueError(f"split: a part cannot be called {taken[0]!r}, which every tuple has as an attribute")
    are_counts = [isinstance(part, numbers.Integral) and not isinstance(part, bool) for part in parts.values()]
    if all(are_counts):
        return {name: as_int(f"split: {name}", part, 1) for name, part in parts.items()}
    if any(are_counts) or not all(is_number(part) and 0 < part <= 1 for part in parts.values()):
        raise ValueError(f"split: expected fractions above 0 up to 1, or numbers of samples, and not both, got {given}")
    shares = {name: Fraction(str(float(part))) for name, part in parts.items()}  # 0.1 is exactly a tenth
    if sum(shares.values()) > 1 + Fraction(1, 10**9):
        raise ValueError(f"split: expected fractions of at most 1 together, got {given}")
    return dict(shares)


def _warn_of_launcher() -> None:
    """Warns about ranks that all read everything: a common mistake that nothing else shows."""
    try:
        found = find_rank("auto")
    except InputError:
        return
    if found.world > 1:
        warnings.warn(
            f'this is {found}, and it reads all samples: call .shard("auto") to divide them, or .shard(None)',
            stacklevel=4,
        )


# ---- positions by the number of batches
#
# Frameworks fetch ahead in threads and processes of their own: what they fetched does not tell what was trained on.
# The number of batches that were taken does.


def state_after(
    dataset: Dataset, batches: int, *, epoch: int = 0, since: Mapping[str, Any] | None = None, at_most: bool = False
) -> dict[str, Any]:
    """Returns the state after a rank had `batches` batches from the beginning of `epoch` or from the state `since`.

    at_most: more batches than there are mean the end, instead of an error
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 0:
        raise ValueError(f"batches must be a non-negative integer, got {batches!r}")
    if not dataset._settings.batched:
        raise StateError("expected a dataset of batches, so that they can be counted: call .batch(…)")
    with dataset.iterate(epoch) as begun:
        if since is not None:
            begun.load_state_dict(since)
        state = begun.state_dict()
    stop = stop_epoch(dataset._settings, epoch, state["epoch"])
    left = batches
    while left > (steps := steps_left(dataset, state["epoch"], state["done"])):
        if state["epoch"] + 1 == stop or not (steps or state["done"]):
            if at_most:
                break
            raise ValueError(f"expected at most the {batches - left + steps:,} batches that are left, got {batches:,}")
        left -= steps
        state |= {"epoch": state["epoch"] + 1, "done": 0}
    return state | {"done": _done(dataset, state["epoch"], state["done"], left)}


def steps_left(dataset: Dataset, epoch: int, done: int = 0) -> int:
    """Returns how many batches a rank still has in an epoch."""
    world = dataset._launch().world
    return batch_plan(dataset._settings, world).steps(dataset._source.order(dataset._settings, epoch), world, done)


def _done(dataset: Dataset, epoch: int, done: int, steps: int) -> int:
    if not steps:
        return done
    world = dataset._launch().world
    plan = batch_plan(dataset._settings, world)
    last = plan.last(dataset._source.order(dataset._settings, epoch))
    return min(last, max(done, plan.first) + steps * world * plan.batch)
