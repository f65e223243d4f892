"""Verify finds what is wrong with an HDF5 file, says what it cannot find, and outlives the library."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from factories_hdf5 import V110, chunk_places, flip, killed_writer, live_writer, make_full

from holdfast._native import codec
from holdfast.data.formats.hdf5.verify import NO_DATA_CHECKSUMS, NO_METADATA_CHECKSUMS, HDF5Report, verify_hdf5
from holdfast.data.formats.part_record import check_record, find_record


def reasons(report: HDF5Report) -> str:
    return "\n".join(flaw.reason for flaw in report.problems)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return make_full(tmp_path / "full.h5", libver=V110)


@pytest.fixture(params=["default", "v110"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In the format that h5py writes unless told otherwise, and in the one with checksums in its structure."""
    return make_full(tmp_path / "full.h5", **{} if request.param == "default" else {"libver": V110})


def packed(path: Path, **options: object) -> Path:
    """1,000 rows in ten chunks."""
    with h5py.File(path, "w", libver=V110) as file:
        values = np.random.default_rng(0).integers(0, 50, (1000, 8))
        file.create_dataset("x", data=values, chunks=(100, 8), **options)
    return path


def test_a_whole_file(either: Path) -> None:
    before = either.read_bytes()
    seen: list[int] = []
    report = verify_hdf5(either, seen.append)
    assert report.ok, reasons(report)
    assert (report.datasets, report.bytes) == (15, len(before))
    assert sum(seen) > 20_000
    assert either.read_bytes() == before


# ---- writers that died, or live


@pytest.mark.parametrize(
    ("low", "flush", "swmr", "rows", "wrong"),
    [
        ("default", "", "", 0, "truncated: expected"),
        ("default", "flush", "", 1000, ""),
        ("v110", "", "", 0, "not closed properly"),
        ("v110", "flush", "", 1000, "not closed properly: its writer died"),
        ("v110", "flush", "swmr", 1000, "not closed properly (SWMR): its writer died"),
    ],
)
def test_a_killed_writer(tmp_path: Path, low: str, flush: str, swmr: str, rows: int, wrong: str) -> None:
    report = verify_hdf5(killed_writer(tmp_path / "a.h5", low, flush, swmr))
    assert wrong in reasons(report)
    assert report.ok == (not wrong)
    assert report.chunks == rows // 100


@pytest.mark.parametrize("low", ["default", "v110"])
def test_a_writer_at_work_is_named(tmp_path: Path, low: str) -> None:
    path = tmp_path / "a.h5"
    with live_writer(path, low) as process:
        report = verify_hdf5(path)
        process.communicate()
    assert f"still being written by process {process.pid} (" in reasons(report)
    assert report.hint == "Wait for its writer to close it"


# ---- damages


def test_bytes_behind_the_end(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.h5")
    with open(path, "ab") as file:
        file.write(bytes(1000))
    assert "1,000 bytes after its end" in reasons(verify_hdf5(path))


def test_a_cut_anywhere(either: Path) -> None:
    whole = either.read_bytes()
    for share in (0.02, 0.999):
        either.write_bytes(whole[: int(len(whole) * share)])
        assert "truncated: expected" in reasons(verify_hdf5(either))


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"fletcher32": True}], ids=["gzip", "fletcher32"])
def test_flips_in_chunks_with_checksums_are_seen(tmp_path: Path, options: dict[str, object]) -> None:
    """One flip in every chunk: each is told of, with its place."""
    path = packed(tmp_path / "a.h5", **options)
    places = chunk_places(path, "x")
    rng = random.Random(1)
    for offset, size in places:
        flip(path, offset + rng.randrange(size), rng.randrange(8))
    report = verify_hdf5(path)
    assert [flaw.chunk for flaw in report.problems] == [(i * 100, 0) for i in range(10)]
    assert [flaw.offset for flaw in report.problems] == [offset for offset, _ in places]
    assert {flaw.dataset for flaw in report.problems} == {"/x"}
    assert report.notes == []


