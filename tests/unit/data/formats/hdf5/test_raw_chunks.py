"""Rows that are read straight from the file: the library's values, bit by bit, and its errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

import holdfast as hold
import readahead_threads
from holdfast._native.c_modules import chunks as native_chunks
from holdfast.data.formats.hdf5.raw_chunks import RawDataset
from holdfast.data.formats.hdf5.schema_layout import column_of
from holdfast.data.formats.hdf5.shard import HDF5Shard
from holdfast.data.formats.hdf5.writer import ConvertedHDF5
from holdfast.errors import CorruptError

native = pytest.mark.skipif(not native_chunks, reason="the compiled module was not built, or not expected")

ROWS = 30
DTYPES = ("<f2", "<f4", ">f4", "<f8", ">i2", "<i8", ">u8", "u1", "?", "S5")
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "shuffle": {"shuffle": True},
    "shuffle+gzip+fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "lz4": dict(hdf5plugin.LZ4(nbytes=100)),
    "shuffle+lz4": {"shuffle": True, **hdf5plugin.LZ4()},
    "shuffle+zstd": {"shuffle": True, **hdf5plugin.Zstd()},
    "zstd+fletcher32": {"fletcher32": True, **hdf5plugin.Zstd()},
    "shuffle+lzf": {"compression": "lzf", "shuffle": True},
}
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {  # the shape of a row, and of a chunk
    "rows": ((6,), (8, 6)),
    "scalars": ((), (7,)),
    "single": ((40,), (1, 40)),
    "boxes": ((5, 7), (9, 2, 3)),
    "huge": ((3,), (64, 3)),
    "contiguous": ((4,), None),
}
RUNS = ((0, ROWS), (13, 14), (8, 24), (3, ROWS - 1), (0, 0))


def values_of(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(len(shape))
    if dtype == "S5":
        return rng.choice(np.array([b"", b"a", b"bcdef", b"x\0y", b"  ab "], dtype), shape)
    kind = np.dtype(dtype)
    raw = rng.integers(0, 2 if dtype == "?" else 256, (*shape, kind.itemsize), np.uint8)
    raw[: len(raw) // 2] &= 0x0F  # half of it compresses
    return raw.view(kind).reshape(shape)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "matrix.h5"
    with h5py.File(path, "x") as file:
        for number, (layout, filters, dtype) in enumerate(product(LAYOUTS, FILTERS, DTYPES)):
            row, chunks = LAYOUTS[layout]
            if (number % 3 and layout not in ("rows", "contiguous")) or (not chunks and filters != "none"):
                continue  # every pair of a layout, a filter and a dtype is in the others
            shape = (ROWS, *row)
            more = {"chunks": chunks, "maxshape": (None, *row), **FILTERS[filters]} if chunks else {}
            made = file.create_dataset(f"{layout} {filters} {dtype}", shape, dtype, **more)
            made[...] = values_of(dtype, shape)
        for name, options in FILTERS.items():
            part = file.create_dataset(f"partly {name}", (ROWS, 4), "i4", chunks=(10, 4), fillvalue=7, **options)
            part[10:20] = np.arange(40).reshape(10, 4)
            file.create_dataset(f"never {name}", (ROWS,), "i4", chunks=(10,), fillvalue=9, **options)
        skipped = file.create_dataset("skipped", (ROWS,), "i4", chunks=(15,), compression="gzip", shuffle=True)
        skipped[...] = np.arange(ROWS)
        skipped.id.write_direct_chunk((15,), np.arange(15, 30, dtype="i4").tobytes(), filter_mask=0b11)
    return path


@pytest.mark.formats
def test_every_value_is_the_librarys(matrix: Path) -> None:
    rows = np.random.default_rng(1).integers(0, ROWS, 30)
    raw: list[str] = []
    pool = native_chunks.Pool(2) if native_chunks else None
    with h5py.File(matrix) as file, HDF5Shard(matrix, {"skipped": hold.Array("int32")}) as shard:
        for name, dataset in file.items():
            schema = {name: column_of(dataset.dtype, dataset.shape[1:])}
            raw += [name] * (RawDataset.of(dataset) is not None)
            for start, stop in RUNS:
                expected = dataset[start:stop]
                for got in (shard.read(start, stop, schema), shard.begin(start, stop, schema, pool)()):
                    check_equal(got[name], expected, name)
            check_equal(shard.read_rows(rows, schema)[name], dataset[:][rows], name)
    if pool is not None:
        pool.close()
    # Strings are stored as h5py has them; nothing was written of "never", and HDF5 alone has lzf.
    assert not native_chunks or {name for name in file_names(matrix) if "lzf" not in name} - set(raw) == {
        f"never {name}" for name in FILTERS if "lzf" not in name
    }


def file_names(path: Path) -> list[str]:
    with h5py.File(path) as file:
        return list(file)


def check_equal(got: Any, expected: Any, name: str) -> None:
    if expected.dtype.kind == "S":
        flat = expected.reshape(len(expected), int(np.prod(expected.shape[1:]))) if expected.ndim > 1 else expected
        assert got.tolist() == flat.tolist(), name
    else:
        native_order = expected.astype(expected.dtype.newbyteorder("="))
        assert got.dtype == native_order.dtype, name
        assert got.tobytes() == native_order.tobytes(), name


@pytest.mark.formats
def test_files_with_bytes_before_them_and_old_and_new_indexes(tmp_path: Path) -> None:
    values = np.arange(3000).reshape(1000, 3)
    for n, options in enumerate(
        [{"userblock_size": 512}, {"libver": ("v110", "v110")}, {"libver": "latest"}, {"driver": "core"}]
    ):
        path = tmp_path / f"{n}.h5"
        with h5py.File(path, "x", **options) as file:
            file.create_dataset("fixed", data=values, chunks=(7, 2), compression="gzip")
            file.create_dataset("grows", data=values, chunks=(7, 3), maxshape=(None, 3), shuffle=True)
            file.create_dataset("both", data=values, chunks=(50, 3), maxshape=(None, None))
            file.create_dataset("one", data=values, chunks=(1000, 3), fletcher32=True)
        with HDF5Shard(path) as shard:
            got = shard.read(5, 995)
            assert all((got[name] == values[5:995]).all() for name in ("fixed", "grows", "both", "one"))


# ---- corrupt chunks


def damage(path: Path, name: str, chunk: tuple[int, ...], change: Callable[[bytearray, int, int], None]) -> str:
    """Changes the bytes of a chunk; returns how an error names it."""
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info_by_coord(chunk)
    data = bytearray(path.read_bytes())
    change(data, info.byte_offset, info.size)
    path.write_bytes(data)
    return f"the chunk at {chunk}, {info.size:,} bytes at byte {info.byte_offset:,}: "


def flip_last(data: bytearray, offset: int, size: int) -> None:
    data[offset + size - 1] ^= 1


def zero_tail(data: bytearray, offset: int, size: int) -> None:
    data[offset + 16 : offset + size] = bytes(size - 16)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("filters", "change"),
    [("gzip", flip_last), ("shuffle+gzip+fletcher32", flip_last), ("lz4", zero_tail), ("zstd+fletcher32", flip_last)],
)
def test_a_corrupt_chunk_is_named(tmp_path: Path, filters: str, change: Any) -> None:
    path = tmp_path / "data.h5"
    with h5py.File(path, "x") as file:
        values = np.arange(400 * 6).reshape(400, 6)
        file.create_dataset("x", data=values, chunks=(50, 3), **FILTERS[filters])
    named = damage(path, "x", (150, 3), change)
    with pytest.raises(CorruptError) as caught, hold.read(path).batch(100).iterate() as batches:
        list(batches)
    assert f"{path}: dataset 'x': rows " in str(caught.value)
    assert f" cannot be read: {named}" in str(caught.value)
    with hold.read(path, on_corrupt="skip").batch(100).iterate() as batches:
        read = np.concatenate([batch["x"] for batch in batches])
    assert (read == np.delete(values, np.s_[150:200], 0)).all()


@pytest.mark.formats
def test_a_corrupt_chunk_of_strings_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    strings = [b"%d" % i * 100 for i in range(3000)]
    writer = ConvertedHDF5(path, {"s": hold.Bytes()}, codec="gzip")
    writer.extend({"s": strings})
    writer.close()
    with HDF5Shard(path) as shard:
        assert shard.read(100, 2100)["s"].tolist() == strings[100:2100]
    named = damage(path, "s/values", (0,), flip_last)
    with HDF5Shard(path) as shard, pytest.raises(CorruptError) as caught:
        shard.read(0, 10)
    assert f"{path}: dataset 's': rows 0 to 9 cannot be read: {named}" in str(caught.value)


@native
@pytest.mark.parametrize("filters", ["gzip", "shuffle+gzip+fletcher32", "lz4", "shuffle+zstd", "shuffle+lz4"])
def test_what_is_decoded_of_a_changed_chunk_is_what_the_library_decodes(tmp_path: Path, filters: str) -> None:
    path, rng = tmp_path / "data.h5", np.random.default_rng(3)
    values = values_of("<i8", (64, 8))
    with h5py.File(path, "x") as file:
        dataset = file.create_dataset("x", data=values, chunks=(64, 8), **FILTERS[filters])
        info = dataset.id.get_chunk_info(0)
    fd = os.open(path, os.O_RDWR)
    stored = os.pread(fd, info.size, info.byte_offset)
    with h5py.File(path) as file:
        raw = RawDataset.of(file["x"])
    assert raw is not None
    good = 0
    for n in range(300):
        changed = bytearray(stored)
        for at in rng.integers(0, len(stored), 1 + n % 3):
            changed[at if n % 2 else at % 24] ^= 1 << int(rng.integers(8))
        os.pwrite(fd, changed, info.byte_offset)
        found = raw.begin(fd, 0, 64)()
        if found is not None:
            good += 1
            with h5py.File(path) as file:
                assert (file["x"][:] == found).all()
    os.pwrite(fd, stored, info.byte_offset)
    assert (raw.begin(fd, 0, 64)() == values).all()
    os.ftruncate(fd, info.byte_offset + info.size - 1)
    assert raw.begin(fd, 0, 64)() is None
    os.close(fd)
    assert good < 300


@native
def test_wrong_arguments_are_refused() -> None:
    layout, chunk, out = np.array([8, 2, 10, 3, 5, 3]), np.zeros((2, 3), np.int64), bytearray(240)
    fit = (0, layout, chunk, 0, 0, 10, out)
    wrong: list[dict[int, Any]] = [
        {1: layout[:-1]},  # half of a shape
        {1: np.array([8, 0])},
        {1: np.array([8, 2, 10, 3, 5, 0])},
        {1: np.array([0, 2, 10, 3, 5, 3])},
        {1: np.array([8, 2, 2**62, 2**62, 5, 3])},  # too many values
        {1: np.array([8, 2, 10, 3, 2**40, 3])},  # too large a chunk
        {1: np.append(layout, [305, 0])},  # a filter that cannot be decoded
        {1: np.append(layout, [2, 0])},  # items of no bytes
        {1: np.append(layout, [2])},
        {2: chunk[:1]},
        {3: 1},
        {4: -1},
        {4: 10},
        {5: 11},
        {6: bytearray(239)},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match="expected a layout"):
            native_chunks.read_rows(*(change.get(i, given) for i, given in enumerate(fit)))
    assert not native_chunks.read_rows(*fit)  # no bytes of such a chunk in the file
    assert not native_chunks.load_codec("zstd", "libc.so.6")
    assert not native_chunks.load_codec("zstd", "/nonexistent")
    assert not native_chunks.load_codec("none", "libc.so.6")


# ---- threads, processes and memory


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MB, about sixteen blocks."""
    path = tmp_path_factory.mktemp("raw") / "rows.h5"
    with h5py.File(path, "x") as file:
        x = file.create_dataset("x", (6000, 1024), "f4", chunks=(64, 1024), shuffle=True, **hdf5plugin.LZ4())
        x[...] = np.broadcast_to(np.arange(6000)[:, None], (6000, 1024)).copy()
        file.create_dataset("y", data=np.arange(6000), chunks=(256,), compression="gzip")
    return path


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    yield
    assert readahead_threads.have_ended()


