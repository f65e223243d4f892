"""Creates the result: the library writes the metadata and the rows that no source has in such chunks.

The library writes to a file object of ours. For chunks that are copied it is given a placeholder, which is not stored:
their space is allocated, and copy_chunks.py fills it. A write error is kept, and the library goes on: it would crash
on a full disk.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from ....._util.atomic import pwrite_all
from ....._util.failpoints import failpoint
from ..chunks import chunk_grid, chunk_table
from ..filters import Filter, add_filters, describe_filters, filters_of, same_filters, verbatim_parameters
from ..object_walk import raw_of
from ..raw_values import ValueDecoder
from ..sandbox import Progress
from .compatibility import MergeSchema, type_name
from .copy_plan import MASK, NUMBER, SHUFFLE_ITEMS, SIZE, CopyPlan
from .merge_model import Ints, MergeError, MergeTarget
from .source_rows import OpenInputs, SourceRows, pieces

_CHUNKS_PER_HEARTBEAT = 1 << 14
_LIBVER = ("v110", "latest")  # readable by HDF5 1.10, unless a source has a newer type


class ResultFile(io.RawIOBase):
    """The file object that the library writes to. It recognizes placeholder chunks by their memory address."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at, self._end = fd, 0, 0
        self._blank, self._blank_at = np.zeros(0, np.uint8), -1
        self.error: OSError | None = None

    def blank(self, size: int) -> Any:
        """Returns the placeholder for chunks up to this size. It is kept: nothing else may get its address."""
        if size > len(self._blank):
            self._blank = np.zeros(size, np.uint8)
            self._blank_at = self._blank.ctypes.data
        return self._blank

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        n = os.preadv(self._fd, [into], self._at)
        self._at += n
        return n

    def write(self, data: Any) -> int:
        n = len(data)
        if self.error is None and np.frombuffer(data, np.uint8).ctypes.data != self._blank_at:
            try:
                pwrite_all(self._fd, memoryview(data).cast("B"), self._at)
            except OSError as error:
                self.error = error
        self._at += n
        self._end = max(self._end, self._at)
        return n

    def truncate(self, size: int | None = None) -> int:
        self._end = self._at if size is None else size
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            self.error = self.error or error
        return self._end

    def flush(self) -> None:
        pass


def write_result(
    fd: int, schema: MergeSchema, plans: list[CopyPlan], files: OpenInputs, folder: str, progress: Progress
) -> list[Ints]:
    """Returns where in the file each copy of each plan goes. `folder`: what a view's sources are relative to."""
    sink = ResultFile(fd)
    try:
        with h5py.File(sink, "w", libver=_LIBVER) as file:
            _write_types(file, schema, plans, files, folder)
            places = [_fill(sink, file, plan, files, progress) for plan in plans]
            _write_rest(file, schema, files)
    finally:
        sink.check()  # also if the library could not read what was not written
    return places


def _write_types(file: h5py.File, schema: MergeSchema, plans: list[CopyPlan], files: OpenInputs, folder: str) -> None:
    _make_groups(file, schema.groups)
    for path, node in schema.datatypes:
        _require_parent(file, path)
        node.type.commit(file.id, raw_of(path))
    names = {code: name for plan in plans for code, name in plan.target.like.filter_names.items()}
    with verbatim_parameters(names):
        for plan in plans:
            _require_parent(file, plan.target.path)
            _make_view(file, plan.target, files, folder) if plan.view else _make_dataset(file, plan.target)


def _make_groups(file: h5py.File, paths: Iterable[str]) -> None:
    """Makes each group in its parent, which is still open: 3,000 nested ones by their paths would take a minute."""
    above: list[tuple[str, h5py.Group]] = [("", file)]
    for path in paths:
        while not path.startswith(f"{above[-1][0]}/"):
            above.pop()
        if name := path[len(above[-1][0]) + 1 :]:
            above.append((path, above[-1][1].require_group(name)))


def _write_rest(file: h5py.File, schema: MergeSchema, files: OpenInputs) -> None:
    for path in schema.single:
        _require_parent(file, path)
        files.hdf5(0).copy(path, file, path, without_attrs=True)
    decoder = ValueDecoder(file, lambda address: None)
    for path, attributes in schema.attributes.items():
        for name, one in attributes.items():
            made = h5py.h5a.create(file[path].id, raw_of(name), one.type, one.space)
            if one.encoded:
                decoder.write_attribute(made, one.type, one.encoded)
    for path, node in schema.links:
        _require_parent(file, path)
        file[path] = h5py.SoftLink(node.target) if node.kind == "soft" else file[node.target]
    for path, target in schema.targets.items():
        for axis, name in target.sources[0].scales:
            if name in file:
                file[path].dims[axis].attach_scale(file[name])


def _require_parent(file: h5py.File, path: str) -> None:
    file.require_group(path.rpartition("/")[0] or "/")


