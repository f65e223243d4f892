"""Odd HDF5 files, one feature of the library after another: all are valid unless their name begins with `bad_`.

`FEATURES` are functions that put something odd into a file; `make_feature` writes a file with one of them, `make_all` a
file with all of them, `make_files` those that need a file of their own (superblocks, drivers, marks of a writer).
`flips` gives the same file with a byte of its metadata changed, again and again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5p, h5s, h5t, h5z

Feature = Callable[[h5py.Group, Path], None]

FEATURES: dict[str, Feature] = {}
NOT_UTF8 = b"caf\xe9 \xff\xfe"


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def make_feature(name: str, path: Path, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        FEATURES[name](file, path)
    return path


def make_all(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        for name, put in FEATURES.items():
            put(file.create_group(name), path)
    return path


def _put(group: h5py.Group, name: str, dtype: Any, raw: bytes | None = None, shape: tuple[int, ...] = (4,)) -> Any:
    """A dataset and an attribute of a type of the library's; `raw` are the bytes of one value."""
    space = h5s.create_simple(shape)
    dataset = h5d.create(group.id, name.encode(), dtype, space)
    attribute = h5a.create(dataset, b"same type", dtype, h5s.create_simple((2,)))
    if raw is not None:
        values = np.frombuffer(raw * 4, f"V{len(raw)}")
        dataset.write(h5s.ALL, h5s.ALL, values, mtype=dtype)
        attribute.write(np.frombuffer(raw * 2, f"V{len(raw)}"), mtype=dtype)
    return dataset


# ---- types -------------------------------------------------------------------------------------------------


@feature
def odd_integers(group: h5py.Group, _: Path) -> None:
    for bits, offset, size, order in ((17, 3, 4, h5t.ORDER_LE), (5, 0, 1, h5t.ORDER_LE), (40, 8, 8, h5t.ORDER_BE)):
        kind = h5t.STD_I64LE.copy()
        kind.set_size(8)
        kind.set_precision(bits)
        kind.set_offset(offset)
        kind.set_size(size)
        kind.set_order(order)
        _put(group, f"int{bits}_{offset}", kind, bytes(range(size)))
    for size in (3, 5, 16, 24):
        kind = h5t.STD_U8LE.copy()
        kind.set_size(size)
        kind.set_precision(8 * size)
        _put(group, f"int of {size} bytes", kind, bytes(range(size)))
    padded = h5t.STD_I32BE.copy()
    padded.set_precision(20)
    padded.set_pad(h5t.PAD_ONE, h5t.PAD_BACKGROUND)
    _put(group, "padded", padded, bytes(4))


@feature
def odd_floats(group: h5py.Group, _: Path) -> None:
    """(size, precision, offset, sign, exponent's place and size, mantissa's place and size, bias)"""
    for name, size, precision, offset, *fields, bias in (
        ("20 bits", 4, 20, 7, 26, 20, 6, 7, 13, 31),
        ("bfloat16", 2, 16, 0, 15, 7, 8, 0, 7, 127),
        ("8 bits", 1, 8, 0, 7, 3, 4, 0, 3, 7),
        ("24 bits", 3, 24, 0, 23, 16, 7, 0, 16, 63),
        ("16 bytes", 16, 128, 0, 127, 112, 15, 0, 112, 16383),
        ("other bias", 4, 32, 0, 31, 23, 8, 0, 23, 100),
    ):
        kind = (h5t.IEEE_F64LE if size <= 8 else h5t.NATIVE_LDOUBLE).copy()
        if size > 8:
            kind.set_size(size)
            kind.set_precision(precision)
        kind.set_fields(*fields)
        kind.set_ebias(bias)
        kind.set_offset(offset)
        kind.set_precision(precision)
        kind.set_size(size)
        _put(group, name, kind, bytes(size))
    for norm in (h5t.NORM_MSBSET, h5t.NORM_NONE):
        kind = h5t.IEEE_F32LE.copy()
        kind.set_norm(norm)
        _put(group, f"norm {norm}", kind, bytes(4))
    _put(group, "half", h5t.IEEE_F16BE, bytes(2))
    _put(group, "long double", h5t.NATIVE_LDOUBLE, bytes(16))


