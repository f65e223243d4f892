"""tar in WebDataset's layout: members whose names differ only in their extensions are one sample. See README.md."""

from __future__ import annotations

from .shard import TarShard

__all__ = ["TarShard"]
