"""The shards of a dataset: what each is, and open files for reading them.

What a shard is, is learned by opening it once; the index of its folder knows it from then on, as long as the file does
not change. A Catalog holds no file: it can be kept, pickled and shared. A ShardSet reads the shards of one or more
catalogs, with open files within one budget.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ...._util.atomic import FileStamp
from ....errors import (
    CorruptError,
    DataError,
    DecodeError,
    HoldfastError,
    InputError,
    SchemaError,
    UnfinishedError,
    WriteError,
)
from ....procfs.locks import writers_of
from ....schema import Column, Ragged, Schema, check_schema
from ...formats import folder_index
from ...formats.base import (
    FramedShard,
    GivenSchema,
    Lacking,
    PlacedShard,
    Problem,
    Shard,
    find_lacking,
)
from ...formats.columns import Ints
from ...formats.folder_index import NO_BLOCKS, Entry, FileKey, await_tick
from ...formats.registry import find_format, open_shard
from ...inputs import SourceSpec, is_url, stat_file
from ..options import OnCorrupt
from ..order.blocks import Blocks, cut_shard
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
_SCANNED_TOGETHER = 4096  # shards that are handed to the threads at once
_TRIES = 3
_COMPARED = 32  # shards whose schema is inferred; it takes milliseconds, so of many shards only some, evenly spread

_SCANNED = 10_000  # samples in which a list must appear; in each of many shards, a hundredth of them

_ONE_SCHEMA = "Give a schema that says how to read both"
_OTHER_VERSION = "its store has another version of it now"


# What is known of a shard without opening it. Columns, because there may be a million of them.
#
# size, mtime_ns: of the file when it was looked at; of small files, their sum and 0
# SEEKABLE:       not compressed; else it is best read from start to end
# SINGLE:         one sample can be read for the price of its own bytes
# FRAMED:         samples can be read undecoded
# FILES:          every sample is a file of its own, so reading them together gains nothing
# WHOLE:          the samples are all that a plain local file has, so that it can be read without opening a Shard
TABLE = np.dtype([("size", "<i8"), ("mtime_ns", "<i8"), ("count", "<i8"), ("flags", "<u4")])
SEEKABLE, SINGLE, FRAMED, FILES, WHOLE = 1, 2, 4, 8, 16


class _Scanned(NamedTuple):
    """What opening a shard told. `key`: the version of the file that was opened, if that is known."""

    size: int
    mtime_ns: int
    samples: int
    flags: int
    blocks: Ints = NO_BLOCKS
    local: str = ""  # the file that was opened: a copy, if the shard is a URL
    key: FileKey | None = None
    places: bytes = b""
    repair_map: RepairMap | None = None  # the readable samples, if the shard is corrupt
    losses: tuple[SkippedSample, ...] = ()


class Catalog:
    """The shards of `specs`, in that order. Making it opens each of them that no index knows once, a few at a time.

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
        self._given = None if schema is None else check_schema(schema)
        self._cache = cache
        self._directory = os.getcwd() if directory is None else directory
        self._verify, self._labels, self._allow_external = verify, labels_from_folders, allow_external
        self._on_corrupt, self._max_corrupt, self._keep_doubtful = on_corrupt, max_corrupt, keep_doubtful
        self._files_shards: dict[int, Shard] = {}  # these hold no descriptor, and their list of files is slow to make
        self._copies: dict[int, str] = {}  # of URLs
        self._repair_maps: dict[int, RepairMap] = {}
        self.losses: list[SkippedSample] = []  # the corrupt records that were found when the shards were opened
        columns = (self._given or {}).items()
        self._unseen: Columns = {name: one for name, one in columns if isinstance(one, Ragged) and one.default is None}
        self._n_lists = len(self._unseen)
        self._with_lists: set[int] = set()  # shards that have all of them
        self._scanned = 0
        self.table = np.zeros(len(specs), TABLE)
        self.blocks = _Scan(self, specs, progress).run()  # of all shards, in order
        if self._first is None:
            names = ", ".join(self.paths[:4]) + (", …" if len(self) > 4 else "")
            why = f"; {self.losses[0]}" if self.losses else ""
            raise InputError(f"expected samples, got none in all {len(self):,} shards: {names}{why}")
        self.schema: Columns = self._first[1]
        self.counts: list[int] = self.table["count"].tolist()
        self.sizes_bytes: list[int] = self.table["size"].tolist()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def framed(self) -> str | None:
        """Which CRCs are checked, if all samples can be read undecoded."""
        return self._verify if (self.table["flags"] & FRAMED).all() else None

    # ---- reading

    def pool(self, open_files: int | Literal["auto"] = "auto") -> FilePool[Shard]:
        """Returns a pool of open shards for use(). The caller closes it."""
        if self._cache is None:
            return FilePool(self._reopen, open_files)
        # An evicted copy takes up space as long as it is open.
        sizes = {self.paths[number]: self.sizes_bytes[number] for number in self._copies}
        size_of, max_bytes = (lambda path: sizes.get(path, 0)), self._cache.max_bytes
        return FilePool(self._reopen, open_files, size_of=size_of, max_bytes=max_bytes)

    @contextmanager
    def use(self, number: int, pool: FilePool[Shard], give_way: Callable[[], bool] = lambda: False) -> Iterator[Shard]:
        """Yields shard `number`, open at least until the end of the block. `give_way` closes files that are open for
        later, and returns whether there were some."""
        if number in self._files_shards:
            yield self._files_shards[number]
            return
        with self._naming_url(number):
            self._touch_copy(number)
            path = self.paths[number]
            try:
                entry, shard = pool.take(path, number)
            except InputError:
                if not give_way():
                    raise
                entry, shard = pool.take(path, number)
            try:
                try:
                    yield shard
                except DataError:
                    self._check_unchanged(number, shard)
                    raise
                self._check_unchanged(number, shard)
            finally:
                pool.release(entry)

    def _check_unchanged(self, number: int, shard: Shard) -> None:
        """Raises a CorruptError if a shard was written to since the scan. Most data have no checksums: HDF5 reads what
        was truncated meanwhile as zeros."""
        now = shard.stamp()
        if now is not None:
            self._compare(number, now)

    def _compare(self, number: int, now: FileStamp) -> None:
        size, mtime_ns = int(self.table["size"][number]), int(self.table["mtime_ns"][number])
        if (now.size, now.mtime_ns) != (size, mtime_ns):
            raise changed(self.paths[number], size_difference(size, now.size))

    def _reopen(self, path: str, number: int) -> Shard:
        """Opens a shard again. Raises CorruptError if it has changed since the scan."""
        repair_map, count, how = self._repair_maps.get(number), self.counts[number], ""
        if number in self._copies:
            local = self._copies[number]
            is_here = os.path.exists(local)
            shard = self._open(local, repair_map) if is_here else self._open_copy(path, repair_map)
            how = _OTHER_VERSION if shard.path != local else ""
        else:
            self._compare(number, FileStamp.of(self._now_at(path)))
            shard = self._open(path, repair_map)
        if not how and len(shard) != count:
            how = f"it had {count:,} samples then, and has {len(shard):,} now"
        if how:
            shard.close()
            raise changed(path, how)
        return shard

    def whole_files(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns where files that are WHOLE are."""
        try:
            is_here = os.getcwd() == self._directory
        except FileNotFoundError:  # it was deleted
            is_here = False
        paths = [self.paths[number] for number in numbers]
        return [os.fsencode(path if is_here else os.path.join(self._directory, path)) for path in paths]

    def _touch_copy(self, number: int) -> None:
        """Keeps the cache from evicting a copy in use. A compressed one is opened by name for every read."""
        if self._cache is None or number not in self._copies:
            return
        local, seekable = self._copies[number], self.table["flags"][number] & SEEKABLE
        is_here = self._cache.touch(local)
        if not is_here and not seekable and self._cache.fetch(self.paths[number]) != local:
            raise changed(self.paths[number], _OTHER_VERSION)

    # ---- the scan

    def _scan_shard(self, number: int, spec: SourceSpec) -> _Scanned:
        if self._on_corrupt == "raise" or spec.is_files:
            return self._scan_intact(number, spec)
        try:
            return self._scan_intact(number, spec)
        except (DataError, InputError) as error:
            if not self._is_in_file(spec, error):
                raise
            with self._naming_url(number):
                return self._scan_corrupt(
                    number, spec, self._download(spec.path) if spec.is_remote else spec.path, error
                )

    def _scan_intact(self, number: int, spec: SourceSpec) -> _Scanned:
        if spec.is_files:
            shard = self._files_shards[number] = open_files_shard(spec, self._now_at(spec.path), self._labels)
            return self._describe(number, shard, FileStamp(shard.bytes_of(0, len(shard)), 0, 0, 0))
        if spec.is_remote:
            with self._naming_url(number), self._open_copy(spec.path) as shard:
                info = stat_file(shard.path)
                found = self._describe(number, shard, FileStamp.of(shard.path))
                return found._replace(local=shard.path, key=info, flags=found.flags & ~WHOLE)
        local = self._now_at(spec.path)
        key = stat_file(local)
        with self._open(spec.path) as shard:
            found = self._describe(number, shard, FileStamp(key.size, key.mtime_ns, 0, key.inode))
        is_same = key == stat_file(local) and not self._allow_external
        return found._replace(key=key if is_same else None)

    def _scan_corrupt(self, number: int, spec: SourceSpec, local: str, error: HoldfastError) -> _Scanned:
        """Finds the readable samples of a corrupt shard; there may be none."""
        copy = local if spec.is_remote else ""
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
                    found = self._describe(number, repaired, stamp)
                losses = losses_in_shard(spec.path, repaired.layout.problems)
                return found._replace(
                    local=copy, places=b"", repair_map=repaired.layout, losses=losses, flags=found.flags & ~WHOLE
                )
        except (DataError, InputError) as worse:
            if not self._is_in_file(spec, worse):
                raise
            error = worse
        size_bytes = os.path.getsize(local) if os.path.exists(local) else 0
        loss = loss_of_shard(spec.path, local, size_bytes, error)
        return _Scanned(size_bytes, 0, 0, SEEKABLE | FRAMED, local=copy, losses=(loss,))

    def _is_in_file(self, spec: SourceSpec, error: HoldfastError) -> bool:
        """Whether the file itself is at fault. An InputError of a URL is the store's or the cache's."""
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

    def _describe(self, number: int, shard: Shard, stamp: FileStamp) -> _Scanned:
        if len(shard):
            self._check_columns(number, shard)
        flags = SEEKABLE * shard.seekable | SINGLE * (shard.seekable and shard.rows_per_chunk == 1)
        flags |= _flags_of(type(shard)) | FILES * (number in self._files_shards)
        cut = _cut_blocks(number, shard)
        blocks = np.stack([cut.first, cut.count, cut.size_bytes])
        places = getattr(shard, "places", b"")
        return _Scanned(stamp.size, stamp.mtime_ns, len(shard), flags, blocks, places=places)

    def _check_columns(self, number: int, shard: Shard) -> None:
        """Reads the first sample with the given schema, or compares the columns with those of the first shard."""
        path = self.paths[number]
        if self._unseen:
            self._find_lists(number, shard)
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

    def _find_lists(self, number: int, shard: Shard) -> None:
        """Looks for the lists that no sample had so far. Threads look at the same time."""
        unseen = dict(self._unseen)
        try:
            lacking = find_lacking(shard, unseen, max(_SCANNED - self._scanned, _SCANNED // 100))
        except DataError:  # reading reports it
            self._unseen.clear()
            return
        self._scanned, self._keys = self._scanned + lacking.looked, lacking.keys
        if not lacking.columns and len(unseen) == self._n_lists:
            self._with_lists.add(number)
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
            is_remote = self._cache is not None and is_url(self.paths[number])
            folder = str(self._cache.folder) if is_remote and self._cache is not None else None
            if folder is None or folder not in str(error):
                raise
            url = self.paths[number]
            if folder is None or folder not in str(error) or str(error).startswith(url):
                raise
            if isinstance(error, DataError):
                raise type(error)(url, error.record, error.offset, error.reason, error.hint) from error
            raise InputError(f"{url}: {error}") from error


@cache
def _flags_of(kind: type) -> int:
    """Returns what all shards of a class can do. Asking a protocol takes long."""
    return FRAMED * issubclass(kind, FramedShard) | WHOLE * issubclass(kind, PlacedShard)


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


def digest_of(columns: Columns, is_given: bool, has_lists: bool = False) -> int:
    """Hashes the columns that the first sample of a shard was read with; `has_lists`: some sample has all its lists."""
    text = repr([is_given, *(f"{name}={column!r}" for name, column in columns.items()), *["lists"] * has_lists])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1


class _Scan:
    """Learns what every shard of a catalog is: from the indexes of their folders, or by opening it."""

    def __init__(self, catalog: Catalog, specs: Sequence[SourceSpec], progress: OnProgress | None) -> None:
        self._catalog, self._specs, self._progress = catalog, specs, progress
        self._found: dict[int, _Scanned] = {}
        self._n_known = 0  # shards that an index knows
        self._known_blocks: list[tuple[Ints, Ints]] = []  # shards of the blocks, and the blocks
        self._lost = 0

    def run(self) -> Blocks:
        catalog = self._catalog
        for number in range(len(self._specs)):  # up to the first shard with samples, which others are compared with
            if catalog._given is not None or catalog._first is not None:
                break
            self._add(number, catalog._scan_shard(number, self._specs[number]))
        columns = (catalog._first or ("", catalog._given or {}))[1]
        self._columns = digest_of(columns, catalog._given is not None)
        self._lists = digest_of(columns, catalog._given is not None, has_lists=True)
        folders: dict[str, list[int]] = {}
        others = []
        for number, spec in enumerate(self._specs):
            if spec.is_files or spec.is_remote:
                others.append(number)
            else:
                folders.setdefault(spec.path[: spec.path.rfind("/") + 1] or ".", []).append(number)
        for folder, numbers in folders.items():
            self._scan_folder(catalog._now_at(folder), numbers)
        self._open_all([number for number in others if number not in self._found])
        if others and catalog._cache is not None:
            self._save(catalog._cache.folder, others)
        self._check_seen()
        return self._join_blocks()

    def _scan_folder(self, folder: str, numbers: list[int]) -> None:
        opened = [number for number in numbers if number in self._found]  # to learn the columns
        missing = self._look_up(folder, [number for number in numbers if number not in self._found])
        if not missing and all(self._is_stored(folder, number) for number in opened):
            return
        with folder_index.building(folder):
            missing = self._look_up(folder, missing)  # another process may have built it meanwhile
            try:
                self._open_all(missing)
            finally:
                self._save(folder, [number for number in numbers if number in self._found])

    def _is_stored(self, folder: str, number: int) -> bool:
        key = self._found[number].key
        name = os.fsencode(os.path.basename(self._specs[number].path))
        return key is None or any(index.find(name, key) is not None for index in folder_index.load(folder))

    def _look_up(self, folder: str, numbers: list[int]) -> list[int]:
        """Takes over what the indexes of a folder know. Returns the shards that they do not know."""
        for index in folder_index.load(folder) if numbers else ():
            rows = index.find_all([self._specs[number].path.rpartition("/")[2] for number in numbers])
            listed = chain.from_iterable(map(self._key, numbers))
            keys = np.fromiter(listed, np.int64, 4 * len(numbers)).reshape(-1, 4)
            table = index.rows[rows] if len(index) else np.zeros(len(rows), folder_index.ROW)
            good = (rows >= 0) & (table["size"] == keys[:, 0]) & (table["mtime_ns"] == keys[:, 1])
            if not index.is_beside:
                good &= (table["inode"] == keys[:, 2]) & (table["ctime_ns"] == keys[:, 3])
            good &= (table["columns"] == np.uint64(self._columns)).any(axis=1)
            there = np.array(numbers, np.int64)[good]
            for name in TABLE.names or ():
                self._catalog.table[name][there] = table[name][good]
            self._known_blocks.append((np.repeat(there, table["blocks"][good]), index.blocks_of(rows[good])))
            self._n_known += len(there)
            if (table["columns"][good] == np.uint64(self._lists)).any():
                self._catalog._unseen = {}
            numbers = np.array(numbers, np.int64)[~good].tolist()
        return numbers

    def _key(self, number: int) -> FileKey:
        return self._specs[number].key or stat_file(self._catalog._now_at(self._specs[number].path))

    def _open_all(self, numbers: list[int]) -> None:
        if not numbers:
            return
        scan, specs = self._catalog._scan_shard, self._specs
        await_tick(max((specs[number].key or (0, 0, 0, 0))[3] for number in numbers))
        begun, at = monotonic(), 0
        while at < len(numbers) and (self._catalog._first is None or monotonic() - begun < _ALONE_S):
            self._add(numbers[at], scan(numbers[at], specs[numbers[at]]))
            at += 1
        if at == len(numbers):
            return
        threads = ThreadPoolExecutor(self._threads(), "holdfast-scan")
        try:
            for first in range(at, len(numbers), _SCANNED_TOGETHER):
                some = numbers[first : first + _SCANNED_TOGETHER]
                for number, found in zip(some, threads.map(lambda one: scan(one, specs[one]), some), strict=True):
                    self._add(number, found)
        finally:
            threads.shutdown(cancel_futures=True)

    def _threads(self) -> int:
        """Returns 1 where the cache holds so few copies that parallel downloads would evict each other."""
        cache, size_bytes = self._catalog._cache, max((one.size for one in self._found.values()), default=0)
        is_small = cache is not None and cache.max_bytes < 2 * _SCAN_THREADS * size_bytes
        return 1 if is_small else _SCAN_THREADS

    def _add(self, number: int, found: _Scanned) -> None:
        catalog = self._catalog
        self._found[number] = found
        catalog.table[number] = found[:4]
        if found.local:
            catalog._copies[number] = found.local
        if found.repair_map is not None:
            catalog._repair_maps[number] = found.repair_map
        for loss in found.losses:
            self._lost += 1
            if self._lost > catalog._max_corrupt:
                raise too_many_losses(loss, catalog._max_corrupt)
        if self._progress:
            self._progress(self._n_known + len(self._found), len(self._specs))

    def _save(self, folder: str, numbers: list[int]) -> None:
        """Stores what was learned in the user's cache, if that is possible: it only saves time."""
        if self._catalog._unseen:
            return  # a list that no sample has is an error, and must be one the next time
        entries = []
        for number in numbers:
            one = self._found[number]
            if one.key is not None and not one.losses and one.repair_map is None:
                path = one.local or self._specs[number].path
                columns = (self._columns, self._lists) if number in self._catalog._with_lists else (self._columns,)
                entries.append(
                    Entry(os.path.basename(path), one.key, one.samples, one.flags, columns, one.blocks, one.places)
                )
        if entries:
            with suppress(OSError, RuntimeError, WriteError):
                folder_index.save(folder, entries)

    def _check_seen(self) -> None:
        """Raises a SchemaError for a list that no sample has."""
        catalog = self._catalog
        if catalog._first is None and catalog._given is not None and catalog.table["count"].any():
            catalog._first = self._specs[int(np.flatnonzero(catalog.table["count"])[0])].path, catalog._given
        for number in np.flatnonzero(catalog.table["count"]).tolist() if catalog._unseen else ():
            # An index knows the shard, which was read together with others: they may have the list.
            if catalog._unseen and number not in self._found:
                with catalog._open(self._specs[number].path) as shard:
                    catalog._find_lists(number, shard)
        if catalog._unseen and catalog._first is not None:
            lacking = Lacking(catalog._unseen, catalog._scanned, catalog._keys)
            raise lacking.error("If only a few have it, or none must, give the column default=[]")

    def _join_blocks(self) -> Blocks:
        """Returns the blocks of all shards, in their order."""
        catalog = self._catalog
        catalog.losses += [loss for number in sorted(self._found) for loss in self._found[number].losses]
        scanned = sorted(self._found)
        each = [self._found[number].blocks for number in scanned]
        own = np.repeat(np.array(scanned, np.int64), [blocks.shape[1] for blocks in each])
        shard = np.concatenate([own, *(shards for shards, _ in self._known_blocks)])
        blocks = np.concatenate([NO_BLOCKS, *each, *(blocks for _, blocks in self._known_blocks)], axis=1)
        order = np.argsort(shard, kind="stable")
        return Blocks(shard[order], *blocks[:, order])


class ShardSet:
    """The shards of one or more catalogs, numbered one catalog after the other. close() closes every file.

    columns: the names of the columns that are read. Each catalog has its own keys and defaults for them.
    """

    def __init__(
        self, catalogs: Sequence[Catalog], open_files: int | Literal["auto"], columns: Collection[str]
    ) -> None:
        self._begins: Ints = np.concatenate([[0], np.cumsum([len(one) for one in catalogs])]).astype(np.int64)
        self.table = np.concatenate([one.table for one in catalogs])
        self.paths = catalogs[0].paths if len(catalogs) == 1 else [path for one in catalogs for path in one.paths]
        self.give_way: Callable[[], bool] = lambda: False  # closes files that are open for reading ahead
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

    def has(self, flag: int, shards: Ints) -> npt.NDArray[np.bool_]:
        """Tells which of these shards have a flag of the table."""
        found: npt.NDArray[np.bool_] = (self.table["flags"][shards] & flag) != 0
        return found

    def are_whole_files(self, blocks: Blocks, max_bytes: int) -> npt.NDArray[np.bool_]:
        """Tells which blocks are complete files of at most so many bytes."""
        size: Ints = self.table["size"][blocks.shard]
        count: Ints = self.table["count"][blocks.shard]
        whole = self.has(WHOLE, blocks.shard)
        whole &= (blocks.size_bytes == size) & (blocks.count == count) & (size <= max_bytes)
        return whole

    def whole_files(self, shards: Ints) -> tuple[bytes, Ints]:
        """Returns the names of these files, each ended by a 0, and their sizes and mtimes."""
        names = [b""] * len(shards)
        of = np.searchsorted(self._begins, shards, "right") - 1
        for catalog in np.unique(of).tolist():
            where = np.flatnonzero(of == catalog)
            found = self._catalogs[catalog].whole_files((shards[where] - self._begins[catalog]).tolist())
            for at, name in zip(where.tolist(), found, strict=True):
                names[at] = name
        expected = np.stack([self.table["size"][shards], self.table["mtime_ns"][shards]], axis=1)
        return b"\0".join(names) + b"\0", expected

    def use(self, shard: int) -> AbstractContextManager[Shard]:
        """Returns a shard that is open at least until the end of a `with` block."""
        at = self._catalog_of(shard)
        return self._catalogs[at].use(shard - int(self._begins[at]), self._pools[at], self.give_way)

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


def size_difference(then: int, now: int) -> str:
    if then != now:
        return f"{then:,} bytes then, {now:,} now"
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
