"""Logs: rows in, pieces out, replays dropped; and every way to end."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_contents import pieces, rows

import holdfast as hold
from holdfast.data.runlog.logger import log
from holdfast.errors import InputError, SchemaError, TargetExistsError

ENTRY = importlib.import_module("holdfast.data.runlog.logger")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("SLURM", "OMPI", "JAX_")) or name in ("RANK", "WORLD_SIZE", "TF_CONFIG"):
            monkeypatch.delenv(name)


# ---- rows


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    before_ns = time.time_ns()
    grad = np.zeros((2, 3))
    with log(tmp_path, rank=3) as book:
        for step in range(5):
            grad += 1  # one array of theirs, filled again and again
            book(step, loss=0.5 * step, n=step, ok=step > 2, grad=grad, tag=f"s{step}", raw=b"\0", ids=[step, 1])
        assert (book.rows, book.last_step, book.worker) == (5, 4, 3)
    folder = tmp_path / "run.hold"
    out = hold.write(folder)
    assert out.schema == {
        "step": hold.Int64(),
        "worker": hold.Int64(),
        "time_ns": hold.Int64(),
        "loss": hold.Float32(),
        "n": hold.Int64(),
        "ok": hold.Int64(),
        "grad": hold.Float32(2, 3),
        "tag": hold.Bytes(),
        "raw": hold.Bytes(),
        "ids": hold.Int64(2),
    }
    assert rows(folder, "step", "worker", "loss", "n", "ok", "tag", "raw", "ids") == [
        (step, 3, 0.5 * step, step, int(step > 2), b"s%d" % step, b"\0", [step, 1]) for step in range(5)
    ]
    assert [one[0][0][0] for one in rows(folder, "grad")] == [1, 2, 3, 4, 5]
    times = [one[0] for one in rows(folder, "time_ns")]
    assert before_ns <= times[0] <= times[-1] <= time.time_ns()
    assert pieces(folder) == [("log-00003-000000", 5)]


def test_tensors_of_frameworks(tmp_path: Path) -> None:
    import torch

    with log(tmp_path) as book:
        half = torch.tensor([0.25], dtype=torch.bfloat16)
        book(0, loss=torch.tensor(0.5, requires_grad=True), w=torch.ones(2, dtype=torch.int32), f=np.float64(2), h=half)
    assert rows(tmp_path / "run.hold", "loss", "w", "f", "h") == [(0.5, [1, 1], 2.0, [0.25])]


def test_missing_floats_are_nan_and_large_ones_inf(tmp_path: Path) -> None:
    with log(tmp_path) as book:
        book(0, loss=1.0, grad=[1.0, 2.0], n=1)
        book(1, n=2)
        book(2, loss=1e300, grad=[1, 2], n=3)
    got = rows(tmp_path / "run.hold", "step", "loss", "grad")
    assert [one[0] for one in got] == [0, 1, 2]
    assert np.isnan(got[1][1])
    assert np.isnan(got[1][2]).all()
    assert got[2][1:] == (np.inf, [1.0, 2.0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss/x": 1.0}, "column 'loss/x' would lie inside column 'loss'"),
        ({"\udc80": 1.0}, "expected a name that UTF-8 can hold"),
        ({"loss": "x"}, "column 'loss': expected Float32\\(\\), got 'x'"),
        ({"loss": [1.0, 2.0]}, "column 'loss': expected Float32\\(\\), got float64 of the shape \\(2,\\)"),
        ({"loss": object()}, "column 'loss': expected a number, an array of numbers, bytes or str, got object"),
        ({"n": [1.5]}, "column 'n': expected Int64\\(\\), got float64 of the shape \\(1,\\)"),
        ({"n": np.uint64(1 << 63)}, "column 'n': expected Int64\\(\\), got 9223372036854775808"),
        ({"step": 1}, "column 'step': every log has one of this name already"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_next_may_fit(tmp_path: Path, values: Any, said: str) -> None:
    with log(tmp_path) as book:
        book(0, loss=1.0, n=1)
        with pytest.raises(SchemaError, match=said):
            book(1, **{"n": 1, **values})
        book(1, loss=1.0, n=2)
    assert rows(tmp_path / "run.hold", "step", "n") == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"worker": 1}, "column 'worker': every log has one of this name already"),
        ({"x": object()}, "column 'x': expected a number"),
        ({"x": np.zeros((0, 2))}, "column 'x': a shape must consist of positive integers, got 0"),
        ({"x": [[1], [2, 3]]}, "column 'x': cannot make an array of this list"),
        ({"x": 1j}, "column 'x': expected a number, an array of numbers, bytes or str, got complex"),
    ],
)
def test_a_first_row_that_makes_no_sense(tmp_path: Path, values: Any, said: str) -> None:
    with log(tmp_path) as book:
        with pytest.raises(SchemaError, match=said):
            book(0, **values)
    assert not (tmp_path / "run.hold").exists()


# ---- schemas of several workers


def test_another_worker_may_log_less_but_nothing_that_contradicts(tmp_path: Path) -> None:
    with log(tmp_path, rank=0) as book:
        book(0, loss=0.5, acc=0.1)
    with log(tmp_path, rank=1) as book:
        with pytest.raises(SchemaError, match="column 'acc': expected Float32\\(\\), got int64 of the shape \\(2,\\)"):
            book(0, loss=1.0, acc=[1, 2])
        book(0, acc=1, loss=2)  # in another order, and whole numbers for floats
        book(1, loss=3)
    assert sorted(rows(tmp_path / "run.hold", "worker", "loss", "acc_present")) == [(0, 0.5, 1), (1, 2.0, 1), (1, 3, 0)]


def test_a_given_schema(tmp_path: Path) -> None:
    schema = {"loss": hold.Float32(codec="gzip"), "boxes": hold.Ragged(hold.Float32(2)), "pair": hold.Bytes(2)}
    with log(tmp_path, rank=0, schema=schema) as book:
        book(0, boxes=[[1, 2]], pair=["a", b"b"])
        for wrong in ({"boxes": 3}, {"boxes": "text"}, {"pair": "text"}, {"pair": ["a"]}):
            with pytest.raises(SchemaError, match=f"column '{next(iter(wrong))}'"):
                book(1, **{"boxes": [], "pair": ["a", b"b"], **wrong})
        book(1, loss=1, boxes=[], pair=[b"c", b"d"])
    assert rows(tmp_path / "run.hold", "boxes", "pair") == [([[1, 2]], [b"a", b"b"]), ([], [b"c", b"d"])]
    with pytest.raises(SchemaError, match="column 'loss' is Float32"):
        log(tmp_path, rank=1, schema={**schema, "loss": hold.Int64()})
    with pytest.raises(SchemaError, match="column 'time_ns': every log has one"):
        log(tmp_path, rank=1, schema={"time_ns": hold.Int64()})


def test_a_given_schema_of_other_dtypes(tmp_path: Path) -> None:
    schema = {"loss": hold.Array("float64"), "map": hold.Array("uint8", 2), "grad": hold.Array("float16", 2)}
    with log(tmp_path, rank=0, schema=schema) as book:
        book(1, loss=0.1, map=[0, 255], grad=[1, 2])
        book(2, map=np.array([1, 2], np.uint8))
        with pytest.raises(SchemaError, match="column 'map': expected Array.* got 256, which uint8 cannot hold"):
            book(3, map=[0, 256])
    [batch] = hold.read(tmp_path).batch(4)
    assert {name: batch[name].dtype.name for name in schema} == {name: column.dtype for name, column in schema.items()}
    assert batch["loss"][0] == 0.1
    assert np.isnan(batch["loss"][1])
    assert batch["map"].tolist() == [[0, 255], [1, 2]]


def test_a_folder_of_other_data_is_no_log(tmp_path: Path) -> None:
    hold.write(tmp_path / "run.hold", {"x": hold.Int64()})
    with pytest.raises(SchemaError, match="expected a log, got a folder of other data, column 'step' is missing"):
        log(tmp_path)


# ---- columns that come later, or change


@pytest.mark.parametrize("every_rows", [1, 100])  # each row a part of its own, or all in one
def test_a_metric_that_appears_later(tmp_path: Path, every_rows: int) -> None:
    with log(tmp_path, every_rows=every_rows) as book:
        book(0, loss=1.0)
        book(1, loss=float("nan"), acc=0.5, n=7, tag="é", ids=[1, 2], **{"val/loss": 0.25})
        book(2, acc=float("nan"), loss=None)
    folder = tmp_path / "run.hold"
    assert repr(rows(folder, "step", "loss", "loss_present", "acc", "acc_present")) == repr(
        [(0, 1.0, 1, np.nan, 0), (1, np.nan, 1, 0.5, 1), (2, np.nan, 0, np.nan, 1)]
    )
    assert rows(folder, "n", "n_present", "tag", "tag_present", "ids", "val/loss_present") == [
        (0, 0, b"", 0, [0, 0], 0),
        (7, 1, "é".encode(), 1, [1, 2], 1),
        (0, 0, b"", 0, [0, 0], 0),
    ]
    assert len(pieces(folder)) == (3 if every_rows == 1 else 1)
    with log(tmp_path) as book:  # goes on with all of them
        book(3, loss=4.0, acc=0.0, n=1, tag=b"", ids=[0, 0], new=1)
    assert rows(folder, "step", "new", "new_present", "n_present")[2:] == [(2, 0, 0, 0), (3, 1, 1, 1)]
    hold.write(folder).consolidate(tmp_path / "all.h5")
    with hold.read(str(tmp_path / "all.h5")).shard(None).batch(9).iterate() as batches:
        [batch] = batches
    assert batch["loss_present"].tolist() == [1, 1, 0, 1]
    assert batch["tag"].tolist() == [b"", "é".encode(), b"", b""]
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    with pytest.raises(SchemaError, match="written before columns were added, and a view cannot fill in defaults"):
        hold.write(folder).view(tmp_path / "view.h5")


@pytest.mark.parametrize("every_rows", [1, 100])
def test_an_int_that_becomes_a_float(tmp_path: Path, every_rows: int) -> None:
    many = 2**40 + 1  # more than a float of 32 bits can tell from its neighbour
    with log(tmp_path, every_rows=every_rows) as book:
        book(0, lr=many, pair=[1, 2])
        book(1, lr=0.5, pair=[0.5, 2])
        book(2, lr=many, late=1)
        book(3, lr=True, late=1.5)
    assert hold.write(tmp_path / "run.hold").schema["lr"] == hold.Array("float64")
    gap = [np.nan, np.nan]
    assert repr(rows(tmp_path / "run.hold", "lr", "pair", "late", "late_present")) == repr(
        [
            (float(many), [1.0, 2.0], np.nan, 0),
            (0.5, [0.5, 2.0], np.nan, 0),
            (float(many), gap, 1.0, 1),
            (1.0, gap, 1.5, 1),
        ]
    )
    target = tmp_path / "all.h5"
    hold.write(tmp_path / "run.hold").consolidate(target)
    with hold.read(str(target)).shard(None).batch(9).iterate() as batches:
        assert [batch["lr"].tolist() for batch in batches] == [[many, 0.5, many, 1.0]]


def test_ints_of_tfrecord_parts_stay_ints(tmp_path: Path) -> None:
    with log(tmp_path, format="tfrecord", every_rows=1) as book:
        book(0, n=1)
        with pytest.raises(SchemaError, match="column 'n': it has ints in TFRecord parts.* give schema="):
            book(1, n=1.5)
        book(2, n=3, acc=0.5)
    assert repr(rows(tmp_path / "run.hold", "n", "acc")) == repr([(1, np.nan), (3, 0.5)])
    hold.write(tmp_path / "run.hold").consolidate(tmp_path / "all.tfrecord")
    with log(tmp_path, rank=1) as book:  # as HDF5: it cannot be seen before its rows are to be committed
        book(0, n=1.5, acc=1.0)
        with pytest.raises(
            SchemaError, match="column 'n': it has ints in TFRecord parts.* 1 values of it are left out"
        ):
            book.commit()
    assert rows(tmp_path / "run.hold", "worker", "n_present", "acc")[2:] == [(1, 0, 1.0)]


def test_two_workers_add_columns_at_once(tmp_path: Path) -> None:
    """Each learns of the other's when it commits: all are there, and a contradiction costs one worker one column."""
    first, second = log(tmp_path, rank=0), log(tmp_path, rank=1)
    first(0, x=1)
    second(0, x=2)
    first(1, x=1, a=1, c=1, d=[1, 2], f=2)
    second(1, x=2, b=1, c=0.5, d=1, f="text")
    first.close()
    with pytest.raises(
        SchemaError, match="column 'd' is Int64\\(2, default=0\\) there, got Int64\\(.*1 values of it are"
    ):
        second.close()
    found = rows(tmp_path / "run.hold", "worker", "step", "a_present", "b_present", "c", "d")
    assert found[1] == (0, 1, 1, 0, 1.0, [1, 2])
    assert found[-1] == (1, 1, 0, 1, 0.5, [0, 0])  # the rest of the row is there


