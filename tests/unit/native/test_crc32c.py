"""CRC-32C in every implementation: the CPU's instructions, tables in C, numpy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import google_crc32c
import numpy as np
import pytest
from codec_cases import load

Crc = Callable[..., int]

LANES = 24 * 256  # the compiled codec joins three lanes of 256 words
WIDE = 51 * (128 + 3 * 40)  # and, where the CPU can, blocks that are half folded, half in lanes
CHUNK = 1 << 17  # the pure one does so many bytes at once

# RFC 3720, B.4, and the check value of the CRC catalogues.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.fixture(params=["best", "hardware", "table", "pure"])
def crc32c(request: pytest.FixtureRequest) -> Iterator[Crc]:
    if request.param == "pure":
        yield load("pure").crc32c
        return
    compiled = load("compiled")
    compiled.use_crc({"table": 1, "hardware": 3, "best": 7}[request.param])
    if request.param != "table" and compiled.crc_kind() == "table":
        pytest.skip("this CPU has no CRC instructions")
    yield compiled.crc32c
    compiled.use_crc(7)


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_kinds() -> None:
    assert load("pure").crc_kind() == "python"
    compiled = load("compiled")
    assert compiled.crc_kind() in {"sse4.2", "armv8", "table"}
    compiled.use_crc(1)
    assert compiled.crc_kind() == "table"
    compiled.use_crc(7)


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_known_vectors(crc32c: Crc, data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_every_short_length(crc32c: Crc) -> None:
    data = some_bytes(700)
    for size in range(701):
        assert crc32c(data[:size]) == google_crc32c.value(data[:size]), size


@pytest.mark.parametrize("times", [1, 2, 3, 7])
@pytest.mark.parametrize("block", [LANES, CHUNK, WIDE])
def test_around_block_boundaries(crc32c: Crc, block: int, times: int) -> None:
    data = some_bytes(block * times + 400)
    for size in (-9, -8, -1, 0, 1, 7, 8, 383, 384, 400):
        part = data[: block * times + size]
        assert crc32c(part) == google_crc32c.value(part), size


def test_every_split_gives_the_same(crc32c: Crc) -> None:
    chance = random.Random(1)
    for size in (1, 2, 100, 1000, LANES + 5, 3 * LANES, 100_000):
        data = some_bytes(size, size)
        whole = google_crc32c.value(data)
        for _ in range(10):
            at = chance.randint(0, size)
            assert crc32c(data[at:], crc32c(data[:at])) == whole, (size, at)


def test_any_start_in_memory(crc32c: Crc) -> None:
    data = some_bytes(2000)
    for at in range(9):
        assert crc32c(memoryview(data)[at:]) == google_crc32c.value(data[at:])


def test_any_contiguous_buffer(crc32c: Crc) -> None:
    numbers = np.arange(300, dtype=np.int64).reshape(30, 10)
    assert crc32c(numbers) == crc32c(bytearray(numbers.tobytes())) == google_crc32c.value(numbers.tobytes())
    assert crc32c(np.zeros((0, 4))) == 0


def test_refuses_what_is_no_contiguous_buffer(crc32c: Crc) -> None:
    with pytest.raises(TypeError):
        crc32c("text")
    with pytest.raises(TypeError):
        crc32c(None)
    with pytest.raises(BufferError):
        crc32c(memoryview(b"abcdef")[::2])
