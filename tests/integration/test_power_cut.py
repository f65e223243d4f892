"""Power cuts while files are written: what was acknowledged is there, and what is there is right.

Run as a program, this file is one of the writers whose system calls are recorded (power_cut.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast._util.atomic import write_atomically
from holdfast.cli.app import run
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.data.formats.tfrecord.merge import merge_files
from holdfast.data.formats.tfrecord.split import split_files
from holdfast.data.writer.server.journal import Journal
from holdfast.data.writer.server.leader_epoch import LeaderEpoch
from holdfast.errors import MissingFileError, TargetExistsError
from power_cut import PowerCut, State, check_replay, power_cuts, rebuild, record

SCHEMA = {"label": hold.Int64(), "text": hold.Bytes()}
ROWS = 40

Ack = Callable[[str], object]


def batch(number: int) -> dict[str, Any]:
    labels = np.arange(ROWS) + 1000 * number
    return {"label": labels, "text": [b"%d" % label * 60 for label in labels.tolist()]}


def check_rows(where: Path, numbers: list[int]) -> None:
    """Checks that a file has the rows of these batches, in order."""
    got = [
        text
        for one in hold.read(where, {"text": hold.Bytes()}).shard(None).batch(100).iterate()
        for text in one["text"]
    ]
    assert [bytes(text) for text in got] == [text for number in numbers for text in batch(number)["text"]], where


# ---- the writers: each acknowledges what is durable, and can be run again after a power cut


def write_files(top: Path, ack: Ack) -> None:
    for name, number in (("a.tfrecord", 1), ("b.tfrecord.gz", 2), ("a.tfrecord", 3)):
        with hold.TFRecordWriter(top / name, SCHEMA, overwrite=True) as writer:
            writer.extend(batch(number))
        ack(f"{name} {number}")


def check_files(top: Path, acks: tuple[str, ...]) -> None:
    latest = dict(ack.split() for ack in acks)
    assert latest.keys() <= {path.name for path in top.iterdir()}, "a file is lost"
    for path in top.glob("[!.]*"):
        [one] = hold.read(path, SCHEMA).shard(None).batch(100).iterate()
        number = int(one["label"][0]) // 1000
        check_rows(path, [number])
        assert number >= int(latest.get(path.name, 0)), f"the last version of {path} is lost"


def write_parts(top: Path, ack: Ack) -> None:
    out = hold.write(top / "new/deep/run.hold", SCHEMA)
    for number, kind in enumerate(("hdf5", "tfrecord", "hdf5")):
        with out.part(f"task{number}", kind) as part:
            if not part.done:
                part.extend(batch(number))
        ack(f"task{number}")


def write_parts_without_threads(top: Path, ack: Ack) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    real, threading.Thread.start = threading.Thread.start, start
    try:
        write_parts(top, ack)
    finally:
        threading.Thread.start = real


def check_parts(top: Path, acks: tuple[str, ...]) -> None:
    try:
        out = hold.write(top / "new/deep/run.hold")
    except MissingFileError:
        assert not acks, "the dataset directory is lost"
        return
    there = {one.task: one for one in out.parts()}
    assert set(acks) <= set(there), "a part is lost"
    assert out.verify().ok, out.verify()
    for task, one in there.items():
        check_rows(out.path_of(one), [int(task.removeprefix("task"))])


def write_centrally(top: Path, ack: Ack, segment_bytes: int = 6000, names: Sequence[str] = ("label", "text")) -> None:
    out = hold.write(top / "run.hold", {name: SCHEMA[name] for name in names})
    with out.server(ack="disk", segment_bytes=segment_bytes, codec="none") as server:
        for producer in ("left", "right"):
            with hold.connect(server.address, producer=producer) as rows:
                for number in range(rows.next_seq // ROWS, 3):
                    for i in range(rows.next_seq % ROWS, ROWS):
                        rows.append(**{name: batch(number)[name][i] for name in names})
                    rows.commit()
                    ack(f"{producer} {number + 1}")


def write_centrally_in_place(top: Path, ack: Ack) -> None:
    """Writes segments that become parts without a copy."""
    write_centrally(top, ack, 2 << 20, ["label"])


def check_centrally(top: Path, acks: tuple[str, ...]) -> None:
    if not (top / "run.hold/schema.json").exists():
        assert not acks, "the dataset directory is lost"
        return
    out = hold.write(top / "run.hold")
    epoch = LeaderEpoch(out.folder)
    journal = Journal(out.folder, epoch.number, {})
    journal.close()
    epoch.close()
    rows: Counter[str] = Counter()
    for segment in journal.closed:
        rows.update({producer: mark - segment.before[producer] for producer, mark in segment.after.items()})
    for part in out.parts():
        for producer, _, n in part.runs:
            rows[producer] += n
    assert rows == Counter(journal.watermarks)
    for producer, number in (ack.split() for ack in acks):
        assert rows[producer] >= ROWS * int(number), f"rows of {producer} are lost"
    assert out.verify().ok, out.verify()


def write_log(top: Path, ack: Ack) -> None:
    with warnings.catch_warnings(), hold.log(top, rank=0, name="run", every=1e6) as log:
        warnings.simplefilter("ignore")  # all rows are in the log already
        for step in range(6):
            log(step, loss=0.5 * step)
            if step % 2:
                log.commit()
                ack(str(step))


def check_log(top: Path, acks: tuple[str, ...]) -> None:
    [folder] = [*top.glob("*")] or [None]
    steps: list[int] = []
    if folder is not None and (folder / "schema.json").exists() and hold.write(folder).parts():
        schema = {"step": hold.Int64(), "loss": hold.Float32()}
        for one in hold.read(folder, schema).shard(None).batch(100).iterate():
            steps += one["step"].tolist()
            assert (one["loss"] == 0.5 * one["step"]).all()
    assert steps == list(range(len(steps)))
    assert len(steps) > int(acks[-1] if acks else -1), "rows of the log are lost"


def write_split(top: Path, ack: Ack) -> None:
    split_files([top.parent / "in0.tfrecord", top.parent / "in1.tfrecord"], top / "new/split", parts=3)
    ack("split")


def check_split(top: Path, acks: tuple[str, ...]) -> None:
    if acks:
        check_rows(top / "new/split", [0, 1])


def write_converted(top: Path, ack: Ack) -> None:
    for name in ("h/one.h5", "t/many.tar", "r/one.tfrecord"):
        hold.convert(top.parent / "in0.tfrecord", top / name, SCHEMA, overwrite=True)
        ack(name)


def check_converted(top: Path, acks: tuple[str, ...]) -> None:
    for name in acks:
        assert (top / name).exists(), f"{name} is lost"
    for path in top.glob("*/[!.]*"):
        if path.suffix in (".h5", ".tar", ".tfrecord"):
            check_rows(path, [0])


def write_merged(top: Path, ack: Ack) -> None:
    inputs = [top.parent / f"in{number}.h5" for number in range(3)]
    merge_hdf5(inputs, top / "merged.h5", overwrite=True)
    ack("merged.h5")
    merge_files([path.with_suffix(".tfrecord") for path in inputs], top / "merged.tfrecord", overwrite=True)
    ack("merged.tfrecord")


def check_merged(top: Path, acks: tuple[str, ...]) -> None:
    for name in ("merged.h5", "merged.tfrecord"):
        if name in acks or (top / name).exists():
            check_rows(top / name, [0, 1, 2])


def write_consolidated(top: Path, ack: Ack, name: str = "all.h5") -> None:
    out = hold.write(top / "run.hold", SCHEMA)
    for number in range(2):
        with out.part(f"task{number}", format="hdf5" if name == "all.h5" else "tfrecord") as part:
            if not part.done:
                part.extend(batch(number))
    ack("parts")
    with contextlib.suppress(TargetExistsError):  # some or all parts were deleted: it is complete
        if out.parts():
            out.consolidate(top / name, delete_parts=True, overwrite=True)
    ack(name)


def check_consolidated(top: Path, acks: tuple[str, ...], name: str = "all.h5") -> None:
    if (top / name).exists():
        check_rows(top / name, [0, 1])
    elif acks:
        assert name not in acks, "the file is lost"
        check_rows(top / "run.hold", [0, 1])
    if acks:
        out = hold.write(top / "run.hold")
        assert all(out.part(f"task{number}").done for number in range(2)), "a task is lost"


def corrupt_bytes(top: Path) -> tuple[bytes, int]:
    """Returns a file whose first record is corrupt, and the size of that record's frame."""
    data = (top.parent / "in0.tfrecord").read_bytes()
    return data[:20] + b"!" + data[21:], int.from_bytes(data[:8], "little") + 16