def _make_dataset(file: h5py.File, target: MergeTarget) -> None:
    """Must be called within verbatim_parameters()."""
    like, plist = target.like, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    limits: tuple[int | None, ...] = target.shape
    if like.fill is not None:
        ValueDecoder(file, lambda address: None).set_fill(plist, like.type, like.fill)
    if like.chunks is None:
        plist.set_layout(h5py.h5d.CONTIGUOUS)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        if not like.dtype.hasobject:
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    else:
        plist.set_chunk(like.chunks)
        add_filters(plist, like.filters)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_INCR)
        is_growing = any(one.maxshape[0] is None for one in target.sources)
        limits = (None if is_growing else max(target.rows, like.chunk_rows), *like.maxshape[1:])
    maximum = tuple(
        h5py.h5s.UNLIMITED if n is None else max(n, here) for n, here in zip(limits, target.shape, strict=True)
    )
    space = h5py.h5s.create_simple(target.shape, maximum)
    dataset = h5py.h5d.create(file.id, raw_of(target.path), like.type, space, plist)
    made = filters_of(dataset.get_create_plist())
    dataset.close()
    if like.filters[:1] == (SHUFFLE_ITEMS,):
        target.like = like = replace(like, filters=(made[0], *like.filters[1:]))
    if not same_filters(made, like.filters):
        text = f"dataset {like.path!r}: its filters ({describe_filters(like.filters)}) cannot be recreated"
        raise MergeError("write", "", f"{text}: expected {_parameters(like.filters)}, got {_parameters(made)}")


def _parameters(filters: tuple[Filter, ...]) -> list[tuple[int, ...]]:
    return [(code, *values) for code, _, values in filters]


def _make_view(file: h5py.File, target: MergeTarget, files: OpenInputs, folder: str) -> None:
    like = target.like
    if like.dtype.hasobject:
        text = f"dataset {target.path!r} holds {type_name(like)}, which a view cannot contain: merge it instead"
        raise MergeError("schema", files.path(like.file), text)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.fill is not None:
        ValueDecoder(file, lambda address: None).set_fill(plist, like.type, like.fill)
    plist.set_layout(h5py.h5d.VIRTUAL)
    space, zeros = h5py.h5s.create_simple(target.shape), (0,) * len(like.row_shape)
    for at, run in target.placed_runs():
        source = h5py.h5s.create_simple(target.sources[run.file].shape)
        source.select_hyperslab((run.start, *zeros), (run.rows, *like.row_shape))
        space.select_hyperslab((at, *zeros), (run.rows, *like.row_shape))
        name = os.path.relpath(os.path.realpath(files.path(run.file)), folder).replace("%", "%%")  # not as a pattern
        plist.set_virtual(space, os.fsencode(name), raw_of(target.path), source)
    space.select_all()
    h5py.h5d.create(file.id, raw_of(target.path), like.type, space, plist)


def _fill(sink: ResultFile, file: h5py.File, plan: CopyPlan, files: OpenInputs, progress: Progress) -> Ints:
    """Allocates the chunks that are copied, and writes the other rows. Returns where the copies go."""
    target, dataset = plan.target, h5py.h5d.open(file.id, raw_of(plan.target.path))
    if target.like.chunks is not None and len(plan.copies):
        _allocate(sink, dataset, plan, progress)
    rows = SourceRows(target, files) if plan.builds else None
    for low, high in plan.builds:
        for first, last in pieces(target, low, high):
            assert rows is not None
            write_rows(dataset, target, first, rows.read(first, last, check=True))
            sink.check()
            progress((last - first) * target.like.row_bytes)
            failpoint("merge-building", kill_parent=True)
    return find_places(h5py.Dataset(dataset), plan)


def _allocate(sink: ResultFile, dataset: Any, plan: CopyPlan, progress: Progress) -> None:
    like, copies = plan.target.like, plan.copies
    assert like.chunks is not None
    grid = chunk_grid(plan.target.shape, like.chunks)
    starts = np.column_stack(np.unravel_index(copies[:, NUMBER], grid)) * like.chunks
    blank = sink.blank(int(copies[:, SIZE].max()))
    columns = zip(starts.tolist(), copies[:, SIZE].tolist(), copies[:, MASK].tolist(), strict=True)
    for number, (start, size, mask) in enumerate(columns):
        dataset.write_direct_chunk(tuple(start), blank[:size], mask)
        if not number % _CHUNKS_PER_HEARTBEAT:
            progress(0)


def write_rows(dataset: Any, target: MergeTarget, first: int, values: Any) -> None:
    """Writes full chunks: in HDF5 1.14 an overwritten chunk keeps its old filter mask if its size stays the same."""
    space = dataset.get_space()
    space.select_hyperslab((first, *[0] * len(target.like.row_shape)), values.shape)
    mtype = None if values.dtype.hasobject else target.like.type
    dataset.write(h5py.h5s.create_simple(values.shape), space, values, mtype)


def find_places(dataset: h5py.Dataset, plan: CopyPlan) -> Ints:
    """Returns where in the file each copied chunk lies."""
    if not len(plan.copies):
        return np.zeros(0, np.int64)
    if plan.target.like.chunks is None:
        return plan.copies[:, NUMBER] + int(dataset.id.get_offset())
    table = chunk_table(dataset)
    table = table[np.isin(table[:, 0], plan.copies[:, NUMBER])]
    if not np.array_equal(table[:, [0, 2, 3]], plan.copies[:, [NUMBER, SIZE, MASK]]):
        raise MergeError("write", "", f"dataset {plan.target.path!r} has other chunks than planned")
    return table[:, 1]
