"""The superblock: read, and repaired without the library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import pytest
from factories_hdf5 import V110, flip, killed_writer

from holdfast.data.formats.hdf5.file_state import (
    PatchedView,
    Superblock,
    find_superblock,
    lookup3,
    parse_superblock,
    repaired,
)


def block_of(path: Path) -> Superblock:
    block = find_superblock(str(path))
    assert block is not None
    return block


def test_lookup3_as_its_author_gives_it() -> None:
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"", 0xDEADBEEF) == 0xBD5B7DDE
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    assert lookup3(b"Four score and seven years ago", 1) == 0xCD628161


@pytest.mark.parametrize(
    ("options", "version", "at"),
    [({}, 0, 0), ({"libver": V110}, 3, 0), ({"libver": ("v108", "v108")}, 2, 0), ({"userblock_size": 1024}, 0, 1024)],
)
def test_a_closed_file(tmp_path: Path, options: dict[str, Any], version: int, at: int) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", **options) as file:
        file["a"] = range(5)
    block = block_of(path)
    assert (block.version, block.at, block.end) == (version, at, os.path.getsize(path))
    assert block.checksum_ok
    assert not block.open_for_write
    assert repaired(block, block.end)[:44] == block.raw[:44]


def test_version_1_has_four_bytes_more(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = range(5)
    old = block_of(path).raw
    block = parse_superblock(old[:8] + b"\1" + old[9:24] + bytes([32, 0, 0, 0]) + old[24:])
    assert block is not None
    assert (block.version, block.end) == (1, os.path.getsize(path))
    again = parse_superblock(repaired(block, 12345))
    assert again is not None
    assert again.end == 12345


@pytest.mark.parametrize("swmr", ["", "swmr"])
def test_a_file_that_was_not_closed_opens_when_mended(tmp_path: Path, swmr: str) -> None:
    path = killed_writer(tmp_path / "a.h5", "v110", "flush", swmr)
    before = path.read_bytes()
    block = block_of(path)
    assert (block.open_for_write, block.swmr) == (True, bool(swmr))
    with pytest.raises(OSError, match="already open for write"):
        h5py.File(path, "r")
    with PatchedView(str(path), block) as overlay, h5py.File(overlay, "r") as file:
        assert file["x"].shape == (1000, 64)
        assert file["x"][950, 3] == 9
    assert path.read_bytes() == before


def test_every_flip_in_a_newer_superblock_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=V110) as file:
        file["a"] = range(5)
    for at in range(9, 48):
        flip(path, at)
        block = find_superblock(str(path))
        assert block is None or not block.checksum_ok
        flip(path, at)


@pytest.mark.parametrize("data", [b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n\x07" + bytes(100), bytes(5000)])
def test_what_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(data)
    assert find_superblock(str(path)) is None
    assert parse_superblock(data) is None