@feature
def time_types(group: h5py.Group, _: Path) -> None:
    for name in ("UNIX_D32LE", "UNIX_D32BE", "UNIX_D64LE", "UNIX_D64BE"):
        if hasattr(h5t, name):
            _put(group, name, getattr(h5t, name))


@feature
def bitfields(group: h5py.Group, _: Path) -> None:
    for name in ("STD_B8LE", "STD_B16BE", "STD_B32LE", "STD_B64BE"):
        kind = getattr(h5t, name)
        _put(group, name, kind, bytes(kind.get_size()))


@feature
def opaques(group: h5py.Group, _: Path) -> None:
    for n, tag in enumerate((b"", b"some tag", b"NUMPY:M8[ns]", b"NUMPY:nonsense", b"NUMPY:", b"NUMPY:O", NOT_UTF8)):
        kind = h5t.create(h5t.OPAQUE, 8)
        kind.set_tag(tag)
        _put(group, f"opaque{n}", kind, bytes(range(8)))


@feature
def enums(group: h5py.Group, _: Path) -> None:
    for n, (base, members) in enumerate(
        (
            (h5t.STD_I8LE, [(b"FALSE", 0), (b"TRUE", 1)]),
            (h5t.STD_I64BE, [(b"one", 1)]),
            (h5t.STD_I32LE, [(NOT_UTF8, 1), (b"b", 2)]),
            (h5t.STD_U8LE, [(f"m{i}".encode(), i) for i in range(250)]),
        )
    ):
        kind = h5t.enum_create(base)
        for name, value in members:
            kind.enum_insert(name, value)
        _put(group, f"enum{n}", kind, bytes(base.get_size()))
    narrow = h5t.STD_I32LE.copy()
    narrow.set_precision(9)
    kind = h5t.enum_create(narrow)
    kind.enum_insert(b"a", 1)
    _put(group, "enum of 9 bits", kind, bytes(4))


@feature
def strings(group: h5py.Group, _: Path) -> None:
    for n, (pad, charset) in enumerate(
        (pad, charset)
        for pad in (h5t.STR_NULLTERM, h5t.STR_NULLPAD, h5t.STR_SPACEPAD)
        for charset in (h5t.CSET_ASCII, h5t.CSET_UTF8)
    ):
        kind = h5t.C_S1.copy()
        kind.set_size(8)
        kind.set_strpad(pad)
        kind.set_cset(charset)
        _put(group, f"fixed{n}", kind, NOT_UTF8[:8])
        kind.set_size(h5t.VARIABLE)
        dataset = h5py.Dataset(_put(group, f"any{n}", kind))  # the fill value of a variable string is none at all
        dataset[1] = NOT_UTF8
    group["long"] = np.array([b"x" * 5000] * 3)
    group.attrs.create("text", NOT_UTF8, dtype=h5py.string_dtype("utf-8", 8))
    group.attrs.create("texts", [b"a", NOT_UTF8], dtype=h5py.string_dtype("utf-8"))
    group.attrs["\x1b[31m"] = "\x1b[31m\n"


@feature
def compounds(group: h5py.Group, _: Path) -> None:
    inner = np.dtype([("a", "<i2"), ("b", ">f8", (2, 3))])
    nested = np.dtype([("x", inner, (2,)), ("y", inner), ("s", "S3"), ("c", "c16")])
    group.create_dataset("nested", (5,), nested, chunks=(2,), compression="gzip")
    group.create_dataset("complex", data=np.arange(6) * 1j, chunks=(4,))
    lists = np.dtype([("s", h5py.string_dtype()), ("l", h5py.vlen_dtype("i4")), ("r", h5py.ref_dtype)])
    rows = group.create_dataset("lists", (3,), lists)
    rows[0] = ("text", np.arange(3), group.ref)
    gaps = np.dtype({"names": ["a", "b"], "formats": ["i1", "f4"], "offsets": [3, 9], "itemsize": 40})
    group.create_dataset("gaps", (4,), gaps)
    group.attrs.create("nested", np.zeros(2, nested))
    raw = h5t.create(h5t.COMPOUND, 12)
    raw.insert(NOT_UTF8, 0, h5t.STD_I32LE)
    raw.insert(b"a/b", 4, h5t.STD_I32LE)
    raw.insert(b" ", 8, h5t.STD_I32LE)
    _put(group, "odd names", raw, bytes(12))
    wide = np.dtype([(f"field {i}", "i4") for i in range(400)])
    group.create_dataset("wide", (2,), wide)
    odd = h5t.STD_I32LE.copy()
    odd.set_precision(9)
    raw = h5t.create(h5t.COMPOUND, 8)
    raw.insert(b"odd", 0, odd)
    raw.insert(b"time", 4, h5t.UNIX_D32LE)
    _put(group, "of odd types", raw)


