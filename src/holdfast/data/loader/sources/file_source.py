"""Sources of samples and their order: files, a selection of their columns or samples, and several sources in a row.

Nothing is opened before it is needed; the catalog that is made then is kept, also in a pickled copy. Mixed datasets
have an order of their own (mix.py).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from ...._util.text import names_there
from ....errors import InputError, SchemaError
from ....schema import Column, check_schema
from ...formats.base import GivenSchema
from ...inputs import SourceSpec
from ..checkpoint import fingerprint, schema_digest
from ..options import Options
from ..order.blocks import Blocks, join_blocks
from ..order.dataset_split import Masks, PickedOrder, picked_counts, split_masks
from ..order.sharding import Order
from ..order.shuffle import SampleOrder
from .catalog import Catalog, OnProgress
from .download_cache import DownloadCache


class Source(Protocol):
    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        """Returns the catalogs of all shards. The first call opens the shards."""

    def schema(self) -> dict[str, Column]: ...

    def known_schema(self) -> dict[str, Column] | None:
        """Returns the schema if it is known before a file is opened."""

    def counts(self) -> list[int]:
        """Returns how many samples of every shard are read."""

    def order(self, settings: Options, epoch: int) -> Order:
        """Returns the order of an epoch, over the shards of all catalogs in a row."""

    def made_from(self, settings: Options) -> dict[str, Any]:
        """Returns the fingerprint for a saved state: what distinguishes this order from others."""

    def describe(self) -> str: ...


class Files(ABC):
    """Base class of the sources that are read in the order of their files."""

    @abstractmethod
    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]: ...

    @abstractmethod
    def schema(self) -> dict[str, Column]: ...

    @abstractmethod
    def known_schema(self) -> dict[str, Column] | None: ...

    @abstractmethod
    def blocks(self) -> Blocks:
        """Returns the blocks of the shards of all catalogs in a row."""

    @abstractmethod
    def masks(self) -> Masks:
        """Returns which samples of every shard are read."""

    @abstractmethod
    def split(self) -> str | None:
        """Describes which part of a split it is, for a saved state."""

    @abstractmethod
    def describe(self) -> str: ...

    def counts(self) -> list[int]:
        return picked_counts([count for catalog in self.catalogs() for count in catalog.counts], self.masks())

    def order(self, settings: Options, epoch: int) -> Order:
        return self._order(settings, epoch)

    def _order(self, settings: Options, epoch: int) -> SampleOrder | PickedOrder:
        options: dict[str, Any] = {
            "seed": settings.seed,
            "epoch": epoch,
            "lanes": settings.lanes,
            "window_bytes": settings.window_bytes,
            "window_samples": settings.window_samples,
        }
        masks = self.masks()
        if any(mask is not None for mask in masks):
            return PickedOrder(self.blocks(), masks, **options)
        return SampleOrder(self.blocks(), **options)

    def made_from(self, settings: Options) -> dict[str, Any]:
        catalogs = self.catalogs()
        names = [path for one in catalogs for path in one.paths]
        counts = [count for one in catalogs for count in one.counts]
        sizes_bytes = [size for one in catalogs for size in one.sizes_bytes]
        found = fingerprint(self._order(settings, 0), names, counts, sizes_bytes, self.schema())
        found["schema"] = _columns_digest(self)
        split = self.split()
        return found if split is None else found | {"split": split}


class FileSource(Files):
    """Shards at paths or URLs."""

    def __init__(
        self,
        specs: Sequence[SourceSpec],
        schema: GivenSchema | None,
        remote: Mapping[str, Any],
        **shard_options: Any,
    ) -> None:
        self._specs, self._given = list(specs), schema
        self._remote, self._options = dict(remote), shard_options
        if any(not spec.path.startswith("/") and not spec.is_remote for spec in specs):
            self._options["directory"] = os.getcwd()  # it may be another one when the files are opened
        self._catalog: Catalog | None = None
        self._lock = threading.Lock()

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        with self._lock:
            if self._catalog is None:
                cache = DownloadCache(**self._remote) if any(spec.is_remote for spec in self._specs) else None
                self._catalog = Catalog(self._specs, self._given, cache=cache, progress=progress, **self._options)
            return [self._catalog]

    def schema(self) -> dict[str, Column]:
        return self.catalogs()[0].schema

    def known_schema(self) -> dict[str, Column] | None:
        return None if self._given is None else check_schema(self._given)

    def counts(self) -> list[int]:
        return self.catalogs()[0].counts

    def blocks(self) -> Blocks:
        return self.catalogs()[0].blocks

    def masks(self) -> Masks:
        return [None] * len(self._specs)

    def split(self) -> str | None:
        return None

    def describe(self) -> str:
        more = f" and {len(self._specs) - 1:,} more" if len(self._specs) > 1 else ""
        return f"{self._specs[0].path}{more}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class ConcatSource(Files):
    """Several sources, one after the other."""

    def __init__(self, parts: Sequence[Files]) -> None:
        self._parts = list(parts)

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        return [catalog for part in self._parts for catalog in part.catalogs(progress)]

    def schema(self) -> dict[str, Column]:
        first, *others = self._parts
        for other in others:
            check_columns("concat", first, other)
        return first.schema()

    def known_schema(self) -> dict[str, Column] | None:
        return self._parts[0].known_schema()

    def blocks(self) -> Blocks:
        found, before = [], 0
        for part in self._parts:
            one = part.blocks()
            found.append(Blocks(one.shard + before, one.first, one.count, one.size_bytes))
            before += sum(map(len, part.catalogs()))
        return join_blocks(found)

    def masks(self) -> Masks:
        return [mask for part in self._parts for mask in part.masks()]

    def split(self) -> str | None:
        each = [part.split() for part in self._parts]
        if not any(each):
            return None
        # With how many shards each has: the names of all shards in a row do not tell where a part begins.
        sharding = [sum(map(len, part.catalogs())) for part in self._parts]
        texts = [f"{one or 'all'} of {n:,} shard{'s' * (n != 1)}" for one, n in zip(each, sharding, strict=True)]
        return f"({' + '.join(texts)})"

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self._parts)


class SplitSource(Files):
    """One part of a source: a share of its samples, or so many."""

    def __init__(self, source: Files, parts: Mapping[str, Fraction | int], name: str, seed: int) -> None:
        self._source, self._shares, self._name, self._seed = source, dict(parts), name, seed
        self._masks: Masks | None = None

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        return self._source.catalogs(progress)

    def schema(self) -> dict[str, Column]:
        return self._source.schema()

    def known_schema(self) -> dict[str, Column] | None:
        return self._source.known_schema()

    def blocks(self) -> Blocks:
        return self._source.blocks()

    def masks(self) -> Masks:
        if self._masks is None:
            shares, there = list(self._shares.values()), sum(self._source.counts())
            if isinstance(shares[0], int) and sum(shares) > there:
                raise InputError(
                    f"split: expected parts of at most the {there:,} samples of {self._source.describe()}, got "
                    f"{', '.join(f'{name}={n:,}' for name, n in self._shares.items())}"
                )
            counts = [count for catalog in self.catalogs() for count in catalog.counts]
            which = list(self._shares).index(self._name)
            self._masks = split_masks(counts, self._source.masks(), shares, which, self._seed)
        return self._masks

    def split(self) -> str | None:
        before = self._source.split()
        parts = ", ".join(f"{name}={share}" for name, share in self._shares.items())
        return f"{self._name} of ({parts}, seed={self._seed})" + (f" of {before}" if before else "")

    def describe(self) -> str:
        return f"{self._name} of {self._source.describe()}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_masks": None}  # large, and quick to make again


class SelectSource(Files):
    """Some of a source's columns. The others are not decoded, and not read where the format stores them separately."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        self._source, self._names = source, list(names)

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        return self._source.catalogs(progress)

    def schema(self) -> dict[str, Column]:
        return self._selected(self._source.schema())

    def known_schema(self) -> dict[str, Column] | None:
        there = self._source.known_schema()
        return None if there is None else self._selected(there)

    def _selected(self, there: dict[str, Column]) -> dict[str, Column]:
        for name in self._names:
            if name not in there:
                raise SchemaError(f"select: there is no column {name!r}. {names_there(name, list(there))}")
        return {name: there[name] for name in self._names}

    def counts(self) -> list[int]:
        return self._source.counts()

    def order(self, settings: Options, epoch: int) -> Order:
        return self._source.order(settings, epoch)

    def made_from(self, settings: Options) -> dict[str, Any]:
        return self._source.made_from(settings) | {"schema": _columns_digest(self)}

    def blocks(self) -> Blocks:
        return self._files().blocks()

    def masks(self) -> Masks:
        return self._files().masks()

    def split(self) -> str | None:
        return self._files().split()

    def _files(self) -> Files:
        if not isinstance(self._source, Files):
            raise TypeError(f"expected a source of files, got {type(self._source).__name__}")
        return self._source

    def describe(self) -> str:
        return f"{', '.join(self._names)} of {self._source.describe()}"


def _columns_digest(source: Source) -> str:
    """Returns the digest of the columns as each catalog has them."""
    names = source.schema()
    return schema_digest(*({name: catalog.schema[name] for name in names} for catalog in source.catalogs()))


def check_columns(what: str, first: Source, other: Source) -> None:
    """Raises a SchemaError that names the first column with other values. Keys and defaults may differ."""
    a, b = first.schema(), other.schema()
    for name in [*a, *(name for name in b if name not in a)]:
        if name not in a or name not in b or not a[name].holds_same(b[name]):
            raise SchemaError(
                f"{what}: column {name!r} is {a.get(name, 'missing')!s} in {first.describe()}, but "
                f"{b.get(name, 'missing')!s} in {other.describe()}: select() the columns that both have, or give "
                "hold.read a schema that says how to read both"
            )
