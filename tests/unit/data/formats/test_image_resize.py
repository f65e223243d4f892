"""Cropped and resized images are Pillow's within one level if exact, and within a tolerance if not; hostile files are
errors."""

from __future__ import annotations

import functools
import io
import random
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import holdfast as hold
from holdfast._native.c_modules import images as native
from holdfast.errors import ImageError

pytestmark = pytest.mark.formats

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(size: tuple[int, int] = (150, 110), seed: int = 0) -> Image.Image:
    """Makes shapes of all sizes, the smaller the fainter, as photographs have them."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), 128.0)
    step = 64
    while step >= 1:
        hues = rng.integers(0, 256, (size[1] // step + 2, size[0] // step + 2, 3), np.uint8)
        shapes = Image.fromarray(hues).resize(size, Image.Resampling.BICUBIC)
        pixels += (np.asarray(shapes, float) - 128) * step**0.5 / 8
        step //= 2
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_pillow(data: bytes, size: tuple[int, int], box: Any = None, mode: str = "RGB") -> Any:
    with Image.open(io.BytesIO(data)) as image:
        whole = image.convert(mode).crop(box) if box else image.convert(mode)
        return np.asarray(whole.resize(size[::-1], Image.Resampling.BILINEAR))


def difference(got: Any, wanted: Any) -> Any:
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return np.abs(got.astype(int) - wanted)


@functools.cache
def jpegs() -> dict[str, bytes]:
    image = picture()
    made = {
        f"{sampling}, quality {quality}": saved(image, quality=quality, subsampling=sampling)
        for sampling in ("4:4:4", "4:2:2", "4:2:0")
        for quality in (30, 90, 100)
    }
    made |= {name: simplejpeg.encode_jpeg(np.asarray(image), 85, colorsubsampling=name) for name in ("440", "411")}
    return made | {
        "grey": saved(image.convert("L")),
        "optimized": saved(image, optimize=True),
        "restarts": saved(image, restart_marker_blocks=3),
        "one pixel": saved(image.resize((1, 1))),
        "narrow": saved(image.resize((3, 200))),
    }


OTHERS = {
    "progressive": saved(picture(), progressive=True),
    "CMYK": saved(picture().convert("CMYK")),
    "PNG": saved(picture(), "PNG"),
    "PNG, palette": saved(picture().convert("P"), "PNG"),
    "PNG, alpha": saved(picture().convert("RGBA"), "PNG"),
    "PNG, 16 bits": saved(picture().convert("I").convert("I;16"), "PNG"),
    "WebP": saved(picture(), "WEBP"),
}


@pytest.mark.parametrize("name", [*jpegs(), *OTHERS])
def test_exact_results_differ_from_pillows_by_one_level_at_most(name: str) -> None:
    data = (jpegs() | OTHERS)[name]
    width, height = Image.open(io.BytesIO(data)).size
    for size in ((64, 64), (1, 1), (7, 300), (height, width)):
        for mode in ("RGB", "L"):
            got = hold.decode_image(data, mode, size=size, exact=True)
            assert difference(got, by_pillow(data, size, mode=mode)).max() <= 1, (size, mode)
    if width > 90 and height > 90:
        box = (31, 17, 90, 88)
        assert (
            difference(hold.decode_image(data, size=40, crop=box, exact=True), by_pillow(data, (40, 40), box)).max()
            <= 1
        )


@pytest.mark.parametrize("name", [*jpegs(), *OTHERS])
def test_colours_at_their_own_scale_differ_by_less_than_two_levels_in_the_mean(name: str) -> None:
    data = (jpegs() | OTHERS)[name]
    is_coarse = name in ("411", "narrow")  # one sample for four pixels, which libjpeg repeats
    for size in ((64, 64), (112, 80), (300, 200)):
        found = difference(hold.decode_image(data, size=size), by_pillow(data, size))
        assert found.mean() < (4 if is_coarse else 2), size
        assert np.percentile(found, 99) <= (20 if is_coarse else 10), size
    grey = difference(hold.decode_image(data, "L", size=64), by_pillow(data, (64, 64), mode="L"))
    assert grey.mean() < 2


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0"])
def test_smaller_scales_differ_by_less_than_four_levels_in_the_mean(sampling: str) -> None:
    data = saved(picture((1030, 778)), subsampling=sampling, quality=90)
    with Image.open(io.BytesIO(data)) as image:
        whole = image.convert("RGB")
    for size in ((400, 500), (200, 200), (96, 128), (50, 50), (3, 2)):  # 1/1, 1/2, 1/4, 1/8
        for box in ((0, 0, 1030, 778), (100, 60, 1030, 778), (511, 255, 801, 667)):
            wanted = np.asarray(whole.crop(box).resize(size[::-1], Image.Resampling.BILINEAR))
            found = difference(hold.decode_image(data, size=size, crop=box), wanted)
            assert found.mean() < 4, (size, box)
            assert np.percentile(found, 99) <= 16, (size, box)


def test_small_progressive_jpegs_are_shrunk_by_pillow() -> None:
    for side in range(1, 60):
        data = saved(Image.new("RGB", (side, side + side % 7), (200, 100, 50)), progressive=True, quality=100)
        for size in (1, 3, 7):
            got = hold.decode_image(data, size=size, crop="random", rng=random.Random(side))
            assert np.abs(got.astype(int) - (200, 100, 50)).max() <= 4, (side, size)


def test_common_jpegs_go_the_quick_way() -> None:
    if native is None:
        return
    for name, data in jpegs().items():
        size = native.jpeg_size(data)
        assert size is not None, name
        out = np.empty((8, 8, 3), np.uint8)
        assert native.decode_jpeg(data, (0, 0, size[1], size[0]), out.data, None, out.shape, False), name
    assert native.jpeg_size(OTHERS["progressive"]) is None


def test_dtypes_layouts_and_places() -> None:
    for data in (saved(picture()), OTHERS["PNG"], OTHERS["progressive"]):
        levels = hold.decode_image(memoryview(data), size=(20, 30))
        assert (levels.shape, levels.dtype) == ((20, 30, 3), np.uint8)
        floats = hold.decode_image(data, size=(20, 30), dtype="float32", mean=MEAN, std=STD)
        wanted = (levels.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
        np.testing.assert_array_equal(floats, wanted)
        assert hold.decode_image(data, size=4, dtype="float32").max() <= 1
        out = np.empty((2, 3, 20, 30), np.float32)
        got = hold.decode_image(data, size=(20, 30), dtype="float32", mean=MEAN, std=STD, layout="CHW", out=out[1])
        assert got.base is out
        np.testing.assert_array_equal(out[1], wanted.transpose(2, 0, 1))
        np.testing.assert_array_equal(hold.decode_image(data, size=(20, 30), layout="CHW"), levels.transpose(2, 0, 1))
        assert hold.decode_image(data, "L", size=9).shape == (9, 9)
        assert hold.decode_image(data, "L", size=9, layout="CHW", dtype="float32", mean=0.5).shape == (1, 9, 9)


def test_where_crops_are() -> None:
    data = saved(picture((150, 110)), "PNG")

    def same(box: tuple[int, int, int, int], size: Any, **options: Any) -> None:
        sides = (size, size) if isinstance(size, int) else size
        got = hold.decode_image(data, size=size, **options)
        assert difference(got, by_pillow(data, sides, box)).max() <= 1

    same((20, 0, 130, 110), 40, crop="center")
    same((0, 17, 150, 92), (20, 40), crop="center")
    same((27, 7, 123, 103), 40, crop=0.875)
    same((3, 4, 5, 6), 40, crop=(3, 4, 5, 6))
    with pytest.raises(ImageError, match="expected an image of at least 151 x 20 pixels, got 150 x 110"):
        hold.decode_image(data, size=8, crop=(0, 0, 151, 20))


class Told:
    """Draws what it is told to, and keeps the last."""

    def __init__(self, *draws: float) -> None:
        self._draws = list(draws)

    def random(self) -> float:
        return self._draws.pop(0) if len(self._draws) > 1 else self._draws[0]


def test_random_crops_are_those_of_random_resized_crop() -> None:
    data = saved(picture((150, 110)))
    # area 0.54 * 16,500 = 8,910, ratio 1: 94 x 94; top int(17 * 0.5), left int(57 * 0.25)
    got = hold.decode_image(data, size=24, crop="random", rng=Told(0.5, 0.5, 0.5, 0.25))
    np.testing.assert_array_equal(got, hold.decode_image(data, size=24, crop=(14, 8, 108, 102)))
    # none of ten tries fits: the whole height, and as wide as the ratio allows
    wide = saved(picture((150, 12)))
    got = hold.decode_image(wide, size=24, crop="random", scale=(1, 1), rng=Told(0.5))
    np.testing.assert_array_equal(got, hold.decode_image(wide, size=24, crop=(67, 0, 83, 12)))
    first, again, other = (
        hold.decode_image(data, size=24, crop="random", rng=rng)
        for rng in (random.Random(1), random.Random(1), np.random.default_rng(2))
    )
    assert (first == again).all()
    assert (first != other).any()
    for _ in range(20):
        hold.decode_image(data, size=3, crop="random")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size must be \(height, width\) or an int, from 1 to 65,535, got 0"),
        ({"size": (4, 5, 6)}, r"got \(4, 5, 6\)"),
        ({"size": 2.5}, "got 2.5"),
        ({"size": 4, "crop": "middle"}, 'crop must be None, "center", "random", a share'),
        ({"size": 4, "crop": (4, 4, 4, 9)}, "crop must be"),
        ({"size": 4, "crop": (True, 0, 5, 5)}, r"crop must be .* got \(True, 0, 5, 5\)"),
        ({"size": 4, "crop": np.array([0.5, 0, 5, 5])}, "crop must be"),
        ({"size": 4, "dtype": "float64"}, 'dtype must be "uint8" or "float32", got \'float64\''),
        ({"size": 4, "mean": 0.5}, 'mean and std go with dtype="float32", got dtype="uint8"'),
        ({"size": 4, "dtype": "float32", "mean": (1, 2)}, r"mean must be a number, or 3 of them, got \(1, 2\)"),
        ({"size": 4, "dtype": "float32", "mean": "x"}, "mean must be a number, or 3 of them, got 'x'"),
        ({"size": 4, "dtype": "float32", "mean": {1: 2}}, "mean must be a number, or 3 of them, got {1: 2}"),
        ({"size": 4, "dtype": "float32", "mean": [1, [2, 3]]}, "mean must be a number"),
        ({"size": 4, "dtype": "float32", "mean": 1e300}, "mean must be a number, or 3 of them, got 1e"),
        ({"size": 4, "dtype": "float32", "std": 0}, "std must be at least 1e-06, got 0"),
        ({"size": 4, "dtype": "float32", "std": 1e-45}, "std must be at least 1e-06, got 1e-45"),
        ({"size": 4, "dtype": "float32", "std": np.inf}, "std must be a number"),
        ({"size": 4, "layout": "NCHW"}, 'layout must be "HWC" or "CHW", got \'NCHW\''),
        ({"size": 4, "scale": (0, 1)}, r"scale must be \(low, high\), above 0 up to 1, got \(0, 1\)"),
        ({"size": 4, "ratio": (2, 1)}, r"ratio must be \(low, high\), above 0, got \(2, 1\)"),
        ({"size": 4, "mode": "RGBA"}, 'with a size, mode must be "RGB" or "L", got \'RGBA\''),
        ({"size": 4, "out": np.empty((4, 4))}, r"out must be an array of uint8 of shape \(4, 4, 3\), got float64"),
        ({"size": 4, "out": np.empty((4, 3, 4), np.uint8).transpose(0, 2, 1)}, "out must be a writable C-contiguous"),
        ({"crop": "center"}, "crop goes with a size, got crop='center' and none"),
        ({"out": np.empty((4, 4, 3), np.uint8)}, "out goes with a size"),
        ({"rng": random.Random()}, "rng goes with a size"),
        ({"exact": True}, "exact goes with a size, got exact=True and none"),
        ({"scale": (0.5, 1)}, "scale goes with a size"),
        ({"ratio": np.array([1, 2])}, "ratio goes with a size"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hold.decode_image(saved(picture()), **options)


def test_options_of_other_types() -> None:
    data = saved(picture())
    wanted = hold.decode_image(data, size=4, crop=(0, 0, 5, 5))
    assert (hold.decode_image(data, size=4, crop=np.array([0, 0, 5, 5])) == wanted).all()
    for half in (np.float32(0.5), np.array(0.5)):
        assert (hold.decode_image(data, size=4, crop=half) == hold.decode_image(data, size=4, crop=0.5)).all()
    with pytest.raises(TypeError, match=r"rng must be a random\.Random or a numpy Generator, got int"):
        hold.decode_image(data, size=4, crop="random", rng=5)  # type: ignore[arg-type]
    assert (hold.decode_image(data, scale=[0.08, 1], exact=False) == hold.decode_image(data)).all()  # type: ignore[arg-type]


# ---- corrupt and hostile files


def test_truncated_jpegs_are_errors_wherever_the_crop_is() -> None:
    for data in (jpegs()["4:2:0, quality 30"], jpegs()["restarts"]):
        for end in range(0, len(data) - 2, 41):
            with pytest.raises(ImageError, match="cannot decode an image"):
                hold.decode_image(data[:end], size=8, crop=(0, 0, 16, 16))


def grey_jpeg(luma: tuple[int, int], chroma: tuple[int, int]) -> bytes:
    """Makes 48 x 48 pixels of grey, with these sampling factors (horizontal, vertical)."""
    data = bytearray(saved(Image.new("RGB", (48, 48), (128, 128, 128))))
    frame, scan = data.index(b"\xff\xc0") + 11, data.index(b"\xff\xda") + 6
    for n, (h, v) in enumerate((luma, chroma, chroma)):
        data[frame + 3 * n] = h << 4 | v
        data[scan + 2 * n] = 0  # the first Huffman tables, where an even block is 001010
    mcus = -(-6 // max(luma[0], chroma[0])) * -(-6 // max(luma[1], chroma[1]))
    bits = "001010" * mcus * (luma[0] * luma[1] + 2 * chroma[0] * chroma[1])
    bits += "1" * (-len(bits) % 8)
    return bytes(data[: scan + 8]) + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\xff\xd9"


def test_jpegs_that_pillow_refuses_are_refused_at_any_size() -> None:
    data = jpegs()["4:2:0, quality 90"]
    refused = {hex(marker): data[:2] + bytes([0xFF, marker, 0, 4, 0, 0]) + data[2:] for marker in range(0xF0, 0xFE)}
    refused |= {str(one): grey_jpeg(*one) for one in (((3, 1), (2, 1)), ((1, 3), (1, 2)), ((2, 1), (3, 1)))}
    for name, one in refused.items():
        with pytest.raises(OSError, match="broken data stream"):
            by_pillow(one, (8, 8))
        with pytest.raises(ImageError, match="cannot decode an image"):
            hold.decode_image(one, size=8)
            pytest.fail(name)
    comment = data[:2] + b"\xff\xfe\0\4hi" + data[2:]
    for one in (comment, grey_jpeg((3, 1), (1, 1)), grey_jpeg((2, 2), (1, 2))):
        assert native is None or native.jpeg_size(one)
        assert difference(hold.decode_image(one, size=8), by_pillow(one, (8, 8))).mean() < 2


def test_images_that_claim_to_be_huge_are_errors() -> None:
    data = bytearray(saved(picture()))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xdc\xff\xdc"
    header = b"IHDR" + (30_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    chunks = [header, b"IDAT" + zlib.compress(bytes(1 << 20)), b"IEND"]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        (len(one) - 4).to_bytes(4, "big") + one + zlib.crc32(one).to_bytes(4, "big") for one in chunks
    )
    for one in (bytes(data), png):
        with pytest.raises(ImageError, match="decompression bomb"):
            hold.decode_image(one, size=8)


FUZZ = """
import random, sys, warnings
import holdfast as hold
warnings.simplefilter("ignore")
rng, data, counts = random.Random(7), sys.stdin.buffer.read(), [0, 0]
sizes = [int(size) for size in sys.argv[1:]]
starts = [sum(sizes[:n]) for n in range(len(sizes))]
for start, size in zip(starts, sizes):
    for _ in range(60):
        one = bytearray(data[start : start + size])
        for _ in range(rng.randrange(1, 6)):
            one[rng.randrange(rng.choice((len(one), 700)) % len(one) or 1)] = rng.randrange(256)
        if not rng.randrange(3):
            del one[rng.randrange(len(one)) :]
        try:
            hold.decode_image(one, size=(9, 13), crop=rng.choice((None, "center", "random")), rng=rng)
            counts[0] += 1
        except hold.errors.ImageError:
            counts[1] += 1
print(*counts)
"""


def test_corrupt_files_never_end_the_process() -> None:
    files = [*jpegs().values(), *OTHERS.values()]
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, *(str(len(one)) for one in files)],
        input=b"".join(files),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    decoded, refused = map(int, done.stdout.split())
    assert decoded + refused == 60 * len(files)
    assert min(decoded, refused) > 100


def test_crops_are_the_same_without_the_extension() -> None:
    code = """
import random, sys
import holdfast as hold
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(hold.decode_image(data, size=32, crop="random", rng=random.Random(5)).tobytes())
"""
    data = saved(picture())
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=data,
        capture_output=True,
        timeout=60,
        check=True,
        env={"HOLDFAST_NATIVE": "0"},
    )
    got = hold.decode_image(data, size=32, crop="random", rng=random.Random(5))
    assert difference(got, np.frombuffer(done.stdout, np.uint8).reshape(got.shape)).mean() < 2
