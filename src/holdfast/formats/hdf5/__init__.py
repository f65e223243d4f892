"""HDF5: datasets as columns, rows along their first axis as samples."""

from __future__ import annotations

from .shard import HDF5Shard

__all__ = ["HDF5Shard"]
