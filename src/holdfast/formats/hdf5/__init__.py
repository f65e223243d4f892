"""HDF5: datasets as columns, rows along their first axis as samples. The only place that imports h5py."""

from __future__ import annotations

from .shard import HDF5Shard

__all__ = ["HDF5Shard"]
