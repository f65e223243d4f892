"""HDF5 files for tests: with everything in them, or left by a writer that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

V110 = ("v110", "v110")

_KILLED = """
import os, sys, h5py
path, low, flush, swmr = sys.argv[1:]
file = h5py.File(path, "w", libver=None if low == "default" else (low, low))
rows = file.create_dataset("x", (0, 64), maxshape=(None, 64), chunks=(100, 64), dtype="f4")
if swmr == "swmr":
    file.swmr_mode = True
for i in range(10):
    rows.resize(100 * (i + 1), axis=0)
    rows[-100:] = i
    if flush == "flush":
        rows.flush()
        file.flush()
if flush == "live":
    print("ready", flush=True)
    sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def make_full(path: Path, **options: Any) -> Path:
    """Groups, attributes, links, every kind of layout, filter and type."""
    with h5py.File(path, "w", **options) as file:
        file.attrs["made"] = "by a test"
        file.attrs["numbers"] = np.arange(3)
        file.attrs["nothing"] = h5py.Empty("f4")
        file.attrs["words"] = ["a", "bb"]
        group = file.create_group("train")
        values = np.arange(1000 * 16, dtype="f4").reshape(1000, 16)
        packed = group.create_dataset("x", data=values, chunks=(100, 16), compression="gzip", shuffle=True)
        packed.attrs["unit"] = "m"
        group.create_dataset("y", data=np.arange(1000), chunks=(100,), fletcher32=True)
        group.create_dataset("plain", data=np.arange(1000, dtype=">i4"))
        group.create_dataset("lzf", data=np.arange(5000) % 7, chunks=(500,), compression="lzf")
        group.create_dataset("s", data=[f"str{i}" for i in range(300)], dtype=h5py.string_dtype(), chunks=(50,))
        lists = group.create_dataset("v", (50,), dtype=h5py.vlen_dtype("i4"), chunks=(10,))
        for i in range(50):
            lists[i] = np.arange(i)
        group.create_dataset("c", data=np.array([(1, 2.5, b"ab")] * 20, [("a", "i4"), ("b", "f8"), ("s", "S4")]))
        group.create_dataset("filled", (100, 4), chunks=(10, 4), fillvalue=7)[20:30] = 1
        group.create_dataset("enum", data=np.array([0, 1, 0]), dtype=h5py.enum_dtype({"A": 0, "B": 1}))
        group.create_dataset("flags", data=np.array([True, False]))
        group.create_dataset("grows", (0, 3), maxshape=(None, 3), chunks=(4, 3))
        group.create_dataset("small", data=np.arange(100), chunks=(10,), scaleoffset=0)
        file["one"] = 42
        file["text"] = "hello"
        file["empty"] = h5py.Empty("i4")
        file["soft"] = h5py.SoftLink("/train/x")
        file["type"] = np.dtype("f8")
        group["z_again"] = group["y"]
    return path


def odd_types() -> dict[str, Any]:
    """Types of fixed size that numpy does not have, or not in this form."""
    from h5py import h5t

    narrow, tiny = h5t.NATIVE_INT32.copy(), h5t.IEEE_F32LE.copy()
    narrow.set_precision(17)
    narrow.set_offset(3)
    tiny.set_fields(30, 23, 7, 0, 23)
    tiny.set_precision(31)
    tiny.set_ebias(63)
    tagged = h5t.create(h5t.OPAQUE, 7)
    tagged.set_tag(b"a tag")
    named = h5t.enum_create(h5t.STD_I16BE)
    named.enum_insert(b"A", 1)
    padded = h5t.create(h5t.COMPOUND, 24)
    padded.insert(b"x", 3, h5t.STD_I32BE)
    padded.insert(b"y", 11, h5t.IEEE_F64LE)
    text = h5t.C_S1.copy()
    text.set_size(9)
    text.set_strpad(h5t.STR_SPACEPAD)
    array = h5t.array_create(h5t.STD_I32LE, (4,))
    nested = h5t.create(h5t.COMPOUND, 80)
    nested.insert(b"in", 0, padded)
    nested.insert(b"array", 32, h5t.array_create(padded, (2,)))
    return {
        "narrow": narrow,
        "tiny": tiny,
        "tagged": tagged,
        "named": named,
        "padded": padded,
        "text": text,
        "array": array,
        "nested": nested,
        "bits": h5t.STD_B16BE.copy(),
        "time": h5t.UNIX_D32LE.copy(),
    }


def make_odd(path: Path, **options: Any) -> Path:
    """One dataset in chunks, one without, and an attribute of each odd type; types and groups of their own."""
    from h5py import h5a, h5d, h5p, h5s

    random = np.random.default_rng(0)
    with h5py.File(path, "w", **options) as file:
        file["thing"] = np.arange(3)
        for name, kind in odd_types().items():
            values = np.frombuffer(random.bytes(6 * kind.get_size()), f"V{kind.get_size()}").reshape(2, 3).copy()
            space, plist = h5s.create_simple((2, 3)), h5p.create(h5p.DATASET_CREATE)
            for chunks in (False, True):
                if chunks:
                    plist.set_chunk((1, 3))
                    plist.set_deflate(1)
                made = h5d.create(file.id, f"{name}{'_chunks' * chunks}".encode(), kind, space, plist)
                made.write(h5s.ALL, h5s.ALL, values, mtype=kind)
            h5a.create(file["thing"].id, name.encode(), kind, space).write(values, mtype=kind)
        record = np.dtype([("s", h5py.string_dtype()), ("n", "i4", (2,)), ("v", h5py.vlen_dtype("f4"))])
        lists = file.create_dataset("record", (4,), record, chunks=(2,))
        for i in range(4):
            lists[i] = (f"text {i}" * i, [i, -i], np.arange(i, dtype="f4"))
        file["made"] = np.dtype([("a", "i4"), ("b", "f8")])
        file["made"].attrs["note"] = "a type of its own"
        file.create_dataset("a_of_it", (5,), file["made"])
        ordered = file.create_group("ordered", track_order=True)
        for name in "zay":
            ordered[name] = 1
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
        file["nowhere"] = h5py.SoftLink("/not/there")
        h5py.h5o.set_comment(file["thing"].id, b"a comment")
        file.create_dataset("default", (4,), h5py.string_dtype(), fillvalue="none", chunks=(2,))
    return path


def killed_writer(path: Path, low: str, flush: str, swmr: str) -> Path:
    """What a writer of 1,000 rows leaves when it is killed before it can close its file."""
    done = subprocess.run([sys.executable, "-c", _KILLED, path, low, flush, swmr], check=False)
    assert done.returncode == -9
    return path


def live_writer(path: Path, low: str) -> subprocess.Popen[bytes]:
    """A writer that has its file open until its stdin is closed."""
    command = [sys.executable, "-c", _KILLED, path, low, "live", ""]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def values_of(path: Path) -> dict[str, Any]:
    """Every dataset that has values, by its path."""
    found: dict[str, Any] = {}

    def see(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and thing.shape is not None:
            found[f"/{name}"] = thing[()]

    with h5py.File(path) as file:
        file.visititems(see)
    return found


def chunk_places(path: Path, dataset: str) -> list[tuple[int, int]]:
    """(offset, size) of each chunk, in the order of rows."""
    with h5py.File(path) as file:
        which = file[dataset].id
        infos = [which.get_chunk_info(i) for i in range(which.get_num_chunks())]
    return [(info.byte_offset, info.size) for info in sorted(infos, key=lambda info: info.chunk_offset)]


def flip(path: Path, offset: int, bit: int = 2) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
