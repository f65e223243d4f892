"""Creates the result without its chunks: the library writes all metadata and allocates the chunks.

The library writes to a file object of ours that stores everything except the placeholder data it is given for chunks.
So creating the file is cheap however large it is, and a full disk does not break the library, which would not survive
it: a write error is kept, and the library goes on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any

import h5py
import numpy as np

from ....._util.atomic import pwrite_all
from ..filters import verbatim_parameters
from ..object_walk import raw_of
from ..schema_layout import in_native_order
from .compatibility import MergeSchema
from .copy_plan import MASK, NUMBER, SIZE, CopyPlan, placed_runs
from .input_rows import OpenInputs
from .merge_model import Attribute, DatasetInfo, Ints, MergeError, MergeTarget
from .rechunk import create_like, fill_of, plist_of

Heartbeat = Callable[[], None]  # tells the parent that the child does not hang

_CHUNKS_PER_HEARTBEAT = 1 << 14
_LIBVER = ("v110", "latest")  # readable by HDF5 1.10, unless a source has a newer type


class MetadataOnlyFile(io.RawIOBase):
    """The file object that the library writes to. It recognizes placeholder chunks by their memory address."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self._end = 0
        self.blank = np.zeros(0, np.uint8)
        self._blank_at = -1
        self.error: OSError | None = None

    def use_blank(self, size: int) -> None:
        """Makes the placeholder for chunks at least this large."""
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


def write_metadata(
    fd: int,
    schema: MergeSchema,
    plans: list[CopyPlan],
    jobs: list[Ints],
    files: OpenInputs,
    heartbeat: Heartbeat,
) -> None:
    sink = MetadataOnlyFile(fd)
    with h5py.File(sink, "w", libver=_LIBVER) as file:
        _make_groups(file, schema.groups, heartbeat)
        for path, node in schema.datatypes:
            _parent(file, path)
            h5py.h5t.decode(node.type).commit(file.id, raw_of(path))
        names = {code: name for plan in plans for code, name in plan.target.like.filter_names.items()}
        with verbatim_parameters(names):
            for plan in plans:
                _parent(file, plan.target.path)
                _make_virtual(file, plan.target, files) if plan.method == "view" else _make_dataset(file, plan.target)
        for plan, listed in zip(plans, jobs, strict=True):
            if plan.method == "view" or (plan.flat and plan.method != "objects"):
                continue
            dataset = h5py.h5d.open(file.id, raw_of(plan.target.path))
            if plan.method == "objects":
                _copy_objects(dataset, plan.target, files, heartbeat)
            else:
                _allocate_chunks(sink, dataset, plan.target, listed, heartbeat)
        for path in schema.single:
            _parent(file, path)
            files.hdf5(0).copy(path, file, path, without_attrs=True)
        for path, found in schema.attributes.items():
            if found:
                _set_attributes(file[path], found)
        for path, node in schema.links:
            _parent(file, path)
            file[path] = h5py.SoftLink(node.target) if node.kind == "soft" else file[node.target]
        _attach_scales(file, schema)
    if sink.error is not None:
        raise sink.error


def _make_groups(file: h5py.File, paths: Iterable[str], heartbeat: Heartbeat) -> None:
    """Makes each group in its parent, which is still open: 3,000 nested ones by their paths would take a minute."""
    above: list[tuple[str, h5py.Group]] = [("", file)]
    for path in paths:
        while not path.startswith(f"{above[-1][0]}/"):
            above.pop()
        if name := path[len(above[-1][0]) + 1 :]:
            above.append((path, above[-1][1].require_group(name)))
            heartbeat()


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
    create_like(file, raw_of(target.path), like, space, plist)


