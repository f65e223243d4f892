"""TFRecord: files of framed, checksummed records, mostly tf.train.Example messages. See README.md in this folder."""

from __future__ import annotations

from .index import Records
from .reader import TFRecordReader
from .writer import TFRecordWriter

__all__ = ["Records", "TFRecordReader", "TFRecordWriter"]