def test_a_name_that_says_where_another_is(tmp_path: Path) -> None:
    both = (
        "column {0!r}: '{1}_present' says in which rows '{1}' is, so that a log cannot have both as metrics; rename one"
    )
    with log(tmp_path) as book:
        with pytest.raises(SchemaError, match=both.format("y_present", "y")):
            book(0, x=1, y=2, y_present=5)
        book(0, x=1, z_present=5)
        book(1, z_present=6)
        with pytest.raises(SchemaError, match="column 'x_present' says in which rows 'x' is; use another name"):
            book(2, x=1, x_present=3)
        with pytest.raises(SchemaError, match=both.format("z", "z")):
            book(2, x=1, z=0.5)
    assert rows(tmp_path / "run.hold", "x_present", "z_present") == [(1, 5), (0, 6)]
    with pytest.raises(SchemaError, match=both.format("y_present", "y")):
        log(tmp_path, schema={"y_present": hold.Float32(), "y": hold.Int64()})


def test_a_flag_of_one_worker_is_no_metric_of_another(tmp_path: Path) -> None:
    """They learn of each other when they commit: the second loses that metric, and is told its name and the other."""
    first, second, third = (log(tmp_path, rank=rank, on_error="warn") for rank in range(3))
    for one in (first, second, third):
        one(0, x=1)
    first(1, x=1, a=1)
    first(2, x=1, b_present=7)
    second(1, x=2, a_present=0.5)
    second(2, x=2, a_present=1.5, c=1)
    third(1, x=3, b=4)
    third(2, x=3)
    first.close()
    for one, name in ((second, "a"), (third, "b")):
        with pytest.warns(
            RuntimeWarning, match=f"'{name}_present' says in which rows '{name}' is.* values of it are left"
        ):
            one.close()
    found = rows(tmp_path / "run.hold", "worker", "step", "x", "a", "a_present", "b_present", "c")
    assert found == [
        (0, 0, 1, 0, 0, 0, 0), (0, 1, 1, 1, 1, 0, 0), (0, 2, 1, 0, 0, 7, 0),
        (1, 0, 1, 0, 0, 0, 0), (1, 1, 2, 0, 0, 0, 0), (1, 2, 2, 0, 0, 0, 1),
        (2, 0, 1, 0, 0, 0, 0), (2, 1, 3, 0, 0, 0, 0), (2, 2, 3, 0, 0, 0, 0),
    ]  # fmt: skip
    assert "b" not in hold.read(tmp_path / "run.hold").schema


