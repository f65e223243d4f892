"""Salvage of HDF5: what the damage did not touch comes back, what is lost is told, the original stays as it is."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from factories_hdf5 import (
    V110,
    chunk_places,
    flip,
    killed_writer,
    live_writer,
    make_full,
    make_odd,
    odd_types,
    values_of,
)

from holdfast.data.formats.hdf5 import sandbox
from holdfast.data.formats.hdf5.chunks import merge_ranges, subtract_ranges
from holdfast.data.formats.hdf5.salvage import SalvagedHDF5, salvage_hdf5
from holdfast.data.formats.hdf5.salvage_rebuild import LOST_ROWS
from holdfast.data.formats.hdf5.sandbox import SPIN_S, find_spin_s
from holdfast.data.formats.hdf5.verify import verify_hdf5
from holdfast.errors import InputError, TargetExistsError, WriteError

CHECKED = ("/train/x", "/train/y")  # gzip and fletcher32: what is read of them is what was written


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return make_full(tmp_path / "full.h5", libver=V110)


@pytest.fixture(params=["default", "v110"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In the format that h5py writes unless told otherwise, and in the one with checksums in its structure."""
    return make_full(tmp_path / "full.h5", **{} if request.param == "default" else {"libver": V110})


def salvaged(path: Path, **options: Any) -> tuple[SalvagedHDF5, dict[str, Any]]:
    """The report and the values, after checking that the original is as it was and the new file is whole."""
    before, out = path.read_bytes(), path.with_name("out.h5")
    found = salvage_hdf5(path, out, **options)
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == sorted({path.name, *[out.name] * bool(found.objects_kept)})
    if not found.objects_kept:
        return found, {}
    values = values_of(out)
    out.unlink()
    return found, values


def same(a: Any, b: Any) -> bool:
    if np.shape(a) != np.shape(b):
        return False
    return all(np.array_equal(x, y) for x, y in zip(np.ravel(a), np.ravel(b), strict=True))


def check_rows(found: SalvagedHDF5, got: dict[str, Any], want: dict[str, Any]) -> None:
    """Every row that is not told to be lost is what it was."""
    lost = {dataset.path: dataset.lost for dataset in found.datasets}
    for path in CHECKED:
        if path in got and got[path].shape == want[path].shape:
            kept = np.ones(len(want[path]), bool)
            for low, high in lost[path]:
                kept[low:high] = False
            assert np.array_equal(got[path][kept], want[path][kept])


def test_a_whole_file_comes_back_whole(either: Path) -> None:
    want = values_of(either)
    out = either.with_name("out.h5")
    found = salvage_hdf5(either, out)
    assert (found.problems, found.rows_lost) == ([], 0)
    got = values_of(out)
    assert got.keys() == want.keys()
    assert [path for path in want if not same(want[path], got[path])] == []
    with h5py.File(out) as new, h5py.File(either) as old:
        assert [new[path].dtype == old[path].dtype for path in want] == [True] * len(want)
        assert new["train/x"].compression == "gzip"
        assert new["train/x"].attrs["unit"] == "m"
        assert new["train/filled"].fillvalue == 7
        assert new["train/grows"].maxshape == (None, 3)
        assert new.attrs["made"] == "by a test"
        assert list(new.attrs["words"]) == ["a", "bb"]
        assert isinstance(new.attrs["nothing"], h5py.Empty)
        assert new["train/z_again"] == new["train/y"]
        assert new.get("soft", getlink=True).path == "/train/x"
        assert new["type"].dtype == np.dtype("f8")
    assert verify_hdf5(out).ok


@pytest.mark.parametrize(
    ("low", "flush", "swmr", "rows"),
    [("default", "", "", 0), ("default", "flush", "", 1000), ("v110", "", "", 0), ("v110", "flush", "swmr", 1000)],
)
def test_a_killed_writer(tmp_path: Path, low: str, flush: str, swmr: str, rows: int) -> None:
    path = killed_writer(tmp_path / "a.h5", low, flush, swmr)
    found, got = salvaged(path)
    if rows:
        assert np.array_equal(got["/x"], np.repeat(np.arange(10, dtype="f4"), 100)[:, None] * np.ones((1, 64), "f4"))
    else:
        assert found.objects_kept == 0


