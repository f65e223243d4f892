"""Checks the sources of a merge, and reads what is in each of them.

A source must be an intact HDF5 file that nobody writes, and unchanged at the end of the merge.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ....._util.atomic import FileStamp
from .....errors import CorruptError, InputError, UnfinishedError, cannot_open
from .....procfs.locks import locks_of, open_files, writers_of
from ...part_record import find_record
from ..chunks import chunk_table, read_unconverted
from ..file_state import State, find_superblock, state_problems
from ..filters import PACKAGE, filter_names_of, filters_of, lacking_filter
from ..object_walk import ObjectRef, reason_of, walk
from ..other_files import external_storage
from ..raw_values import chunk_options, read_attribute, read_fill
from ..schema_layout import stored_column
from .merge_model import NO_CRC, Attribute, DatasetInfo, Ints, MergeError, MergeInput, Node

if TYPE_CHECKING:
    from ..sandbox_main import Reporter

Crcs = dict[str, dict[tuple[int, int], int]]  # by dataset, then by offset and size

LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, KeyError)
_SCALE_ATTRIBUTES = ("DIMENSION_LIST", "REFERENCE_LIST")


def check_sources(paths: list[str]) -> dict[str, FileStamp]:
    """Returns the stamps of all sources."""
    stamps = {path: FileStamp.of(path) for path in paths}
    seen = set()
    for path in paths:
        if not os.path.isfile(path):
            found = "a directory" if os.path.isdir(path) else "nothing"
            raise InputError(f"{path}: expected a file to read, got {found}")
        if stamps[path][2:] in seen:
            raise InputError(f"{path}: duplicate input file")
        seen.add(stamps[path][2:])
    opened = {identity for _, _, identity in open_files() if identity in seen}  # one scan of all processes
    for path, stamp in stamps.items():
        _check_no_writer(path, stamp, stamp[2:] in opened)
        try:
            state = State(path, stamp.size, find_superblock(path), None)
        except OSError as error:
            raise cannot_open(path, error) from error
        for offset, reason in state_problems(state):
            raise CorruptError(path, None, offset, reason, "`holdfast salvage FILE OUT` copies what can be read")
    return stamps


def _check_no_writer(path: str, stamp: FileStamp, is_open: bool) -> None:
    writer = next(iter(writers_of(path)), None) if is_open else None
    if writer is not None:
        reason = f"it is still being written {State(path, stamp.size, None, writer).written_by}"
    elif any(lock.exclusive and not lock.waiting for lock in locks_of(path) or []):
        reason = "another process holds a lock on it"
    else:
        return
    raise UnfinishedError(path, None, None, reason, "Wait for its writer to close it")


class _StrictReporter:
    """Stands in for the Reporter of walk(): any problem ends the merge."""

    def __init__(self, path: str) -> None:
        self._path = path

    def at_object(self, path: str) -> None:
        pass

    def problem(self, path: str | None, reason: str) -> None:
        raise MergeError("corrupt", self._path, f"{path or 'it'}: {reason}")


def read_input(number: int, path: str, reporter: Reporter) -> MergeInput:
    reporter.send({"at": path})
    source = MergeInput(number, path)
    record = find_record(path)
    crcs: Crcs = {}
    for chunk in record.chunks if record is not None else []:
        crcs.setdefault(chunk.dataset, {})[chunk.offset, chunk.size] = chunk.crc32c
    try:
        with h5py.File(path, "r") as file:
            for ref in walk(file, _StrictReporter(path)):
                source.nodes[ref.path] = _node(source, ref, crcs)
    except LIBRARY_ERRORS as error:
        raise MergeError("corrupt", path, f"it cannot be read: {reason_of(error)}") from error
    except TypeError as error:  # a type that numpy lacks
        raise MergeError("schema", path, f"it has a type that cannot be merged: {reason_of(error)}") from error
    source.recorded = bool(crcs)
    for name in sorted(record.datasets if record is not None else []):
        if name not in source.nodes or source.nodes[name].dataset is None:
            raise MergeError("corrupt", path, f"dataset {name!r} is missing, but its record lists it")
    return source


def _node(source: MergeInput, ref: ObjectRef, crcs: Crcs) -> Node:
    if ref.kind == "external":
        text = f"{ref.path!r} is a link into {ref.target_file!r}: merge its target, or remove the link"
        raise MergeError("schema", source.path, text)
    if ref.kind in ("soft", "again"):
        return Node(ref.kind, target=ref.target)
    node = Node(ref.kind, _attributes(source, ref))
    if ref.kind == "datatype":
        node.type = _copied(ref.object.id)
        return node
    node.column = stored_column(ref.object)
    plist = ref.object.id.get_create_plist()
    if plist.get_attr_creation_order() or (ref.kind == "group" and plist.get_link_creation_order()):
        source.ordered.append(ref.path)
    if ref.kind == "dataset":
        node.dataset = _dataset(source, ref, crcs.get(ref.path))
    return node


def _copied(kind: Any) -> Any:
    """Returns the same type without its file."""
    return h5py.h5t.decode(kind.encode())


def _attributes(source: MergeInput, ref: ObjectRef) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for name in ref.object.attrs:
        kind = ref.object.attrs.get_id(name).get_type()
        if not kind.detect_class(h5py.h5t.REFERENCE):
            attribute, value = ref.object.attrs.get_id(name), ref.object.attrs[name]
            is_empty = isinstance(value, h5py.Empty)
            encoded = b"" if is_empty else read_attribute(attribute, kind)
            found[name] = Attribute(_copied(kind), attribute.get_space(), encoded, None if is_empty else plain(value))
        elif name not in _SCALE_ATTRIBUTES:
            text = f"attribute {name!r} of {ref.path!r} holds references, which are not valid in another file"
            raise MergeError("schema", source.path, text)
    return found


def plain(value: Any) -> Any:
    """Returns a value that can be compared."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.shape, [plain(one) for one in value.reshape(-1)]
    if isinstance(value, np.void) and value.dtype.names and value.dtype.hasobject:
        return [plain(value[name]) for name in value.dtype.names]
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), np.shape(value), value.tobytes()
    return value