# ---- pieces


def test_rows_are_committed_by_count_and_by_time(tmp_path: Path) -> None:
    with log(tmp_path, every_rows=3) as book:
        for step in range(8):
            book(step, x=1)
            assert len(pieces(tmp_path / "run.hold")) == (step + 1) // 3
        book.commit()
        book.commit()  # nothing to do
    assert [n for _, n in pieces(tmp_path / "run.hold")] == [3, 3, 2]
    with log(tmp_path, name="timed", every=0) as book:
        for step in range(3):
            book(step, x=1)
        assert [n for _, n in pieces(tmp_path / "timed.hold")] == [1, 1, 1]


def test_large_rows_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENTRY, "_PART_BYTES", 1 << 20)
    with log(tmp_path) as book:
        for step in range(4):
            book(step, x=np.zeros(1 << 17))
    assert [n for _, n in pieces(tmp_path / "run.hold")] == [2, 2]


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    """Whatever number of pieces it has: they are counted by halving."""
    for start in range(12):
        with log(tmp_path, rank=0, format="tfrecord" if start % 2 else "hdf5") as book:
            assert book.last_step == (start - 1 if start else None)
            for step in range(start + 1):
                book(step, x=step)
            assert book.dropped == start
    folder = tmp_path / "run.hold"
    assert pieces(folder) == [(f"log-00000-{n:06d}", 1) for n in range(12)]
    assert sorted(rows(folder, "step", "x")) == [(step, step) for step in range(12)]