@feature
def arrays(group: h5py.Group, _: Path) -> None:
    for n, base in enumerate((h5t.STD_I32LE, h5t.IEEE_F64BE, h5t.array_create(h5t.STD_I8LE, (2, 2)), h5t.UNIX_D32LE)):
        kind = h5t.array_create(base, (2, 3))
        _put(group, f"array{n}", kind, bytes(kind.get_size()) if n < 3 else None)
    _put(group, "of lists", h5t.array_create(h5t.vlen_create(h5t.STD_I32LE), (2,)))
    _put(group, "of strings", h5t.array_create(h5t.py_create(h5py.string_dtype(), logical=True), (3,)))
    h5d.create(group.id, b"long", h5t.array_create(h5t.STD_I8LE, (70_000,)), h5s.create_simple((1,)))


@feature
def lists(group: h5py.Group, _: Path) -> None:
    for n, base in enumerate(
        (
            h5t.vlen_create(h5t.STD_I32LE),
            h5t.vlen_create(h5t.py_create(h5py.string_dtype(), logical=True)),
            h5t.py_create(np.dtype([("a", "i4"), ("b", "f8")])),
            h5t.STD_REF_OBJ,
            h5t.array_create(h5t.STD_I16BE, (3,)),
            h5t.UNIX_D32LE,
            h5t.IEEE_F16LE,
        )
    ):
        _put(group, f"list{n}", h5t.vlen_create(base))
    rows = group.create_dataset("numbers", (20,), h5py.vlen_dtype("f4"), chunks=(6,), maxshape=(None,))
    for i in range(0, 20, 3):
        rows[i] = np.arange(i)
    rows = group.create_dataset("large", (2,), h5py.vlen_dtype("i8"))
    rows[1] = np.arange(40_000)


@feature
def references(group: h5py.Group, _: Path) -> None:
    target = group.create_dataset("target", data=np.arange(100).reshape(10, 10))
    objects = group.create_dataset("objects", (4,), h5py.ref_dtype)
    objects[0], objects[1] = target.ref, group.ref
    regions = group.create_dataset("regions", (4,), h5py.regionref_dtype, chunks=(2,))
    regions[0] = target.regionref[2:4, 3]
    regions[1] = target.regionref[target[:] > 90]
    group.create_dataset("grid", (2, 2), h5py.ref_dtype)
    gone = group.create_dataset("gone", data=np.arange(3))
    objects[2] = gone.ref
    regions[2] = gone.regionref[:2]
    del group["gone"]
    group.attrs["object"] = target.ref
    group.attrs["region"] = target.regionref[1:3]
    group.attrs.create("objects", [target.ref, group.ref], dtype=h5py.ref_dtype)


@feature
def committed_types(group: h5py.Group, _: Path) -> None:
    odd = h5t.STD_I32LE.copy()
    odd.set_precision(11)
    for name, kind in (
        ("compound", np.dtype([("a", "i4"), ("s", h5py.string_dtype())])),
        ("float", np.dtype("f8")),
        ("enum", h5py.enum_dtype({"A": 0, "B": 1})),
    ):
        group[name] = kind
        group[name].attrs["note"] = "a type with an attribute"
        group.create_dataset(f"{name} rows", (3,), group[name])
        h5a.create(group.id, f"{name} value".encode(), group[name].id, h5s.create_simple((2,)))
    h5t.UNIX_D32LE.copy().commit(group.id, b"time")
    if group.file.libver[0] != "earliest":
        odd.commit(group.id, b"odd")
        _put(group, "odd rows", h5t.open(group.id, b"odd"))


