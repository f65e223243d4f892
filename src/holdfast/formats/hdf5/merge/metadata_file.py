"""The result without its chunks: the library writes all that describes them, and leaves the room for them.

The library is given a file of ours that takes what it writes, except for the chunks: those it is handed are not the
real ones, and are dropped. So making the file costs little however large it is, and a full disk is never the library's
trouble, which it would not survive: what cannot be written is noted, and the library goes on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from ...._util.atomic import pwrite_all
from ..filters import verbatim_parameters
from ..schema_layout import in_native_order
from .chunk_filters import OpenInputs, create_like, fill_of, plist_of
from .compatibility import MergeSchema
from .copy_plan import MASK, NUMBER, SIZE, CopyPlan
from .model import Attribute, DatasetInfo, Ints, MergeError, MergeTarget

Alive = Callable[[], None]  # a sign of life: who watches takes long silence for a hang

_CHUNKS_A_SIGN = 1 << 14
_LIBVER = ("v110", "latest")  # what HDF5 1.10 and newer read, unless a source has a type that is newer


class MetadataOnlyFile(io.RawIOBase):
    """What the library writes to. Chunks are told from all else by where in memory they come from."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self._end = 0
        self.blank = np.zeros(0, np.uint8)
        self._blank_at = -1
        self.error: OSError | None = None

    def use_blank(self, size: int) -> None:
        """What is handed to the library in place of chunks, up to this size."""
        if size > len(self.blank):
            self.blank = np.zeros(size, np.uint8)
            self._blank_at = self.blank.__array_interface__["data"][0]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset if whence == os.SEEK_SET else offset + (self._at if whence == os.SEEK_CUR else self._end)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        n = os.preadv(self._fd, [into], self._at)
        self._at += n
        return n

    def write(self, data: Any) -> int:
        n = len(data)
        if np.frombuffer(data, np.uint8).__array_interface__["data"][0] != self._blank_at and self.error is None:
            try:
                pwrite_all(self._fd, memoryview(data).cast("B"), self._at)
            except OSError as error:
                self.error = error
        self._at += n
        self._end = max(self._end, self._at)
        return n

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            self.error = self.error or error
        self._end = size
        return size

    def flush(self) -> None:
        pass

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def make_skeleton(
    fd: int, made: MergeSchema, plans: list[CopyPlan], jobs: list[Ints], files: OpenInputs, virtual: bool, alive: Alive
) -> None:
    paper = MetadataOnlyFile(fd)
    with h5py.File(paper, "w", libver=_LIBVER) as file:
        for path in made.groups:
            file.require_group(path)
        for path, node in made.datatypes:
            _parent(file, path)
            h5py.h5t.decode(node.type).commit(file.id, _raw(path))
        shown = [virtual and not plan.target.ends and not plan.target.kept for plan in plans]
        names = {code: name for plan in plans for code, name in plan.target.like.filter_names.items()}
        with verbatim_parameters(names):
            for plan, is_view in zip(plans, shown, strict=True):
                _parent(file, plan.target.path)
                _make_virtual(file, plan.target, files) if is_view else _make_dataset(file, plan.target)
        for plan, listed, is_view in zip(plans, jobs, shown, strict=True):
            if is_view or (plan.flat and plan.method != "objects"):
                continue
            dataset = h5py.h5d.open(file.id, _raw(plan.target.path))
            if plan.method == "objects":
                _copy_objects(dataset, plan.target, files, alive)
            else:
                _leave_room(paper, dataset, plan.target, listed, alive)
        for path in made.single:
            _parent(file, path)
            files.hdf5(0).copy(path, file, path, without_attrs=True)
        for path, found in made.attributes.items():
            if found:
                _set_attributes(file[path], found)
        for path, node in made.links:
            _parent(file, path)
            file[path] = h5py.SoftLink(node.target) if node.kind == "soft" else file[node.target]
        _attach_scales(file, made)
    if paper.error is not None:
        raise paper.error


def _raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _parent(file: h5py.File, path: str) -> None:
    file.require_group(path.rpartition("/")[0] or "/")


def _make_dataset(file: h5py.File, target: MergeTarget) -> None:
    like, plist = target.like, plist_of(target.like)
    growing = like.chunks is not None and any(one.maxshape[0] is None for one in target.sources)
    most = (None if growing else max(target.rows, like.chunks[0] if like.chunks else 0), *like.maxshape[1:])
    if like.chunks is None:
        most = target.shape
        plist.set_layout(h5py.h5d.CONTIGUOUS)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        if not like.has_objects:
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    else:
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_INCR)
    unlimited = tuple(
        h5py.h5s.UNLIMITED if n is None else max(n, here) for n, here in zip(most, target.shape, strict=True)
    )
    space = h5py.h5s.create_simple(target.shape, unlimited)
    create_like(file, _raw(target.path), like, space, plist)


