"""In the children of salvage: values of any HDF5 type as bytes that another process can write into another file.

Values are read and written in the type that the file has, so no number is converted. One of fixed size is its bytes.
Strings and sequences of variable length are pointers, and references are places in the old file: these are sent beside
the bytes, and put in again by who writes. h5py converts both to Python objects, which not all types survive; so the
library is called directly.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import h5py

_HDF5 = ctypes.CDLL(h5py.h5d.__file__)  # a symbol is looked for in the libraries that this one loads, too
_ID, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SEQUENCE = struct.Struct("@NP")  # the library's hvl_t
_ADDRESS = struct.Struct("@Q")
_OBJECT, _REGION = 0, 1  # the library's H5R_type_t
_REGION_BYTES = 12

Kind = Any  # h5py's TypeID
# What a reference leads to: the address of an object in the old file, and a part of a dataset as an encoded dataspace.
Target = tuple[int, bytes | None]


def _call(name: str, *kinds: Any) -> Callable[..., int]:
    function = getattr(_HDF5, name)
    function.argtypes, function.restype = kinds, ctypes.c_int64 if name in _LONG else ctypes.c_int

    def call(*values: Any) -> int:
        result: int = function(*values)
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
    """What h5py's exceptions say, too."""
    found: list[str] = []

    def see(_depth: int, error: Any, _data: Any) -> int:
        found.append((error.contents.description or b"").decode("utf-8", "replace"))
        return 0

    _HDF5.H5Ewalk2(0, 0, _Seen(see), None)
    return found[0] if found else ""


_LONG = ("H5Rdereference2", "H5Rget_region", "H5Oget_comment")
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


class _Spot(NamedTuple):
    """One pointer or reference in a value. `what`: string, sequence, object or region."""

    offset: int
    what: str
    inner: Kind = None


class UnknownTypeError(Exception):
    """A type whose values cannot be taken from one file to another."""


def is_plain(kind: Kind) -> bool:
    """Whether a value is nothing but its bytes."""
    return not _spots(kind)


def has_references(kind: Kind) -> bool:
    return bool(kind.detect_class(h5py.h5t.REFERENCE))


def _spots(kind: Kind, at: int = 0) -> list[_Spot]:
    match kind.get_class():
        case h5py.h5t.STRING if kind.is_variable_str():
            return [_Spot(at, "string")]
        case h5py.h5t.VLEN:
            return [_Spot(at, "sequence", kind.get_super())]
        case h5py.h5t.REFERENCE:
            what = {_ADDRESS.size: "object", _REGION_BYTES: "region"}.get(kind.get_size())
            if what is None:
                raise UnknownTypeError("references of the kind that HDF5 1.12 brought")
            return [_Spot(at, what)]
        case h5py.h5t.ARRAY:
            inner = kind.get_super()
            each, size = _spots(inner), inner.get_size()
            count = math.prod(kind.get_array_dims()) if each else 0
            return [spot._replace(offset=at + i * size + spot.offset) for i in range(count) for spot in each]
        case h5py.h5t.COMPOUND:
            members = range(kind.get_nmembers())
            return [spot for i in members for spot in _spots(kind.get_member_type(i), at + kind.get_member_offset(i))]
    return []


# ---- reading


def read_values(dataset: h5py.Dataset, kind: Kind, space: Any, count: int) -> bytes:
    """Those that are selected in `space`."""
    memory = h5py.h5s.create_simple((count,))
    data = ctypes.create_string_buffer(count * kind.get_size())
    _read_dataset(dataset.id.id, kind.id, memory.id, space.id, 0, data)
    return _packed(dataset.id.id, kind, memory, data, count)


def read_attribute(attribute: Any, kind: Kind) -> bytes:
    count = int(attribute.get_space().get_simple_extent_npoints())
    data = ctypes.create_string_buffer(max(1, count * kind.get_size()))
    _read_attribute(attribute.id, kind.id, data)
    return _packed(attribute.id, kind, h5py.h5s.create_simple((max(1, count),)), data, count)


def read_fill(plist: Any, kind: Kind) -> bytes:
    data = ctypes.create_string_buffer(kind.get_size())
    _get_fill(plist.id, kind.id, data)
    return _packed(plist.id, kind, h5py.h5s.create_simple((1,)), data, 1)


def comment_of(thing: Any) -> bytes:
    """What somebody wrote beside an object. h5py's call for it gives bytes that are not the comment's."""
    size = _get_comment(thing.id, None, 0)
    data = ctypes.create_string_buffer(size + 1)
    _get_comment(thing.id, data, size + 1)
    return data.value


def chunk_options(plist: Any) -> int:
    """1: chunks that are not full, at the edges, are stored without filters. h5py does not say."""
    found = ctypes.c_uint()
    _get_chunk_options(plist.id, found)
    return found.value >> 1


def set_chunk_options(plist: Any, options: int) -> None:
    _set_chunk_options(plist.id, options << 1)


