"""Encodes values of any HDF5 type as bytes that another process can write into another file.

Values are read and written in the file's own type, so no number is converted. A value of fixed size is its bytes.
Strings and sequences of variable length are pointers, and references are addresses in the old file: their targets are
sent beside the bytes, and inserted again by the writer. h5py converts both to Python objects, which not all types
survive, so the library is called directly.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import h5py

from .object_walk import raw_of

_HDF5 = ctypes.CDLL(h5py.h5d.__file__)  # dlsym also searches the libraries that this one loads
_ID, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SEQUENCE = struct.Struct("@NP")  # the library's hvl_t
_ADDRESS = struct.Struct("@Q")
_OBJECT, _REGION = 0, 1  # the library's H5R_type_t
_REGION_BYTES = 12

Kind = Any  # h5py's TypeID
# The target of a reference: the address of an object in the old file, and a region as an encoded dataspace.
Target = tuple[int, bytes | None]


def _call(name: str, *kinds: Any) -> Callable[..., int]:
    function = getattr(_HDF5, name)
    function.argtypes, function.restype = kinds, ctypes.c_int64 if name in _RETURN_INT64 else ctypes.c_int

    def call(*values: Any) -> int:
        with h5py._objects.phil:  # a foreign call releases the GIL, and the library may be in one thread at a time
            try:
                result: int = function(*values)
            except SystemError as error:  # a PatchedView raised, and the library returned
                raise error.__cause__ or error from None
            if result < 0:
                raise ValueError(_innermost_error() or f"{name} failed")
            return result

    return call


class _Error(ctypes.Structure):
    """The library's H5E_error2_t."""

    _fields_ = [
        *((name, _ID) for name in ("class_id", "major", "minor")),
        ("line", ctypes.c_uint),
        *((name, ctypes.c_char_p) for name in ("function", "file", "description")),
    ]


_Seen = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Error), _POINTER)
_HDF5.H5Ewalk2.argtypes = [_ID, ctypes.c_int, _Seen, _POINTER]


def _innermost_error() -> str:
    """Returns the description that h5py's exceptions have as well."""
    found: list[str] = []

    def see(_depth: int, error: Any, _data: Any) -> int:
        found.append((error.contents.description or b"").decode("utf-8", "replace"))
        return 0

    _HDF5.H5Ewalk2(0, 0, _Seen(see), None)
    return found[0] if found else ""


_RETURN_INT64 = ("H5Rdereference2", "H5Rget_region", "H5Oget_comment")
_read_dataset = _call("H5Dread", _ID, _ID, _ID, _ID, _ID, _POINTER)
_write_dataset = _call("H5Dwrite", _ID, _ID, _ID, _ID, _ID, _POINTER)
_read_attribute = _call("H5Aread", _ID, _ID, _POINTER)
_write_attribute = _call("H5Awrite", _ID, _ID, _POINTER)
_get_fill = _call("H5Pget_fill_value", _ID, _ID, _POINTER)
_set_fill = _call("H5Pset_fill_value", _ID, _ID, _POINTER)
_get_chunk_options = _call("H5Pget_chunk_opts", _ID, ctypes.POINTER(ctypes.c_uint))
_set_chunk_options = _call("H5Pset_chunk_opts", _ID, ctypes.c_uint)
_get_comment = _call("H5Oget_comment", _ID, _POINTER, ctypes.c_size_t)
_reclaim = _call("H5Dvlen_reclaim", _ID, _ID, _ID, _POINTER)
_dereference = _call("H5Rdereference2", _ID, _ID, ctypes.c_int, _POINTER)
_get_region = _call("H5Rget_region", _ID, ctypes.c_int, _POINTER)
_create_reference = _call("H5Rcreate", _POINTER, _ID, ctypes.c_char_p, ctypes.c_int, _ID)


class _Pointer(NamedTuple):
    """One pointer or reference in a value. `kind_of`: string, sequence, object or region."""

    offset: int
    kind_of: str
    inner: Kind = None


class UnknownTypeError(Exception):
    """A type whose values cannot be copied to another file."""


def is_plain(kind: Kind) -> bool:
    """Returns whether a value has no pointers or references."""
    return not _pointers(kind)


