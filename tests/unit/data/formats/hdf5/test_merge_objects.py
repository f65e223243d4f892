"""What else lies in HDF5 files: attributes, links, scales, all kinds of types. Kept, or refused: both sides named."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_merge import check_crc, merge_here, read_file, write_file

from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.errors import CorruptError, InputError, SchemaError
from holdfast.schema import Bytes, column_to_json

Make = Callable[[h5py.File, int], object]


def pair(folder: Path, make: Make, other: Make | None = None) -> list[Path]:
    paths = [folder / "a.h5", folder / "b.h5"]
    for number, (path, one) in enumerate(zip(paths, (make, other or make), strict=True)):
        with h5py.File(path, "w") as file:
            one(file, number)
    return paths


# ---- types


def compound(file: h5py.File, number: int) -> None:
    kind = np.dtype([("a", "<i4"), ("b", "<f8", (2,)), ("c", "S3")], align=True)
    values = np.zeros(11, kind)
    values["a"], values["c"] = np.arange(11) + 100 * number, b"xyz"
    file.create_dataset("x", data=values, chunks=(4,), maxshape=(None,))


def enum(file: h5py.File, number: int) -> None:
    kind = h5py.enum_dtype({"red": 1, "blue": 2}, "i2")
    file.create_dataset("x", data=np.full(7, number + 1, "i2"), dtype=kind, chunks=(4,), compression="gzip")


def mixed(file: h5py.File, number: int) -> None:
    file["flag"] = np.arange(9) % 2 == number
    file["half"] = np.arange(9, dtype="f2")
    file["big"] = np.arange(9, dtype=">i4")
    file["complex"] = np.arange(9) * 1j
    file["fixed"] = np.array([b"ab", b"c"] * 4 + [b""], "S2")
    file["void"] = np.zeros(9, "V5")
    file["nested"] = np.zeros(9, [("a", [("b", "i8")])])
    file.create_dataset("opaque", data=np.arange(9).astype("M8[s]").astype(h5py.opaque_dtype("M8[s]")))
    file.create_dataset("nothing", (9, 0), "f4")


def strings(file: h5py.File, number: int) -> None:
    file.create_dataset("s", data=[f"{number}-{i}" * (i % 4) for i in range(9)], dtype=h5py.string_dtype())
    file.create_dataset("packed", data=["täxt"] * 9, dtype=h5py.string_dtype(), chunks=(4,), compression="gzip")
    lists = np.empty(9, object)
    lists[:] = [np.arange(i % 3, dtype="f4") + number for i in range(9)]
    file.create_dataset("lists", data=lists, dtype=h5py.vlen_dtype("f4"))
    inside = np.zeros(9, [("name", h5py.string_dtype()), ("n", "i8")])
    inside["name"], inside["n"] = "n", np.arange(9)
    file.create_dataset("inside", data=inside)


@pytest.mark.parametrize("order", ["exact", "any"])
@pytest.mark.parametrize("make", [compound, enum, mixed, strings])
def test_types(tmp_path: Path, make: Make, order: str) -> None:
    files = pair(tmp_path, make)
    made = merge_here(files, tmp_path / "work", order)
    sides = [read_file(file) for file in files]
    for name, values in read_file(made.path).items():
        wanted = np.concatenate([side[name] for side in sides])
        assert values.dtype == sides[0][name].dtype
        got, listed = ([str(value) for value in some] for some in (values, wanted))
        moved = order == "any" and make in (compound, enum)
        assert (sorted(got) == sorted(listed)) if moved else (got == listed), name
    with h5py.File(made.path) as file, h5py.File(files[0]) as source:
        source.visititems(lambda name, thing: None if file[name].id.get_type() == thing.id.get_type() else 1 / 0)


def test_compact_and_never_written(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((5, 2))
        h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, plist))[:] = number
        file.create_dataset("flat", (5, 2), "i4", fillvalue=7)
        file.create_dataset("holes", (5, 2), "i4", fillvalue=7, chunks=(2, 2), compression="gzip")
        if number:
            file["holes"][2] = 9

    files = pair(tmp_path, make)
    sides, got = [read_file(file) for file in files], read_file(merge_here(files, tmp_path / "work").path)
    for name in ("compact", "flat", "holes"):
        assert np.array_equal(got[name], np.concatenate([side[name] for side in sides])), name


# ---- around the datasets


def test_attributes_links_types_and_groups(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        file.attrs.update({"by": "me", "list": [1, 2], "rank": number, "names": ["ä", "b"], "none": h5py.Empty("f4")})
        if number:
            file.attrs["late"] = 1
        file.create_group("empty/inside").attrs["note"] = b"bytes"
        file["t"] = np.dtype("i4")
        file["train/x"] = np.arange(4) + number
        file["train/x"].attrs["unit"] = "m"
        file["x"] = h5py.SoftLink("/train/x")
        file["same"] = file["train/x"]
        file["version"], file["title"] = 3, "a"
        file["null"] = h5py.Empty("i4")

    made = merge_here(pair(tmp_path, make), tmp_path / "work")
    with h5py.File(made.path) as file:
        assert {name: file.attrs[name] for name in ("by",)} == {"by": "me"}
        assert file.attrs["list"].tolist() == [1, 2]
        assert list(file.attrs["names"]) == ["ä", "b"]
        assert isinstance(file.attrs["none"], h5py.Empty)
        assert set(file.attrs) == {"by", "list", "names", "none"}
        assert file["empty/inside"].attrs["note"] == "bytes"
        assert file["t"].dtype == np.dtype("i4")
        assert file.get("x", getlink=True).path == "/train/x"
        assert file["same"] == file["train/x"]
        assert file["x"][:].tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
        assert file["x"].attrs["unit"] == "m"
        assert (file["version"][()], file["title"].asstr()[()]) == (3, "a")
        assert isinstance(file["null"][()], h5py.Empty)
    assert len(made.notes) == 2
    assert "attribute 'rank' of '/' differs in " in made.notes[0]
    assert "attribute 'late' of '/' is in " in made.notes[1]
    assert "b.h5 and not in " in made.notes[1]


def test_dimension_scales(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        file["x"] = np.ones((4, 3))
        file["time"], file["channel"] = np.arange(4) + 4 * number, np.arange(3)
        for name in ("time", "channel"):
            file[name].make_scale(name)
        file["x"].dims[0].attach_scale(file["time"])
        file["x"].dims[1].attach_scale(file["channel"])
        file["x"].dims[1].label = "c"

    files = pair(tmp_path, make)
    with h5py.File(merge_here(files, tmp_path / "work").path) as file:
        assert file["x"].shape == (8, 3)
        assert file["time"][:].tolist() == list(range(8))
        assert file["channel"][:].tolist() == [0, 1, 2]
        assert file["x"].dims[0][0] == file["time"]
        assert file["x"].dims[1]["channel"] == file["channel"]
        assert file["x"].dims[1].label == "c"
    with h5py.File(files[1], "a") as file:
        file["channel"][0] = 9
    with pytest.raises(SchemaError, match=r"b\.h5: dataset '/channel'.* differs from that in .*a\.h5"):
        merge_here(files, tmp_path / "again")


# ---- refused


def ones(shape: Any = (4,), dtype: str = "f4", **options: Any) -> Make:
    return lambda file, _: file.create_dataset("g/x", data=np.ones(shape, dtype), **options)


def single(value: Any) -> Make:
    return lambda file, _: file.create_dataset("g/x", data=value)


def reference(file: h5py.File, _: int) -> None:
    file["g/x"] = np.array([file.ref], h5py.ref_dtype)


def virtual(file: h5py.File, _: int) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    file.create_virtual_dataset("g/x", layout)


def external(file: h5py.File, _: int) -> None:
    file["g/x"] = h5py.ExternalLink("other.h5", "/x")


def nothing(file: h5py.File, _: int) -> None:
    file.create_group("g")


REFUSED: list[tuple[str, Make, Make, str]] = [
    ("type", ones(), ones(dtype="f8"), r"b\.h5: dataset '/g/x' has the type float64, in .*a\.h5 it has float32"),
    ("byte order", ones(), ones(dtype=">f4"), r"has the type >f4, in .*a\.h5 it has float32"),
    ("row shape", ones((4, 2)), ones((4, 3)), r"has rows of the shape \(3,\), in .*a\.h5 it has \(2,\)"),
    ("axes", ones((4, 2)), ones((4,)), r"has the shape \(4,\), in .*a\.h5 it has \(4, 2\)"),
    ("missing", ones(), nothing, r"b\.h5: dataset '/g/x' is missing, .*a\.h5 has it"),
    ("too many", nothing, ones(), r"a\.h5: dataset '/g/x' is missing, .*b\.h5 has it"),
    ("kind", ones(), lambda file, _: file.create_group("g/x"), r"'/g/x' is a group, in .*a\.h5 it is a dataset"),
    ("single", single(1), single(2), r"b\.h5: dataset '/g/x' is a scalar, and differs from that in .*a\.h5"),
    ("text", single("a"), single("b"), r"b\.h5: dataset '/g/x' is a scalar"),
    ("reference", reference, reference, r"a\.h5: dataset '/g/x' holds references"),
    ("virtual", virtual, virtual, r"a\.h5: dataset '/g/x' is virtual: merge its sources, other\.h5"),
    ("link", external, external, r"a\.h5: '/g/x' is a link into 'other\.h5'"),
    ("fill", ones(fillvalue=1), ones(fillvalue=2), r"has the fill value"),
]


@pytest.mark.parametrize(("make", "other", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused(tmp_path: Path, make: Make, other: Make, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        merge_here(pair(tmp_path, make, other), tmp_path / "work")


def test_refused_before_anything_is_written(tmp_path: Path) -> None:
    good = write_file(tmp_path / "good.h5", {"x": np.arange(4)})
    (tmp_path / "text.h5").write_text("text")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(good.read_bytes()[:-9])
    for bad, error, said in (
        (tmp_path / "text.h5", CorruptError, "not an HDF5 file"),
        (cut, CorruptError, "truncated: expected"),
        (tmp_path / "nix.h5", InputError, "cannot open: No such file"),
        (good, InputError, "duplicate input file"),
    ):
        with pytest.raises(error, match=said):
            merge_hdf5([good, bad], tmp_path / "out.h5")
    with pytest.raises(InputError, match="at least one file"):
        merge_hdf5([], tmp_path / "out.h5")
    with pytest.raises(ValueError, match="expected order"):
        merge_hdf5([good], tmp_path / "out.h5", order="random")  # type: ignore[arg-type]
    with h5py.File(good, "a"), pytest.raises(Exception, match="still being written by this process"):
        merge_hdf5([good], tmp_path / "out.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.h5", "good.h5", "text.h5"]


# ---- found by attack


def test_behind_a_user_block(tmp_path: Path) -> None:
    """There the library names a place for values that have none."""
    paths = [tmp_path / f"{number}.h5" for number in range(3)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w", userblock_size=512) as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((5, 2))
            compact = h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, plist))
            compact[:] = np.arange(10).reshape(5, 2) + 100 * number
            file.create_dataset("never", (5,), "i4", fillvalue=7)
            file["flat"] = np.arange(5) + number
            file.create_dataset("chunked", data=np.arange(5) + number, chunks=(2,), compression="gzip")
    made = merge_here(paths, tmp_path / "work")
    sides = [read_file(path) for path in paths]
    for name, values in read_file(made.path).items():
        assert values.tolist() == np.concatenate([side[name] for side in sides]).tolist(), name
    check_crc(made)


def test_types_of_the_newest_version(tmp_path: Path) -> None:
    kind = np.dtype([("name", h5py.string_dtype()), ("n", "u1")])
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        with h5py.File(path, "w", libver="latest") as file:
            file.create_dataset("x", data=np.array([("a", 1), ("b", 2)], kind), chunks=(1,))
            file.create_dataset("y", data=np.zeros(3, [("a", "i4")]), chunks=(2,), fletcher32=True)
    found = read_file(merge_here(paths, tmp_path / "work").path)
    assert found["x"]["n"].tolist() == [1, 2, 1, 2]
    assert len(found["y"]) == 6


def test_a_limit_above_the_rows(tmp_path: Path) -> None:
    files = pair(tmp_path, lambda file, n: file.create_dataset("x", data=[n, n], chunks=(8,), maxshape=(20,)))
    assert read_file(merge_here(files, tmp_path / "work").path)["x"].tolist() == [0, 0, 1, 1]


def test_fill_values_of_strings_and_compounds(tmp_path: Path) -> None:
    kind = np.dtype([("a", "i1"), ("b", "f8")], align=True)

    def make(file: h5py.File, number: int) -> None:
        raw = np.frombuffer(bytes([5] + [number] * 7) + np.float64(2).tobytes(), kind)[0]
        file.create_dataset("compound", (5,), kind, chunks=(4,), fillvalue=raw)
        file.create_dataset("text", (5,), h5py.string_dtype("utf-8", 7), chunks=(4,), fillvalue="fill")

    found = read_file(merge_here(pair(tmp_path, make), tmp_path / "work").path)
    assert found["text"].tolist() == [b"fill"] * 10
    assert found["compound"].tolist() == [(5, 2.0)] * 10


@pytest.mark.parametrize("order", ["exact", "any"])
def test_ends_of_packed_columns_without_chunks(tmp_path: Path, order: str) -> None:
    """As a tool leaves them that writes the file anew."""

    def make(file: h5py.File, number: int) -> None:
        group = file.create_group("text")
        group.attrs["holdfast"] = json.dumps({"column": column_to_json(Bytes())})
        group["offsets"] = np.array([0, 1, 3, 6])
        group["values"] = np.arange(6, dtype="u1") + 10 * number

    found = read_file(merge_here(pair(tmp_path, make), tmp_path / "work", order).path)
    assert found["text/offsets"].tolist() == [0, 1, 3, 6, 7, 9, 12]
    assert found["text/values"].tolist() == [*range(6), *range(10, 16)]


def test_one_long_value_that_differs_is_refused(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        values = np.zeros(5000, "i4")
        values[2500] = number
        file.create_dataset("x", (), h5py.vlen_dtype("i4"))[()] = values

    with pytest.raises(SchemaError, match=r"b\.h5: dataset '/x' is a scalar.* differs from that in .*a\.h5"):
        merge_here(pair(tmp_path, make), tmp_path / "work")


def test_attributes_of_other_types_and_of_a_group_in_one_file(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        file["x"] = np.arange(3)
        file.attrs["bits"] = np.float32(1) if number else np.int32(0x3F800000)
        if number:
            file.create_group("late").attrs["who"] = "b"

    made = merge_here(pair(tmp_path, make), tmp_path / "work")
    assert ["attribute 'bits' of '/' differs" in note for note in made.notes] == [True]
    with h5py.File(made.path) as file:
        assert dict(file["late"].attrs) == {"who": "b"}


def test_a_type_that_numpy_does_not_have_is_refused(tmp_path: Path) -> None:
    def make(file: h5py.File, number: int) -> None:
        h5py.h5d.create(file.id, b"x", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((4,)))

    with pytest.raises(SchemaError, match=r"a\.h5: it has a type that cannot be merged"):
        merge_here(pair(tmp_path, make), tmp_path / "work")


def test_few_descriptors(tmp_path: Path) -> None:
    files = [
        write_file(tmp_path / f"{n:02d}.h5", {"x": np.full(5, n)}, chunks=4, compression="gzip") for n in range(40)
    ]
    program = (
        "import resource, sys\n"
        "from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "merge_hdf5(sys.argv[2:], sys.argv[1])\n"
    )
    out = tmp_path / "out.h5"
    command = [sys.executable, "-c", program, str(out), *map(str, files)]
    subprocess.run(command, check=True, timeout=60)
    assert read_file(out)["x"].tolist() == [n for n in range(40) for _ in range(5)]


def test_a_view_in_a_folder_behind_a_link(tmp_path: Path) -> None:
    """`..` leads out of where a link leads to, not back to where it is."""
    files = pair(tmp_path, lambda file, n: file.create_dataset("x", data=[n + 1, 0]))
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    merge_hdf5(files, tmp_path / "link" / "view.h5", virtual=True)
    assert read_file(tmp_path / "far" / "away" / "view.h5")["x"].tolist() == [1, 0, 2, 0]


# ---- sizes


def nested_groups(file: h5py.File, number: int) -> None:
    group: Any = file
    for _ in range(3000):
        group = group.create_group("g")
    group["x"] = np.arange(3) + 10 * number


def test_3000_nested_groups(tmp_path: Path) -> None:
    made = merge_hdf5(pair(tmp_path, nested_groups), tmp_path / "out.h5")
    with h5py.File(made.path) as file:
        assert file["g/" * 3000 + "x"][:].tolist() == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("virtual", [False, True])
def test_rows_that_no_memory_holds(tmp_path: Path, virtual: bool) -> None:
    paths = pair(tmp_path, lambda file, _: file.create_dataset("x", (900, 1 << 40), "f4", chunks=(1, 1 << 20)))
    with pytest.raises(InputError, match=r"a\.h5: dataset '/x' has rows of 4\.40 TB, and a row must fit into memory"):
        merge_hdf5(paths, tmp_path / "out.h5", virtual=virtual)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5"]


def test_attributes_of_any_string_and_of_a_list(tmp_path: Path) -> None:
    """Strings that do not fit the character set of their type, and a scalar attribute whose value is a list."""
    files = [tmp_path / "0.h5", tmp_path / "1.h5"]
    for path in files:
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(3)
            file.attrs["latin"] = "café".encode()
            file.attrs.create("broken", b"caf\xe9", dtype=h5py.string_dtype("utf-8"))
            file.attrs.create("names", ["é".encode(), b"b"], dtype=h5py.string_dtype("ascii"))
            value = np.empty((), h5py.vlen_dtype(np.int32))
            value[()] = np.array([1, 2, 3], np.int32)
            file.attrs.create("list", value, dtype=h5py.vlen_dtype(np.int32))
    merge_hdf5(files, tmp_path / "out.h5")
    with h5py.File(files[0]) as source, h5py.File(tmp_path / "out.h5") as made:
        for name in source.attrs:
            assert np.array_equal(made.attrs[name], source.attrs[name]), name
            assert made.attrs.get_id(name).get_type() == source.attrs.get_id(name).get_type()
            assert made.attrs.get_id(name).shape == source.attrs.get_id(name).shape


def test_edge_chunks_that_are_stored_without_filters_are_rebuilt(tmp_path: Path) -> None:
    files = [tmp_path / "0.h5", tmp_path / "1.h5"]
    rows = np.arange(180, dtype=np.int32).reshape(30, 6)
    rows[:10] = rows[20:] = 0
    for path in files:
        with h5py.File(path, "w", libver="latest") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((10, 4))
            plist.set_shuffle()
            ctypes.CDLL(h5py.h5d.__file__).H5Pset_chunk_opts(ctypes.c_int64(plist.id), ctypes.c_uint(2))
            space = h5py.h5s.create_simple(rows.shape)
            dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl=plist)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, rows)
    merge_hdf5(files, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as made:
        assert np.array_equal(made["x"], np.concatenate([rows, rows]))


def test_strings_in_compounds_their_fill_values_and_the_order_of_creation(tmp_path: Path) -> None:
    kind = np.dtype([("n", "<i4"), ("s", h5py.string_dtype())])
    files = [tmp_path / f"{number}.h5" for number in range(2)]
    for number, path in enumerate(files):
        with h5py.File(path, "w", track_order=number == 0) as file:
            file.create_dataset("c", data=np.array([(number, "a" * number), (2, "b")], kind), chunks=(2,))
            file.create_dataset("b", (9,), h5py.string_dtype(), chunks=(2,), fillvalue="none")[:] = "here"
    made = merge_hdf5(files, tmp_path / "out.h5", codec="gzip")
    assert any("the order in which the members of '/' were created is not kept" in note for note in made.notes)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["c"][:].tolist() == [(0, b""), (2, b"b"), (1, b"a"), (2, b"b")]
        assert (file["c"].compression, file["b"].fillvalue, set(file["b"][:])) == ("gzip", b"none", {b"here"})
    with h5py.File(files[0], "a") as file:
        del file["b"]
        file.create_dataset("b", (9,), h5py.string_dtype(), chunks=(2,), fillvalue="none")[0] = "here"
    with pytest.raises(InputError, match=r"0\.h5: dataset '/b': .*strings that were never written.*write them once"):
        merge_hdf5(files, tmp_path / "out.h5", overwrite=True)
