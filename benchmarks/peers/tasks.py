"""The rows of the table, and who can do which of them. No row has a target."""

from __future__ import annotations

from benchmarks.peers.data import CHUNK_ROWS
from benchmarks.read.tasks import Peer, Task

LOADERS = {
    "tensorflow": "tf.data, TFRecord",
    "grain": "grain, ArrayRecord",
    "dali": "DALI (CPU), TFRecord",
    "spdl": "SPDL, .npy",
    "lance": "lance",
    "datasets": "HF datasets, Arrow",
    "mds": "MosaicML Streaming, MDS",
    "litdata": "litdata",
    "webdataset": "webdataset, tar",
    "torchvision": "torch DataLoader, .npy",
    "ffcv": "ffcv",
}
DECODERS = {
    "tensorflow": "tf.data",
    "dali": "DALI (CPU)",
    "grain": "grain, OpenCV",
    "spdl": "SPDL, simplejpeg",
    "lance": "lance, OpenCV",
    "datasets": "HF datasets, OpenCV",
    "mds": "MosaicML Streaming, OpenCV",
    "litdata": "litdata, OpenCV",
    "webdataset": "webdataset, OpenCV",
    "torchvision": "torchvision, DataLoader",
    "ffcv": "ffcv",
}
BLOCKS = {"h5py": "h5py, blocks by hand", "tensorstore": "tensorstore, zarr"}


def _task(row: str, key: str, work: str, data: str, pipeline: str, peers: dict[str, str]) -> Task:
    listed = tuple(Peer(contender, pipeline, name) for contender, name in peers.items())
    return Task(row, key, work, data, pipeline, listed)


TASKS = (
    _task("1", "small", "id and 64 floats, batches of 256", "small", "small", LOADERS),
    _task("2", "resize", "JPEG 500×400, resized to 224×224", "images", "resized", DECODERS),
    _task("3", "crop", "the same JPEG, RandomResizedCrop 224", "images", "cropped", DECODERS),
    _task("4", "hdf5", f"rows of 4 kB, chunks of {CHUNK_ROWS}, plain", "rows", "rows", BLOCKS),
    _task("5", "hdf5-gzip", f"rows of 4 kB, chunks of {CHUNK_ROWS}, gzip", "rows-gzip", "rows", BLOCKS),
)
ROWS = tuple(task.row for task in TASKS)
CONTENDERS = tuple(dict.fromkeys(peer.contender for task in TASKS for peer in task.peers))