def _dataset(source: MergeInput, ref: ObjectRef, crcs: dict[tuple[int, int], int] | None) -> DatasetInfo:
    dataset = ref.object
    _check_supported(source, ref.path, dataset)
    plist = dataset.id.get_create_plist()
    found = DatasetInfo(
        file=source.number,
        path=ref.path,
        shape=dataset.shape,
        maxshape=dataset.maxshape if dataset.shape is not None else (),
        type=_copied(dataset.id.get_type()),
        dtype=dataset.dtype,
        chunks=dataset.chunks,
        filters=filters_of(plist),
        filter_names=filter_names_of(plist),
        fill=_fill(dataset, plist),
        offset=_offset(dataset, plist),
    )
    if "DIMENSION_LIST" in dataset.attrs:
        scales = ((axis, scale.name) for axis, dim in enumerate(dataset.dims) for scale in dim.values())
        found.scales = tuple((axis, name) for axis, name in scales if name)
    if dataset.chunks:
        found.has_unfiltered_edges = bool(chunk_options(plist))
        found.extents = _extents(source, ref.path, dataset, crcs)
    elif dataset.shape == ():
        found.value = plain(dataset[()]) if dataset.dtype.hasobject else read_unconverted(dataset, (), ()).tobytes()
    return found


def _fill(dataset: h5py.Dataset, plist: Any) -> bytes | None:
    is_given = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    return read_fill(plist, dataset.id.get_type()) if is_given else None


def _offset(dataset: h5py.Dataset, plist: Any) -> int | None:
    """Returns the offset of contiguous values, None if there is none. With a user block the library returns a wrong one
    for those."""
    is_flat = dataset.shape and plist.get_layout() == h5py.h5d.CONTIGUOUS
    there = is_flat and dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_NOT_ALLOCATED
    return dataset.id.get_offset() if there else None


def _check_supported(source: MergeInput, path: str, dataset: h5py.Dataset) -> None:
    kind, text = "schema", ""
    if dataset.id.get_type().detect_class(h5py.h5t.REFERENCE):
        text = "holds references, which are not valid in another file: remove it"
    elif lacking := lacking_filter(dataset):
        kind, text = "input", f"{lacking}: pip install {PACKAGE}"
    elif dataset.shape is not None and dataset.is_virtual:
        names = sorted({one.file_name for one in dataset.virtual_sources()})
        text = f"is virtual: merge its sources, {', '.join(names[:4])}"
    elif dataset.shape is not None and (stored := external_storage(dataset)):
        text = f"has its values in {stored[0][0]!r}, another file: copy them into a file of its own"
    if text:
        raise MergeError(kind, source.path, f"dataset {path!r} {text}")


def _extents(source: MergeInput, path: str, dataset: h5py.Dataset, crcs: dict[tuple[int, int], int] | None) -> Ints:
    table = chunk_table(dataset)
    extents = np.column_stack([table, np.full(len(table), NO_CRC, np.int64)])
    if crcs is not None and len(table):
        expected = [crcs.get((offset, size), NO_CRC) for offset, size in extents[:, 1:3].tolist()]
        extents[:, 4] = expected
        if NO_CRC in expected:
            text = f"dataset {path!r} has a chunk that is not in its record: the file was changed"
            raise MergeError("corrupt", source.path, text, int(extents[expected.index(NO_CRC), 1]))
        if len(crcs) != len(expected):
            text = f"dataset {path!r} has {len(expected):,} chunks, but its record lists {len(crcs):,}"
            raise MergeError("corrupt", source.path, text)
    return extents