# ---- attributes, names and links ---------------------------------------------------------------------------


@feature
def many_attributes(group: h5py.Group, _: Path) -> None:
    for i in range(60):
        group.attrs[f"number {i}"] = i
    for n, space in enumerate((h5s.create(h5s.NULL), h5s.create(h5s.SCALAR), h5s.create_simple((0,)))):
        h5a.create(group.id, f"space {n}".encode(), h5t.STD_I32LE, space)
    h5a.create(group.id, NOT_UTF8, h5t.STD_I32LE, h5s.create(h5s.SCALAR))
    h5a.create(group.id, b"/", h5t.STD_I32LE, h5s.create(h5s.SCALAR))
    group.attrs["holdfast"] = '{"column": 7, "schema": []}'


@feature
def huge_attributes(group: h5py.Group, _: Path) -> None:
    """More than 64 kB are possible where attributes are in a heap of their own."""
    group.attrs["large"] = np.arange(4000)
    if group.file.libver[0] != "earliest":
        tracked = group.create_group("tracked", track_order=True)
        tracked.attrs["huge"] = np.arange(40_000)
        for i in range(20):
            tracked.attrs[f"large {i}"] = np.full(3000, i)


@feature
def marks_of_a_schema(group: h5py.Group, _: Path) -> None:
    """What says that holdfast wrote it, in every wrong way."""
    for n, mark in enumerate(
        (
            '{"column": {"type": "Ragged", "inner": {"type": "Int64", "shape": []}}}',
            '{"column": {"type": "Bytes", "shape": []}}',
            '{"column": {"type": "Bytes", "shape": [0]}}',
            '{"column": {"type": "Ragged"}}',
            '{"column": []}',
            "[" * 5000,
            '{"column": {"type": "Bytes", "shape": [' + "9" * 5000 + "]}}",
            b"\xff\xfe",
        )
    ):
        made = group.create_group(f"mark{n}")
        made.attrs["holdfast"] = mark
        made["values"], made["offsets"], made["row_splits"] = np.arange(4), np.array([0, 9, 3]), 7


@feature
def names(group: h5py.Group, _: Path) -> None:
    group.id.links.create_soft(NOT_UTF8, b"/nowhere" + NOT_UTF8)
    h5d.create(group.id, NOT_UTF8 + b"2", h5t.STD_I32LE, h5s.create_simple((3,)))
    inner = h5py.Group(h5py.h5g.create(group.id, NOT_UTF8 + b"3"))
    h5d.create(inner.id, NOT_UTF8, h5t.STD_I32LE, h5s.create_simple((3,)))
    for name in ("a b", "line\nbreak", "\x1b[31mred", "%s", "ü" * 40, "x" * 1000, "‮right to left", "{}", "'", "\\"):
        group[name] = np.arange(2)


@feature
def links(group: h5py.Group, path: Path) -> None:
    here = group.name.rstrip("/")
    group["there"] = np.arange(3)
    group["soft"] = h5py.SoftLink(f"{here}/there")
    group["dangling"] = h5py.SoftLink("/not/there")
    group["itself"] = h5py.SoftLink(f"{here}/itself")
    group["one"], group["other"] = h5py.SoftLink(f"{here}/other"), h5py.SoftLink(f"{here}/one")
    group["through"] = h5py.SoftLink(f"{here}/there/more")
    below = group.create_group("below")
    below["up"] = group
    below["itself"] = below
    below["root"] = h5py.SoftLink("/")
    group["again"] = group["there"]
    group["external itself"] = h5py.ExternalLink(path.name, f"{here}/there")
    group["external cycle"] = h5py.ExternalLink(path.name, f"{here}/external cycle")
    group["external nothing"] = h5py.ExternalLink("missing.h5", "/x")
    group["external no object"] = h5py.ExternalLink(path.name, "/not/there")
    group["external folder"] = h5py.ExternalLink(".", "/x")
    group["external text"] = h5py.ExternalLink(Path(__file__).name, "/x")
    group.id.links.create_external(b"external bytes", NOT_UTF8, NOT_UTF8)


