"""webdataset: tar files, divided among two workers of its loader; rows are raw bytes that a whole batch converts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import (
    IMAGE_BATCH,
    SHARDS,
    SHUFFLE,
    SMALL,
    SMALL_BATCH,
    columns,
    jpeg_paths,
    own_format,
    small_rows,
)
from benchmarks.peers.operations import Batches, serve


def small(job: Job) -> Batches:
    rows = (row.tobytes() for row in small_rows(job))
    return _loader(own_format(job, "webdataset", lambda home: _write(home, rows)), None)  # type: ignore[no-any-return]


def pictures(job: Job) -> Batches:
    files = (path.read_bytes() for path in jpeg_paths(job))
    for batch in _loader(own_format(job, "webdataset", lambda home: _write(home, files)), images.decoder(job)):
        yield {"id": batch["id"], "image": batch["image"].float()}


@functools.cache
def _loader(home: Path, decode: Callable[[Any], Any] | None) -> Any:
    tars = [str(path) for path in home.glob("*.tar")]
    data = wds.WebDataset(tars, shardshuffle=SHARDS, workersplitter=wds.split_by_worker)
    if decode is None:
        data = data.shuffle(SHUFFLE["small"] // 2).to_tuple("bin").batched(SMALL_BATCH, collation_fn=_rows)
    else:
        data = data.shuffle(SHUFFLE["images"] // 2).to_tuple("__key__", "bin").map_tuple(int, decode)
        data = data.batched(IMAGE_BATCH, collation_fn=_pixels)
    return wds.WebLoader(data, batch_size=None, num_workers=2, persistent_workers=True)


def _rows(samples: list[tuple[bytes]]) -> dict[str, Any]:
    return columns(np.frombuffer(b"".join(sample[0] for sample in samples), SMALL))


def _pixels(samples: list[tuple[int, Any]]) -> dict[str, Any]:
    ids, pixels = zip(*samples, strict=True)
    return {"id": np.array(ids), "image": np.stack(pixels)}


def _write(home: Path, samples: Iterable[bytes]) -> None:
    writers = [wds.TarWriter(f"{home}/{shard}.tar") for shard in range(SHARDS)]
    for place, data in enumerate(samples):
        writers[place % SHARDS].write({"__key__": f"{place:08}", "bin": data})
    for writer in writers:
        writer.close()


if __name__ == "__main__":
    serve(("webdataset", "torch", "opencv-python-headless"), small, pictures)