def write_salvaged(top: Path, ack: Ack) -> None:
    path = top / "a.tfrecord"
    if not path.exists():
        write_atomically(path, corrupt_bytes(top)[0])
    ack("corrupt")
    assert run(["salvage", "--in-place", "--quiet", str(path)]) == 0
    ack("salvaged")


def check_salvaged(top: Path, acks: tuple[str, ...]) -> None:
    there = {path.name: path.read_bytes() for path in top.glob("[!.]*")}
    corrupt, size = corrupt_bytes(top)
    if acks or there:
        before = [{"a.tfrecord": corrupt}, {"a.tfrecord": corrupt, "a.tfrecord.corrupt": corrupt}]
        after = {"a.tfrecord": corrupt[size:], "a.tfrecord.corrupt": corrupt}
        assert there in ([after] if "salvaged" in acks else [*before, after])


WRITERS = {
    "files": (write_files, check_files),
    "parts": (write_parts, check_parts),
    "parts without threads": (write_parts_without_threads, check_parts),
    "central": (write_centrally, check_centrally),
    "central in place": (write_centrally_in_place, check_centrally),
    "log": (write_log, check_log),
    "split": (write_split, check_split),
    "converted": (write_converted, check_converted),
    "merged": (write_merged, check_merged),
    "consolidated": (write_consolidated, check_consolidated),
    "consolidated records": (
        partial(write_consolidated, name="all.tfrecord"),
        partial(check_consolidated, name="all.tfrecord"),
    ),
    "salvaged in place": (write_salvaged, check_salvaged),
}
OTHERS = {
    "merged": 4,
    "consolidated": 4,
    "consolidated records": 4,
}  # power cuts of each kind, beside those after an acknowledgement
RESTARTS = {"split": 0, "merged": 5, "consolidated": 5, "central": 3, "central in place": 3}  # of them; 0: it refuses