def test_replays_may_be_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with log(tmp_path, replay="keep") as book:
            for step in (1, 2, 2):
                book(step, x=step)
            assert (book.dropped, book.rows) == (0, 3)
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [1, 2, 2] * 2


def test_a_log_that_dropped_everything_says_so(tmp_path: Path) -> None:
    with log(tmp_path) as book:
        book(7, x=1)
        book(7, x=1)
    with pytest.warns(RuntimeWarning, match="all 2 rows were of steps up to 7, which are in the log already"):
        with log(tmp_path) as book:
            book(6, x=1)
            book(7, x=1)


def test_two_processes_must_not_be_one_worker(tmp_path: Path) -> None:
    first, second = log(tmp_path, rank=0), log(tmp_path, rank=0)
    first(0, x=1)
    second(0, x=2)
    first.close()
    with pytest.raises(TargetExistsError, match="another log of this process logs as worker 0 too: it has"):
        second.close()
    assert rows(tmp_path / "run.hold", "x") == [(1,)]


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, said in [
        ({}, "expected a logdir, or server="),
        ({"logdir": tmp_path, "server": "unix:x"}, "and not both"),
        ({"logdir": tmp_path, "replay": "no"}, "expected replay"),
        ({"logdir": tmp_path, "on_error": "no"}, "on_error"),
        ({"logdir": tmp_path, "every_rows": 0}, "every_rows must be"),
        ({"logdir": tmp_path, "every": -1}, "every="),
        ({"logdir": tmp_path, "rank": -1}, "rank must be"),
        ({"logdir": tmp_path, "name": "a/b"}, "name"),
        ({"logdir": tmp_path, "format": "csv"}, "expected format"),
        ({"logdir": tmp_path, "steps": range(3)}, "steps= is for a central writer"),
        ({"logdir": tmp_path, "timeout": 1.0}, "timeout= is for a central writer"),
        ({"server": "unix:x", "timeout": 0}, "timeout=: expected a time above zero"),
        ({"server": "unix:x", "replay": "keep"}, "is for a logdir"),
        ({"server": "unix:x", "steps": [1]}, "expected steps to be an ascending range"),
    ]:
        with pytest.raises(ValueError, match=said):
            log(**given)  # type: ignore[arg-type]
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}})
    )
    assert log(tmp_path).worker == 1
    config = {"cluster": {"worker": ["a"], "evaluator": ["b"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(InputError, match="is none of the workers: pass name="):
        log(tmp_path)
    log(tmp_path, name="eval").close()
