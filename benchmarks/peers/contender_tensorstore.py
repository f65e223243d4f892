"""tensorstore on zarr, with the chunks and the compression of the HDF5 file; reads many chunks at once, in threads."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorstore as ts

from benchmarks.common.contenders import Job
from benchmarks.peers.blocks import shuffled_batches, windows
from benchmarks.peers.data import CHUNK_ROWS, ROW_BYTES, own_format, source
from benchmarks.peers.operations import Batches, serve


def rows(job: Job) -> Batches:
    ids, values = _opened(str(source(job)), job["data"])
    ahead = None
    for places in windows(len(ids)):
        ready, ahead = ahead, _begun(values, places)  # the next block is read while this one is cut into batches
        yield from _batches(ids, ready)
    yield from _batches(ids, ahead)


def _begun(values: Any, places: Any) -> tuple[Any, Any, list[Any]]:
    block = np.empty((len(places), CHUNK_ROWS, ROW_BYTES), np.uint8)
    pending = [
        ts.array(block[slot]).write(values[start : start + CHUNK_ROWS]) for slot, start in enumerate(places.tolist())
    ]
    return places, block, pending


def _batches(ids: Any, begun: tuple[Any, Any, list[Any]] | None) -> Batches:
    if begun is not None:
        places, block, pending = begun
        for one in pending:
            one.result()
        yield from shuffled_batches(ids, places, block)


@functools.cache
def _opened(folder: str, data: str) -> Any:
    job = {"files": [folder]}

    def write(home: Path) -> None:
        with h5py.File(source(job) / "rows.h5") as file:
            gzip = {"id": "gzip", "level": 4} if data == "rows-gzip" else None
            metadata = {"shape": file["values"].shape, "dtype": "|u1", "chunks": [CHUNK_ROWS, ROW_BYTES]}
            spec = _spec(home) | {"metadata": metadata | {"compressor": gzip}, "create": True}
            ts.open(spec).result().write(file["values"][:]).result()
            np.save(home / "id.npy", file["id"][:])

    home = own_format(job, "zarr", write)
    return np.load(home / "id.npy"), ts.open(_spec(home), open=True).result()


def _spec(home: Path) -> dict[str, Any]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{home}/values.zarr"}}


if __name__ == "__main__":
    serve(("tensorstore",), rows)