def _allocate_chunks(
    sink: MetadataOnlyFile, dataset: Any, target: MergeTarget, jobs: Ints, heartbeat: Heartbeat
) -> None:
    if not len(jobs):
        return
    like = target.like
    assert like.chunks is not None
    sink.use_blank(int(jobs[:, SIZE].max()))
    starts = np.zeros((len(jobs), len(like.chunks)), np.int64)
    numbers = jobs[:, NUMBER].copy()
    for axis in range(len(like.chunks) - 1, 0, -1):
        across = -(-like.row_shape[axis - 1] // like.chunks[axis])
        starts[:, axis] = numbers % across * like.chunks[axis]
        numbers //= across
    starts[:, 0] = numbers * like.chunks[0]
    write, blank = dataset.write_direct_chunk, sink.blank
    columns = zip(starts.tolist(), jobs[:, SIZE].tolist(), jobs[:, MASK].tolist(), strict=True)
    for number, (start, size, mask) in enumerate(columns):
        write(tuple(start), blank[:size], mask)
        if not number % _CHUNKS_PER_HEARTBEAT:
            heartbeat()


def object_runs(target: MergeTarget) -> Any:
    """Yields (first row of the result, rows, source, first row there), in steps that fit into memory."""
    step = max(1, (1 << 16) // max(1, target.like.row_bytes // target.like.item_bytes))
    for at, run in placed_runs(target):
        for done in range(0, run.rows, step):
            yield at + done, min(step, run.rows - done), run.file, run.start + done


def read_objects(file: h5py.File, path: str, row: int, n: int) -> Any:
    """Reads rows as Python objects that h5py can write again."""
    dataset = file[path]
    values = np.empty((n, *dataset.shape[1:]), dataset.dtype)
    space = dataset.id.get_space()
    space.select_hyperslab((row, *[0] * (len(dataset.shape) - 1)), values.shape)
    dataset.id.read(h5py.h5s.create_simple(values.shape), space, values)
    return in_native_order(values, dataset.dtype)


def _copy_objects(dataset: Any, target: MergeTarget, files: OpenInputs, heartbeat: Heartbeat) -> None:
    """Copies strings and lists of any length one by one: they lie in heaps of the file."""
    for at, n, file, row in object_runs(target):
        values = read_objects(files.hdf5(file), target.path, row, n)
        space = dataset.get_space()
        space.select_hyperslab((at, *[0] * len(target.like.row_shape)), values.shape)
        dataset.write(h5py.h5s.create_simple(values.shape), space, values)
        heartbeat()


def _make_virtual(file: h5py.File, target: MergeTarget, files: OpenInputs) -> None:
    like = target.like
    if like.has_objects:
        text = f"dataset {target.path!r} holds {like.type_name}, which a view cannot contain: merge it instead"
        raise MergeError("schema", files.path(like.file), text)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.fill is not None:
        plist.set_fill_value(fill_of(like, like.fill))
    space = h5py.h5s.create_simple(target.shape)
    zeros = (0,) * len(like.row_shape)
    plist.set_layout(h5py.h5d.VIRTUAL)
    for at, run in placed_runs(target):
        source = h5py.h5s.create_simple(target.sources[run.file].shape)
        source.select_hyperslab((run.start, *zeros), (run.rows, *like.row_shape))
        space.select_hyperslab((at, *zeros), (run.rows, *like.row_shape))
        plist.set_virtual(space, files.view_name(run.file), raw_of(target.path), source)
    space.select_all()
    h5py.h5d.create(file.id, raw_of(target.path), h5py.h5t.decode(like.type), space, plist)


def _set_attributes(obj: Any, found: dict[str, Attribute]) -> None:
    for name, one in found.items():
        dtype = h5py.h5t.decode(one.type).dtype
        if one.value is None:
            obj.attrs[name] = h5py.Empty(dtype)
        elif h5py.check_string_dtype(dtype) is not None or dtype.subdtype:
            obj.attrs.create(name, one.value, dtype=dtype)
        else:
            obj.attrs.create(name, np.asarray(one.value, dtype), dtype=dtype)


def _attach_scales(file: h5py.File, schema: MergeSchema) -> None:
    for path, target in schema.targets.items():
        first: DatasetInfo = target.sources[0]
        for axis, name in first.scales:
            if name in file:
                file[path].dims[axis].attach_scale(file[name])
