"""The rows of benchmarks/write.py: which work, against whom, and how much is wanted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

Place = Literal["tmpfs", "disk"]

COMMIT_ROW, COUNT_ROW = "4", "5"
COMMIT_LIMIT_MS = 10.0
SERVER_SPARE, PRODUCER_LIMIT = 20, 3
VIEW_DESCRIPTORS = 100
PRODUCERS = 4
FEW_ROUNDS = 2  # for those that take many times as long as we do


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is. A block has 256 KiB."""

    parts: int
    part_blocks: int
    central_blocks: dict[str, int]  # of each producer, by codec
    disk_blocks: int  # likewise, where every byte goes to a disk
    part_rows: dict[str, int]  # of 4 KiB
    commits: int
    producers: tuple[int, ...]
    view_parts: int  # more than VIEW_DESCRIPTORS
    turn_s: float  # a turn takes at least this long, in as many passes as it needs


FULL = Sizes(
    parts=8,
    part_blocks=1024,
    central_blocks={"plain": 1024, "gzip": 128},
    disk_blocks=256,
    part_rows={"4 KiB": 1, "64 MiB": 16_384},
    commits=20,
    producers=(1, 8, 40),
    view_parts=300,
    turn_s=0.3,
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
    turn_s=0.0,
)


class Peer(NamedTuple):
    side: str
    operation: str
    name: str
    wanted: float | None = None  # at least this many times its speed; None: listed for context
    few_rounds: bool = False
    ack: str = "process"


@dataclass(frozen=True, slots=True)
class Task:
    """One work of holdfast's, and those it is compared with in the same rounds."""

    row: str
    key: str
    work: str
    codec: str
    place: Place
    ours: Peer
    peers: tuple[Peer, ...]
    by_time: bool = False  # `wanted` is the most times the peer's time that ours may take
    short_rows: int = 0  # that the first block of every part lacks: no later chunk is one of the result


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and every round's seconds. CPU time is of all processes of the side."""

    seconds: float
    bytes_per_s: float | None
    cpu_s: float | None
    rounds_s: list[float]


@dataclass(slots=True)
class Result:
    """One line of the table. `value` is what `wanted` is said of: at least so much, or (`at_most`) no more."""

    row: str
    key: str
    work: str
    peer: str
    wanted: float | None = None
    at_most: bool = False
    unit: Literal["×", " ms", ""] = "×"
    ours: Speed | str | None = None
    theirs: Speed | str | None = None
    value: float | None = None
    cpu_ratio: float | None = None
    met: bool | None = None
    skipped: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def judge(self) -> None:
        if self.wanted is not None and self.value is not None:
            self.met = self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "", {})}


CONSOLIDATE = Peer("write_holdfast", "consolidate", "holdfast")
MERGE = Peer("write_holdfast", "merge", "holdfast")
CENTRAL = Peer("write_holdfast", "central", "holdfast")


def _against_cat(wanted: float | None) -> tuple[Peer, ...]:
    return (
        Peer("write_plain", "cat_synced", "cat, then fsync", wanted),
        Peer("write_plain", "cat", "cat alone"),
    )


def _slabs(wanted: float | None = None) -> Peer:
    return Peer("write_plain", "slabs", "h5py, numpy slabs", wanted, few_rounds=True)


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
    Task(
        "1",
        "merge-gzip",
        "merge the same files without their records, every chunk unpacked: gzip",
        "gzip",
        "tmpfs",
        MERGE,
        (*_against_cat(None), _slabs()),
    ),
    Task(
        "1",
        "merge-built",
        "merge files that end within a chunk, every value compared: gzip",
        "gzip",
        "tmpfs",
        MERGE,
        (_slabs(),),
        short_rows=1,
    ),
    Task("1", "consolidate-disk", "the same: plain, on a disk", "plain", "disk", CONSOLIDATE, _against_cat(None)),
    Task(
        "2",
        "central-plain",
        "4 producers, central writer, until all is sealed: plain",
        "plain",
        "tmpfs",
        CENTRAL,
        (
            Peer("write_plain", "append", "h5py, one process", 1.0),
            Peer("write_plain", "queue", "mp.Queue, h5py writer", 2.0),
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
            Peer("write_plain", "append", "h5py, one process", 1.3),
            Peer("write_plain", "queue", "mp.Queue, h5py writer", 2.0),
        ),
    ),
    Task(
        "3",
        "ack-disk",
        '4 producers, central writer, ack="disk", on a disk, until all is sealed: plain',
        "plain",
        "disk",
        CENTRAL._replace(ack="disk"),
        (CENTRAL._replace(name='ack="process"', wanted=1.5),),
        by_time=True,
    ),
)

ROWS = (*dict.fromkeys(task.row for task in TASKS), COMMIT_ROW, COUNT_ROW)
