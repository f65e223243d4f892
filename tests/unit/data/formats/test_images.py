"""Pictures come out as Pillow has them, to the bit, whichever way they went; damaged ones too."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import holdfast as hold
from holdfast._native.c_modules import png
from holdfast.data.formats import images
from holdfast.data.formats.images import MAX_PIXELS

pytestmark = pytest.mark.formats

MODES = {"PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"], "JPEG": ["L", "RGB", "CMYK"]}


def picture(mode: str = "RGB", size: tuple[int, int] = (37, 23), seed: int = 0, soft: bool = True) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noise = rng.integers(0, 12 if soft else 256, (size[1], size[0], 3), np.uint8)
    rgb = Image.fromarray(np.asarray(small) // 2 + noise // 2)
    return rgb.convert("I").convert("I;16") if mode == "I;16" else rgb.convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_pillow(data: bytes, mode: str | None = "RGB") -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image if mode in (None, image.mode) else image.convert(mode))


def assert_same(data: bytes, mode: str | None = "RGB") -> None:
    wanted, got = by_pillow(data, mode), hold.decode_image(data, mode)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    assert got.flags.writeable


@pytest.mark.parametrize("to", ["RGB", "L", "RGBA", None])
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_every_mode(kind: str, mode: str, to: str | None) -> None:
    assert_same(saved(picture(mode), kind), to)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5), (64, 64), (255, 3), (640, 480)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_every_size(kind: str, size: tuple[int, int]) -> None:
    assert_same(saved(picture(size=size), kind))
    assert_same(saved(picture("L", size), kind), "L")


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_other_kinds_go_through_pillow(kind: str) -> None:
    assert_same(saved(picture(), kind))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("quality", [5, 75, 100])
def test_jpeg_of_every_make(subsampling: str, progressive: bool, quality: int) -> None:
    assert_same(
        saved(picture(size=(133, 77)), "JPEG", subsampling=subsampling, progressive=progressive, quality=quality)
    )


def test_jpeg_with_a_turn_in_its_exif_is_left_as_it_is() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert_same(saved(picture(), "JPEG", exif=exif))


def test_common_files_go_the_quick_way() -> None:
    if png:
        assert images.decode_png(saved(picture(), "PNG"), "RGB", MAX_PIXELS) is not None
        assert images.decode_png(saved(picture("L"), "PNG"), None, MAX_PIXELS) is not None
    assert images.decode_jpeg(saved(picture(), "JPEG"), "RGB", MAX_PIXELS) is not None
    assert images.decode_jpeg(saved(picture("L"), "JPEG"), "L", MAX_PIXELS) is not None


def test_what_is_huge_is_pillows_to_judge() -> None:
    assert images.decode_png(saved(picture(), "PNG"), "RGB", 800) is None
    assert images.decode_jpeg(saved(picture(), "JPEG"), "RGB", 800) is None
    width = 30_000  # 900 million pixels of nothing, in a few kB: it must not be unpacked to find out
    header = b"IHDR" + (width.to_bytes(4, "big") * 2) + bytes([8, 2, 0, 0, 0])
    body = b"IDAT" + zlib.compress(bytes(1 << 20))
    chunks = [header, body, b"IEND"]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        (len(one) - 4).to_bytes(4, "big") + one + zlib.crc32(one).to_bytes(4, "big") for one in chunks
    )
    with pytest.raises(hold.errors.ImageError, match="decompression bomb"):
        hold.decode_image(data)


# ---- PNG by hand: every filter, every cut of the data


def make_png(pixels: Any, filters: list[int], pieces: int = 1, extra: bytes = b"") -> bytes:
    """Filtered row by row as the standard has it, byte by byte."""
    height, width, channels = pixels.shape
    rows = bytearray()
    above = bytes(width * channels)
    for y in range(height):
        row = pixels[y].tobytes()
        kind = filters[y % len(filters)]
        rows.append(kind)
        for x, value in enumerate(row):
            a = row[x - channels] if x >= channels else 0
            b, c = above[x], above[x - channels] if x >= channels else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            rows.append((value - [0, a, b, (a + b) // 2, paeth][kind]) & 255)
        above = row
    packed = zlib.compress(bytes(rows))
    step = -(-len(packed) // pieces)
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2 if channels == 3 else 0, 0, 0, 0])
    chunks = [b"IHDR" + header, *([extra] if extra else [])]
    chunks += [b"IDAT" + packed[at : at + step] for at in range(0, len(packed), step)]
    chunks.append(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (len(one) - 4).to_bytes(4, "big") + one + zlib.crc32(one).to_bytes(4, "big") for one in chunks
    )


@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([1, 3]),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_every_filter(width: int, height: int, channels: int, filters: list[int], pieces: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    data = make_png(pixels, filters, pieces)
    got = hold.decode_image(data, None)
    np.testing.assert_array_equal(got.reshape(pixels.shape), pixels)
    assert_same(data, None)


def test_chunks_that_say_more_are_pillows_to_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
    assert_same(make_png(pixels, [0], extra=b"tRNS\0\1\0\2\0\3"))
    assert_same(make_png(pixels, [0], extra=b"tEXtkey\0value"))
    second = make_png(pixels, [0], extra=b"IHDR\0\0\0\2\0\0\0\3\x08\2\0\0\0")
    assert outcome(hold.decode_image, second) == outcome(by_pillow, second)
    frames = [picture(seed=seed) for seed in range(2)]
    assert_same(saved(frames[0], "PNG", save_all=True, append_images=frames[1:]))
    assert_same(saved(picture(), "PNG", interlace=1))


# ---- what is damaged


def outcome(decode: Any, data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return decode(data).tobytes()
        except (hold.errors.ImageError, OSError, SyntaxError, ValueError, KeyError):
            return "refused"


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_cut_anywhere(kind: str) -> None:
    data = saved(picture(), kind)
    for end in range(0, len(data), 7):
        assert outcome(hold.decode_image, data[:end]) == outcome(by_pillow, data[:end]), end


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_flipped_bit_anywhere(kind: str) -> None:
    data, rng = saved(picture(size=(24, 16)), kind), random.Random(3)
    for _ in range(400):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        assert outcome(hold.decode_image, bytes(flipped)) == outcome(by_pillow, bytes(flipped))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"no picture at all", bytes(100)]
)
def test_no_picture(data: bytes) -> None:
    with pytest.raises(hold.errors.ImageError, match=f"cannot decode an image of {len(data):,} bytes"):
        hold.decode_image(data)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="expected an encoded image as bytes, got str"):
        hold.decode_image("picture.png")  # type: ignore[arg-type]
    with pytest.raises(hold.errors.ImageError, match="into the mode 'sepia'"):
        hold.decode_image(saved(picture(), "PNG"), "sepia")


# ---- how it is used


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_any_buffer(kind: str) -> None:
    data = saved(picture(), kind)
    apart = memoryview(np.repeat(np.frombuffer(data, np.uint8), 2))[::2]
    for given_as in (bytearray(data), memoryview(data), np.frombuffer(b"xx" + data, np.uint8)[2:].data, apart):
        np.testing.assert_array_equal(hold.decode_image(given_as), by_pillow(data))
        np.testing.assert_array_equal(hold.decode_image(given_as, size=8), hold.decode_image(data, size=8))


def test_threads() -> None:
    files = [saved(picture(seed=n, size=(90, 70)), kind) for n in range(6) for kind in ("PNG", "JPEG")]
    wanted = [by_pillow(data) for data in files]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            wrong.extend(n for n, data in enumerate(files) if not np.array_equal(hold.decode_image(data), wanted[n]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


@pytest.mark.parametrize("missing", ["simplejpeg", "PIL"])
def test_without_a_library(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import holdfast as hold
data = sys.stdin.buffer.read()
try:
    print(hold.decode_image(data).sum())
    hold.decode_image(b"GIF89a")
except ImportError as error:
    print(error)
except hold.errors.ImageError:
    print("refused")
"""
    data = saved(picture(), "JPEG")
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True)
    told = "refused" if missing == "simplejpeg" else "Pillow is needed to decode this image"
    lines = done.stdout.decode().splitlines()
    assert lines[0] == str(by_pillow(data).sum())
    assert told in lines[1]


def test_what_readers_say_in_other_ways() -> None:
    """The one for AVIF raises RuntimeError."""
    data = bytearray(saved(picture(), "AVIF"))
    data[data.index(b"pitm") + 8 : data.index(b"pitm") + 10] = b"\x7f\x7f"  # the picture is an item that is not there
    with pytest.raises(hold.errors.ImageError, match="cannot decode an image"):
        hold.decode_image(bytes(data))