def check(batches: Any, n: int = 6000) -> None:
    seen = []
    for batch in batches:
        assert (batch["x"] == batch["y"][:, None]).all()
        seen += batch["y"].tolist()
    assert sorted(seen) == list(range(n))


@pytest.mark.formats
@pytest.mark.usefixtures("no_thread_left")
def test_the_bounds_of_memory_and_files_hold(rows: Path) -> None:
    for memory, open_files in ((500_000, 1), (9_000_000, 1), (25_000_000, 3)):
        dataset = hold.read(rows).shuffle(seed=5, window="6MB").batch(64)
        with dataset.limits(memory=memory, open_files=open_files).iterate() as batches:
            check(batches)
            stats = batches.stats()
        assert stats.memory_max_bytes <= memory
        assert stats.memory_bytes == 0
        assert stats.open_files_max <= open_files


@native
@pytest.mark.usefixtures("no_thread_left")
def test_blocks_are_read_ahead(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = HDF5Shard.begin

    def noted(self: HDF5Shard, start: int, stop: int, schema: Any = None, pool: Any = None) -> Any:
        begun.extend([start] if pool is not None else [])
        return begin(self, start, stop, schema, pool)

    monkeypatch.setattr(HDF5Shard, "begin", noted)
    check(hold.read(rows).shuffle(seed=5, window="6MB").batch(64))
    assert len(begun) > 8
    with hold.read(rows).shuffle(seed=5, window="6MB").batch(64).iterate() as batches:
        next(batches)  # and is closed with blocks that are being read


@pytest.mark.formats
def test_threads_and_forked_children_read_at_once(rows: Path) -> None:
    with HDF5Shard(rows) as shard:
        wrong: list[int] = []

        def work(seed: int) -> None:
            for start in np.random.default_rng(seed).integers(0, 5800, 30).tolist():
                batch = shard.read(start, start + 200)
                if not (batch["x"] == batch["y"][:, None]).all() or batch["y"][0] != start:
                    wrong.append(start)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        pid = os.fork()
        if pid == 0:
            work(9)
            os._exit(len(wrong) > 0)
        for thread in threads:
            thread.join()
        assert os.waitpid(pid, 0)[1] == 0
        assert not wrong