@feature
def deep_groups(group: h5py.Group, _: Path) -> None:
    for _n in range(150):
        group = group.create_group("g")
    group["rows"] = np.arange(3)


@feature
def large_groups(group: h5py.Group, _: Path) -> None:
    for track_order in (False, True):
        made = group.create_group(f"large {track_order}", track_order=track_order)
        for i in range(300):
            made[f"link {i}"] = h5py.SoftLink("/")


# ---- shapes and layouts ------------------------------------------------------------------------------------


@feature
def shapes(group: h5py.Group, _: Path) -> None:
    group["scalar"], group["text"] = 42, "text"
    group["empty"], group["empty text"] = h5py.Empty("f8"), h5py.Empty(h5py.string_dtype())
    group.create_dataset("no rows", (0, 3))
    group.create_dataset("rows of nothing", (5, 0))
    group.create_dataset("chunks of no rows", (0, 0), maxshape=(None, None), chunks=(4, 4), compression="gzip")
    group.create_dataset("rank 32", (1,) * 32, chunks=(1,) * 32)[...] = 1
    group.create_dataset("grows", (3, 2), maxshape=(None, 7), chunks=(2, 2))
    group.create_dataset("one chunk larger than the rows", data=np.arange(3), chunks=(100,), maxshape=(None,))


@feature
def unwritten(group: h5py.Group, _: Path) -> None:
    """Datasets that say to be larger than any disk: nothing of them was written yet."""
    group.create_dataset("contiguous", (1 << 40,), "i8")
    group.create_dataset("rows", (1 << 40, 1 << 20), "i8")
    group.create_dataset("chunks", (1 << 60,), "i8", chunks=(1 << 10,))
    group.create_dataset("large chunks", (1 << 40, 1 << 10), "i8", chunks=(1 << 16, 1 << 10), compression="gzip")
    group.create_dataset("one row", (3, 1 << 50), "i8", chunks=(1, 1 << 20))
    group.create_dataset("filled", (1 << 50,), "f4", fillvalue=7, chunks=(1 << 20,))
    group.create_dataset("strings", (1 << 40,), h5py.string_dtype(), chunks=(1 << 10,))


@feature
def layouts(group: h5py.Group, _: Path) -> None:
    values = np.arange(3000, dtype="<i4").reshape(1500, 2)
    compact = h5p.create(h5p.DATASET_CREATE)
    compact.set_layout(h5d.COMPACT)
    small = h5d.create(group.id, b"compact", h5t.STD_I32LE, h5s.create_simple((10, 2)), compact)
    small.write(h5s.ALL, h5s.ALL, values[:10].copy())
    group["contiguous"] = values
    for name, options in {
        "single": {"chunks": (1500, 2)},
        "single packed": {"chunks": (1500, 2), "compression": "gzip"},
        "fixed": {"chunks": (100, 2), "compression": "gzip"},
        "fixed in pages": {"chunks": (1, 1)},
        "extensible": {"chunks": (7, 2), "maxshape": (None, 2)},
        "extensible packed": {"chunks": (7, 2), "maxshape": (None, 2), "fletcher32": True},
        "tree": {"chunks": (100, 1), "maxshape": (None, None)},
        "tree packed": {"chunks": (100, 1), "maxshape": (None, None), "compression": "lzf"},
    }.items():
        group.create_dataset(name, data=values, **options)
    early = h5p.create(h5p.DATASET_CREATE)
    early.set_chunk((100, 2))
    early.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    implicit = h5d.create(group.id, b"implicit", h5t.STD_I32LE, h5s.create_simple(values.shape), early)
    implicit.write(h5s.ALL, h5s.ALL, values)
    holes = group.create_dataset("holes", (1000, 4), chunks=(10, 4), fillvalue=7)
    holes[500:510] = 1


