"""Decodes images to arrays, whole or cropped and resized.

Whole images have exactly Pillow's pixels: JPEG is decoded by simplejpeg and common PNGs by zlib and a compiled
unfilter, which are about twice as fast; everything else by Pillow itself. Baseline JPEGs that are resized are decoded
in C, at the smallest scale that suffices; all others are decoded whole, then resized in C. Pillow decides what is
corrupt.
"""

from __future__ import annotations

import functools
import io
import math
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..._native.c_modules import images, png
from ..._util.text import names_there
from ...errors import ImageError

# Pillow converts others differently
_SAME_AS_PILLOW = {("RGB", "YCbCr"), ("RGB", "Gray"), ("L", "Gray"), (None, "YCbCr")}


def decode_jpeg(data: Any, mode: str | None, max_pixels: int) -> npt.NDArray[Any] | None:
    """Returns None for what must go to Pillow: other modes, huge images, and corrupt data, which Pillow describes."""
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        if (mode, colours) not in _SAME_AS_PILLOW or height * width > max_pixels:
            return None
        # Strict: data that libjpeg only warns about go to Pillow, which has its own rules for them.
        pixels: npt.NDArray[Any] = library.decode_jpeg(data, "GRAY" if mode == "L" else "RGB", strict=True)
    except ValueError:
        return None
    return pixels[:, :, 0] if mode == "L" else pixels


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


# ---- PNG: 8-bit RGB or grey, not interlaced, as nearly all training data are

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">II5B")
_CHUNK = struct.Struct(">I4s")
_CHANNELS = {("RGB", 2): 3, (None, 2): 3, ("L", 0): 1, (None, 0): 1}  # by mode and colour type


class _PNG(NamedTuple):
    width: int
    height: int
    colour_type: int
    compressed: bytes


def decode_png(data: Any, mode: str | None, max_pixels: int) -> npt.NDArray[Any] | None:
    """Returns None for what must go to Pillow: other kinds of PNG, huge images, and corrupt data."""
    stored = _parse_png(data) if png else None
    if stored is None or stored.width * stored.height > max_pixels:
        return None
    channels = _CHANNELS.get((mode, stored.colour_type))
    if channels is None:
        return None
    row_bytes = stored.width * channels
    rows = _inflate(stored.compressed, stored.height * (1 + row_bytes))
    if rows is None:
        return None
    pixels = np.empty((stored.height, stored.width, channels)[: 2 if channels == 1 else 3], np.uint8)
    try:
        png.unfilter(rows, pixels.data, row_bytes, channels)
    except ValueError:
        return None
    return pixels


def _parse_png(data: Any) -> _PNG | None:
    """Returns None where something is unusual, corrupt or missing."""
    if data[:8] != _SIGNATURE or len(data) < 33 or data[8:16] != b"\0\0\0\x0dIHDR":
        return None
    width, height, depth, colour_type, *ways = _HEADER.unpack_from(data, 16)
    if depth != 8 or any(ways) or not width or not height:
        return None
    at, pieces = 8, []
    while at + 12 <= len(data):
        size, name = _CHUNK.unpack_from(data, at)
        if name == b"IDAT":
            pieces.append(data[at + 8 : at + 8 + size])  # zlib has a checksum of its own
        elif name == b"IEND":
            return _PNG(width, height, colour_type, b"".join(pieces))
        elif pieces or name == b"acTL" or (name == b"IHDR" and at > 8) or not _crc_matches(data, at, size):
            return None  # chunks after the pixels, more than one image or header: Pillow knows what they mean
        at += 12 + size
    return None


def _crc_matches(data: Any, at: int, size: int) -> bool:
    crc = zlib.crc32(data[at + 4 : at + 8 + size])
    return bool(data[at + 8 + size : at + 12 + size] == crc.to_bytes(4, "big"))


