"""Where samples come from, and in which order: files, or several datasets mixed.

Nothing is opened before it is needed; what was learned then is kept, also in a pickled copy.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...formats.shard import GivenSchema
from ...schema import Column
from ..flow.fetch import Ordered
from ..order import shards
from ..order.sequence import Order
from ..order.state import fingerprint
from ..settings import Settings
from .catalog import Catalog, OnProgress
from .find import SourceSpec
from .remote import RemoteCache


class Sequenced(Ordered, shards.Sequenced, Protocol):
    """An order that steps can be cut from, and read."""


class Source(Protocol):
    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        """All shards. Looks at them when first asked for."""

    def schema(self) -> dict[str, Column]: ...

    def order(self, settings: Settings, epoch: int) -> Sequenced:
        """The order of an epoch, over the shards of all catalogs in a row."""

    def made_from(self, settings: Settings) -> dict[str, Any]:
        """What tells one order from another, for a state."""

    def describe(self) -> str: ...


class FileSource:
    """Shards that were found at paths."""

    def __init__(
        self,
        specs: Sequence[SourceSpec],
        schema: GivenSchema | None,
        remote: Mapping[str, Any],
        **shard_options: Any,
    ) -> None:
        self._specs, self._given = list(specs), schema
        self._remote, self._options = dict(remote), shard_options
        self._catalog: Catalog | None = None
        self._lock = threading.Lock()

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        with self._lock:
            if self._catalog is None:
                cache = RemoteCache(**self._remote) if any(spec.is_remote for spec in self._specs) else None
                self._catalog = Catalog(self._specs, self._given, cache=cache, progress=progress, **self._options)
            return [self._catalog]

    def schema(self) -> dict[str, Column]:
        return self.catalogs()[0].schema

    def order(self, settings: Settings, epoch: int) -> Order:
        return Order(
            self.catalogs()[0].blocks(),
            seed=settings.seed,
            epoch=epoch,
            lanes=settings.lanes,
            window_bytes=settings.window_bytes,
            window_samples=settings.window_samples,
        )

    def made_from(self, settings: Settings) -> dict[str, Any]:
        [catalog] = self.catalogs()
        order = self.order(settings, 0)
        return fingerprint(order, catalog.paths, catalog.counts, catalog.sizes_bytes, catalog.schema)

    def describe(self) -> str:
        more = f" and {len(self._specs) - 1:,} more" if len(self._specs) > 1 else ""
        return f"{self._specs[0].path}{more}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