@pytest.mark.needs("strace")
@pytest.mark.parametrize("writer", WRITERS)
def test_everything_acknowledged_survives_a_power_cut(tmp_path: Path, writer: str) -> None:
    write, check = WRITERS[writer]
    top = tmp_path / "top"
    top.mkdir()
    for number in range(3):
        make_inputs(tmp_path, number)
    calls = record([sys.executable, __file__, writer, str(top)])
    check_replay(calls, top)

    found = power_cuts(calls, top, others=OTHERS.get(writer, 7))
    everything = max((cut.acks for cut in found), key=len)
    restarts = random.Random(1).sample(range(len(found)), RESTARTS.get(writer, 7))
    for number, cut in enumerate(found):
        start_from(cut.state, top)
        try:
            check(top, cut.acks)
            if number in restarts:
                write(top, lambda ack: None)
                check(top, everything)
        except Exception as error:
            raise AssertionError(cut.what) from error

    # The test is able to fail: a loss is noticed without the syncs, of files as well as of folders.
    for of_folders in (False, True):
        lossy = power_cuts(calls, top, lambda node, drop=of_folders: node.is_folder != drop, cuts=["nothing unsynced"])
        assert any(is_lost(cut, top, check) for cut in lossy), (
            f"without syncs of {'folders' if of_folders else 'files'}"
        )


def start_from(state: State, top: Path) -> None:
    shutil.rmtree(top)
    rebuild(state, top)


def is_lost(cut: PowerCut, top: Path, check: Callable[[Path, tuple[str, ...]], None]) -> bool:
    start_from(cut.state, top)
    try:
        check(top, cut.acks)
    except (AssertionError, hold.HoldfastError):
        return True
    return False


def make_inputs(folder: Path, number: int) -> None:
    path = folder / f"in{number}.tfrecord"
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend(batch(number))
    hold.convert(path, path.with_suffix(".h5"), SCHEMA)


if __name__ == "__main__":
    WRITERS[sys.argv[1]][0](Path(sys.argv[2]), lambda ack: os.write(1, f"ack {ack}\n".encode()))