def _inflate(compressed: bytes, size: int) -> bytes | None:
    """Decompresses exactly `size` bytes; returns None if there are fewer, more, or corrupt ones."""
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(compressed, size)
        rest = inflate.decompress(inflate.unconsumed_tail, 1)
    except zlib.error:
        return None
    return rows if len(rows) == size and not rest and inflate.eof else None


# ---- any image

Pixels = npt.NDArray[Any]
Data = bytes | bytearray | memoryview
Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[int, int]  # height, width
Crop = Literal["center", "random"] | float | tuple[int, int, int, int] | None
Layout = Literal["HWC", "CHW"]
DType = Literal["uint8", "float32"]

_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of RandomResizedCrop
MAX_PIXELS = (1 << 30) // 4 // 3  # Pillow warns above it, and fails at twice as many
_MAX_SIDE = 65_535
_MIN_STD, _MAX_MEAN = 1e-6, 1e30  # float32 holds their quotient
_PILLOW_ERRORS = (OSError, SyntaxError, RuntimeError, EOFError, IndexError, struct.error)
_JPEG = b"\xff\xd8\xff"
_FAST = {_JPEG: decode_jpeg, b"\x89PN": decode_png}


class Randomness(Protocol):
    """A numpy Generator or a random.Random."""

    def random(self) -> float: ...


def decode_image(
    data: Data,
    mode: str | None = "RGB",
    *,
    size: int | Size | None = None,
    crop: Crop = None,
    dtype: DType = "uint8",
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: Layout = "HWC",
    scale: tuple[float, float] = _SCALE,
    ratio: tuple[float, float] = _RATIO,
    rng: Randomness | None = None,
    exact: bool = False,
    out: Pixels | None = None,
) -> Pixels:
    """Returns the pixels as `(height, width, channels)`, or `(height, width)` where `mode` has one channel.

    Without `size`, they are bit for bit those of Pillow's `Image.open(...).convert(mode)`; `mode` None: as they are
    stored. Most JPEG and PNG files are decoded about twice as fast as by Pillow, mostly without the GIL, so threads are
    enough. With `size`, the image is cropped and resized, antialiased as Pillow's BILINEAR:

    Args:
        size: (height, width), or an int for both.
        crop: None resizes the whole image, whatever its shape; "center" the largest centred part with the shape of
            `size`, and a number up to 1 that share of its sides (0.875 is Resize(256), CenterCrop(224)); "random" a
            part as torchvision's RandomResizedCrop takes it, with the ranges `scale` (of the area) and `ratio` (width
            to height), drawn from `rng`; (left, top, right, bottom) that part.
        dtype: "uint8"; or "float32", which is level / 255, less `mean` and divided by `std` (one number, or one for
            each channel).
        layout: "CHW" returns (channels, height, width).
        exact: The result differs from Pillow's resize by one level at most. By default JPEGs are decoded at the
            smallest sufficient scale, which is faster. Photographs then differ by a few levels in the mean; text, line
            art, fine patterns and noise differ more: use exact=True for them. By default mode "L" of a JPEG is its
            luma; with exact=True it is Pillow's conversion from RGB.
        out: An array to write the result into.

    Raises:
        ImageError: The bytes are no image, or a corrupt one.
    """
    data = _check_data(data)
    options = {"crop": crop, "dtype": dtype, "mean": mean, "std": std, "layout": layout}
    resize = image_resize(size, mode=mode, scale=scale, ratio=ratio, exact=exact, **options)
    if resize is not None:
        if rng is not None and not callable(getattr(rng, "random", None)):
            raise TypeError(f"rng must be a random.Random or a numpy Generator, got {type(rng).__name__}")
        return resize(data, rng, out)
    for name, given in (("rng", rng), ("out", out)):
        if given is not None:
            raise ValueError(f"{name} goes with a size, got {name} and none")
    fast = _FAST.get(bytes(data[:3]))
    if fast is not None:
        pixels = fast(data, mode, MAX_PIXELS)
        if pixels is not None:
            return pixels
    return _by_pillow(data, mode)[0]


