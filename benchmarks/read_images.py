"""Pictures that weigh what photographs do: large soft shapes, and noise on top of them."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

SOFT = 16  # pixels from one hue to the next


class Look(NamedTuple):
    side: int  # pixels
    noise: int
    format: str
    quality: dict[str, int]


LOOKS = {
    "png": Look(224, 10, "PNG", {"compress_level": 6}),
    "jpeg": Look(400, 32, "JPEG", {"quality": 92}),
    "files": Look(80, 16, "JPEG", {"quality": 90}),
}


def picture(kind: str, seed: int) -> bytes:
    look = LOOKS[kind]
    rng = np.random.default_rng(seed)
    hues = rng.integers(0, 256, (look.side // SOFT, look.side // SOFT, 3), np.uint8)
    soft = np.asarray(Image.fromarray(hues).resize((look.side, look.side), Image.Resampling.BICUBIC), np.int16)
    noise = rng.integers(-look.noise, look.noise + 1, soft.shape, np.int16)
    pixels = np.clip(soft + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, look.format, **look.quality)
    return out.getvalue()


def decode(data: Any) -> Any:
    """With Pillow, as everybody does."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # which would copy it
