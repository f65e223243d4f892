"""grain on an ArrayRecord, all shuffled. Reads 2,048 small rows at a time: one by one takes far longer."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import IMAGE_BATCH, SMALL, SMALL_BATCH, columns, jpeg_paths, own_format, small_rows
from benchmarks.peers.operations import Batches, serve

MANY = 8 * SMALL_BATCH


class Blocks:
    """A data source whose elements are many rows of a random order."""

    def __init__(self, records: Any) -> None:
        self._records, self._order = records, np.random.default_rng().permutation(len(records))

    def __len__(self) -> int:
        return -(-len(self._order) // MANY)

    def __getitem__(self, place: Any) -> Any:
        records = self._records.__getitems__(self._order[place * MANY : (place + 1) * MANY].tolist())
        return np.frombuffer(b"".join(records), SMALL)


def small(job: Job) -> Batches:
    home = own_format(job, "arrayrecord", lambda home: _write(home, (row.tobytes() for row in small_rows(job))))
    blocks = grain.MapDataset.source(Blocks(_opened(home)))
    for block in blocks.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)):
        for first in range(0, len(block), SMALL_BATCH):
            yield columns(block[first : first + SMALL_BATCH])


def pictures(job: Job) -> Batches:
    files = (np.int64(place).tobytes() + path.read_bytes() for place, path in enumerate(jpeg_paths(job)))
    records = _opened(own_format(job, "arrayrecord", lambda home: _write(home, files)))
    decode = images.decoder(job)
    samples = grain.MapDataset.source(records).shuffle(seed=7).map(lambda record: (record[:8], decode(record[8:])))
    return samples.to_iter_dataset().batch(IMAGE_BATCH, batch_fn=_stacked)  # type: ignore[no-any-return]


def _stacked(samples: list[tuple[bytes, Any]]) -> dict[str, Any]:
    ids, pixels = zip(*samples, strict=True)
    return images.batch(np.frombuffer(b"".join(ids), np.int64), pixels)


def _write(home: Path, records: Iterable[bytes]) -> None:
    writer = ArrayRecordWriter(f"{home}/rows.arrayrecord", "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


@functools.cache
def _opened(home: Path) -> Any:
    return grain.sources.ArrayRecordDataSource(f"{home}/rows.arrayrecord")


if __name__ == "__main__":
    serve(("grain", "array_record", "opencv-python-headless"), small, pictures)
