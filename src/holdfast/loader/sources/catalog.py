"""Whether a file is still the one that was looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..._util.atomic import FileStamp
from ...errors import (
    CorruptError,
    DataError,
    DecodeError,
    HoldfastError,
    InputError,
    SchemaError,
    UnfinishedError,
)
from ...formats.base import FramedShard, GivenSchema, Shard, open_damaged, open_repaired, open_shard
from ...formats.columns import Ints
from ...procfs.locks import writers_of
from ...schema import Column, Schema, check_schema
from ..options import OnCorrupt
from ..order.blocks import Blocks, cut_shard, join_blocks
from ..skipped import Loss
from .discovery import SourceSpec, open_files_shard
from .download_cache import DownloadCache
from .file_pool import FilePool, PoolStats, find_budget, is_emfile

if TYPE_CHECKING:
    from ...formats.tfrecord.diagnostics import Problem
    from ...formats.tfrecord.salvage import RepairMap


def changed(path: str, how: str) -> CorruptError:
    return CorruptError(path, None, None, f"it has changed since the reading was planned: {how}", "Plan it again")


def difference_in_stamp(then: FileStamp, now: FileStamp) -> str:
    if then.size != now.size:
        return f"{then.size:,} bytes then, {now.size:,} now"
    return "as long as before, but written to meanwhile"


# Damage that is found while the shards are looked at: what it costs, said before the first batch.


def is_damage(error: HoldfastError, file: str) -> bool:
    """Whether it lies in the file, and will on every rank.

    A schema that does not fit is a mistake; no free descriptor is another shard's trouble on another rank; and what a
    live process still writes will be another file when the next rank looks at it.
    """
    if isinstance(error, DecodeError) or is_emfile(error):
        return False
    return not (isinstance(error, UnfinishedError) and writers_of(file))


def losses_around(path: str, problems: Iterable[Problem]) -> tuple[Loss, ...]:
    found = []
    for problem in problems:
        reason = problem.reason
        if reason.endswith("left out") and problem.records_doubtful:
            reason += "; keep_doubtful=True reads them, which is right if no record holds TFRecords"
        found.append(Loss(path, problem.record or 0, "damaged", reason, problem.offset, problem.bytes_lost))
    return tuple(found)


def loss_of_shard(path: str, local: str, size_bytes: int, error: HoldfastError) -> Loss:
    """A shard that is left out as a whole. `local` is the file that was tried."""
    reason = error.reason if isinstance(error, DataError) else str(error).removeprefix(f"{local}: ")
    return Loss(path, 0, "unreadable", reason, 0, size_bytes)


def one_too_many(loss: Loss, most: int) -> CorruptError:
    return CorruptError(
        loss.path,
        None if loss.kind == "unreadable" else loss.record,
        loss.offset,
        f"{loss.reason}; that is one more than the {most:,} that max_corrupt lets be skipped",
        "Raise max_corrupt, or look at the files with `holdfast verify`",
    )


# The shards of one dataset, or of several that are mixed, under one numbering; open within one budget.


class ShardSet:
    """The shards of a catalog are numbered behind those of the one before. close() closes every file.

    columns: the names of the columns that are read. Each catalog has them by its own keys, with its own defaults.
    """

    def __init__(
        self, catalogs: Sequence[Catalog], open_files: int | Literal["auto"], columns: Collection[str]
    ) -> None:
        self._begins: Ints = np.concatenate([[0], np.cumsum([len(one) for one in catalogs])]).astype(np.int64)
        self.paths = [path for one in catalogs for path in one.paths]
        self._catalogs = list(catalogs)
        self._schemas: list[Schema] = [{name: one.schema[name] for name in columns} for one in catalogs]
        self._pools: list[FilePool[Shard]] = []
        # One budget for all: each taking half of what is free would take all of it.
        share = max(1, find_budget(open_files) // len(catalogs))
        with ExitStack() as undo:
            for catalog in catalogs:
                self._pools.append(catalog.pool(share))
                undo.callback(self._pools[-1].close)
            undo.pop_all()

    def __len__(self) -> int:
        return len(self.paths)

    @contextmanager
    def use(self, shard: int) -> Iterator[Shard]:
        """This shard, open until the end of the block at least."""
        at, number = self._find(shard)
        with self._catalogs[at].use(number, self._pools[at]) as found:
            yield found

    def _find(self, shard: int) -> tuple[int, int]:
        """The catalog a shard is in, and its number there."""
        at = int(np.searchsorted(self._begins, shard, "right")) - 1
        return at, shard - int(self._begins[at])

    def schema(self, shard: int) -> Schema:
        """The columns as this shard is to be read."""
        return self._schemas[self._find(shard)[0]]

    def seekable(self, shard: int) -> bool:
        """Whether single samples can be read without the rest of their shard."""
        at, number = self._find(shard)
        return self._catalogs[at].seekable(number)

    def single(self, shard: int) -> bool:
        """Whether one sample of it can be read for the price of its own bytes."""
        at, number = self._find(shard)
        return self._catalogs[at].single(number)

    @property
    def spare(self) -> int:
        """How many shards may be kept in use while others are used: half of them all, whichever catalog they are of."""
        return min(pool.budget for pool in self._pools) // 2

    @property
    def framed(self) -> bool:
        """Whether all samples can be taken undecoded, and decoded together later."""
        alike = all(one == self._schemas[0] for one in self._schemas)
        return alike and {catalog.framed for catalog in self._catalogs} in ({"all"}, {"header"})

    def apart(self, shard: int) -> bool:
        """Whether every sample of it is a file of its own."""
        at, number = self._find(shard)
        return self._catalogs[at].apart(number)

    def stats(self) -> PoolStats:
        each = [pool.stats() for pool in self._pools]
        return PoolStats(
            budget=sum(one.budget for one in each),
            open=sum(one.open for one in each),
            most=sum(one.most for one in each),
            opened=sum(one.opened for one in each),
            given_back=sum(one.given_back for one in each),
        )

    def close(self, *, in_use: bool = False) -> None:
        """`in_use`: also files whose users are gone, and were interrupted before they could release them."""
        for pool in self._pools:
            pool.close(in_use=in_use)


# What all shards of a dataset are, learned by opening each of them once: counts, sizes, columns, blocks.
#
# A catalog holds no file: it can be kept, pickled and shared. Files are open in the pool it makes for whoever reads.

OnProgress = Callable[[int, int], None]
Columns = dict[str, Column]

_AT_ONCE = 4  # shards looked at together: what is slow is waited for once, not in turn
_ALONE_S = 0.03
_TRIES = 3
_GUESSED = 32  # shards whose columns are found out; it takes milliseconds, so of many shards some, evenly spread

_ONE_SCHEMA = "Give a schema that says how to read both"
_OTHER_VERSION = "its store has another version of it now"


@dataclass(frozen=True, slots=True)
class _Known:
    """What stays of one shard when it is closed."""

    local: str  # the file that was opened
    stamp: FileStamp  # before it was opened
    count: int
    size_bytes: int
    seekable: bool
    single: bool
    framed: bool
    blocks: Blocks
    mended: RepairMap | None = None  # what is left of it, if it is damaged
    losses: tuple[Loss, ...] = ()


class Catalog:
    """The shards of `specs`, in that order. Making it opens each of them once, a few at a time.

    schema: the columns to be read, which the first sample of every shard is tried with. Without one all shards must
            have the columns that the first one has.
    cache:  brings URLs to this machine
    verify, labels_from_folders, on_corrupt, max_corrupt, keep_doubtful: as read() has them
    progress: called with how many shards of how many are done
    """

    _first: tuple[str, Columns] | None = None  # a shard with samples, and what is read of it

    def __init__(
        self,
        specs: Sequence[SourceSpec],
        schema: GivenSchema | None = None,
        *,
        cache: DownloadCache | None = None,
        verify: Literal["all", "header"] = "all",
        labels_from_folders: bool = False,
        on_corrupt: OnCorrupt = "raise",
        max_corrupt: int = 100,
        keep_doubtful: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        if not specs:
            raise InputError("expected at least one shard, got none")
        self.paths = [spec.path for spec in specs]
        self._specs = list(specs)
        self._numbers = {path: number for number, path in enumerate(self.paths)}
        self._given = None if schema is None else check_schema(schema)
        self._cache = cache
        self._verify, self._labels = verify, labels_from_folders
        self._on_corrupt, self._max_corrupt, self._keep_doubtful = on_corrupt, max_corrupt, keep_doubtful
        self._small_files: dict[int, Shard] = {}  # no descriptors to be spared, and a list that costs to make
        self._known: list[_Known] = self._look(progress)
        if self._first is None:
            names = ", ".join(self.paths[:4]) + (", …" if len(self) > 4 else "")
            why = f"; {self.losses[0]}" if self.losses else ""
            raise InputError(f"expected samples, got none in all {len(self):,} shards: {names}{why}")
        self.schema: Columns = self._first[1]
        self.counts: list[int] = [known.count for known in self._known]
        self.sizes_bytes: list[int] = [known.size_bytes for known in self._known]
        self._blocks: Blocks = join_blocks(known.blocks for known in self._known)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def empty(self) -> list[str]:
        """The shards without samples."""
        return [path for path, count in zip(self.paths, self.counts, strict=True) if not count]

    @property
    def losses(self) -> list[Loss]:
        """What of the shards cannot be read, as far as looking at them told."""
        return [loss for known in self._known for loss in known.losses]

    def seekable(self, number: int) -> bool:
        """False: a packed shard, which is best read whole."""
        return self._known[number].seekable

    def single(self, number: int) -> bool:
        """Whether one sample can be read for the price of its own bytes."""
        return self._known[number].single

    @property
    def framed(self) -> str | None:
        """Which CRCs are checked, if all samples can be taken undecoded."""
        return self._verify if all(known.framed for known in self._known) else None

    def apart(self, number: int) -> bool:
        """Whether every sample is a file of its own: reading them together gains nothing."""
        return self._specs[number].is_files

    def blocks(self) -> Blocks:
        """What is read in one go, over all shards in their order."""
        return self._blocks

    # ---- reading

    def pool(self, open_files: int | Literal["auto"] = "auto") -> FilePool[Shard]:
        """Shards open within a budget, for use(). Whoever asks for it closes it."""
        return FilePool(self._open_again, open_files)

    @contextmanager
    def use(self, number: int, pool: FilePool[Shard]) -> Iterator[Shard]:
        """Shard `number`, open until the end of the block at least."""
        if number in self._small_files:
            yield self._small_files[number]
            return
        with self._naming(number):
            self._keep_copy(number)
            with pool.use(self.paths[number]) as shard:
                yield shard

    def _open_again(self, path: str) -> Shard:
        """The shard as it was looked at, or an error that says it has changed."""
        number = self._numbers[path]
        known = self._known[number]
        if self._specs[number].is_remote:
            shard = (
                self._open(known.local, known.mended)
                if os.path.exists(known.local)
                else self._open_copy(path, known.mended)
            )
            how = _OTHER_VERSION if shard.path != known.local else ""
        else:
            stamp = FileStamp.of(path)
            if stamp.as_dict() != known.stamp.as_dict():
                raise changed(path, difference_in_stamp(known.stamp, stamp))
            shard, how = self._open(path, known.mended), ""
        if not how and len(shard) != known.count:
            how = f"it had {known.count:,} samples then, and has {len(shard):,} now"
        if how:
            shard.close()
            raise changed(path, how)
        return shard

    def _keep_copy(self, number: int) -> None:
        """A copy in use must not be the next to go. What is unpacked for every read must be there by its name."""
        if self._cache is None or not self._specs[number].is_remote:
            return
        known = self._known[number]
        is_there = self._cache.touch(known.local)
        if not is_there and not known.seekable and self._cache.fetch(self.paths[number]) != known.local:
            raise changed(self.paths[number], _OTHER_VERSION)

    # ---- looking

    def _look(self, progress: OnProgress | None) -> list[_Known]:
        found: list[_Known] = []
        lost = 0

        def add(known: _Known) -> None:
            nonlocal lost
            found.append(known)
            for loss in known.losses:
                lost += 1
                if lost > self._max_corrupt:
                    raise one_too_many(loss, self._max_corrupt)
            if progress:
                progress(len(found), len(self))

        with FilePool(self._open, _AT_ONCE) as pool:
            # One after the other up to the first with samples: the rest is compared with it. And on like that as long
            # as nobody would notice: a few files on a disk are looked at before threads are there.
            begun = monotonic()
            while len(found) < len(self) and (self._first is None or monotonic() - begun < _ALONE_S):
                add(self._learn(len(found), pool))
            if len(found) == len(self):
                return found
            workers = ThreadPoolExecutor(self._at_once(found), "holdfast-look")
            try:
                for known in workers.map(lambda number: self._learn(number, pool), range(len(found), len(self))):
                    add(known)
            finally:
                workers.shutdown(cancel_futures=True)
        return found

    def _at_once(self, found: list[_Known]) -> int:
        """In a cache for few copies one would drive out the other."""
        size_bytes = max(known.size_bytes for known in found)
        few = self._cache is not None and self._cache.most_bytes < 2 * _AT_ONCE * size_bytes
        return 1 if few else _AT_ONCE

    def _learn(self, number: int, pool: FilePool[Shard]) -> _Known:
        spec = self._specs[number]
        if self._on_corrupt == "raise" or spec.is_files:
            return self._learn_whole(number, pool)
        try:
            return self._learn_whole(number, pool)
        except (DataError, InputError) as error:
            if not self._lies_in_file(number, error):
                raise
            with self._naming(number):
                return self._learn_rest(number, self._brought(spec.path) if spec.is_remote else spec.path, error)

    def _learn_rest(self, number: int, local: str, error: HoldfastError) -> _Known:
        """What can be had of a damaged shard: the samples around its damages, or nothing."""
        try:
            stamp = FileStamp.of(local)
            mended = open_damaged(
                local,
                verify=self._verify,
                salvage=self._on_corrupt == "salvage",
                most=self._max_corrupt + 1,
                keep_doubtful=self._keep_doubtful,
            )
            if mended is not None:
                with mended:
                    known = self._facts(number, mended, stamp)
                losses = losses_around(self.paths[number], mended.layout.problems)
                return replace(known, mended=mended.layout, losses=losses)
        except (DataError, InputError) as worse:
            if not self._lies_in_file(number, worse):
                raise
            error = worse
        size_bytes = os.path.getsize(local) if os.path.exists(local) else 0
        lost = loss_of_shard(self.paths[number], local, size_bytes, error)
        nothing = join_blocks([])
        return _Known(local, FileStamp(size_bytes, 0, 0, 0), 0, size_bytes, True, False, True, nothing, losses=(lost,))

    def _lies_in_file(self, number: int, error: HoldfastError) -> bool:
        """Not if it lies in the way to it: a copy that was made can be read, so the store or the cache is at fault."""
        spec = self._specs[number]
        return is_damage(error, spec.path) and not (spec.is_remote and isinstance(error, InputError))

    def _learn_whole(self, number: int, pool: FilePool[Shard]) -> _Known:
        spec = self._specs[number]
        if spec.is_files:
            shard = self._small_files[number] = open_files_shard(spec, self._labels)
            return self._facts(number, shard, FileStamp(shard.bytes_of(0, len(shard)), 0, 0, 0))
        if spec.is_remote:
            with self._naming(number), self._open_copy(spec.path) as shard:
                return self._facts(number, shard, FileStamp.of(shard.path))
        stamp = FileStamp.of(spec.path)
        with pool.use(spec.path) as shard:
            return self._facts(number, shard, stamp)

    def _open(self, path: str, mended: RepairMap | None = None) -> Shard:
        if mended is not None:
            return open_repaired(path, mended, verify=self._verify)
        return open_shard(path, self._given, verify=self._verify)

    def _facts(self, number: int, shard: Shard, stamp: FileStamp) -> _Known:
        if len(shard):
            self._check_columns(number, shard)
        single = shard.seekable and shard.rows_per_chunk == 1
        framed = isinstance(shard, FramedShard)
        return _Known(shard.path, stamp, len(shard), stamp.size, shard.seekable, single, framed, _cut(number, shard))

    def _check_columns(self, number: int, shard: Shard) -> None:
        """What a shard has is tried with what was given, or compared with the first one."""
        path = self.paths[number]
        if self._first is None:
            self._first = path, shard.schema if self._given is None else self._given
        first, wanted = self._first
        try:
            shard.read(0, 1, wanted)
        except DataError as error:
            # A part of hold.write without a column that another format has elsewhere is not damaged.
            if self._given is None and (isinstance(error, DecodeError) or self._on_corrupt == "raise"):
                _must_agree(first, wanted, path, shard.schema)
            raise
        if self._given is None and number % max(1, len(self) // _GUESSED) == 0:
            _must_agree(first, wanted, path, shard.schema)

    # ---- URLs

    def _brought(self, url: str) -> str:
        if self._cache is None:
            self._cache = DownloadCache()
        return self._cache.fetch(url)

    def _open_copy(self, url: str, mended: RepairMap | None = None) -> Shard:
        for _ in range(_TRIES):
            local = self._brought(url)
            try:
                return self._open(local, mended)
            except InputError:
                if os.path.exists(local):
                    raise
        raise InputError(f"{url}: other processes remove its copy as soon as it is here: expected a larger cache")

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Errors name the URL, not the copy."""
        try:
            yield
        except (DataError, InputError) as error:
            folder = str(self._cache.folder) if self._cache is not None and self._specs[number].is_remote else None
            if folder is None or folder not in str(error):
                raise
            url = self.paths[number]
            if isinstance(error, DataError):
                raise type(error)(url, error.record, error.offset, error.reason, error.hint) from error
            raise InputError(f"{url}: {error}") from error


def _cut(number: int, shard: Shard) -> Blocks:
    """A shard's blocks, cut between its chunks."""
    count, chunk = len(shard), shard.rows_per_chunk
    if chunk == 1:
        return cut_shard(number, count, shard.bytes_of, whole=not shard.seekable)
    cut = cut_shard(
        number,
        -(-count // chunk),
        lambda start, stop: shard.bytes_of(min(start * chunk, count), min(stop * chunk, count)),
        whole=not shard.seekable,
    )
    first = cut.first * chunk
    return Blocks(cut.shard, first, np.diff(np.append(first, count)), cut.size_bytes)


def _must_agree(first: str, wanted: Columns, path: str, got: Columns) -> None:
    for name in [*wanted, *(name for name in got if name not in wanted)]:
        if wanted.get(name) != got.get(name):
            by_key = name in wanted and name in got and wanted[name].holds_same(got[name])
            raise SchemaError(
                f"{path}: column {name!r} is {got.get(name, 'missing')!s}, but {wanted.get(name, 'missing')!s} "
                f"in {first}. " + ("Read each by itself, and join them with hold.concat" if by_key else _ONE_SCHEMA)
            )