def has_references(kind: Kind) -> bool:
    return bool(kind.detect_class(h5py.h5t.REFERENCE))


def _pointers(kind: Kind, at: int = 0) -> list[_Pointer]:
    match kind.get_class():
        case h5py.h5t.STRING if kind.is_variable_str():
            return [_Pointer(at, "string")]
        case h5py.h5t.VLEN:
            return [_Pointer(at, "sequence", kind.get_super())]
        case h5py.h5t.REFERENCE:
            kind_of = {_ADDRESS.size: "object", _REGION_BYTES: "region"}.get(kind.get_size())
            if kind_of is None:
                raise UnknownTypeError("references of the kind that HDF5 1.12 introduced")
            return [_Pointer(at, kind_of)]
        case h5py.h5t.ARRAY:
            inner = kind.get_super()
            each, size = _pointers(inner), inner.get_size()
            count = math.prod(kind.get_array_dims()) if each else 0
            return [pointer._replace(offset=at + i * size + pointer.offset) for i in range(count) for pointer in each]
        case h5py.h5t.COMPOUND:
            members = range(kind.get_nmembers())
            return [
                pointer
                for i in members
                for pointer in _pointers(kind.get_member_type(i), at + kind.get_member_offset(i))
            ]
    return []


def read_values(dataset: h5py.Dataset, kind: Kind, space: Any, count: int) -> bytes:
    """Returns the values that are selected in `space`."""
    memory = h5py.h5s.create_simple((count,))
    data = ctypes.create_string_buffer(count * kind.get_size())
    _read_dataset(dataset.id.id, kind.id, memory.id, space.id, 0, data)
    return _encoded(dataset.id.id, kind, memory, data, count)


def read_attribute(attribute: Any, kind: Kind) -> bytes:
    count = int(attribute.get_space().get_simple_extent_npoints())
    data = ctypes.create_string_buffer(max(1, count * kind.get_size()))
    _read_attribute(attribute.id, kind.id, data)
    return _encoded(attribute.id, kind, h5py.h5s.create_simple((max(1, count),)), data, count)


def read_fill(plist: Any, kind: Kind) -> bytes:
    data = ctypes.create_string_buffer(kind.get_size())
    _get_fill(plist.id, kind.id, data)
    return _encoded(plist.id, kind, h5py.h5s.create_simple((1,)), data, 1)


def comment_of(thing: Any) -> bytes:
    """Returns an object's comment. h5py's call for it returns wrong bytes."""
    size = _get_comment(thing.id, None, 0)
    data = ctypes.create_string_buffer(size + 1)
    _get_comment(thing.id, data, size + 1)
    return data.value


def chunk_options(plist: Any) -> int:
    """Returns 1 if partial chunks at the edges are stored without filters. h5py has no call for it."""
    found = ctypes.c_uint()
    _get_chunk_options(plist.id, found)
    return found.value >> 1


def set_chunk_options(plist: Any, options: int) -> None:
    _set_chunk_options(plist.id, options << 1)


def _encoded(owner: int, kind: Kind, memory: Any, data: Any, count: int) -> bytes:
    pointers = _pointers(kind)
    if not pointers:
        return pickle.dumps((data.raw[: count * kind.get_size()], []))
    targets = _targets(owner, kind, ctypes.addressof(data), count)
    encoded = pickle.dumps((data.raw[: count * kind.get_size()], targets))
    if kind.detect_class(h5py.h5t.VLEN) or kind.detect_class(h5py.h5t.STRING):
        _reclaim(kind.id, memory.id, 0, data)
    return encoded


def _targets(owner: int, kind: Kind, start: int, count: int) -> list[Any]:
    """Returns the targets of the pointers and references, in their order."""
    size = kind.get_size()
    found: list[Any] = []
    for pointer in _pointers(kind):
        offset, kind_of, inner = pointer
        for at in range(start + offset, start + offset + count * size, size):
            if kind_of == "string":
                found.append(ctypes.c_char_p.from_address(at).value)
            elif kind_of == "sequence":
                n, where = _SEQUENCE.unpack(ctypes.string_at(at, _SEQUENCE.size))
                raw = ctypes.string_at(where, n * inner.get_size()) if n else b""
                found.append((raw, _targets(owner, inner, where, n) if n else []))
            else:
                found.append(_target(owner, kind_of, at))
    return found


