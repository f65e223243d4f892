"""Reports to a conversion which columns a tar has, and which members it would drop."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SchemaError
from ....schema import Column, found_in_file
from ..base import Conversion, Shard
from .shard import TarShard
from .values import KEY


class TarConversion(Conversion):
    may_drop = True

    def schema_of(self, shard: Shard) -> dict[str, Column]:
        assert isinstance(shard, TarShard)
        if shard.marked:
            return shard.schema
        if not len(shard):
            raise SchemaError(f"{shard.path}: there are no samples to take columns from; give a schema")
        if KEY in shard.extensions:
            text = f"members of the extension {KEY!r} cannot be distinguished from the samples' keys"
            raise SchemaError(f"{shard.path}: {text}. Give a schema, which leaves them out")
        # Of all samples, so that a member that only some of them have is not dropped silently.
        return found_in_file(shard.infer_schema(len(shard)))

    def check(self, shard: Shard, path: str, read: dict[str, Column], cast: bool) -> Iterator[str]:
        assert isinstance(shard, TarShard)
        yield from (f"{path}: {what}" for what in shard.dropped_members())