def test_cuts_lose_what_is_behind_them(either: Path) -> None:
    want = values_of(either)
    whole = either.read_bytes()
    for share in (0.4, 0.8):
        either.write_bytes(whole[: int(len(whole) * share)])
        found, got = salvaged(either)
        assert "truncated: expected" in found.problems[0].reason
        check_rows(found, got, want)


def test_a_cut_run_of_rows_is_kept_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100_000))
        offset = file["x"].id.get_offset()
        file["y"] = 3.5
    os.truncate(path, offset + 8 * 50_000 + 3)
    found, got = salvaged(path)
    assert found.datasets[0].lost == [(50_000, 100_000)]
    assert found.problems[-1].reason.startswith("cannot be read: the file is truncated at byte")
    assert np.array_equal(got["/x"][:50_000], np.arange(50_000))


def test_flips_cost_their_chunk(either: Path) -> None:
    want = values_of(either)
    places = chunk_places(either, "train/x")
    for number in (2, 3, 7):
        flip(either, places[number][0] + 9)
    out = either.with_name("out.h5")
    found = salvage_hdf5(either, out)
    [dataset] = [dataset for dataset in found.datasets if dataset.lost]
    assert (dataset.path, dataset.lost, dataset.rows_lost) == ("/train/x", [(200, 400), (700, 800)], 300)
    check_rows(found, values_of(out), want)
    with h5py.File(out) as file:
        assert file["train/x"].attrs[LOST_ROWS].tolist() == [[200, 400], [700, 800]]
        assert LOST_ROWS not in file["train/y"].attrs


def test_noise_anywhere_invents_nothing(either: Path) -> None:
    want = values_of(either)
    whole = either.read_bytes()
    rng = random.Random(7)
    for _ in range(2):
        at = rng.randrange(96, len(whole))
        either.write_bytes(whole[:at] + rng.randbytes(16) + whole[at + 16 :])
        check_rows(*salvaged(either), want)


def test_a_superblock_with_a_wrong_checksum_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=V110) as file:
        file["x"] = np.arange(10)
    flip(path, 45)
    found, got = salvaged(path)
    assert "checksum of its superblock" in found.problems[0].reason
    assert got["/x"].tolist() == list(range(10))


@pytest.mark.parametrize("data", [b"", b"garbage" * 999, bytes(9999)])
def test_nothing_is_written_where_nothing_can_be_kept(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(data)
    found, _ = salvaged(path)
    assert found.objects_kept == 0
    assert len(found.problems) == 1


def test_references_lead_to_the_new_objects(tmp_path: Path) -> None:
    """Also those to objects that come later, in lists and compounds, and of dimension scales. Views stay views."""
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10)
        file["a_first"] = np.arange(3)
        file["a_first"].attrs["one"] = file["x"].ref
        file.create_dataset("refs", data=[file["x"].ref, file["a_first"].ref], dtype=h5py.ref_dtype)
        file.create_dataset("regions", data=[file["x"].regionref[2:5]], dtype=h5py.regionref_dtype)
        pairs = file.create_dataset("pairs", (2,), [("to", h5py.ref_dtype), ("n", "i4")])
        pairs[0] = (file.ref, 7)
        file["scale"] = np.arange(10.0)
        file["scale"].make_scale("s")
        file["x"].dims[0].attach_scale(file["scale"])
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(".", "a_first", (3,))
        file.create_virtual_dataset("view", layout)
        del file["a_first"].attrs["one"]
        file["a_first"].attrs["one"] = file["x"].ref
    found = salvage_hdf5(path, out)
    assert found.problems == []
    with h5py.File(out) as new:
        assert new[new["a_first"].attrs["one"]] == new["x"]
        assert [new[one].name for one in new["refs"][:]] == ["/x", "/a_first"]
        region = new["regions"][0]
        assert new[region][region].tolist() == [2, 3, 4]
        assert new[new["pairs"][0]["to"]].name == "/"
        assert not new["pairs"][1]["to"]
        assert new["x"].dims[0]["s"] == new["scale"]
        assert new["view"][:].tolist() == [0, 1, 2]


