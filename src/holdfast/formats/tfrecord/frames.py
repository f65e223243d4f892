"""Frames that were put together from many places, decoded in one go.

A shuffled batch is made of records from all over the data. Copying their frames side by side and decoding them there,
while they are in the core's cache, costs half of decoding whole files first and copying column by column.
"""

from __future__ import annotations

from ..._native import codec
from ...schema import Schema, check_schema
from ..columns import Batch, BytesColumn
from ..dtypes import Misfit
from ..spent import spent
from .encoding import batch_maker, fields_of


class FramesDecoder:
    """Keeps what it has learned about the records' form from one batch to the next. For one thread."""

    def __init__(self, schema: Schema, *, verify_data: bool) -> None:
        columns = check_schema(schema)
        self._decoder = codec.Decoder(fields_of(columns, lend=False))
        self._make = batch_maker(columns, False)
        self._verify_data = verify_data

    def decode(self, frames: BytesColumn) -> Batch | None:
        """None: something is wrong with one of them. Reading them one by one tells with which, and what."""
        n, values = len(frames), frames.values
        walked, used, _, _ = self._decoder.feed(values.data, 0, len(values), self._verify_data, max(n, 1), 0, 0)
        columns = self._decoder.take()
        if self._decoder.faults() or (walked, used) != (n, len(values)):
            return None
        if self._verify_data:
            spent.verified(values.data, len(values))
        try:
            return self._make(columns, None)
        except Misfit:
            return None
