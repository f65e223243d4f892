"""Any object as bytes in shared memory, and back as ordinary memory.

Pickle's protocol 5 gives large buffers apart from its stream, so an array is copied once into the slot and once out of
it. Each comes out in memory of its own: to keep one is not to keep them all.

    in a slot:  how many parts, the length of each, then the parts: the stream first, then the buffers
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

from ...formats.columns import BytesColumn, LentBytesColumn, RaggedColumn
from .brief import load_main

_ALIGN_BYTES = 64


class Parcel:
    """An object made ready; `n_bytes` is what it takes in a slot. The buffers are still the object's own."""

    def __init__(self, thing: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(thing)
        self._parts: list[memoryview] = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        lengths = [len(part) for part in self._parts]
        self._head = struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths)
        self._starts, self.n_bytes = _place(lengths)

    def write(self, slot: memoryview) -> None:
        slot[: len(self._head)] = self._head
        for start, part in zip(self._starts, self._parts, strict=True):
            slot[start : start + len(part)] = part


def unpack(slot: memoryview) -> Any:
    """What was written, copied out."""
    (n_parts,) = struct.unpack_from("<Q", slot)
    lengths = struct.unpack_from(f"<{n_parts}Q", slot, 8)
    starts, _ = _place(lengths)
    stream, *buffers = (bytearray(slot[start : start + length]) for start, length in zip(starts, lengths, strict=True))
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


def _place(lengths: Sequence[int]) -> tuple[list[int], int]:
    starts = []
    end = 8 * (len(lengths) + 1)
    for length in lengths:
        end = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        starts.append(end)
        end += length
    return starts, end


class _Pickler(pickle.Pickler):
    """Columns go without what they share with others, and memoryviews go at all."""

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is memoryview:
            return _view, (_flat(thing), thing.format, thing.shape)
        if kind is BytesColumn:
            return BytesColumn, (thing.values, thing.offsets, thing.per_item)
        if kind is LentBytesColumn:
            joined = thing.copy()
            return BytesColumn, (joined.values, joined.offsets, joined.per_item)
        if kind is RaggedColumn:
            return RaggedColumn, (thing.values, thing.row_splits)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            load_main()
        return super().find_class(module, name)


def load(data: bytes) -> Any:
    """What pickle alone made, in a worker that may not have its main script yet."""
    return _Unpickler(io.BytesIO(data)).load()


def _flat(view: memoryview) -> pickle.PickleBuffer | bytes:
    return pickle.PickleBuffer(view) if view.c_contiguous else view.tobytes()


def _view(data: Any, form: Any, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(data).cast("B")
    return view if (form == "B" and len(shape) == 1) or 0 in shape else view.cast(form, shape)
