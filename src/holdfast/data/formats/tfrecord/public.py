"""The public classes, loaded together: one may first be used when no descriptor is left to import its module."""

from __future__ import annotations

from .index import Records
from .reader import TFRecordReader
from .writer import TFRecordWriter

__all__ = ["Records", "TFRecordReader", "TFRecordWriter"]
