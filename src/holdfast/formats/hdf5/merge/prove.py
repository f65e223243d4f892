"""The finished file, opened anew: is everything where it was put, and does it read as its sources do?"""

from __future__ import annotations

import os
from typing import Any

import h5py
import numpy as np

from ...._native import codec
from .agree import Agreement
from .crc import joined_crc
from .facts import Dataset, Ints, Refusal
from .plan import MASK, NUMBER, SIZE, Plan
from .rows import Files
from .skeleton import Alive, object_runs, read_objects

_READ_BYTES = 1 << 20


def find_places(file: h5py.File, plan: Plan, jobs: Ints) -> Ints:
    """Where in the file each job's bytes go. Refusal "again": the file is not the one that was planned."""
    if not len(jobs):
        return np.zeros(0, np.int64)
    dataset = file[plan.target.path]
    if dataset.shape != plan.target.shape:
        raise Refusal("again", plan.target.path, f"has the shape {dataset.shape}, wanted {plan.target.shape}")
    if plan.flat:
        base = dataset.id.get_offset()
        if base is None:
            raise Refusal("again", plan.target.path, "no room was left for it")
        places: Ints = jobs[:, NUMBER] + base
        return places
    listed: list[tuple[int, ...]] = []
    dataset.id.chunk_iter(lambda one: listed.append((one.byte_offset, one.size, one.filter_mask, *one.chunk_offset)))
    table = np.array(listed, np.int64).reshape(len(listed), -1)
    numbers = np.zeros(len(table), np.int64)
    assert dataset.chunks is not None
    for axis, (size, chunk) in enumerate(zip(dataset.shape, dataset.chunks, strict=True)):
        numbers = numbers * -(-size // chunk) + table[:, 3 + axis] // chunk
    by_number = np.argsort(numbers, kind="stable")
    found = np.column_stack([numbers, table[:, 1:3]])[by_number]
    if not np.array_equal(found, jobs[:, [NUMBER, SIZE, MASK]]):
        raise Refusal("again", plan.target.path, "its chunks are not those that were planned")
    return table[by_number, 0]  # type: ignore[no-any-return]


def prove(
    path: str, made: Agreement, plans: list[Plan], jobs: list[Ints], places: list[Ints], files: Files, alive: Alive
) -> None:
    with h5py.File(path, "r") as file:
        for plan, listed, placed in zip(plans, jobs, places, strict=True):
            target = plan.target
            if target.path not in file or file[target.path].shape != target.shape:
                raise Refusal("write", path, f"dataset {target.path!r} is not what was written: wanted {target.shape}")
            if plan.method == "objects":
                _same_objects(path, file, plan, files, alive)
                continue
            if not np.array_equal(find_places(file, plan, listed), placed):
                raise Refusal("write", path, f"dataset {target.path!r} has its chunks elsewhere than they were put")
            if not target.ends:
                _same_rows(path, file, plan, files)
            alive()


def _same_rows(path: str, file: h5py.File, plan: Plan, files: Files) -> None:
    """The last row of each run, unpacked by the library on both sides."""
    at = 0
    target = plan.target
    for run in target.runs:
        at += run.rows
        ours = _row(file, target.path, at - 1, target.like.item_bytes)
        theirs = _row(files.hdf5(run.file), target.path, run.stop - 1, target.like.item_bytes)
        if ours != theirs and _values(target.like, ours) != _values(target.like, theirs):
            text = f"dataset {target.path!r}, row {at - 1:,} is not row {run.stop - 1:,} of {files.path(run.file)}"
            raise Refusal("write", path, text)


def _values(like: Dataset, row: bytes) -> str:
    """What lies between fields, or behind a long float, is anything where a fill value is shown."""
    return repr(np.frombuffer(row, h5py.h5t.decode(like.type).dtype).tolist())


def _row(file: h5py.File, path: str, row: int, item_bytes: int) -> bytes:
    dataset = file[path]
    values = np.empty((1, *dataset.shape[1:]), f"V{item_bytes}")
    space = dataset.id.get_space()
    space.select_hyperslab((row, *[0] * (len(dataset.shape) - 1)), values.shape)
    dataset.id.read(h5py.h5s.create_simple(values.shape), space, values, dataset.id.get_type())
    return values.tobytes()


def _same_objects(path: str, file: h5py.File, plan: Plan, files: Files, alive: Alive) -> None:
    for at, n, number, row in object_runs(plan.target):
        ours, theirs = (
            read_objects(file, plan.target.path, at, n),
            read_objects(files.hdf5(number), plan.target.path, row, n),
        )
        if not _equal(ours, theirs):
            where = f"rows from {at:,} on are not those from {row:,} on of {files.path(number)}"
            text = f"dataset {plan.target.path!r}: {where}"
            raise Refusal("write", path, text)
        alive()


def _equal(ours: Any, theirs: Any) -> bool:
    if ours.dtype.names:
        return all(_equal(ours[name], theirs[name]) for name in ours.dtype.names)
    if not ours.dtype.hasobject:
        return bool(ours.tobytes() == theirs.tobytes())
    pairs = zip(ours.reshape(-1), theirs.reshape(-1), strict=True)
    return all(_plain(one) == _plain(two) for one, two in pairs)


def _plain(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def file_crc(fd: int, places: Ints, sizes: Ints, crcs: Any) -> int:
    """Of the whole file: what lies between the chunks is read, their own checksums are known."""
    order = np.argsort(places, kind="stable")
    at, parts, lengths = 0, [], []
    for place, size, crc in zip(places[order].tolist(), sizes[order].tolist(), crcs[order].tolist(), strict=True):
        if place < at:
            raise Refusal("write", "", "two chunks lie on the same place", place)
        if place > at:
            parts.append(_crc(fd, at, place - at))
            lengths.append(place - at)
        parts.append(crc)
        lengths.append(size)
        at = place + size
    rest = os.fstat(fd).st_size - at
    return joined_crc([*parts, _crc(fd, at, rest)], [*lengths, rest])


def _crc(fd: int, offset: int, size: int) -> int:
    crc = 0
    while size > 0:
        data = os.pread(fd, min(size, _READ_BYTES), offset)
        if not data:
            raise Refusal("write", "", "it is shorter than it was written", offset)
        crc, offset, size = codec.crc32c(data, crc), offset + len(data), size - len(data)
    return crc