@feature
def filters(group: h5py.Group, _: Path) -> None:
    values = np.arange(3000).reshape(1500, 2)
    for name, options in {
        "gzip": {"compression": "gzip", "shuffle": True},
        "gzip 0": {"compression": "gzip", "compression_opts": 0},
        "lzf": {"compression": "lzf"},
        "fletcher32": {"fletcher32": True},
        "scaleoffset": {"scaleoffset": 0},
        "all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    }.items():
        group.create_dataset(name, data=values, chunks=(100, 2), **options)
    if h5z.filter_avail(h5z.FILTER_SZIP):
        group.create_dataset("szip", data=values, chunks=(100, 2), compression="szip")
    nbit = h5p.create(h5p.DATASET_CREATE)
    nbit.set_chunk((100,))
    nbit.set_filter(h5z.FILTER_NBIT, 0)
    odd = h5t.STD_I32LE.copy()
    odd.set_precision(17)
    dataset = h5py.Dataset(h5d.create(group.id, b"nbit", odd, h5s.create_simple((1500,)), nbit))
    dataset[:] = np.arange(1500)
    skipped = group.create_dataset("a chunk without its filter", (20,), "i8", chunks=(10,), compression="gzip")
    skipped.id.write_direct_chunk((0,), bytes(80), filter_mask=1)
    many = h5p.create(h5p.DATASET_CREATE)
    many.set_chunk((100,))
    for _n in range(20):
        many.set_shuffle()
    h5py.Dataset(h5d.create(group.id, b"20 filters", h5t.STD_I32LE, h5s.create_simple((100,)), many))[:] = 1


@feature
def external_storage(group: h5py.Group, path: Path) -> None:
    raw = path.with_suffix(".raw")
    raw.write_bytes(bytes(range(240)))
    group.create_dataset("there", (10,), "i8", external=[(raw.name, 0, 80)])
    group.create_dataset("two", (10,), "i8", external=[(raw.name, 0, 40), (raw.name, 100, 40)])
    group.create_dataset("unlimited", (10,), "i8", external=[(raw.name, 8, h5f.UNLIMITED)])
    group.create_dataset("short", (10,), "i8", external=[(raw.name, 200, 80)])
    group.create_dataset("missing", (10,), "i8", external=[("missing.raw", 0, 80)])
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_external(NOT_UTF8, 0, 80)
    h5d.create(group.id, b"odd name", h5t.STD_I64LE, h5s.create_simple((10,)), plist)


@feature
def virtual(group: h5py.Group, path: Path) -> None:
    here = group.name.rstrip("/")
    group["source"] = np.arange(10)
    for name, file, dataset in (
        ("own", ".", f"{here}/source"),
        ("own by name", path.name, f"{here}/source"),
        ("missing file", "missing.h5", "/x"),
        ("missing dataset", ".", "/not/there"),
        ("itself", ".", f"{here}/itself"),
        ("a group", ".", here or "/"),
        ("text", Path(__file__).name, "/x"),
    ):
        layout = h5py.VirtualLayout((2, 10), "i8")
        layout[0] = h5py.VirtualSource(file, dataset, (10,))
        group.create_virtual_dataset(name, layout)
    for name, file in ((b"pattern", b"part%b.h5"), (b"percent", b"100%%.h5")):
        plist = h5p.create(h5p.DATASET_CREATE)
        view, rows = h5s.create_simple((10,), (h5s.UNLIMITED,)), h5s.create_simple((10,))
        if name == b"pattern":
            view.select_hyperslab((0,), (h5s.UNLIMITED,), (10,), (10,))
        plist.set_virtual(view, file, b"x", rows)
        h5d.create(group.id, name, h5t.STD_I64LE, h5s.create_simple((10,), (h5s.UNLIMITED,)), plist)
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_virtual(h5s.create_simple((10,)), NOT_UTF8, NOT_UTF8, h5s.create_simple((10,)))
    h5d.create(group.id, b"odd name", h5t.STD_I64LE, h5s.create_simple((10,)), plist)


# ---- files of their own ------------------------------------------------------------------------------------


def _rows(file: h5py.File) -> None:
    file.create_dataset("x", data=np.arange(300).reshape(100, 3), chunks=(10, 3), compression="gzip")
    file.create_dataset("y", data=np.arange(100, dtype="f4"))
    file.attrs["note"] = "a file of its own"


def make_files(folder: Path) -> list[Path]:
    """One file each. Those whose name begins with `bad_` are damaged, or were not closed."""
    made: list[Path] = []

    def new(name: str) -> Path:
        made.append(folder / f"{name}.h5")
        return made[-1]

    for low in ("earliest", "v108", "v110", "v112", "latest"):
        with h5py.File(new(f"bounds {low}"), "w", libver=(low, "latest")) as file:
            _rows(file)
    with h5py.File(new("user block"), "w", userblock_size=2048) as file:
        _rows(file)
    made[-1].write_bytes(b"#!/bin/sh\n".ljust(2048, b"#") + made[-1].read_bytes()[2048:])
    for strategy in ("page", "aggregate", "none"):
        options = {"fs_persist": True} if strategy == "page" else {}
        with h5py.File(new(f"free space {strategy}"), "w", fs_strategy=strategy, libver="latest", **options) as file:
            _rows(file)
            del file["y"]
    with h5py.File(new("one dataset"), "w") as file:
        file["only"] = np.arange(5)
    with h5py.File(new("nothing"), "w"):
        pass
    with h5py.File(new("tracked"), "w", track_order=True, libver="latest") as file:
        _rows(file)
    _with_sizes(new("addresses of 4 bytes"), 4, (0, 1))
    _with_sizes(new("addresses of 4 bytes, latest"), 4, (3, 3))
    _with_sizes(new("addresses of 2 bytes"), 2, (0, 1))
    _drivers(folder, made)
    _patched(new)
    return made


def _with_sizes(path: Path, size: int, bounds: tuple[int, int]) -> None:
    create, access = h5p.create(h5p.FILE_CREATE), h5p.create(h5p.FILE_ACCESS)
    create.set_sizes(size, size)
    access.set_libver_bounds(*((h5f.LIBVER_EARLIEST, h5f.LIBVER_V110) if bounds[0] == 0 else (h5f.LIBVER_V110,) * 2))
    with h5py.File(h5f.create(bytes(path), h5f.ACC_TRUNC, create, access)) as file:
        _rows(file)


def _drivers(folder: Path, made: list[Path]) -> None:
    """Members of files that are not one file."""
    with h5py.File(folder / "family %d.h5", "w", driver="family", memb_size=4096) as file:
        _rows(file)
    made += sorted(folder.glob("family ?.h5"))[:2]
    with h5py.File(folder / "split", "w", driver="split") as file:
        _rows(file)
    for end in ("m", "r"):
        part = folder / f"split-{end}.h5"
        part.rename(part)
        made.append(part)


def _patched(new: Callable[[str], Path]) -> None:
    """Bytes that the library does not write by itself."""
    for name, code in (("unknown", 0xABCD), ("reserved", 200), ("zfp", 32013)):
        path = new(f"filter {name}")
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.arange(100), chunks=(10,), compression="lzf")
            file["y"] = np.arange(100)
        data = path.read_bytes()
        at = data.index(struct.pack("<H", 32000), data.index(b"lzf\0") - 8)
        path.write_bytes(data[:at] + struct.pack("<H", code) + data[at + 2 :])
    whole = new("bounds earliest again")
    with h5py.File(whole, "w") as file:
        _rows(file)
    data = whole.read_bytes()
    for name, patch in (
        ("version 9", data[:8] + b"\x09" + data[9:]),
        ("addresses of 3 bytes", data[:13] + b"\x03" + data[14:]),
        ("root nowhere", data[:64] + b"\xff" * 8 + data[72:]),
        ("root behind the end", data[:64] + (1 << 40).to_bytes(8, "little") + data[72:]),
        ("base address", data[:24] + (96).to_bytes(8, "little") + data[32:]),
        ("driver block", data[:48] + (96).to_bytes(8, "little") + data[56:]),
        ("cut", data[: len(data) // 2]),
        ("signature alone", data[:8]),
        ("half a superblock", data[:30]),
        ("zeros behind", data + bytes(3000)),
        ("twice", data + data),
    ):
        new(f"bad_{name}").write_bytes(patch)
    swmr = new("bad_swmr")
    with h5py.File(swmr, "w", libver="latest") as file:
        _rows(file)
    data = swmr.read_bytes()
    swmr.write_bytes(data[:11] + b"\x05" + data[12:])
    new("bad_wrong superblock checksum").write_bytes(data[:40] + b"\x01" + data[41:])


# ---- damage ------------------------------------------------------------------------------------------------


def metadata_places(path: Path) -> list[int]:
    """Every byte that is not a value of a dataset: what says where values are, and what they are."""
    data = path.read_bytes()
    values: set[int] = set()

    def see(_: str, thing: Any) -> None:
        if not isinstance(thing, h5py.Dataset) or thing.shape is None:
            return
        if thing.chunks:
            for i in range(thing.id.get_num_chunks()):
                info = thing.id.get_chunk_info(i)
                values.update(range(info.byte_offset, info.byte_offset + info.size))
        elif thing.id.get_offset() is not None:
            values.update(range(thing.id.get_offset(), thing.id.get_offset() + thing.id.get_storage_size()))

    with h5py.File(path) as file:
        file.visititems(see)
    return [at for at in range(len(data)) if at not in values and (data[at] or any(data[max(0, at - 32) : at + 32]))]


def flips(path: Path, n: int, seed: int) -> Iterator[tuple[int, int, bytes]]:
    """(place, bit, the whole file with that bit of its metadata changed), `n` times."""
    rng, data, places = random.Random(seed), path.read_bytes(), metadata_places(path)
    for _ in range(n):
        at, bit = rng.choice(places), rng.randrange(8)
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        yield at, bit, bytes(changed)


def _whole(path: Path, **options: Any) -> Path:
    """A plain dataset file, with strings of variable length."""
    with h5py.File(path, "w", **options) as file:
        file.create_dataset("x", data=np.arange(240, dtype="f4").reshape(60, 4), chunks=(10, 4), compression="gzip")
        file.create_dataset("y", data=np.arange(60))
        inner = file.create_group("inner")
        inner.create_dataset("z", data=np.arange(60, dtype="u1"), chunks=(7,), maxshape=(None,), fletcher32=True)
        inner.create_dataset("s", data=[f"text {i}" for i in range(60)], dtype=h5py.string_dtype())
        inner.attrs["unit"] = np.bytes_("m")
    return path


def _part(folder: Path, codec: Any) -> Path:
    """What hold.write makes."""
    import holdfast as hold

    schema = {
        "a": hold.Float32(4, codec=codec),
        "b": hold.Bytes(codec=codec),
        "deep/r": hold.Ragged(hold.Int64()),
        "rr": hold.Ragged(hold.Ragged(hold.Bytes())),
    }
    out = hold.write(folder / f"{codec}.hold", schema)
    with out.part("t") as part:
        for i in range(60):
            part.append(**{"a": [i] * 4, "b": b"x" * (i % 7), "deep/r": [i] * (i % 3), "rr": [[b"q"] * (i % 2)] * 2})
    [path] = (folder / f"{codec}.hold").rglob("*.h5")
    return path


def _read(paths: list[Path], on_corrupt: Any) -> tuple[str, str]:
    import holdfast as hold

    try:
        for _ in hold.read(paths, on_corrupt=on_corrupt).batch(16):
            pass
    except Exception as error:  # noqa: BLE001 - what it is, is the question
        return type(error).__name__, str(error)
    return "samples", ""


def main() -> None:
    """FOLDER N SEED: reads `n` damaged copies of each of four files, every second with skipping, and says what came."""
    import json
    import resource
    import sys

    folder, n, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
    whole = [_whole(folder / "classic.h5"), _whole(folder / "latest.h5", libver="latest")]
    whole += [_part(folder, codec) for codec in ("none", "gzip")]
    for good in whole:
        for number, (at, bit, data) in enumerate(flips(good, n, seed)):
            path = folder / f"{good.stem} {number}.h5"  # a new name: the library knows files by their inodes
            path.write_bytes(data)
            kind, text = _read([good, path], "skip") if number % 2 else _read([path], "raise")
            said = {"file": good.name, "at": at, "bit": bit, "kind": kind, "text": text, "path": str(path)}
            print(json.dumps(said))
            path.unlink()


if __name__ == "__main__":
    main()
