"""The crop of torchvision's RandomResizedCrop, for all who have none of their own."""

from __future__ import annotations

import math
import random


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns top, left, height and width: 8 to 100 % of the area, 3:4 to 4:3."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if wide <= width and high <= height:
            return random.randint(0, height - high), random.randint(0, width - wide), high, wide
    wide = min(width, round(height * 4 / 3))
    return 0, (width - wide) // 2, height, wide
