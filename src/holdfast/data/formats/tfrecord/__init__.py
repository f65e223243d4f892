"""Reads and writes TFRecord: framed records with checksums, mostly tf.train.Example messages. See README.md here."""

from __future__ import annotations

from .index import Records
from .reader import TFRecordReader
from .writer import TFRecordWriter

__all__ = ["Records", "TFRecordReader", "TFRecordWriter"]