@pytest.mark.parametrize("options", [{"userblock_size": 1024}, {"libver": V110}])
def test_nothing_of_a_clean_file_is_lost(tmp_path: Path, options: dict[str, Any]) -> None:
    path, out = make_odd(tmp_path / "a.h5", **options), tmp_path / "out.h5"
    if "userblock_size" in options:
        path.write_bytes(b"mine" * 256 + path.read_bytes()[1024:])
    assert salvage_hdf5(path, out).problems == []
    with h5py.File(path) as old, h5py.File(out) as new:
        assert list(new) == list(old)
        kinds = {name: (old[name].id.get_type(), new[name].id.get_type()) for name in old if is_dataset(old, name)}
        assert [name for name, (a, b) in kinds.items() if not a.equal(b)] == []
        assert [name for name in kinds if raw_values(old[name].id) != raw_values(new[name].id)] == []
        assert list(new["thing"].attrs) == list(old["thing"].attrs)
        attributes = {name: (old["thing"].attrs.get_id(name), new["thing"].attrs.get_id(name)) for name in odd_types()}
        assert [name for name, (a, b) in attributes.items() if not a.get_type().equal(b.get_type())] == []
        assert [name for name, (a, b) in attributes.items() if raw_values(a) != raw_values(b)] == []
        assert new["a_of_it"].id.get_type().committed()
        assert new["made"].attrs["note"] == "a type of its own"
        assert list(new["ordered"]) == ["z", "a", "y"]
        assert new.get("outside", getlink=True).filename == "other.h5"
        assert new.get("nowhere", getlink=True).path == "/not/there"
        assert new["default"].asstr()[:].tolist() == ["none"] * 4
        assert new.userblock_size == old.userblock_size
    assert out.read_bytes()[: options.get("userblock_size", 0)] == b"mine" * (options.get("userblock_size", 0) // 4)


def is_dataset(file: h5py.File, name: str) -> bool:
    return isinstance(file.get(name), h5py.Dataset)


def raw_values(thing: Any) -> Any:
    """In the type that the file has, as bytes; lists and strings as h5py has them."""
    kind = thing.get_type()
    if kind.detect_class(h5py.h5t.VLEN) or (kind.detect_class(h5py.h5t.STRING) and kind.dtype.hasobject):
        return [str(one) for one in h5py.Dataset(thing)[()]]
    values = np.empty(thing.shape, f"V{kind.get_size()}")
    if isinstance(thing, h5py.h5d.DatasetID):
        thing.read(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    else:
        thing.read(values, mtype=kind)
    return values.tobytes()


def test_chunks_are_copied_as_they_are(tmp_path: Path) -> None:
    """Whatever their filter, also where it rounds, or makes its parameters anew from those it is given."""
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    filters = {
        "zfp": hdf5plugin.Zfp(accuracy=0.01),
        "sz": hdf5plugin.SZ(absolute=0.01),
        "sz3": hdf5plugin.SZ3(absolute=0.01),
        "sperr": hdf5plugin.Sperr(rate=8),
        "bitshuffle": hdf5plugin.Bitshuffle(),
        "blosc": hdf5plugin.Blosc(),
        "scaleoffset": {"scaleoffset": 3},
    }
    values = np.random.default_rng(0).random((70, 64), "f4") * 99
    with h5py.File(path, "w") as file:
        for name, options in filters.items():
            file.create_dataset(name, data=values, chunks=(16, 64), **options)
    offset, size = chunk_places(path, "zfp")[1]
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes(size) + data[offset + size :])
    found = salvage_hdf5(path, out)
    assert {d.path: d.lost + d.doubtful for d in found.datasets if d.lost + d.doubtful} == {"/zfp": [(16, 32)]}
    with h5py.File(path) as old, h5py.File(out) as new:
        for name in filters:
            before, after = old[name], new[name]
            kept = np.arange(70) if name != "zfp" else np.r_[0:16, 32:70]
            assert np.array_equal(after[kept], before[kept]), name
            plists = before.id.get_create_plist(), after.id.get_create_plist()
            assert plists[0].get_filter(0)[2][:10] == plists[1].get_filter(0)[2][:10], name


# ---- objects without a group


def test_what_no_group_leads_to_is_found_by_its_bytes(tmp_path: Path) -> None:
    """The root group goes on behind the cut: nothing has a name any more, but most of it is there."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=V110) as file:
        for i in range(3):
            file.create_dataset(f"x{i}", data=np.arange(100) + i, chunks=(50,))
        file.flush()
        for i in range(20):
            file.attrs[f"attribute{i}"] = "long" * 100  # the root's header needs more room, at the end of the file
        size = max(file[f"x{i}"].id.get_chunk_info(1).byte_offset for i in range(3)) + 400
    os.truncate(path, size)
    found, got = salvaged(path)
    assert "cannot be opened" in found.problems[1].reason
    assert len(got) == 3
    assert all(name.startswith("/lost+found/at-") for name in got)
    assert sorted(values[0] for values in got.values()) == [0, 1, 2]
    assert found.rows_lost == 0


def test_a_lost_superblock_is_no_end(either: Path) -> None:
    want = values_of(either)
    data = either.read_bytes()
    either.write_bytes(bytes(64) + data[64:])
    found, got = salvaged(either)
    assert "not an HDF5 file" in found.problems[0].reason
    for path in CHECKED:
        assert any(same(values, want[path]) for values in got.values()), path


def test_older_files_keep_the_names(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["first"], file["second"] = np.arange(100), np.arange(200)
        file.flush()
    data = path.read_bytes()
    tree = data.index(b"TREE")
    path.write_bytes(data[:tree] + bytes(4) + data[tree + 4 :])  # the group's index, without which it cannot be listed
    found, got = salvaged(path)
    assert found.problems
    assert sorted(name.partition("-at-")[0] for name in got) == ["/lost+found/first", "/lost+found/second"]
    assert sorted(len(values) for values in got.values()) == [100, 200]


def test_deleted_objects_of_a_sound_file_stay_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=V110) as file:
        file["kept"], file["gone"] = np.arange(100), np.arange(200)
    with h5py.File(path, "a", libver=V110) as file:
        del file["gone"]
    found, got = salvaged(path)
    assert list(got) == ["/kept"]
    assert found.problems == []


# ---- refusals


def test_a_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    with live_writer(path, "v110") as process:
        with pytest.raises(InputError, match=f"still being written by process {process.pid} "):
            salvage_hdf5(path, out)
        assert not out.exists()
        salvage_hdf5(path, out, live=True)
        process.communicate()


def test_what_is_there_is_not_replaced(full: Path) -> None:
    out = full.with_name("out.h5")
    out.write_text("precious")
    with pytest.raises(TargetExistsError):
        salvage_hdf5(full, out)
    assert out.read_text() == "precious"
    with pytest.raises(WriteError, match="is also an input"):
        salvage_hdf5(full, full, overwrite=True)
    with pytest.raises(InputError, match="got a directory"):
        salvage_hdf5(full.parent, out)


# ---- a library that crashes, hangs, or has no room


def test_a_crash_costs_its_chunk(full: Path, bad_library: Callable[[str], None]) -> None:
    want = values_of(full)
    bad_library("SIGSEGV:/train/x:300")
    found, got = salvaged(full)
    [flaw] = found.problems
    assert (flaw.dataset, flaw.chunk) == ("/train/x", (300, 0))
    assert {dataset.path: dataset.lost for dataset in found.datasets if dataset.lost} == {"/train/x": [(300, 400)]}
    check_rows(found, got, want)
    assert got.keys() == want.keys()


def test_an_object_that_crashes_is_left_out(full: Path, bad_library: Callable[[str], None]) -> None:
    want = values_of(full)
    bad_library("SIGABRT:/train/x:")
    found, got = salvaged(full)
    assert want.keys() - got.keys() == {"/train/x"}
    assert found.problems[0].dataset == "/train/x"  # and then where it was looked for without its group
    assert {flaw.reason for flaw in found.problems} == {"the HDF5 library crashed here (SIGABRT)"}


def test_a_hang_costs_its_chunk(full: Path, bad_library: Callable[[str], None]) -> None:
    bad_library("hang:/train/y:300")
    found, _ = salvaged(full)
    assert {dataset.path: dataset.lost for dataset in found.datasets if dataset.lost} == {"/train/y": [(300, 400)]}


def test_each_hang_halves_the_time_of_the_next(
    full: Path, bad_library: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in which the library hangs again and again does not take ten times as long as one hang."""
    bad_library("hang:/train/y:any")
    times: list[float] = []

    class Noted(sandbox.SandboxedProcess):
        def __init__(self, job: dict[str, Any], *, spin_s: float | None = None) -> None:
            times.append(spin_s or 0.0)
            super().__init__(job, spin_s=spin_s)

    monkeypatch.setattr(sandbox, "SandboxedProcess", Noted)
    found, _ = salvaged(full)
    assert {dataset.path: dataset.lost for dataset in found.datasets if dataset.lost} == {"/train/y": [(0, 1000)]}
    assert times[:3] == [find_spin_s(full.stat().st_size) * part for part in (1, 0.5, 0.25)]


def test_the_time_of_all_hangs_is_bounded() -> None:
    once = find_spin_s(60_000)
    assert 3 < once < 4
    assert sum(find_spin_s(60_000, hangs) for hangs in range(10)) < 3 * once
    assert find_spin_s(1 << 40) == SPIN_S


def test_no_room_for_the_new_file(full: Path, bad_library: Callable[[str], None]) -> None:
    bad_library("full::8000")
    with pytest.raises(WriteError, match="cannot write .*out.h5: "):
        salvage_hdf5(full, full.with_name("out.h5"))
    assert os.listdir(full.parent) == ["full.h5"]


def test_ranges_are_joined() -> None:
    assert merge_ranges([(5, 9), (0, 2), (2, 3), (8, 12), (20, 20)]) == [(0, 3), (5, 12)]
    assert subtract_ranges([(0, 10), (20, 30)], [(2, 4), (8, 22), (29, 40)]) == [(0, 2), (4, 8), (22, 29)]


def test_a_heap_in_which_the_library_would_loop_costs_only_what_follows_in_it(tmp_path: Path) -> None:
    """An object of index 0 and size 0 in a heap: the library loops at each object that has a value in that heap."""
    path, out = tmp_path / "heap.h5", tmp_path / "out.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file.create_group(f"g{number}").attrs["name"] = f"name {number:04}"
        file["words"] = [f"word {number:04}" for number in range(1000)]
    data = bytearray(path.read_bytes())
    at = data.index(b"word 0050") - 16
    data[at : at + 16] = bytes(16)  # its header
    path.write_bytes(data)
    found = salvage_hdf5(path, out)
    assert not [one for one in found.problems if "hangs" in one.reason]
    assert "a heap of variable-length values is corrupt" in found.problems[0].reason
    [words] = [one for one in found.datasets if one.path == "/words"]
    assert 0 < words.rows_lost < 1000
    lost = {row for low, high in words.lost for row in range(low, high)}
    with h5py.File(out) as file:
        kept = file["words"][()]
        assert all(kept[row] == b"word %04d" % row for row in range(1000) if row not in lost)
        assert [file[f"g{number}"].attrs["name"] for number in range(20)] == [f"name {n:04}" for n in range(20)]
    reasons = [one.reason for one in verify_hdf5(path).problems]
    assert [one.split(":")[0] for one in reasons if "heap of" in one] == ["a heap of variable-length values is corrupt"]
    assert not [one for one in reasons if "hangs" in one]

    with h5py.File(tmp_path / "outer.h5", "w") as file:  # these bytes are values: nothing is wrong with them
        file["file"] = np.frombuffer(bytes(data), np.uint8)
        file["words"] = [f"word {number:04}" for number in range(10)]
    assert verify_hdf5(tmp_path / "outer.h5").problems == []
    assert salvage_hdf5(tmp_path / "outer.h5", out, overwrite=True).problems == []
    with h5py.File(out) as file:
        assert file["file"][()].tobytes() == bytes(data)
