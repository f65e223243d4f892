"""Merging keeps every value under every filter, and a damaged chunk never gets into a result."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from factories_hdf5 import chunk_places, flip
from factories_merge import merge_here, nothing_left, read_file

from holdfast.data.formats.hdf5.filters import filters_of, verbatim_parameters
from holdfast.data.formats.hdf5.merging import write_result
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.errors import CorruptError, SchemaError, WriteError

# Filters that derive parameters from their dataset, those that lose digits, and HDF5's own.
LOSSLESS: dict[str, dict[str, Any]] = {
    "bitshuffle": {"compression": hdf5plugin.Bitshuffle()},
    "bitshuffle-zstd": {"compression": hdf5plugin.Bitshuffle(cname="zstd")},
    "blosc": {"compression": hdf5plugin.Blosc()},
    "bzip2": {"compression": hdf5plugin.BZip2()},
    "lz4": {"compression": hdf5plugin.LZ4()},
    "zstd": {"compression": hdf5plugin.Zstd()},
    "szip": {"compression": "szip"},
    "gzip-fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
}
LOSSY: dict[str, dict[str, Any]] = {
    "blosc2": {"compression": hdf5plugin.Blosc2()},  # it may be told to drop digits
    "zfp": {"compression": hdf5plugin.Zfp(accuracy=0.01)},
    "sz": {"compression": hdf5plugin.SZ(absolute=0.01)},
    "sz3": {"compression": hdf5plugin.SZ3(absolute=0.01)},
    "sperr": {"compression": hdf5plugin.Sperr(peak_signal_to_noise_ratio=50)},
    "scaleoffset": {"scaleoffset": 3},
}
FILTERS = LOSSLESS | LOSSY
ROWS = [(100, 37), (96, 37)]  # the second file begins within a chunk, or with one


def files_of(folder: Path, rows: tuple[int, ...], row: tuple[int, ...], dtype: str, options: Any) -> list[Path]:
    rng = np.random.default_rng(1)
    paths = [folder / f"{number}.h5" for number in range(len(rows))]
    for number, (path, n) in enumerate(zip(paths, rows, strict=True)):
        values = (rng.normal(size=(n, *row)) * 100).cumsum(0).astype(dtype)
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, chunks=(16, *row), **options)
            file["id"] = np.arange(n) + 1000 * number
    return paths


def filters_in(path: Path | str) -> list[tuple[int, ...]]:
    with h5py.File(path) as file:
        return [(code, *values) for code, _, values in filters_of(file["x"].id.get_create_plist())]


def name_of_filter(path: Path | str) -> bytes:
    with h5py.File(path) as file:
        name: bytes = file["x"].id.get_create_plist().get_filter(0)[3]
        return name


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("name", FILTERS)
def test_every_value_is_kept(tmp_path: Path, name: str, rows: tuple[int, ...]) -> None:
    for number, (dtype, row) in enumerate([("<f4", (12, 12)), ("<f8", (12, 12)), ("<i4", (9,)), ("u1", ())]):
        if (name == "sperr" and number > 1) or (name in LOSSY and number == 3):
            continue  # which these filters do not take
        folder = tmp_path / str(number)
        folder.mkdir()
        files = files_of(folder, rows, row, dtype, FILTERS[name])
        expected = [read_file(file) for file in files]
        for order in ("exact", "any"):
            made = merge_here(files, folder / order, order)
            got = read_file(made.path)
            by_id = {key: value.tobytes() for one in expected for key, value in zip(one["id"], one["x"], strict=True)}
            assert [value.tobytes() for value in got["x"]] == [by_id[key] for key in got["id"].tolist()]
            assert order == "any" or got["id"].tolist() == [key for one in expected for key in one["id"].tolist()]
            method = next(one.method for one in made.datasets if one.dataset == "/x")
            if rows[0] % 16 == 0:
                assert method == "copy"
                assert filters_in(made.path)[0][:8] == filters_in(files[0])[0][:8]
                assert name_of_filter(made.path) == name_of_filter(files[0])
            elif name in LOSSLESS:
                assert method == "copy and build"
            elif name != "scaleoffset" or dtype != "<i4":
                assert method == "build"
                assert "is compressed with shuffle + gzip instead" in made.notes[0]
                assert [one[0] for one in filters_in(made.path)] == [2, 1]


def test_strings_under_a_filter_that_cannot_be_made_again(tmp_path: Path) -> None:
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        with h5py.File(path, "w") as file:
            values = [f"{path.name} {n}" for n in range(20)]
            file.create_dataset("x", data=values, dtype=h5py.string_dtype(), chunks=(8,), **LOSSLESS["bitshuffle"])
    made = merge_here(paths, tmp_path / "work")
    assert read_file(made.path)["x"].tolist() == [f"{p.name} {n}".encode() for p in paths for n in range(20)]
    assert "bitshuffle cannot compress" in made.notes[0]


def test_parameters_are_taken_as_they_are() -> None:
    """Without this a pipeline that was read from a dataset does not create its like; afterwards the filter is back."""
    given = (0, 4, 4, 0, 2)
    for within in (True, False):
        with h5py.File("x", "w", driver="core", backing_store=False) as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((16,))
            plist.set_filter(32008, h5py.h5z.FLAG_OPTIONAL, given)
            space = h5py.h5s.create_simple((16,))
            with verbatim_parameters({32008: b"bitshuffle"} if within else {}):
                dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, plist)
                found = filters_of(dataset.get_create_plist())[0][2]
                dataset.close()
            assert (found == given) == within
            if within:
                file["x"][:] = np.arange(16)
                file.flush()
                assert file["x"].id.read_direct_chunk((0,))[0] == 0  # packed by the real filter
                assert file["x"][:].tolist() == list(range(16))


# ---- the proof of a result


@pytest.mark.parametrize("name", ["gzip", "fletcher32", "bzip2"])
def test_a_damaged_chunk_is_found_without_a_record(tmp_path: Path, name: str) -> None:
    options = {"gzip": {"compression": "gzip"}, "fletcher32": {"fletcher32": True}, "bzip2": LOSSLESS["bzip2"]}[name]
    files = files_of(tmp_path, (96, 32), (4,), "<f4", options)
    places = chunk_places(files[0], "x")
    for at, size in [places[0], places[2], places[-1]]:
        flip(files[0], at + size // 2)
        with pytest.raises(CorruptError, match=rf"0\.h5 at byte {at:,}: dataset '/x': a chunk cannot be decoded"):
            merge_here(files, tmp_path / f"damaged {at}")
        flip(files[0], at + size // 2)
    made = merge_here(files, tmp_path / "work")
    assert (made.unpacked, made.compared, made.checked) == (8, 0, 0)
    assert made.unchecked == ["/id"]


def test_a_damaged_chunk_that_is_built_from(tmp_path: Path) -> None:
    files = files_of(tmp_path, (37, 96), (4,), "<f4", {"compression": "lzf", "fletcher32": True})
    at, size = chunk_places(files[1], "x")[3]  # no row of which begins a chunk of the result
    flip(files[1], at + size // 2)
    with pytest.raises(CorruptError, match=rf"1\.h5 at byte {at:,}: dataset '/x': a chunk cannot be decoded"):
        merge_here(files, tmp_path / "work")


def test_values_that_were_built_wrongly_get_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of a chunk in the middle of a run: neither its first nor its last row."""
    files = files_of(tmp_path, (90, 64), (4,), "<f4", {"compression": "gzip"})

    write_rows, made = write_result.write_rows, 0

    def wrong(dataset: Any, target: Any, first: int, values: Any) -> None:
        nonlocal made
        made += 1
        values.view("<f4")[7, 2] += made == 1
        write_rows(dataset, target, first, values)

    monkeypatch.setattr(write_result, "write_rows", wrong)
    with pytest.raises(WriteError, match=r"dataset '/x' has other values than its sources in rows"):
        merge_here(files, tmp_path / "work")
    assert made == 1


