"""Makes data for the examples: small PNG images in TFRecord shards, each with its number.

python examples/make_images.py images
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

import holdfast as hold

SCHEMA = {"id": hold.Int64(), "label": hold.Int64(), "image": hold.Bytes()}
SIZE = 32
LABELS = 4


def png(number: int) -> bytes:
    """Stripes, as wide as the label says, under some noise."""
    stripes = np.arange(SIZE) // (number % LABELS + 1) % 2 * 160
    noise = np.random.default_rng(number).integers(0, 64, (SIZE, SIZE, 3))
    file = io.BytesIO()
    Image.fromarray((noise + stripes[:, None, None]).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--count", type=int, default=384)
    asked.add_argument("--shards", type=int, default=6)
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for shard in range(given.shards):
        with hold.TFRecordWriter(given.folder / f"images-{shard:03}.tfrecord", SCHEMA) as writer:
            for number in range(shard, given.count, given.shards):
                writer.append(id=number, label=number % LABELS, image=png(number))
    print(f"{given.count} images in {given.shards} shards")


if __name__ == "__main__":
    main()
