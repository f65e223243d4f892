"""Verifies the finished file: opens it anew, and compares it with its sources, through the library on both sides.

- Rows that were written anew are read from the result and from the sources: every value must be equal.
- Copied chunks lie where copy_chunks.py compared their checksums, with the filter mask and filters of their source, so
  they decode to the same values. Whether they can be decoded is a matter of the source: only `decode` looks.
- The first and last row of every run are compared in addition.
"""

from __future__ import annotations

import os

import h5py
import numpy as np
import numpy.typing as npt

from ....._native.checksum import combine_all, crc32c_of_file
from ..filters import filters_of, is_compressed, same_filters
from ..object_walk import reason_of
from ..sandbox import Progress
from .copy_plan import CRC, FILE, NUMBER, OFFSET, CopyPlan
from .inputs import LIBRARY_ERRORS, plain
from .merge_model import NO_CRC, Ints, MergeError, Values
from .source_rows import OpenInputs, SourceRows, decode_chunk, pieces, read_rows
from .write_result import find_places


def verify_result(
    path: str,
    plans: list[CopyPlan],
    places: list[Ints],
    files: OpenInputs,
    progress: Progress,
    decode: bool,
    decoded: list[npt.NDArray[np.bool_]],
) -> None:
    """`decode`: decodes every copied chunk that has no recorded checksum and is not `decoded` already, so that a codec
    detects what it can."""
    with h5py.File(path, "r") as file:
        for plan, expected, is_decoded in zip(plans, places, decoded, strict=True):
            target = plan.target
            if target.path not in file or file[target.path].shape != target.shape:
                text = f"{target.path!r} is not what was written: expected the shape {target.shape}"
                raise MergeError("write", path, text)
            dataset, rows = file[target.path], SourceRows(target, files)
            made = filters_of(dataset.id.get_create_plist())
            if not plan.view and not same_filters(made, target.like.filters):
                raise _error(path, plan, f"has the filters {made}, expected {target.like.filters}")
            if not np.array_equal(find_places(dataset, plan), expected):
                raise _error(path, plan, "has its chunks at other offsets than they were written to")
            if decode and is_compressed(target.like.filters):
                for copy in plan.copies[(plan.copies[:, CRC] == NO_CRC) & ~is_decoded].tolist():
                    decode_chunk(dataset, copy[NUMBER], files.path(copy[FILE]), copy[OFFSET])
                    progress(0)
            edges = [(row, row + 1) for at, run in target.placed_runs() for row in {at, at + run.rows - 1}]
            built = (piece for low, high in plan.builds for piece in pieces(target, low, high))
            for low, high in (*(edges if target.like.row_bytes else []), *built):
                try:
                    ours = read_rows(dataset, low, high)
                except LIBRARY_ERRORS as error:
                    rows.read(low, high)  # raises if the source is corrupt
                    raise _error(path, plan, f"rows {low:,} to {high:,} cannot be read: {reason_of(error)}") from error
                if not _equal(ours, rows.read(low, high), plan):
                    raise _error(path, plan, f"has other values than its sources in rows {low:,} to {high:,}")
                progress(0)


def _error(path: str, plan: CopyPlan, text: str) -> MergeError:
    return MergeError("write", path, f"dataset {plan.target.path!r} {text}; nothing was kept")


def _equal(ours: Values, theirs: Values, plan: CopyPlan) -> bool:
    if ours.dtype.hasobject:
        return bool(plain(ours) == plain(theirs))
    return ours.tobytes() == theirs.tobytes() or _without_padding(ours, plan) == _without_padding(theirs, plan)


def _without_padding(rows: Values, plan: CopyPlan) -> str:
    """Returns values without padding: between fields, or after a long double, it is arbitrary in fill values."""
    return repr(np.frombuffer(rows.tobytes(), plan.target.like.type.dtype).tolist())


def file_crc(fd: int, places: Ints, sizes: Ints, crcs: Ints) -> int:
    """Returns the crc32c of the file: the bytes between the copied chunks are read, the chunks' checksums are known."""
    order, at = np.argsort(places, kind="stable"), 0
    parts: list[tuple[int, int]] = []
    end = os.fstat(fd).st_size
    chunks = zip(places[order].tolist(), sizes[order].tolist(), crcs[order].tolist(), strict=True)
    for place, size, crc in (*chunks, (end, 0, 0)):
        if place < at:
            raise MergeError("write", "", "two chunks lie on the same place", place)
        between, n = crc32c_of_file(fd, at, place - at) if place > at else (0, 0)
        if n < place - at:
            raise MergeError("write", "", "it is shorter than it was written", at + n)
        parts += [(between, n), (crc, size)]
        at = place + size
    return combine_all([crc for crc, _ in parts], [size for _, size in parts])