def _packed(owner: int, kind: Kind, memory: Any, data: Any, count: int) -> bytes:
    spots = _spots(kind)
    if not spots:
        return pickle.dumps((data.raw[: count * kind.get_size()], []))
    beside = _beside(owner, kind, ctypes.addressof(data), count)
    packed = pickle.dumps((data.raw[: count * kind.get_size()], beside))
    if kind.detect_class(h5py.h5t.VLEN) or kind.detect_class(h5py.h5t.STRING):
        _reclaim(kind.id, memory.id, 0, data)
    return packed


def _beside(owner: int, kind: Kind, start: int, count: int) -> list[Any]:
    """What the pointers and references lead to, in their order."""
    size = kind.get_size()
    found: list[Any] = []
    for spot in _spots(kind):
        offset, what, inner = spot
        for at in range(start + offset, start + offset + count * size, size):
            if what == "string":
                found.append(ctypes.c_char_p.from_address(at).value)
            elif what == "sequence":
                n, where = _SEQUENCE.unpack(ctypes.string_at(at, _SEQUENCE.size))
                raw = ctypes.string_at(where, n * inner.get_size()) if n else b""
                found.append((raw, _beside(owner, inner, where, n) if n else []))
            else:
                found.append(_target(owner, what, at))
    return found


def _target(owner: int, what: str, at: int) -> Target | None:
    """None: it leads nowhere, or to what cannot be read."""
    size = _ADDRESS.size if what == "object" else _REGION_BYTES
    if ctypes.string_at(at, size) in (bytes(size), b"\xff" * size):
        return None
    if what == "object":
        return _ADDRESS.unpack(ctypes.string_at(at, _ADDRESS.size))[0], None
    try:
        thing = h5py.h5i.wrap_identifier(_dereference(owner, 0, _REGION, at))
        space = h5py.h5s.SpaceID(_get_region(owner, _REGION, at))
        return int(h5py.h5o.get_info(thing).addr), space.encode()
    except (ValueError, RuntimeError, KeyError, OSError):
        return -1, None


# ---- writing


class ValueDecoder:
    """Puts values together again. `find` gives the path in `file` of what was at an address, or None.

    `unmet` counts references to what is not in the new file: they lead nowhere there.
    """

    def __init__(self, file: h5py.File, find: Callable[[int], str | None]) -> None:
        self._file, self._find = file, find
        self.unmet = 0
        self._alive: list[Any] = []  # what pointers point to

    def write_values(self, dataset: Any, kind: Kind, space: Any, packed: bytes) -> None:
        data, count = self._buffer(kind, packed)
        memory = h5py.h5s.create_simple((count,))
        _write_dataset(dataset.id, kind.id, memory.id, space.id, 0, data)

    def write_attribute(self, attribute: Any, kind: Kind, packed: bytes) -> None:
        _write_attribute(attribute.id, kind.id, self._buffer(kind, packed)[0])

    def set_fill(self, plist: Any, kind: Kind, packed: bytes) -> None:
        _set_fill(plist.id, kind.id, self._buffer(kind, packed)[0])

    def _buffer(self, kind: Kind, packed: bytes) -> tuple[Any, int]:
        raw, beside = pickle.loads(packed)
        self._alive = []
        return self._filled(kind, raw, beside), len(raw) // kind.get_size()

    def _filled(self, kind: Kind, raw: bytes, beside: list[Any]) -> Any:
        data = ctypes.create_string_buffer(raw, max(1, len(raw)))
        self._alive.append(data)
        start, size, spots = ctypes.addressof(data), kind.get_size(), _spots(kind)
        places = [
            (spot, at) for spot in spots for at in range(start + spot.offset, start + spot.offset + len(raw), size)
        ]
        for (spot, at), one in zip(places, beside, strict=True):
            self._put(spot, at, one)
        return data

    def _put(self, spot: _Spot, at: int, one: Any) -> None:
        if spot.what == "string":
            held = None if one is None else ctypes.create_string_buffer(one)
            self._alive.append(held)
            ctypes.c_void_p.from_address(at).value = None if held is None else ctypes.addressof(held)
        elif spot.what == "sequence":
            inner, beside = one
            held = self._filled(spot.inner, inner, beside)
            n = len(inner) // spot.inner.get_size()
            ctypes.memmove(at, _SEQUENCE.pack(n, ctypes.addressof(held) if n else 0), _SEQUENCE.size)
        else:
            self._refer(spot.what, at, one)

    def _refer(self, what: str, at: int, target: Target | None) -> None:
        ctypes.memset(at, 0, _ADDRESS.size if what == "object" else _REGION_BYTES)
        if target is None:
            return
        address, region = target
        path = self._find(address)
        if path is None:
            self.unmet += 1
            return
        name = path.encode("utf-8", "surrogateescape")
        if region is None:
            _create_reference(at, self._file.id.id, name, _OBJECT, -1)
        else:
            space = h5py.h5s.decode(region)
            _create_reference(at, self._file.id.id, name, _REGION, space.id)
