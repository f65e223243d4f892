"""The rows of the table: which work, against which peers, and with what target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MEMORY_LIMIT_BYTES = 64 << 20

SHARDS = 4
BATCH = {"small": 256, "big": 32}

Data = Literal["small", "big"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is."""

    small_rows: int
    big_rows: int
    write_rows: int
    memory_bytes: int
    round_s: float  # a round takes at least this long, in as many passes as it needs


FULL = Sizes(small_rows=400_000, big_rows=6_000, write_rows=100_000, memory_bytes=2 << 30, round_s=0.3)
QUICK = Sizes(small_rows=8_000, big_rows=160, write_rows=2_000, memory_bytes=32 << 20, round_s=0.0)


@dataclass(frozen=True, slots=True)
class Peer:
    contender: str
    operation: str
    name: str
    target: float | None = None  # at least this many times its speed; None: listed for context


@dataclass(frozen=True, slots=True)
class Task:
    """Work of holdfast, and the peers it is compared with in the same rounds."""

    row: str
    key: str
    work: str
    data: Data
    operation: str
    peers: tuple[Peer, ...]
    place: Literal["", "tmpfs", "disk"] = ""  # where it writes, if it does


@dataclass(frozen=True, slots=True)
class MemoryTask:
    key: str
    work: str
    data: Data
    operation: Literal["columns", "records"]
    row: str = "6"


def _readinto(target: float) -> Peer:
    return Peer("plain", "readinto", "raw readinto", target)


def _tf_writer() -> Peer:
    return Peer("tensorflow", "write", "TFRecordWriter + SerializeToString", 10)


TASKS = (
    Task(
        "1",
        "columns-small",
        "335-byte Examples → columns, batches of 256",
        "small",
        "columns",
        (
            Peer("tensorflow", "columns", "tf.data interleave + parse_example", 25),
            _readinto(0.35),
            Peer("tensorflow", "columns_in_turn", "tf.data files in turn + parse_example"),
            Peer("pypi", "columns", "PyPI tfrecord (rows, no CRC)"),
        ),
    ),
    Task(
        "2",
        "columns-big",
        "100 kB Examples → columns, batches of 32",
        "big",
        "columns",
        (
            Peer("tensorflow", "columns", "tf.data interleave + parse_example", 4),
            _readinto(0.5),
            Peer("tensorflow", "columns_in_turn", "tf.data files in turn + parse_example"),
        ),
    ),
    Task(
        "3",
        "records",
        "raw records, one Python object each",
        "small",
        "records",
        (
            Peer("tensorflow", "records", "tf.data raw batches", 3),
            Peer("plain", "records", "pure Python framing + google-crc32c"),
            Peer("pypi", "records", "PyPI tfrecord (no CRC)"),
        ),
    ),
    Task("4", "verify-small", "verify, 335-byte records", "small", "verify", (_readinto(0.5),)),
    Task("4", "verify-big", "verify, 100 kB records", "big", "verify", (_readinto(0.5),)),
    Task("4", "index-small", "index, 335-byte records", "small", "index", (_readinto(0.5),)),
    Task("4", "index-big", "index, 100 kB records", "big", "index", (_readinto(0.5),)),
    Task("5", "write-tmpfs", "columns → TFRecord file on tmpfs", "small", "write", (_tf_writer(),), "tmpfs"),
    Task("5", "write-disk", "columns → TFRecord file on disk", "small", "write", (_tf_writer(),), "disk"),
)

MEMORY_TASKS = (
    MemoryTask("memory-columns-small", "memory: 335-byte Examples → columns", "small", "columns"),
    MemoryTask("memory-columns-big", "memory: 100 kB Examples → columns", "big", "columns"),
    MemoryTask("memory-records-small", "memory: 335-byte raw records", "small", "records"),
)

ROWS = ("1", "2", "3", "4", "5", "6")
