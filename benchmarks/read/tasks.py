"""The rows of the table: which work, against which peers, and with what target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Data = str  # examples, png, jpeg, files, short, hdf5

BATCH = {"examples": 256, "png": 32, "jpeg": 32, "files": 256, "short": 256, "hdf5": 256}

# The size of a peer's shuffle buffer, in samples. holdfast's window is at least as large.
SHUFFLE = {"examples": 8192, "png": 256, "jpeg": 256, "files": 50_000, "short": 8192, "hdf5": 8192}
WINDOW = {"examples": "64MB", "png": "64MB", "jpeg": "64MB", "files": "256MB", "short": "64MB", "hdf5": "64MB"}

WORKERS = 2
CHUNK_ROWS = 64  # of an HDF5 file, 4 kB each: chunks of 256 KiB
INTERLEAVED = 8


@dataclass(frozen=True, slots=True)
class Peer:
    contender: str
    pipeline: str
    name: str
    target: float | None = None  # at least this many times its speed; None: listed for context


@dataclass(frozen=True, slots=True)
class Task:
    """Work of holdfast, and the peers it is compared with in the same rounds."""

    row: str
    key: str
    work: str
    data: Data
    pipeline: str
    peers: tuple[Peer, ...]
    operation: Literal["read", "starts"] = "read"
    cpu_too: bool = False  # the CPU time of all processes must not be more than the peer's either
    fastest_only: bool = False  # the target is for the fastest peer; the others are context


TASKS = (
    Task(
        "1",
        "examples",
        "335-byte Examples, 8 shards interleaved, shuffled, batches of 256 → numpy",
        "examples",
        "examples",
        (Peer("tensorflow", "examples", "tf.data", 15),),
    ),
    Task(
        "2",
        "examples-torch",
        "the same → torch tensors",
        "examples",
        "examples_torch",
        (
            Peer("pypi", "examples", "DataLoader(2), PyPI tfrecord (no CRC)", 15),
            Peer("torch", "examples", "DataLoader(2), by hand with google-crc32c", 5),
            Peer("pypi", "examples_multi", "DataLoader(2), PyPI MultiTFRecordDataset (no CRC)"),
        ),
    ),
    *(
        Task(
            "3",
            kind,
            f"100 kB {kind.upper()} Examples, decoded, batches of 32",
            kind,
            "images",
            (
                Peer("tensorflow", "images", f"tf.data, decode_{kind}", 1),
                Peer("torch", "images", "DataLoader(2), Pillow", 1),
            ),
            cpu_too=True,
            fastest_only=True,
        )
        for kind in ("png", "jpeg")
    ),
    *(
        Task(
            "3",
            f"{kind}-pillow",
            f"the same {kind.upper()}, decoded with Pillow by holdfast, too",
            kind,
            "images_pillow",
            (
                Peer("tensorflow", "images", f"tf.data, decode_{kind}"),
                Peer("torch", "images", "DataLoader(2), Pillow"),
            ),
        )
        for kind in ("png", "jpeg")
    ),
    Task(
        "4",
        "files",
        "50,000 JPEG files of 3 kB, decoded, batches of 256",
        "files",
        "files",
        (
            Peer("torch", "files", "DataLoader(2), a Dataset as ImageFolder", 1.2),
            Peer("tensorflow", "files", "tf.data, read_file + decode_jpeg"),
        ),
    ),
    Task(
        "5",
        "starts",
        "20 epochs, loader made anew: time to the first batch",
        "short",
        "examples_torch",
        (Peer("torch", "examples", "DataLoader(2)", 3),),
        operation="starts",
    ),
    Task(
        "6",
        "hdf5",
        "HDF5 rows of 4 kB, shuffled by blocks, batches of 256",
        "hdf5",
        "hdf5",
        (
            Peer("torch", "hdf5", "DataLoader(2), h5py row by row", 2),
            Peer("torch", "hdf5_anywhere", "the same, all rows shuffled"),
        ),
    ),
)

LEAKS_ROW = "7"
ROWS = (*dict.fromkeys(task.row for task in TASKS), LEAKS_ROW)
