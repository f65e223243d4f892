"""The rows of the table: which work, against whom, and how much is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MEMORY_LIMIT_BYTES = 64 << 20

Data = Literal["small", "big"]


@dataclass(frozen=True, slots=True)
class Peer:
    side: str
    operation: str
    name: str
    wanted: float | None = None  # at least this many times its speed; None: listed for context


@dataclass(frozen=True, slots=True)
class Task:
    """One work of holdfast's, and those it is compared with in the same rounds."""

    row: str
    key: str
    work: str
    data: Data
    operation: str
    peers: tuple[Peer, ...]
    target: Literal["", "tmpfs", "disk"] = ""  # where it writes, if it does


@dataclass(frozen=True, slots=True)
class MemoryTask:
    key: str
    work: str
    data: Data
    operation: Literal["columns", "records"]
    row: str = "6"


def _readinto(wanted: float) -> Peer:
    return Peer("plain", "readinto", "raw readinto", wanted)


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
            Peer("pypi_tfrecord", "columns", "PyPI tfrecord (rows, no CRC)"),
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
            Peer("pypi_tfrecord", "records", "PyPI tfrecord (no CRC)"),
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
