"""The shards of a dataset: what each is, learned by opening it once, and open files for reading them.

A Catalog holds no file: it can be kept, pickled and shared. A ShardSet reads the shards of one or more catalogs, with
open files within one budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...._util.atomic import FileStamp
from ....errors import CorruptError, DataError, DecodeError, HoldfastError, InputError, SchemaError, UnfinishedError
from ....procfs.locks import writers_of
from ....schema import Column, Ragged, Schema, check_schema
from ...formats.base import (
    FramedShard,
    GivenSchema,
    Lacking,
    Problem,
    Shard,
    find_lacking,
)
from ...formats.columns import Ints
from ...formats.registry import find_format, open_shard
from ...inputs import SourceSpec
from ..options import OnCorrupt
from ..order.blocks import Blocks, cut_shard, join_blocks
from ..stats import SkippedSample
from .download_cache import DownloadCache
from .file_pool import FilePool, PoolStats, find_budget, is_emfile
from .small_files import open_files_shard

if TYPE_CHECKING:
    from ...formats.tfrecord.salvage import RepairMap


OnProgress = Callable[[int, int], None]
Columns = dict[str, Column]

_SCAN_THREADS = 4
_ALONE_S = 0.03  # scanning takes so long before threads are started
_TRIES = 3
_COMPARED = 32  # shards whose schema is inferred; it takes milliseconds, so of many shards only some, evenly spread

_SCANNED = 10_000  # samples in which a list must appear; in each of many shards, a hundredth of them

_ONE_SCHEMA = "Give a schema that says how to read both"
_OTHER_VERSION = "its store has another version of it now"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What is known of a shard without opening it.

    local:       the file that was opened: a copy, if `path` is a URL
    stamp:       of that file, before it was opened
    seekable:    False: compressed, and best read from start to end
    single:      one sample can be read for the price of its own bytes
    framed:      samples can be read undecoded
    is_files:    every sample is a file of its own, so reading them together gains nothing
    repair_map:  the readable samples, if the shard is corrupt
    """

    path: str
    local: str
    stamp: FileStamp
    count: int
    size_bytes: int
    seekable: bool
    single: bool
    framed: bool
    is_files: bool
    blocks: Blocks
    repair_map: RepairMap | None = None
    losses: tuple[SkippedSample, ...] = ()


