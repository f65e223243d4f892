"""The rows of the table: which work, against which peers, and with what target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Data = str  # examples, png, jpeg, photos, files, short, hdf5, hdf5-gzip, hdf5-lz4, hdf5-zstd

IMAGES: tuple[Data, ...] = ("png", "jpeg", "photos")
PACKED: tuple[Data, ...] = ("hdf5-gzip", "hdf5-lz4", "hdf5-zstd")  # with the shuffle filter
ROWS_4K: tuple[Data, ...] = ("hdf5", *PACKED)
BATCH = {"examples": 256, "files": 256, "short": 256} | dict.fromkeys(IMAGES, 32) | dict.fromkeys(ROWS_4K, 256)

# The size of a peer's shuffle buffer, in samples. holdfast's window is at least as large.
SHUFFLE = {"examples": 8192, "files": 50_000, "short": 8192} | dict.fromkeys(IMAGES, 256) | dict.fromkeys(ROWS_4K, 8192)
WINDOW = dict.fromkeys(("examples", "short", *IMAGES, *ROWS_4K), "64MB") | {"files": "256MB"}

WORKERS = 2
CHUNK_ROWS = 64  # of an HDF5 file, 4 kB each: chunks of 256 KiB
INTERLEAVED = 8
SIDE = 224  # of resized images
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
    same_pixels: bool = True  # resized images differ: by their filters, and where random crops are


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
            Peer("h5py", "hdf5", "h5py by hand, one thread", 1.2),
        ),
    ),
    *(
        Task(
            "6",
            kind,
            f"the same, compressed with {kind.partition('-')[2]}",
            kind,
            "hdf5",
            (Peer("h5py", "hdf5", "h5py by hand, one thread", 1.2),),
        )
        for kind in PACKED
    ),
    *(
        Task(
            "7",
            kind,
            f"JPEG 500 × 400, {what}, normalized float32, batches of 32",
            "photos",
            kind,
            (
                Peer("images", f"pool_cv2_{kind}", "two threads, cv2", 1.5),
                Peer("images", f"pool_simplejpeg_{kind}", "two threads, simplejpeg + cv2.resize", 1.5),
                Peer("images", f"grain_{kind}", "grain, simplejpeg + cv2.resize", 1.5),
                Peer("images", f"spdl_{kind}", "SPDL, simplejpeg + cv2.resize", 1.5),
                Peer("images", f"dali_{kind}", "DALI, CPU", 1.5),
                Peer("tensorflow", kind, "tf.data, decode_and_crop_jpeg" if kind == "crop" else "tf.data", 1.5),
                Peer("torch", kind, "DataLoader(2), Pillow", 1.5),
            ),
            fastest_only=True,
            same_pixels=False,
        )
        for kind, what in (("resize", "resized to 224"), ("crop", "RandomResizedCrop 224"))
    ),
)

LEAKS_ROW = "8"
ROWS = (*dict.fromkeys(task.row for task in TASKS), LEAKS_ROW)