def test_a_flip_in_any_chunk_is_found_or_named(tmp_path: Path) -> None:
    """What is merged without an error reads as its sources do, or is in a dataset that is named as unchecked."""
    for name in ("gzip", "lzf", "zstd", "lz4", "bitshuffle"):
        options = {"compression": name} if name in ("gzip", "lzf") else LOSSLESS[name]
        folder = tmp_path / name
        folder.mkdir()
        files = files_of(folder, (64, 32), (4,), "<f4", options)
        before = np.concatenate([read_file(file)["x"] for file in files])
        rng = random.Random(name)
        for at, size in rng.sample(chunk_places(files[0], "x"), 4):
            here = at + rng.randrange(size)
            flip(files[0], here)
            with contextlib.suppress(CorruptError):
                assert "/x" in merge_here(files, folder / f"copied {here}", verify_sources=False).unchecked
            with contextlib.suppress(CorruptError):
                made = merge_here(files, folder / f"decoded {here}")
                got = read_file(made.path)["x"]
                assert got.tobytes() == before.tobytes() or "/x" in made.unchecked
            flip(files[0], here)


# ---- attributes


def test_attributes_that_differ(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.h5" for name in "abc"]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(4)
            file.attrs["author"] = f"author {number}"
            file["x"].attrs["unit"] = "m"
            if number:
                file["x"].attrs["scale"] = number
    out = tmp_path / "out.h5"
    expected = {"same": {}, "first": {"author": "author 0", "scale": 1}}
    for choice, kept in expected.items():
        made = merge_hdf5(paths, out, attributes=choice, overwrite=True)  # type: ignore[arg-type]
        with h5py.File(out) as file:
            assert dict(file.attrs) | dict(file["x"].attrs) == {"unit": "m"} | kept
        facts = [(one["object"], one["attribute"], one["reason"], one["kept"]) for one in made.attributes]
        assert facts == [("/", "author", "differs", bool(kept)), ("/x", "scale", "missing", bool(kept))]
        assert made.attributes[1]["files"] == [str(paths[1]), str(paths[0])]
        assert len(made.notes) == 2
    os.unlink(out)
    with pytest.raises(
        SchemaError, match=r"attribute 'author' of '/' differs in .*a\.h5 and .*b\.h5 \(1 more differ\)"
    ):
        merge_hdf5(paths, out, attributes="error")
    with pytest.raises(ValueError, match="expected attributes to be"):
        merge_hdf5(paths, out, attributes="all")  # type: ignore[arg-type]
    assert not out.exists()
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("codec", [None, "none", "gzip", "lzf", "zstd"])
def test_files_of_different_codecs_are_joined(tmp_path: Path, codec: Any) -> None:
    """What is packed otherwise than most rows, or than is asked for, is packed again and named."""
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 9, (rows, 3)).astype(np.int16) for rows in (40, 9, 10, 7)]
    ways: list[dict[str, Any]] = [
        {"compression": "gzip", "shuffle": True},
        {"compression": "lzf"},
        {},
        {"chunks": None},
    ]
    paths = [tmp_path / f"{number}.h5" for number in range(len(parts))]
    for path, values, options in zip(paths, parts, ways, strict=True):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, **({"chunks": (4, 3)} | options))
            file.create_dataset("text", data=["a"] * len(values), chunks=(4,), compression=options.get("compression"))
    made = merge_hdf5(paths, tmp_path / "out.h5", codec=codec)
    wanted = codec or "gzip"
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["x"][:], np.concatenate(parts))
        assert list(file["text"].asstr()[:]) == ["a"] * 66
        assert [name for name in ("gzip", "lzf") if file["x"].compression == name] == [wanted] * (
            wanted in ("gzip", "lzf")
        )
        assert bool(file["x"]._filters) == (wanted != "none")
    [note] = [note for note in made.notes if "'/x'" in note]
    said = {
        "none": "2 of 4 files had the filters lzf, shuffle + gzip",
        "gzip": "3 of 4 files had the filters lzf, none",
    }
    assert said.get(wanted, "of 4 files had the filters") in note
    assert note.endswith(f"compressed again with {'' if wanted == 'none' else 'shuffle + '}{wanted}")
    assert made.compared
