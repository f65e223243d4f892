"""Chunks from file to file: as they are, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast._native import fallback


@pytest.fixture
def copy(codec_impl: Any) -> Any:
    return codec_impl.copy_checked


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    (tmp_path / "from").write_bytes(np.random.default_rng(1).bytes(100_000))
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("from", "to")]
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64).data


def room(size: int) -> list[bytearray]:
    return [bytearray(size), bytearray(size)]


def test_chunks_arrive_with_their_checksums(copy: Any, files: tuple[int, int]) -> None:
    data = os.pread(files[0], 100_000, 0)
    pieces = [data[10:1010], b"", data[1010:90_010]]
    crcs = [fallback.crc32c(piece) for piece in pieces]
    for wanted in (crcs, [-1, crcs[1], -1]):
        found = copy(files[0], 10, files[1], 77, numbers(1000, 0, 89_000), numbers(*wanted), *room(90_000))
        assert np.frombuffer(found, np.uint32).tolist() == crcs
        assert os.pread(files[1], 200_000, 77) == data[10:90_010]
    assert copy(files[0], 0, files[1], 0, numbers(), numbers(), *room(0)) == b""


def test_another_checksum_than_wanted_is_not_written(copy: Any, files: tuple[int, int]) -> None:
    assert copy(files[0], 0, files[1], 0, numbers(10, 20), numbers(-1, 5), *room(30)) is None
    assert os.fstat(files[1]).st_size == 0


def test_whatever_goes_wrong_is_none(copy: Any, files: tuple[int, int], tmp_path: Path) -> None:
    assert copy(files[0], 99_995, files[1], 0, numbers(10), numbers(-1), *room(10)) is None  # it ends
    assert copy(files[0], -1, files[1], 0, numbers(10), numbers(-1), *room(10)) is None
    only = os.open(tmp_path / "to", os.O_RDONLY)
    assert copy(files[0], 0, only, 0, numbers(10), numbers(-1), *room(10)) is None
    os.close(only)
    assert copy(files[0], 0, only, 0, numbers(10), numbers(-1), *room(10)) is None
    full = os.open("/dev/full", os.O_RDWR)
    assert copy(files[0], 0, full, 0, numbers(10), numbers(-1), *room(10)) is None
    os.close(full)


@pytest.mark.parametrize(
    ("sizes", "wanted", "size"),
    [((10,), (-1, -1), 10), ((10,), (-1,), 9), ((-1,), (-1,), 10), ((1 << 62, 1 << 62, 1 << 62), (-1, -1, -1), 100)],
)
def test_buffers_that_do_not_fit(copy: Any, files: tuple[int, int], sizes: Any, wanted: Any, size: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        copy(files[0], 0, files[1], 0, numbers(*sizes), numbers(*wanted), *room(size))
    with pytest.raises((TypeError, BufferError)):
        copy(files[0], 0, files[1], 0, numbers(1), numbers(-1), b"readonly", b"readonly")


def test_what_reads_otherwise_than_it_was_written(copy: Any, files: tuple[int, int]) -> None:
    """/dev/zero takes anything, and has nothing of it."""
    zero = os.open("/dev/zero", os.O_RDWR)
    assert copy(files[0], 0, zero, 0, numbers(100), numbers(-1), *room(100)) is None
    os.close(zero)