def _check_data(data: Any) -> Data:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected an encoded image as bytes, got {type(data).__name__}; a path: open(path, 'rb').read()"
        )
    if isinstance(data, memoryview) and not (data.c_contiguous and data.ndim == 1 and data.itemsize == 1):
        return data.tobytes()
    return data


def _by_pillow(data: Data, mode: str | None, plan: Callable[[Size], Size] | None = None) -> tuple[Pixels, Size]:
    """Returns the pixels, and the size of the whole image: a JPEG is decoded at a half, a quarter or an eighth of it if
    that has at least the size that `plan` says."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("Pillow is needed to decode this image: pip install Pillow") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if plan is not None:
                image.draft(mode, plan((height, width))[::-1])
            return np.array(image if mode in (None, image.mode) else image.convert(mode)), (height, width)
    except ImageError:  # of the plan
        raise
    except (*_PILLOW_ERRORS, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot decode an image of {len(data):,} bytes: {_reason(error)}") from error
    except (ValueError, KeyError) as error:
        raise ImageError(f"cannot decode an image of {len(data):,} bytes into the mode {mode!r}: {error}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    return "Pillow does not know its format" if text.startswith("cannot identify image file") else text


# ---- cropped and resized


_DEFAULTS: dict[str, Any] = {
    "crop": None,
    "dtype": "uint8",
    "mean": None,
    "std": None,
    "layout": "HWC",
    "scale": _SCALE,
    "ratio": _RATIO,
    "exact": False,
}


def image_resize(size: int | Size | None, **options: Any) -> ImageResize | None:
    """Returns None without a size, which other options need."""
    if size is not None:
        return ImageResize(size=size, **options)
    for name, default in _DEFAULTS.items():
        given = options[name]
        if given is not default and (default is None or not np.array_equal(given, default)):
            raise ValueError(f"{name} goes with a size, got {name}={given!r} and none")
    return None


class ImageResize:
    """Decodes, crops and resizes images as decode_image describes; checks the options once."""

    def __init__(
        self,
        *,
        size: int | Size,
        mode: str = "RGB",
        crop: Crop = None,
        dtype: DType = "uint8",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Layout = "HWC",
        scale: tuple[float, float] = _SCALE,
        ratio: tuple[float, float] = _RATIO,
        exact: bool = False,
    ) -> None:
        if mode not in ("RGB", "L"):
            raise ValueError(f'with a size, mode must be "RGB" or "L", got {mode!r}')
        if dtype not in ("uint8", "float32"):
            raise ValueError(f'dtype must be "uint8" or "float32", got {dtype!r}')
        if layout not in ("HWC", "CHW"):
            raise ValueError(f'layout must be "HWC" or "CHW", got {layout!r}')
        if dtype == "uint8" and not (mean is None and std is None):
            raise ValueError('mean and std go with dtype="float32", got dtype="uint8"')
        self._mode, self._exact, self._crop = mode, bool(exact), _check_crop(crop)
        self._size, self._channels, self._planar = _check_size(size), 3 if mode == "RGB" else 1, layout == "CHW"
        self._scale, self._ratio = _check_range("scale", scale, 1.0), _check_range("ratio", ratio, math.inf)
        self.dtype = np.dtype(dtype)
        channels = (self._channels,) if mode == "RGB" or self._planar else ()
        self.shape = (*channels, *self._size) if self._planar else (*self._size, *channels)
        self._levels: Any = None if dtype == "uint8" else self._normalized(mean, std)

    def _normalized(self, mean: Any, std: Any) -> Pixels:
        """Returns what the 256 levels of each channel become, in float32 as a division of whole images would."""
        levels = np.arange(256, dtype=np.float32)[None] / np.float32(255)
        means, stds = self._per_channel("mean", mean, 0.0), self._per_channel("std", std, 1.0)
        if not (stds >= _MIN_STD).all():
            raise ValueError(f"std must be at least {_MIN_STD}, got {std!r}")
        return np.ascontiguousarray((levels - means) / stds)

    def _per_channel(self, name: str, value: Any, default: float) -> Pixels:
        try:
            numbers = np.asarray(default if value is None else value)
        except (TypeError, ValueError):  # nested lists of different lengths
            numbers = np.empty(0)
        is_valid = numbers.dtype.kind in "iuf" and numbers.size in (1, self._channels)
        if not is_valid or not np.abs(numbers).max() <= _MAX_MEAN:
            raise ValueError(f"{name} must be a number, or {self._channels} of them, got {value!r}")
        return np.broadcast_to(numbers.astype(np.float32).reshape(-1, 1), (self._channels, 1))

    @property
    def is_random(self) -> bool:
        return self._crop == "random"

    def __call__(self, data: Data, rng: Randomness | None = None, out: Pixels | None = None) -> Pixels:
        """Decodes an image into `out`, or a new array."""
        if out is None:
            out = np.empty(self.shape, self.dtype)
        elif not isinstance(out, np.ndarray) or out.dtype != self.dtype or out.shape != self.shape:
            got = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out must be an array of {self.dtype} of shape {self.shape}, got {got}")
        elif not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned):
            raise ValueError("out must be a writable C-contiguous array")
        is_jpeg, box = bytes(data[:3]) == _JPEG, None
        if images and is_jpeg and not self._exact and (size := images.jpeg_size(data)):
            box = self._box(size, rng)
            if images.decode_jpeg(data, box, out.data, self._levels, (*self._size, self._channels), self._planar):
                return out
        pixels, part = self._decode(data, rng, box, shrink=is_jpeg and not self._exact)
        self._resize(pixels, part, out)
        return out

    def _decode(self, data: Data, rng: Randomness | None, box: Any, *, shrink: bool) -> tuple[Pixels, Box]:
        """Returns pixels, which may be a smaller version of the image, and the part of them to resize."""

        def plan(size: Size) -> Size:
            nonlocal box
            if box is None:
                box = self._box(size, rng)
            height, width = box[3] - box[1], box[2] - box[0]
            return math.ceil(self._size[0] * size[0] / height), math.ceil(self._size[1] * size[1] / width)

        if shrink and _has_pillow():
            pixels, (height, width) = _by_pillow(data, self._mode, plan)
        else:
            pixels = decode_image(data, self._mode)
            height, width = pixels.shape[:2]
            plan((height, width))
        # The last row and column of a shrunk image may show fewer pixels than the others.
        shrunk = next(by for by in (1, 2, 4, 8) if pixels.shape[:2] == (-(-height // by), -(-width // by)))
        left, top, right, bottom = (side / shrunk for side in box)
        return pixels, (left, top, right, bottom)

    def _resize(self, pixels: Pixels, box: Box, out: Pixels) -> None:
        pixels = np.ascontiguousarray(pixels)
        if images:
            shape = (*pixels.shape[:2], self._channels)
            images.resize(pixels.data, shape, box, out.data, self._levels, (*self._size, self._channels), self._planar)
            return
        from PIL import Image

        left, top, right, bottom = box
        first_x, first_y = int(left), int(top)
        part = Image.fromarray(pixels[first_y : math.ceil(bottom), first_x : math.ceil(right)])
        inner = (left - first_x, top - first_y, right - first_x, bottom - first_y)
        levels = np.asarray(part.resize(self._size[::-1], Image.Resampling.BILINEAR, box=inner))
        levels = levels.reshape(*self._size, self._channels)
        for channel in range(self._channels):
            one = levels[:, :, channel]
            to = out if out.ndim == 2 else out[channel] if self._planar else out[:, :, channel]
            to[...] = one if self._levels is None else self._levels[channel][one]

    def _box(self, size: Size, rng: Randomness | None) -> tuple[int, int, int, int]:
        height, width = size
        if self._crop is None:
            return 0, 0, width, height
        if self._crop == "random":
            return _random_box(height, width, self._scale, self._ratio, random.Random() if rng is None else rng)
        if isinstance(self._crop, tuple):
            left, top, right, bottom = self._crop
            if right > width or bottom > height:
                raise ImageError(f"expected an image of at least {right} x {bottom} pixels, got {width} x {height}")
            return left, top, right, bottom
        share = 1.0 if self._crop == "center" else float(self._crop)
        unit = share * min(height / self._size[0], width / self._size[1])
        part_height, part_width = (max(1, round(side * unit)) for side in self._size)
        left, top = (width - part_width) // 2, (height - part_height) // 2
        return left, top, left + part_width, top + part_height


def _random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: Randomness
) -> tuple[int, int, int, int]:
    """Draws a part as torchvision's RandomResizedCrop does: ten tries, then the largest part with such a ratio."""
    logs = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(logs[0] + (logs[1] - logs[0]) * rng.random())
        part_width, part_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int((height - part_height + 1) * rng.random())
            left = int((width - part_width + 1) * rng.random())
            return left, top, left + part_width, top + part_height
    part_width = min(width, max(1, round(height * ratio[1])))
    part_height = min(height, max(1, round(width / ratio[0])))
    left, top = (width - part_width) // 2, (height - part_height) // 2
    return left, top, left + part_width, top + part_height