def _leave_room(paper: MetadataOnlyFile, dataset: Any, target: MergeTarget, jobs: Ints, alive: Alive) -> None:
    if not len(jobs):
        return
    like = target.like
    assert like.chunks is not None
    paper.use_blank(int(jobs[:, SIZE].max()))
    starts = np.zeros((len(jobs), len(like.chunks)), np.int64)
    numbers = jobs[:, NUMBER].copy()
    for axis in range(len(like.chunks) - 1, 0, -1):
        across = -(-like.row_shape[axis - 1] // like.chunks[axis])
        starts[:, axis] = numbers % across * like.chunks[axis]
        numbers //= across
    starts[:, 0] = numbers * like.chunks[0]
    write, blank = dataset.write_direct_chunk, paper.blank
    columns = zip(starts.tolist(), jobs[:, SIZE].tolist(), jobs[:, MASK].tolist(), strict=True)
    for number, (start, size, mask) in enumerate(columns):
        write(tuple(start), blank[:size], mask)
        if not number % _CHUNKS_A_SIGN:
            alive()


# ---- what has no chunks that could be copied


def object_runs(target: MergeTarget) -> Any:
    """(first row of the result, rows, source, first row there), in steps that fit into memory."""
    step = max(1, (1 << 16) // max(1, target.like.row_bytes // target.like.item_bytes))
    at = 0
    for run in target.runs:
        for row in range(run.start, run.stop, step):
            n = min(step, run.stop - row)
            yield at, n, run.file, row
            at += n


def read_objects(file: h5py.File, path: str, row: int, n: int) -> Any:
    """By the library's own call, in the types that h5py takes back."""
    dataset = file[path]
    values = np.empty((n, *dataset.shape[1:]), dataset.dtype)
    space = dataset.id.get_space()
    space.select_hyperslab((row, *[0] * (len(dataset.shape) - 1)), values.shape)
    dataset.id.read(h5py.h5s.create_simple(values.shape), space, values)
    return in_native_order(values, dataset.dtype)


def _copy_objects(dataset: Any, target: MergeTarget, files: OpenInputs, alive: Alive) -> None:
    """Strings and lists of any length lie in heaps of the file: they are read and written one by one."""
    for at, n, file, row in object_runs(target):
        values = read_objects(files.hdf5(file), target.path, row, n)
        space = dataset.get_space()
        space.select_hyperslab((at, *[0] * len(target.like.row_shape)), values.shape)
        dataset.write(h5py.h5s.create_simple(values.shape), space, values)
        alive()


def _make_virtual(file: h5py.File, target: MergeTarget, files: OpenInputs) -> None:
    like = target.like
    if like.has_objects:
        text = f"dataset {target.path!r} holds {like.words}, which a view cannot show: merge it instead"
        raise MergeError("schema", files.path(like.file), text)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.fill is not None:
        plist.set_fill_value(fill_of(like, like.fill))
    space = h5py.h5s.create_simple(target.shape)
    zeros, at = (0,) * len(like.row_shape), 0
    plist.set_layout(h5py.h5d.VIRTUAL)
    for run in target.runs:
        source = h5py.h5s.create_simple(target.sources[run.file].shape)
        source.select_hyperslab((run.start, *zeros), (run.rows, *like.row_shape))
        space.select_hyperslab((at, *zeros), (run.rows, *like.row_shape))
        plist.set_virtual(space, files.view_name(run.file), _raw(target.path), source)
        at += run.rows
    space.select_all()
    h5py.h5d.create(file.id, _raw(target.path), h5py.h5t.decode(like.type), space, plist)


# ---- what belongs to objects


def _set_attributes(thing: Any, found: dict[str, Attribute]) -> None:
    for name, one in found.items():
        dtype = h5py.h5t.decode(one.type).dtype
        if one.value is None:
            thing.attrs[name] = h5py.Empty(dtype)
        elif h5py.check_string_dtype(dtype) is not None or dtype.subdtype:
            thing.attrs.create(name, one.value, dtype=dtype)
        else:
            thing.attrs.create(name, np.asarray(one.value, dtype), dtype=dtype)


def _attach_scales(file: h5py.File, made: MergeSchema) -> None:
    for path, target in made.targets.items():
        first: DatasetInfo = target.sources[0]
        for axis, name in first.scales:
            if name in file:
                file[path].dims[axis].attach_scale(file[name])
