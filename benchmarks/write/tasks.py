"""The rows of the table: which work, against which peers, and with what target; and the data that are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Place = Literal["tmpfs", "disk"]
Block = npt.NDArray[np.float32]

ROW_FLOATS = 1024  # 4 KiB
BLOCK_ROWS = 64  # a block is a chunk: 256 KiB
BLOCK_BYTES = 4 * ROW_FLOATS * BLOCK_ROWS
GZIP_LEVEL = 4
CODECS = {"plain": "none", "gzip": ("gzip", GZIP_LEVEL), "lzf": "lzf"}
DISTINCT_BLOCKS = 16  # then they repeat

COMMIT_ROW, COUNT_ROW, MERGE_ROW, PART_ROW = "4", "5", "6", "7"
COMMIT_LIMIT_MS = 10.0
SERVER_SPARE, PRODUCER_LIMIT = 20, 3
VIEW_DESCRIPTORS = 100
PRODUCERS = 4
FEW_ROUNDS = 2  # for peers that take many times as long as holdfast


class Blocks:
    """The blocks that one writer writes, by number: noise, or half zeros where they are compressed."""

    def __init__(self, seed: int, codec: str) -> None:
        rng = np.random.default_rng(seed)
        self._blocks = [rng.random((BLOCK_ROWS, ROW_FLOATS), np.float32) for _ in range(DISTINCT_BLOCKS)]
        for block in self._blocks if codec != "plain" else []:
            block[:, ROW_FLOATS // 2 :] = 0

    def __getitem__(self, number: int) -> Block:
        return self._blocks[number % DISTINCT_BLOCKS]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is. A block has 256 KiB."""

    parts: int
    part_blocks: int
    central_blocks: dict[str, int]  # of each producer, by codec
    disk_blocks: int  # the same, where every byte goes to a disk
    part_rows: dict[str, int]  # of 4 KiB
    commits: int
    producers: tuple[int, ...]
    view_parts: int  # more than VIEW_DESCRIPTORS
    round_s: float  # a round takes at least this long, in as many passes as it needs


FULL = Sizes(
    parts=8,
    part_blocks=1024,
    central_blocks={"plain": 1024, "gzip": 128},
    disk_blocks=256,
    part_rows={"4 KiB": 1, "64 MiB": 16_384},
    commits=20,
    producers=(1, 8, 40),
    view_parts=300,
    round_s=0.3,
)
QUICK = Sizes(
    parts=8,
    part_blocks=4,
    central_blocks={"plain": 8, "gzip": 4},
    disk_blocks=8,
    part_rows={"4 KiB": 1, "1 MiB": 256},
    commits=3,
    producers=(1, 4),
    view_parts=120,
    round_s=0.0,
)


class Peer(NamedTuple):
    contender: str
    operation: str
    name: str
    target: float | None = None  # at least this many times its speed; None: listed for context
    few_rounds: bool = False
    ack: str = "process"


@dataclass(frozen=True, slots=True)
class Task:
    """Work of holdfast, and the peers it is compared with in the same rounds."""

    row: str
    key: str
    work: str
    codec: str
    place: Place
    ours: Peer
    peers: tuple[Peer, ...]
    by_time: bool = False  # the target is the ratio of holdfast's time to the peer's, at most
    short_rows: int = 0  # rows that the first block of every part lacks, so that no later chunk can be copied


CONSOLIDATE = Peer("holdfast", "consolidate", "holdfast")
MERGE = Peer("holdfast", "merge", "holdfast")
MERGE_VERIFIED = Peer("holdfast", "merge_verified", "holdfast")
CENTRAL = Peer("holdfast", "central", "holdfast")
ONE_PART = Peer("holdfast", "one_part", "holdfast")


def _against_cat(target: float | None) -> tuple[Peer, ...]:
    return (
        Peer("plain", "cat_synced", "cat, then fsync", target),
        Peer("plain", "cat", "cat alone"),
    )


DIRECT = (  # read_direct_chunk and write_direct_chunk, then fsync
    Peer("plain", "direct_compared", "direct chunk copy, every CRC compared", 0.9),
    Peer("plain", "direct", "direct chunk copy"),
)


def _slabs(target: float | None = None) -> Peer:
    return Peer("plain", "slabs", "h5py, numpy slabs", target, few_rounds=True)


TASKS = (
    Task(
        "1",
        "consolidate-plain",
        "consolidate 8 parts, every CRC checked: plain",
        "plain",
        "tmpfs",
        CONSOLIDATE,
        (*_against_cat(0.6), _slabs()),
    ),
    Task(
        "1",
        "consolidate-gzip",
        "the same: gzip",
        "gzip",
        "tmpfs",
        CONSOLIDATE,
        (*_against_cat(0.6), _slabs(25)),
    ),
    Task("1", "consolidate-lzf", "the same: lzf", "lzf", "tmpfs", CONSOLIDATE, _against_cat(0.45)),
    Task("1", "consolidate-disk", "the same: plain, on a disk", "plain", "disk", CONSOLIDATE, _against_cat(None)),
    Task(
        "2",
        "central-plain",
        "4 producers, central writer, until all is sealed: plain",
        "plain",
        "tmpfs",
        CENTRAL,
        (
            Peer("plain", "append", "h5py, one process", 1.0),
            Peer("plain", "queue", "mp.Queue, h5py writer", 2.0),
        ),
    ),
    Task(
        "2",
        "central-gzip",
        "the same: gzip",
        "gzip",
        "tmpfs",
        CENTRAL,
        (
            Peer("plain", "append", "h5py, one process", 1.3),
            Peer("plain", "queue", "mp.Queue, h5py writer", 2.0),
        ),
    ),
    Task(
        "3",
        "ack-disk",
        '4 producers, central writer, ack="disk", on a disk, until all is sealed: plain',
        "plain",
        "disk",
        CENTRAL._replace(ack="disk"),
        (CENTRAL._replace(name='ack="process"', target=1.5),),
        by_time=True,
    ),
    *(
        Task(
            PART_ROW,
            f"part-{codec}",
            f"one part on a disk, until it is committed: {codec}",
            codec,
            "disk",
            ONE_PART,
            (Peer("plain", "append_synced", "h5py, one process, then fsync", 1.0),),
        )
        for codec in ("plain", "gzip")
    ),
    Task(
        MERGE_ROW,
        "merge-plain",
        "merge files without records, every copied chunk compared: plain",
        "plain",
        "tmpfs",
        MERGE,
        DIRECT,
    ),
    Task(MERGE_ROW, "merge-gzip", "the same: gzip", "gzip", "tmpfs", MERGE, DIRECT),
    Task(
        MERGE_ROW,
        "merge-verified",
        "the same, every chunk of the sources decoded: gzip",
        "gzip",
        "tmpfs",
        MERGE_VERIFIED,
        (DIRECT[0]._replace(target=None),),
    ),
    Task(
        MERGE_ROW,
        "merge-built",
        "merge files that end within a chunk, every value compared: gzip",
        "gzip",
        "tmpfs",
        MERGE,
        (_slabs(),),
        short_rows=1,
    ),
)

ROWS = (*dict.fromkeys(task.row for task in TASKS), COMMIT_ROW, COUNT_ROW)
