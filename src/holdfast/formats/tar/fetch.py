"""The bytes of many members in few reads: those that are near each other come together, with what is between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..columns import BytesColumn, Ints, LentBytesColumn

_NEAR_BYTES = 1 << 14  # reading so much in vain costs less than one more call
_LEND_BYTES = 1 << 14  # from this size on, on average, a copy costs more than what it keeps alive


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Members' bytes in one buffer. `members` are sorted; the i-th begins at `starts[i]` and has `sizes[i]`."""

    buffer: npt.NDArray[np.uint8]
    members: Ints
    starts: Ints
    sizes: Ints

    def spans(self, members: Ints) -> tuple[Ints, Ints]:
        """Where these begin and end in the buffer; [0, 0) for a member of -1."""
        if not len(self.members):
            return np.zeros(len(members), np.int64), np.zeros(len(members), np.int64)
        at = np.searchsorted(self.members, members)
        there = members >= 0
        starts = np.where(there, self.starts[at], 0)
        return starts, np.where(there, starts + self.sizes[at], 0)

    def items(self, members: Ints) -> list[memoryview]:
        starts, ends = self.spans(members)
        view = self.buffer.data
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def column(self, members: Ints, default: bytes = b"") -> BytesColumn:
        """These members as strings, `default` for a member of -1. Large ones stay where they are."""
        starts, ends = self.spans(members)
        sizes = ends - starts
        total = int(sizes.sum())
        whole = not len(members) or int(members.min()) >= 0
        if whole and total >= _LEND_BYTES * len(members) and 2 * total >= len(self.buffer) and len(members):
            return LentBytesColumn(self.buffer, np.stack([starts, ends], axis=1))
        items: list[memoryview | bytes] = list(self.items(members))
        if not whole and default:
            for i in np.flatnonzero(members < 0):
                items[i] = default
                sizes[i] = len(default)
        offsets = np.zeros(len(members) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return BytesColumn(np.frombuffer(b"".join(items), np.uint8), offsets)


def fetch(members: Ints, offsets: Ints, sizes: Ints, fill: Callable[[int, memoryview], None]) -> Fetched:
    """Reads these members (sorted, without -1), of all that `offsets` and `sizes` know, by as few calls of `fill`."""
    begins, lengths = offsets[members], sizes[members]
    ends = begins + lengths
    if not len(members):
        return Fetched(np.zeros(0, np.uint8), members, begins, lengths)
    heads = np.flatnonzero(np.concatenate([[True], begins[1:] - ends[:-1] > _NEAR_BYTES]))
    run_begins, run_ends = begins[heads], ends[np.concatenate([heads[1:], [len(members)]]) - 1]
    places = np.concatenate([[0], np.cumsum(run_ends - run_begins)])
    buffer = np.empty(int(places[-1]), np.uint8)
    view = buffer.data
    for offset, start, end in zip(run_begins.tolist(), places[:-1].tolist(), places[1:].tolist(), strict=True):
        fill(offset, view[start:end])
    shift = np.repeat(places[:-1] - run_begins, np.diff(np.concatenate([heads, [len(members)]])))
    return Fetched(buffer, members, begins + shift, lengths)