class Catalog:
    """The shards of `specs`, in that order. Making it opens each of them once, a few at a time.

    schema: the columns to be read, which the first sample of every shard is tried with. Without one all shards must
            have the columns that the first one has.
    cache:  downloads URLs to this machine
    verify, labels_from_folders, on_corrupt, max_corrupt, keep_doubtful, allow_external: as read() has them
    directory: the working directory that relative paths begin in; by default the current one
    progress: called with how many shards of how many are done
    """

    _keys: Sequence[str] = ()  # of samples that lack a list
    _first: tuple[str, Columns] | None = None  # a shard with samples, and its columns

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
        allow_external: bool = False,
        directory: str | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        if not specs:
            raise InputError("expected at least one shard, got none")
        self.paths = [spec.path for spec in specs]
        self._specs = list(specs)
        self._numbers = {path: number for number, path in enumerate(self.paths)}
        self._given = None if schema is None else check_schema(schema)
        self._cache = cache
        self._directory = os.getcwd() if directory is None else directory
        self._verify, self._labels, self._allow_external = verify, labels_from_folders, allow_external
        self._on_corrupt, self._max_corrupt, self._keep_doubtful = on_corrupt, max_corrupt, keep_doubtful
        self._files_shards: dict[int, Shard] = {}  # these hold no descriptor, and their list of files is slow to make
        columns = (self._given or {}).items()
        self._unseen: Columns = {name: one for name, one in columns if isinstance(one, Ragged) and one.default is None}
        self._scanned = 0
        self.shards: list[ShardInfo] = self._scan(progress)
        if self._first is None:
            names = ", ".join(self.paths[:4]) + (", …" if len(self) > 4 else "")
            why = f"; {self.losses[0]}" if self.losses else ""
            raise InputError(f"expected samples, got none in all {len(self):,} shards: {names}{why}")
        if self._unseen:
            lacking = Lacking(self._unseen, self._scanned, self._keys)
            raise lacking.error("If only a few have it, or none must, give the column default=[]")
        self.schema: Columns = self._first[1]
        self.counts: list[int] = [shard.count for shard in self.shards]
        self.sizes_bytes: list[int] = [shard.size_bytes for shard in self.shards]
        self.blocks: Blocks = join_blocks(shard.blocks for shard in self.shards)  # of all shards, in order

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def losses(self) -> list[SkippedSample]:
        """The corrupt records that were found when the shards were opened."""
        return [loss for shard in self.shards for loss in shard.losses]

    @property
    def framed(self) -> str | None:
        """Which CRCs are checked, if all samples can be read undecoded."""
        return self._verify if all(shard.framed for shard in self.shards) else None

    # ---- reading

    def pool(self, open_files: int | Literal["auto"] = "auto") -> FilePool[Shard]:
        """Returns a pool of open shards for use(). The caller closes it."""
        if self._cache is None:
            return FilePool(self._reopen, open_files)
        # An evicted copy takes up space as long as it is open.
        return FilePool(self._reopen, open_files, size_of=self._copy_bytes, max_bytes=self._cache.max_bytes)

    def _copy_bytes(self, path: str) -> int:
        number = self._numbers[path]
        return self.shards[number].size_bytes if self._specs[number].is_remote else 0

    @contextmanager
    def use(self, number: int, pool: FilePool[Shard]) -> Iterator[Shard]:
        """Yields shard `number`, open at least until the end of the block."""
        if number in self._files_shards:
            yield self._files_shards[number]
            return
        with self._naming_url(number):
            self._touch_copy(number)
            with pool.use(self.paths[number]) as shard:
                try:
                    yield shard
                except DataError:
                    self._check_unchanged(number, shard)
                    raise
                self._check_unchanged(number, shard)

    def _check_unchanged(self, number: int, shard: Shard) -> None:
        """Raises a CorruptError if a shard was written to since the scan. Most data have no checksums: HDF5 reads what
        was truncated meanwhile as zeros."""
        then, now = self.shards[number].stamp, shard.stamp()
        if now is not None and now.as_dict() != then.as_dict():
            raise changed(self.paths[number], stamp_difference(then, now))

    def _reopen(self, path: str) -> Shard:
        """Opens a shard again. Raises CorruptError if it has changed since the scan."""
        number = self._numbers[path]
        info = self.shards[number]
        if self._specs[number].is_remote:
            is_here = os.path.exists(info.local)
            shard = self._open(info.local, info.repair_map) if is_here else self._open_copy(path, info.repair_map)
            how = _OTHER_VERSION if shard.path != info.local else ""
        else:
            stamp = FileStamp.of(self._now_at(path))
            if stamp.as_dict() != info.stamp.as_dict():
                raise changed(path, stamp_difference(info.stamp, stamp))
            shard, how = self._open(path, info.repair_map), ""
        if not how and len(shard) != info.count:
            how = f"it had {info.count:,} samples then, and has {len(shard):,} now"
        if how:
            shard.close()
            raise changed(path, how)
        return shard

    def _touch_copy(self, number: int) -> None:
        """Keeps the cache from evicting a copy in use. A compressed one is opened by name for every read."""
        if self._cache is None or not self._specs[number].is_remote:
            return
        info = self.shards[number]
        is_here = self._cache.touch(info.local)
        if not is_here and not info.seekable and self._cache.fetch(info.path) != info.local:
            raise changed(info.path, _OTHER_VERSION)

    # ---- the scan

    def _scan(self, progress: OnProgress | None) -> list[ShardInfo]:
        found: list[ShardInfo] = []
        lost = 0

        def add(info: ShardInfo) -> None:
            nonlocal lost
            found.append(info)
            for loss in info.losses:
                lost += 1
                if lost > self._max_corrupt:
                    raise too_many_losses(loss, self._max_corrupt)
            if progress:
                progress(len(found), len(self))

        with FilePool(self._open, _SCAN_THREADS) as pool:
            # One after the other up to the first shard with samples, which the others are compared with. Then a little
            # longer: a few files on a disk are scanned before threads could start.
            begun = monotonic()
            while len(found) < len(self) and (self._first is None or monotonic() - begun < _ALONE_S):
                add(self._scan_shard(len(found), pool))
            if len(found) == len(self):
                return found
            threads = ThreadPoolExecutor(self._scan_threads(found), "holdfast-scan")
            try:
                for info in threads.map(lambda number: self._scan_shard(number, pool), range(len(found), len(self))):
                    add(info)
            finally:
                threads.shutdown(cancel_futures=True)
        return found

    def _scan_threads(self, found: list[ShardInfo]) -> int:
        """Returns 1 where the cache holds so few copies that parallel downloads would evict each other."""
        size_bytes = max(info.size_bytes for info in found)
        is_small = self._cache is not None and self._cache.max_bytes < 2 * _SCAN_THREADS * size_bytes
        return 1 if is_small else _SCAN_THREADS

    def _scan_shard(self, number: int, pool: FilePool[Shard]) -> ShardInfo:
        spec = self._specs[number]
        if self._on_corrupt == "raise" or spec.is_files:
            return self._scan_intact(number, pool)
        try:
            return self._scan_intact(number, pool)
        except (DataError, InputError) as error:
            if not self._is_in_file(number, error):
                raise
            with self._naming_url(number):
                return self._scan_corrupt(number, self._download(spec.path) if spec.is_remote else spec.path, error)

    def _scan_intact(self, number: int, pool: FilePool[Shard]) -> ShardInfo:
        spec = self._specs[number]
        if spec.is_files:
            shard = self._files_shards[number] = open_files_shard(spec, self._now_at(spec.path), self._labels)
            return self._info_of(number, shard, FileStamp(shard.bytes_of(0, len(shard)), 0, 0, 0))
        if spec.is_remote:
            with self._naming_url(number), self._open_copy(spec.path) as shard:
                return self._info_of(number, shard, FileStamp.of(shard.path))
        stamp = FileStamp.of(self._now_at(spec.path))
        with pool.use(spec.path) as shard:
            return self._info_of(number, shard, stamp)

    def _scan_corrupt(self, number: int, local: str, error: HoldfastError) -> ShardInfo:
        """Finds the readable samples of a corrupt shard; there may be none."""
        path = self.paths[number]
        try:
            stamp = FileStamp.of(self._now_at(local))
            open_damaged = find_format(self._now_at(local)).open_damaged
            if open_damaged is not None:
                repaired = open_damaged(
                    self._now_at(local),
                    verify=self._verify,
                    salvage=self._on_corrupt == "salvage",
                    maximum=self._max_corrupt + 1,
                    keep_doubtful=self._keep_doubtful,
                )
                with repaired:
                    info = self._info_of(number, repaired, stamp)
                losses = losses_in_shard(path, repaired.layout.problems)
                return replace(info, repair_map=repaired.layout, losses=losses)
        except (DataError, InputError) as worse:
            if not self._is_in_file(number, worse):
                raise
            error = worse
        size_bytes = os.path.getsize(local) if os.path.exists(local) else 0
        return ShardInfo(
            path=path,
            local=local,
            stamp=FileStamp(size_bytes, 0, 0, 0),
            count=0,
            size_bytes=size_bytes,
            seekable=True,
            single=False,
            framed=True,
            is_files=False,
            blocks=join_blocks([]),
            losses=(loss_of_shard(path, local, size_bytes, error),),
        )

    def _is_in_file(self, number: int, error: HoldfastError) -> bool:
        """Whether the file itself is at fault. An InputError of a URL is the store's or the cache's."""
        spec = self._specs[number]
        return is_corruption(error, spec.path) and not (spec.is_remote and isinstance(error, InputError))

    def _open(self, path: str, repair_map: RepairMap | None = None) -> Shard:
        path = self._now_at(path)
        if repair_map is not None:
            return repair_map.open(path, verify=self._verify)
        return open_shard(path, self._given, verify=self._verify, allow_external=self._allow_external)

    def _now_at(self, path: str) -> str:
        """Returns a path of the directory that read() was called in, as seen from the working directory of now. Errors
        name files as the user did while both are the same."""
        try:
            is_same = os.path.isabs(path) or os.getcwd() == self._directory
        except FileNotFoundError:  # it was deleted
            is_same = False
        return path if is_same else os.path.join(self._directory, path)

    def _info_of(self, number: int, shard: Shard, stamp: FileStamp) -> ShardInfo:
        if len(shard):
            self._check_columns(number, shard)
        return ShardInfo(
            path=self.paths[number],
            local=shard.path,
            stamp=stamp,
            count=len(shard),
            size_bytes=stamp.size,
            seekable=shard.seekable,
            single=shard.seekable and shard.rows_per_chunk == 1,
            framed=isinstance(shard, FramedShard),
            is_files=self._specs[number].is_files,
            blocks=_cut_blocks(number, shard),
        )

    def _check_columns(self, number: int, shard: Shard) -> None:
        """Reads the first sample with the given schema, or compares the columns with those of the first shard."""
        path = self.paths[number]
        if self._unseen:
            self._find_lists(shard)
        if self._first is None:
            self._first = path, shard.schema if self._given is None else self._given
        first, expected = self._first
        try:
            shard.read(0, 1, expected)
        except DataError as error:
            # A part of hold.write without a column that another format stores elsewhere is not corrupt.
            if self._given is None and (isinstance(error, DecodeError) or self._on_corrupt == "raise"):
                _check_equal(first, expected, path, shard.schema)
            raise
        if self._given is None and number % max(1, len(self) // _COMPARED) == 0:
            _check_equal(first, expected, path, shard.schema)

    def _find_lists(self, shard: Shard) -> None:
        """Looks for the lists that no sample had so far. Threads look at the same time."""
        try:
            lacking = find_lacking(shard, dict(self._unseen), max(_SCANNED - self._scanned, _SCANNED // 100))
        except DataError:  # reading reports it
            self._unseen.clear()
            return
        self._scanned, self._keys = self._scanned + lacking.looked, lacking.keys
        for name in set(self._unseen) - set(lacking.columns):
            self._unseen.pop(name, None)

    # ---- URLs

    def _download(self, url: str) -> str:
        if self._cache is None:
            self._cache = DownloadCache()
        return self._cache.fetch(url)

    def _open_copy(self, url: str, repair_map: RepairMap | None = None) -> Shard:
        for _ in range(_TRIES):
            local = self._download(url)
            try:
                return self._open(local, repair_map)
            except InputError:
                if os.path.exists(local):
                    raise
        raise InputError(f"{url}: other processes evict its copy as soon as it is here: expected a larger cache")

    @contextmanager
    def _naming_url(self, number: int) -> Iterator[None]:
        """Makes errors name the URL instead of the copy."""
        try:
            yield
        except (DataError, InputError) as error:
            folder = str(self._cache.folder) if self._cache is not None and self._specs[number].is_remote else None
            url = self.paths[number]
            if folder is None or folder not in str(error) or str(error).startswith(url):
                raise
            if isinstance(error, DataError):
                raise type(error)(url, error.record, error.offset, error.reason, error.hint) from error
            raise InputError(f"{url}: {error}") from error


def _cut_blocks(number: int, shard: Shard) -> Blocks:
    """Cuts a shard into blocks at the boundaries of its chunks."""
    count, chunk = len(shard), shard.rows_per_chunk
    if chunk == 1:
        return cut_shard(number, count, shard.bytes_of, one_block=not shard.seekable)
    cut = cut_shard(
        number,
        -(-count // chunk),
        lambda start, stop: shard.bytes_of(min(start * chunk, count), min(stop * chunk, count)),
        one_block=not shard.seekable,
    )
    first = cut.first * chunk
    return Blocks(cut.shard, first, np.diff(np.append(first, count)), cut.size_bytes)


def _check_equal(first: str, expected: Columns, path: str, got: Columns) -> None:
    for name in [*expected, *(name for name in got if name not in expected)]:
        if expected.get(name) != got.get(name):
            by_key = name in expected and name in got and expected[name].holds_same(got[name])
            raise SchemaError(
                f"{path}: column {name!r} is {got.get(name, 'missing')!s}, but {expected.get(name, 'missing')!s} "
                f"in {first}. " + ("Read each by itself, and join them with hold.concat" if by_key else _ONE_SCHEMA)
            )


class ShardSet:
    """The shards of one or more catalogs, numbered one catalog after the other. close() closes every file.

    columns: the names of the columns that are read. Each catalog has its own keys and defaults for them.
    """

    def __init__(
        self, catalogs: Sequence[Catalog], open_files: int | Literal["auto"], columns: Collection[str]
    ) -> None:
        self._begins: Ints = np.concatenate([[0], np.cumsum([len(one) for one in catalogs])]).astype(np.int64)
        self.infos = [info for one in catalogs for info in one.shards]
        self.paths = [info.path for info in self.infos]
        self._catalogs = list(catalogs)
        self._schemas: list[Schema] = [{name: one.schema[name] for name in columns} for one in catalogs]
        self._pools: list[FilePool[Shard]] = []
        # One budget for all: with "auto", each pool would take half of what is free.
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
        """Yields a shard, open at least until the end of the block."""
        at = self._catalog_of(shard)
        with self._catalogs[at].use(shard - int(self._begins[at]), self._pools[at]) as opened:
            yield opened

    def _catalog_of(self, shard: int) -> int:
        return int(np.searchsorted(self._begins, shard, "right")) - 1

    def schema(self, shard: int) -> Schema:
        """Returns the columns with the keys and defaults of this shard's catalog."""
        return self._schemas[self._catalog_of(shard)]

    @property
    def spare(self) -> int:
        """How many shards may be kept in use while others are used: half of the budget of any catalog."""
        return min(pool.budget for pool in self._pools) // 2

    @property
    def framed(self) -> bool:
        """Whether all samples can be read undecoded, and decoded together later."""
        alike = all(one == self._schemas[0] for one in self._schemas)
        return alike and {catalog.framed for catalog in self._catalogs} in ({"all"}, {"header"})

    def stats(self) -> PoolStats:
        each = [pool.stats() for pool in self._pools]
        return PoolStats(
            budget=sum(one.budget for one in each),
            open=sum(one.open for one in each),
            maximum=sum(one.maximum for one in each),
            opened=sum(one.opened for one in each),
            given_back=sum(one.given_back for one in each),
        )

    def close(self, *, in_use: bool = False) -> None:
        """`in_use`: also files whose users are gone, and were interrupted before they could release them."""
        for pool in self._pools:
            pool.close(in_use=in_use)


# ---- changed and corrupt files


def changed(path: str, how: str) -> CorruptError:
    return CorruptError(
        path, None, None, f"the file has changed since the dataset was opened: {how}", "Open the dataset again"
    )


def stamp_difference(then: FileStamp, now: FileStamp) -> str:
    if then.size != now.size:
        return f"{then.size:,} bytes then, {now.size:,} now"
    return "the same size, but a newer modification time"


def is_corruption(error: HoldfastError, file: str) -> bool:
    """Whether the fault is in the file, and every rank will find it there.

    A schema that does not fit is a mistake; a lack of descriptors may hit another shard on another rank; and a file
    that a live process still writes will differ when the next rank opens it.
    """
    if isinstance(error, DecodeError) or is_emfile(error):
        return False
    return not (isinstance(error, UnfinishedError) and writers_of(file))


def losses_in_shard(path: str, problems: Iterable[Problem]) -> tuple[SkippedSample, ...]:
    found = []
    for problem in problems:
        reason = problem.reason
        if reason.endswith("left out") and problem.records_doubtful:
            reason += "; keep_doubtful=True reads them, which is right if no record holds TFRecords"
        found.append(SkippedSample(path, problem.record or 0, "damaged", reason, problem.offset, problem.bytes_lost))
    return tuple(found)


def loss_of_shard(path: str, local: str, size_bytes: int, error: HoldfastError) -> SkippedSample:
    """Returns the loss of a shard that is left out. `local` is the file that was opened."""
    reason = error.reason if isinstance(error, DataError) else str(error).removeprefix(f"{local}: ")
    return SkippedSample(path, 0, "unreadable", reason, 0, size_bytes)


def too_many_losses(loss: SkippedSample, limit: int) -> CorruptError:
    return CorruptError(
        loss.path,
        None if loss.kind == "unreadable" else loss.record,
        loss.offset,
        f"{loss.reason}; that is one more than the {limit:,} that max_corrupt allows to be skipped",
        "Raise max_corrupt, or check the files with `holdfast verify`",
    )