@pytest.mark.parametrize("options", [{}, {"compression": "lzf"}], ids=["plain", "lzf"])
def test_what_cannot_be_seen_is_reported(tmp_path: Path, options: dict[str, object]) -> None:
    report = verify_hdf5(packed(tmp_path / "a.h5", **options))
    assert report.ok
    assert report.notes == [NO_DATA_CHECKSUMS]


def test_what_has_no_checksums_is_not_called_whole(tmp_path: Path) -> None:
    """Classic metadata, and values in heaps, whatever packs the chunks that lead to them."""
    with h5py.File(tmp_path / "classic.h5", "w") as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), compression="gzip")
    with h5py.File(tmp_path / "heap.h5", "w", libver=V110) as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), compression="gzip")
        file.create_dataset("s", data=["text"] * 100, chunks=(10,), compression="gzip")
    classic, heap = verify_hdf5(tmp_path / "classic.h5"), verify_hdf5(tmp_path / "heap.h5")
    assert (classic.ok, classic.unchecked) == (True, (NO_METADATA_CHECKSUMS[0],))
    assert (heap.ok, heap.unchecked) == (True, ("no checksums in /s: bit flips in its data cannot be detected",))


def test_a_record_shows_every_flip(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.h5")
    data = path.read_bytes()
    places = chunk_places(path, "x")
    chunks = {"x": [[at, size, codec.crc32c(data[at : at + size])] for at, size in places]}
    (tmp_path / "a.json").write_text(json.dumps({"task": "t", "chunks": chunks}))
    report = verify_hdf5(path)
    assert (report.ok, report.notes) == (True, [])
    flip(path, places[3][0] + 17)
    [flaw] = verify_hdf5(path).problems
    assert (flaw.dataset, flaw.offset) == ("/x", places[3][0])
    assert "as recorded" in flaw.reason


def test_a_record_of_the_whole_file_shows_flips_between_chunks(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.h5")
    data = path.read_bytes()
    facts = {"file": "a.h5", "bytes": len(data), "crc32c": codec.crc32c(data), "chunks": {}}
    record = find_record(str(path))
    assert record is None
    (tmp_path / "a.json").write_text(json.dumps(facts))
    record = find_record(str(path))
    assert record is not None
    assert list(check_record(str(path), record)) == []
    for at in range(0, len(data), 97):
        flip(path, at, at % 8)
        assert len(list(check_record(str(path), record))) == 1
        flip(path, at, at % 8)
    (tmp_path / "a.json").write_text(json.dumps(facts | {"file": "b.h5"}))
    assert find_record(str(path)) is None


@pytest.mark.parametrize("text", ["not json", "[]", '{"chunks": 7}', '{"chunks": {"x": [1]}}', '{"other": {}}'])
def test_some_other_json_beside_it_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert find_record(str(tmp_path / "a.h5")) is None


def test_a_zeroed_page_of_structure(either: Path) -> None:
    data = bytearray(either.read_bytes())
    data[200:1500] = bytes(1300)
    either.write_bytes(data)
    assert not verify_hdf5(either).ok


@pytest.mark.parametrize(
    ("data", "wrong"),
    [(b"", "the file is empty"), (b"garbage" * 999, "not an HDF5 file"), (bytes(9999), "not an HDF5")],
)
def test_what_is_no_hdf5(tmp_path: Path, data: bytes, wrong: str) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(data)
    assert wrong in reasons(verify_hdf5(path))


def test_what_cannot_be_inspected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.h5")
    for path, wrong in [
        (tmp_path / "nix.h5", "cannot open: No such file or directory"),
        (tmp_path, "expected a file to read, got a directory"),
        (tmp_path / "fifo.h5", "expected a file to read, got a special file"),
    ]:
        report = verify_hdf5(path)
        assert (reasons(report), report.readable) == (wrong, False)


# ---- files it needs


def test_sources_of_a_view(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((4, 10), "i8")
    for i in range(4):
        with h5py.File(tmp_path / f"part{i}.h5", "w") as file:
            file["x"] = np.arange(10)
        layout[i] = h5py.VirtualSource(f"part{i}.h5", "x", (10,))
    path = tmp_path / "view.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    assert verify_hdf5(path).ok
    (tmp_path / "part0.h5").unlink()
    for i, name, rows in [(1, "x", 9), (2, "y", 10)]:
        with h5py.File(tmp_path / f"part{i}.h5", "w") as file:
            file[name] = np.arange(rows)
    said = reasons(verify_hdf5(path))
    assert "its source 'part0.h5' does not exist" in said
    assert "'x' in its source 'part1.h5' has the shape (9,): 9 values, expected 10" in said
    assert "'x' in its source 'part2.h5' does not exist" in said
    assert "part3" not in said


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["there"] = 1
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["good"] = h5py.ExternalLink("other.h5", "/there")
        file["no_object"] = h5py.ExternalLink("other.h5", "/nix")
        file["no_file"] = h5py.ExternalLink("nix.h5", "/there")
        file["soft"] = h5py.SoftLink("/nix")
        file["circle"] = h5py.SoftLink("/circle")
    report = verify_hdf5(path)
    assert report.ok
    links = [note for note in report.notes if "which does not exist" in note]
    assert [note.partition(":")[0] for note in links] == ["/circle", "/no_file", "/no_object", "/soft"]
    assert links[1].startswith("/no_file: links to '/there' in 'nix.h5', which does not exist (HDF5 allows that): ")
    assert not set(links) & set(report.unchecked)


def test_values_in_other_files(tmp_path: Path) -> None:
    """The library finds them from the working folder; where they lie beside the file, that is good, too."""
    path = tmp_path / "a.h5"
    (tmp_path / "there.bin").write_bytes(bytes(80))
    with h5py.File(path, "w") as file:
        file.create_dataset("there", (10,), "i8", external=[("there.bin", 0, 80)])
        file.create_dataset("outside", (10,), "i8", external=[("raw.bin", 0, 80)])
    [flaw] = verify_hdf5(path).problems
    assert (flaw.dataset, flaw.reason) == ("/outside", "its values are in 'raw.bin', which does not exist")


# ---- a library that crashes or hangs


def test_a_crash_is_a_finding_and_the_rest_is_checked(
    tmp_path: Path, full: Path, bad_library: Callable[[str], None]
) -> None:
    bad_library("SIGSEGV:/train/x:300")
    places = chunk_places(full, "train/y")
    flip(full, places[5][0])
    report = verify_hdf5(full)
    crash, checksum = report.problems
    assert (crash.dataset, crash.chunk) == ("/train/x", (300, 0))
    assert crash.reason == "the HDF5 library crashed here (SIGSEGV)"
    assert checksum.chunk == (500,)
    assert report.datasets == 15


def test_an_object_that_cannot_even_be_opened(full: Path, bad_library: Callable[[str], None]) -> None:
    bad_library("SIGABRT:/train/x:")
    report = verify_hdf5(full)
    [flaw] = report.problems
    assert (flaw.dataset, flaw.chunk, flaw.reason) == ("/train/x", None, "the HDF5 library crashed here (SIGABRT)")
    assert report.datasets == 14


def test_a_hang_is_a_finding(full: Path, bad_library: Callable[[str], None]) -> None:
    bad_library("hang:/train/x:300")
    [flaw] = verify_hdf5(full).problems
    assert (flaw.dataset, flaw.chunk, flaw.reason) == ("/train/x", (300, 0), "the HDF5 library hangs here")


def test_giving_up_leaves_no_process(full: Path, bad_library: Callable[[str], None]) -> None:
    bad_library("hang:/train/x:300")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_hdf5(full, stop)
