"""Many small files as one shard: each file is a sample."""

from __future__ import annotations

from .listing import IMAGE_SUFFIXES, list_files
from .shard import FilesShard

__all__ = ["IMAGE_SUFFIXES", "FilesShard", "list_files"]