def _target(owner: int, kind_of: str, at: int) -> Target | None:
    """Returns None for a null reference; address -1 if the target cannot be read."""
    size = _ADDRESS.size if kind_of == "object" else _REGION_BYTES
    if ctypes.string_at(at, size) in (bytes(size), b"\xff" * size):
        return None
    if kind_of == "object":
        return _ADDRESS.unpack(ctypes.string_at(at, _ADDRESS.size))[0], None
    try:
        thing = h5py.h5i.wrap_identifier(_dereference(owner, 0, _REGION, at))
        space = h5py.h5s.SpaceID(_get_region(owner, _REGION, at))
        return int(h5py.h5o.get_info(thing).addr), space.encode()
    except (ValueError, RuntimeError, KeyError, OSError):
        return -1, None


class ValueDecoder:
    """Writes encoded values. `find` returns the path in `file` of what was at an address, or None.

    `dangling` counts references to what is not in the new file: they become null.
    """

    def __init__(self, file: h5py.File, find: Callable[[int], str | None]) -> None:
        self._file, self._find = file, find
        self.dangling = 0
        self._buffers: list[Any] = []  # what pointers point to

    def write_values(self, dataset: Any, kind: Kind, space: Any, encoded: bytes) -> None:
        data, count = self._buffer(kind, encoded)
        memory = h5py.h5s.create_simple((count,))
        _write_dataset(dataset.id, kind.id, memory.id, space.id, 0, data)

    def write_attribute(self, attribute: Any, kind: Kind, encoded: bytes) -> None:
        _write_attribute(attribute.id, kind.id, self._buffer(kind, encoded)[0])

    def set_fill(self, plist: Any, kind: Kind, encoded: bytes) -> None:
        _set_fill(plist.id, kind.id, self._buffer(kind, encoded)[0])

    def _buffer(self, kind: Kind, encoded: bytes) -> tuple[Any, int]:
        raw, targets = pickle.loads(encoded)
        self._buffers = []
        return self._filled(kind, raw, targets), len(raw) // kind.get_size()

    def _filled(self, kind: Kind, raw: bytes, targets: list[Any]) -> Any:
        data = ctypes.create_string_buffer(raw, max(1, len(raw)))
        self._buffers.append(data)
        start, size, pointers = ctypes.addressof(data), kind.get_size(), _pointers(kind)
        places = [
            (pointer, at)
            for pointer in pointers
            for at in range(start + pointer.offset, start + pointer.offset + len(raw), size)
        ]
        for (pointer, at), one in zip(places, targets, strict=True):
            self._put(pointer, at, one)
        return data

    def _put(self, pointer: _Pointer, at: int, one: Any) -> None:
        if pointer.kind_of == "string":
            target_buffer = None if one is None else ctypes.create_string_buffer(one)
            self._buffers.append(target_buffer)
            ctypes.c_void_p.from_address(at).value = None if target_buffer is None else ctypes.addressof(target_buffer)
        elif pointer.kind_of == "sequence":
            inner, targets = one
            target_buffer = self._filled(pointer.inner, inner, targets)
            n = len(inner) // pointer.inner.get_size()
            ctypes.memmove(at, _SEQUENCE.pack(n, ctypes.addressof(target_buffer) if n else 0), _SEQUENCE.size)
        else:
            self._put_reference(pointer.kind_of, at, one)

    def _put_reference(self, kind_of: str, at: int, target: Target | None) -> None:
        ctypes.memset(at, 0, _ADDRESS.size if kind_of == "object" else _REGION_BYTES)
        if target is None:
            return
        address, region = target
        path = self._find(address)
        if path is None:
            self.dangling += 1
            return
        name = raw_of(path)
        if region is None:
            _create_reference(at, self._file.id.id, name, _OBJECT, -1)
        else:
            space = h5py.h5s.decode(region)
            _create_reference(at, self._file.id.id, name, _REGION, space.id)