def _check_size(size: Any) -> Size:
    sides = (size, size) if isinstance(size, (int, np.integer)) else size
    if (
        not isinstance(sides, (tuple, list))
        or len(sides) != 2
        or not all(map(_is_int, sides))
        or not all(1 <= side <= _MAX_SIDE for side in sides)
    ):
        raise ValueError(f"size must be (height, width) or an int, from 1 to {_MAX_SIDE:,}, got {size!r}")
    return int(sides[0]), int(sides[1])


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_crop(crop: Any) -> Crop:
    given = crop.tolist() if isinstance(crop, (np.ndarray, np.generic)) else crop
    if given is None or (isinstance(given, str) and given in ("center", "random")):
        return given  # type: ignore[return-value]
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given <= 1:
        return float(given)
    if isinstance(given, (tuple, list)) and len(given) == 4 and all(map(_is_int, given)):
        left, top, right, bottom = map(int, given)
        if 0 <= left < right and 0 <= top < bottom:
            return left, top, right, bottom
    raise ValueError(
        f'crop must be None, "center", "random", a share above 0 up to 1, or (left, top, right, bottom), got {crop!r}'
    )


def _check_range(name: str, given: Any, highest: float) -> tuple[float, float]:
    try:
        low, high = map(float, given)
        if 0 < low <= high <= highest and math.isfinite(high):
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name} must be (low, high), above 0{' up to 1' if highest == 1 else ''}, got {given!r}")


@functools.cache
def _has_pillow() -> bool:
    try:
        import PIL  # noqa: F401
    except ImportError:
        return False
    return True


class ImageColumn:
    """Function that decodes one column of a sample; for the loader, also into a given array."""

    __name__ = "decode"

    def __init__(self, column: str, resize: ImageResize | None, mode: str | None) -> None:
        self._column, self.resize, self._mode = column, resize, mode

    def __call__(self, sample: Any, rng: Randomness | None = None, out: Pixels | None = None) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise TypeError(f"decode: expected a dict of columns, got {type(sample).__name__}")
        if self._column not in sample:
            there = names_there(self._column, [str(name) for name in sample])
            raise KeyError(f"there is no column {self._column!r}. {there}")
        data = sample[self._column]
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
            data = data.data
        pixels = decode_image(data, self._mode) if self.resize is None else self.resize(_check_data(data), rng, out)
        return {**sample, self._column: pixels}
