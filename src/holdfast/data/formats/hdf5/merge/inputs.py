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
from ..schema_layout import describe, stored_column
from .merge_model import NO_CRC, Attribute, DatasetInfo, Ints, MergeError, MergeInput, Node

if TYPE_CHECKING:
    from ..sandbox_main import Reporter


Stamp = list[int]  # a FileStamp as JSON has it


def take_stamps(paths: list[str]) -> list[Stamp]:
    return [list(FileStamp.of(path)) for path in paths]


def check_sources(paths: list[str], stamps: list[Stamp]) -> None:
    seen: set[tuple[int, ...]] = set()
    for path, stamp in zip(paths, stamps, strict=True):
        if os.path.isdir(path) or not os.path.isfile(path):
            raise InputError(
                f"{path}: expected a file to read, got {'a directory' if os.path.isdir(path) else 'nothing'}"
            )
        if tuple(stamp[2:]) in seen:
            raise InputError(f"{path}: duplicate input file")
        seen.add(tuple(stamp[2:]))
    opened = _open_in_any_process(seen)
    for path, stamp in zip(paths, stamps, strict=True):
        _check_no_writer(path, stamp, opened)
        _check_intact(path, stamp[0])


def _check_no_writer(path: str, stamp: Stamp, opened: set[tuple[int, ...]]) -> None:
    state = State(path, stamp[0], None, None)
    if tuple(stamp[2:]) in opened:
        state = state._replace(writer=next(iter(writers_of(path)), None))
    if state.writer is None and any(lock.exclusive and not lock.waiting for lock in locks_of(path) or []):
        raise UnfinishedError(path, None, None, "another process holds a lock on it", "Wait for its writer to close it")
    if state.writer is not None:
        raise UnfinishedError(
            path, None, None, f"it is still being written {state.written_by}", "Wait for its writer to close it"
        )


def _check_intact(path: str, size: int) -> None:
    try:
        state = State(path, size, find_superblock(path), None)
    except OSError as error:
        raise cannot_open(path, error) from error
    for offset, reason in state_problems(state):
        raise CorruptError(path, None, offset, reason, "`holdfast salvage FILE OUT` copies what can be read")


