"""The shards of one dataset, or of several that are mixed, under one numbering; open within one budget."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

import numpy as np

from ...formats.columns import Ints
from ...formats.shard import Shard
from ...schema import Schema
from .budget import find_budget
from .catalog import Catalog
from .handles import HandlePool, PoolStats


class Library:
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
        self._pools: list[HandlePool[Shard]] = []
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