def _open_in_any_process(expected: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Returns those of the files that some process has open, by one scan of all processes."""
    return {identity for _, _, identity in open_files() if identity in expected}


Crcs = dict[str, dict[tuple[int, int], int]]  # by dataset, then by offset and size

_SCALE_ATTRIBUTES = ("DIMENSION_LIST", "REFERENCE_LIST")


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
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise MergeError("corrupt", path, f"it cannot be read: {reason_of(error)}") from error
    except TypeError as error:  # a type that numpy lacks
        raise MergeError("schema", path, f"it has a type that cannot be merged: {reason_of(error)}") from error
    source.recorded = bool(crcs)
    if record is not None:
        _check_recorded(source, record.datasets)
    return source


def _check_recorded(source: MergeInput, expected: set[str]) -> None:
    for name in sorted(expected):
        node = source.nodes.get(name)
        if node is None or node.dataset is None:
            raise MergeError("corrupt", source.path, f"dataset {name!r} is missing, but its record lists it")


def _node(source: MergeInput, ref: ObjectRef, crcs: Crcs) -> Node:
    if ref.kind == "external":
        text = f"{ref.path!r} is a link into {ref.target_file!r}: merge its target, or remove the link"
        raise MergeError("schema", source.path, text)
    if ref.kind in ("soft", "again"):
        return Node(ref.kind, target=ref.target)
    if ref.kind == "datatype":
        return Node("datatype", _attributes(source, ref), type=ref.object.id.encode())
    node = Node(ref.kind, _attributes(source, ref), column=stored_column(ref.object))
    if ref.kind == "dataset":
        node.dataset = _dataset(source, ref, crcs)
    return node


def _attributes(source: MergeInput, ref: ObjectRef) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for name in ref.object.attrs:
        kind = ref.object.attrs.get_id(name).get_type()
        if kind.detect_class(h5py.h5t.REFERENCE):
            if name not in _SCALE_ATTRIBUTES:
                text = f"attribute {name!r} of {ref.path!r} holds references, which are not valid in another file"
                raise MergeError("schema", source.path, text)
            continue
        value = ref.object.attrs[name]
        empty = isinstance(value, h5py.Empty)
        found[name] = Attribute(kind.encode(), None if empty else value, None if empty else _plain(value))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.shape, [_plain(one) for one in value.reshape(-1)]
    if isinstance(value, np.void) and value.dtype.names and value.dtype.hasobject:
        return [_plain(value[name]) for name in value.dtype.names]
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), np.shape(value), value.tobytes()
    return value


def _dataset(source: MergeInput, ref: ObjectRef, crcs: Crcs) -> DatasetInfo:
    dataset = ref.object
    kind = dataset.id.get_type()
    _check_supported(source, ref.path, dataset, kind)
    plist = dataset.id.get_create_plist()
    found = DatasetInfo(
        file=source.number,
        path=ref.path,
        shape=dataset.shape,
        maxshape=dataset.maxshape if dataset.shape is not None else (),
        type=kind.encode(),
        item_bytes=kind.get_size(),
        type_name=describe(dataset.dtype) if dataset.dtype.kind != "V" or dataset.dtype.names else str(dataset.dtype),
        has_objects=dataset.dtype.hasobject,
        chunks=dataset.chunks,
        filters=filters_of(plist),
        filter_names=filter_names_of(plist),
        fill=_fill(dataset, plist),
        offset=_offset(dataset, plist),
        scales=_scales(source, ref),
    )
    if dataset.chunks:
        found.extents = _extents(source, found, dataset, crcs)
    elif not dataset.shape and dataset.shape is not None:
        if found.has_objects:
            found.value = repr(_plain(dataset[()])).encode()
        else:
            found.value = read_unconverted(dataset, (), ()).tobytes()
    return found


def _fill(dataset: h5py.Dataset, plist: Any) -> bytes | None:
    if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED or dataset.dtype.hasobject:
        return None
    return np.asarray(dataset.fillvalue, dataset.dtype).tobytes()


def _offset(dataset: h5py.Dataset, plist: Any) -> int | None:
    """Returns the offset of contiguous values, None if there is none. With a user block the library returns a wrong one
    for those."""
    if not dataset.shape or plist.get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    there = dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_NOT_ALLOCATED
    return dataset.id.get_offset() if there else None


def _check_supported(source: MergeInput, path: str, dataset: h5py.Dataset, kind: Any) -> None:
    if kind.detect_class(h5py.h5t.REFERENCE):
        text = f"dataset {path!r} holds references, which are not valid in another file: remove it"
        raise MergeError("schema", source.path, text)
    lacking = lacking_filter(dataset)
    if lacking is not None:
        raise MergeError("input", source.path, f"dataset {path!r} {lacking}: pip install {PACKAGE}")
    if dataset.shape is None:
        return
    if dataset.is_virtual:
        names = sorted({one.file_name for one in dataset.virtual_sources()})
        raise MergeError(
            "schema", source.path, f"dataset {path!r} is virtual: merge its sources, {', '.join(names[:4])}"
        )
    if stored := external_storage(dataset):
        text = f"dataset {path!r} has its values in {stored[0][0]!r}, another file: copy them into a file of its own"
        raise MergeError("schema", source.path, text)


def _scales(source: MergeInput, ref: ObjectRef) -> tuple[tuple[int, str], ...]:
    if "DIMENSION_LIST" not in ref.object.attrs:
        return ()
    return tuple((axis, scale.name) for axis, dim in enumerate(ref.object.dims) for scale in dim.values() if scale.name)


def _extents(source: MergeInput, found: DatasetInfo, dataset: h5py.Dataset, crcs: Crcs) -> Ints:
    table = chunk_table(dataset)
    if not len(table):
        return found.extents
    extents = np.column_stack([table, np.full(len(table), NO_CRC, np.int64)])
    if found.path in crcs:
        known = crcs[found.path]
        expected = [known.get((offset, size), NO_CRC) for offset, size in extents[:, 1:3].tolist()]
        extents[:, 4] = expected
        if NO_CRC in expected:
            text = f"dataset {found.path!r} has a chunk that is not in its record: the file was changed"
            raise MergeError("corrupt", source.path, text, int(extents[expected.index(NO_CRC), 1]))
        if len(known) != len(expected):
            text = f"dataset {found.path!r} has {len(expected):,} chunks, but its record lists {len(known):,}"
            raise MergeError("corrupt", source.path, text)
    return extents
