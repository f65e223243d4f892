"""Logs that cannot be written, for now or for good."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_contents import pieces, rows

import holdfast as hold
from holdfast.data.runlog.logger import log
from holdfast.data.runlog.part_sink import PartSink
from holdfast.data.writer.commit import Commit
from holdfast.errors import InputError, SchemaError, WriteError
from holdfast.schema import Column

ENTRY = importlib.import_module("holdfast.data.runlog.logger")


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """While there is an error in the list, commits raise it."""
    errors: list[Exception] = []
    commit = PartSink._commit

    def failing(self: PartSink) -> None:
        if errors:
            raise errors[0]
        commit(self)

    monkeypatch.setattr(PartSink, "_commit", failing)
    return errors


def test_a_write_that_fails_is_an_error_and_loses_nothing(tmp_path: Path, fails: list[Exception]) -> None:
    with log(tmp_path, every_rows=2) as book:
        book(0, x=1)
        fails.append(WriteError("no space"))
        with pytest.raises(WriteError, match="no space"):
            book(1, x=1)
        book(2, x=1)
        fails.clear()
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1, 2]


def test_it_may_be_a_warning(tmp_path: Path, fails: list[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    with log(tmp_path, every_rows=2, on_error="warn") as book:
        book(0, x=[1.0] * 1000)
        fails.append(WriteError("no space"))
        with pytest.warns(RuntimeWarning, match="worker 0: what was logged cannot be written now: no space"):
            book(1, x=[1.0] * 1000)
        fails.clear()
        book(2, x=[1.0] * 1000)
        book(3, x=[1.0] * 1000)  # due again
        assert (book.lost, pieces(tmp_path / "run.hold")) == (0, [("log-00000-000000", 4)])
        monkeypatch.setattr(ENTRY, "_MAX_BUFFER_BYTES", 5000)
        fails.append(WriteError("no space"))
        book(4, x=[1.0] * 1000)
        with pytest.warns(RuntimeWarning, match="no space"):
            book(5, x=[1.0] * 1000)
        assert book.lost == 2
        fails.clear()
        book(6, x=[1.0] * 1000)
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1, 2, 3, 6]


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").write_text("a file")
    with log(tmp_path / "logs") as book:
        with pytest.raises(WriteError, match="expected a directory, but this or a parent is a file"):
            book(0, x=1)
    with log(tmp_path / "logs", on_error="warn", every=3600) as book:
        with pytest.warns(RuntimeWarning, match="cannot be written now: .* expected a directory"):
            book(0, x=1)
        (tmp_path / "logs").unlink()
        book(1, x=1)  # it is not tried again at every row
        book._not_before_s = 0
        book(2, x=1)
        assert (book.lost, book.rows) == (0, 3)
    assert rows(tmp_path / "logs" / "run.hold", "step") == [(0,), (1,), (2,)]


def test_a_commit_that_was_one_after_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be synced, which is an error; the rows are there, and are not written again."""
    run = Commit.run

    def unsynced(self: Commit, *given: Any) -> Any:
        run(self, *given)
        raise WriteError("may not be on disk for good")

    with log(tmp_path, every_rows=2) as book:
        with monkeypatch.context() as patched:
            patched.setattr(Commit, "run", unsynced)
            book(0, x=1)
            with pytest.raises(WriteError, match="for good"):
                book(1, x=1)
        book(2, x=1)
    assert pieces(tmp_path / "run.hold") == [("log-00000-000000", 2), ("log-00000-000001", 1)]
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1, 2]


def test_rows_given_up_are_not_taken_for_those_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given up had been committed after all: the rows behind it must not go in its stead."""
    run = Commit.run

    def unsynced(self: Commit, *given: Any) -> Any:
        run(self, *given)
        raise WriteError("may not be on disk for good")

    monkeypatch.setattr(ENTRY, "_MAX_BUFFER_BYTES", 1)
    with log(tmp_path, every_rows=2, on_error="warn") as book:
        with monkeypatch.context() as patched:
            patched.setattr(Commit, "run", unsynced)
            book(0, x=1)
            with pytest.warns(RuntimeWarning, match="for good"):
                book(1, x=1)
        for step in range(2, 5):
            book(step, x=1)
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1, 2, 3, 4]


def test_an_earlier_try_that_came_through_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost, and it was there when the next one was about to commit: nobody else logs here."""
    run = Commit.run

    def late(self: Commit, *given: Any) -> Any:
        run(self, *given)
        (tmp_path / "run.hold" / "parts" / ".log-00000-000000.json").rename(tmp_path / "claim")
        (tmp_path / "run.hold" / "parts" / "log-00000-000000.0.json").unlink()
        raise WriteError("no answer")

    def second(self: Commit, *given: Any) -> Any:
        if (tmp_path / "claim").exists():
            (tmp_path / "claim").rename(tmp_path / "run.hold" / "parts" / ".log-00000-000000.json")
        return run(self, *given)

    with log(tmp_path, every_rows=2) as book:
        monkeypatch.setattr(Commit, "run", late)
        book(0, x=1)
        with pytest.raises(WriteError, match="no answer"):
            book(1, x=1)
        monkeypatch.setattr(Commit, "run", second)
        book(2, x=1)
    assert pieces(tmp_path / "run.hold") == [("log-00000-000000", 2), ("log-00000-000001", 1)]
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1, 2]


def test_a_step_that_is_no_int64_does_not_cost_the_others(tmp_path: Path) -> None:
    with log(tmp_path) as book:
        book(0, x=1)
        with pytest.raises(SchemaError, match="column 'step': expected Int64"):
            book(1 << 63, x=1)
        book(1, x=1)
    assert [one[0] for one in rows(tmp_path / "run.hold", "step")] == [0, 1]


def test_rows_that_fit_one_by_one_fit_together(tmp_path: Path) -> None:
    schema: dict[str, Column] = {"box": hold.Ragged(hold.Float32(2)), "text": hold.Bytes()}
    with log(tmp_path, schema=schema) as book:
        book(0, box=np.array([]), text="é")
        with pytest.raises(SchemaError, match="column 'text'"):
            book(1, box=[], text="\udc80")
        book(1, box=np.ones((3, 2)), text=bytearray(b"x"))
        book(2, box=[], text=b"")
    found = rows(tmp_path / "run.hold", "step", "box", "text")
    assert found == [(0, [], "é".encode()), (1, [[1, 1]] * 3, b"x"), (2, [], b"")]


def test_no_name_is_not_the_root_folder() -> None:
    with pytest.raises(ValueError, match="expected the name of a folder as logdir, got an empty one"):
        log("")


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_it_goes_on_behind_parts_that_were_merged_and_deleted(tmp_path: Path, kind: Any) -> None:
    for rank, steps in ((0, 5), (1, 9)):
        with log(tmp_path, rank=rank, format=kind) as book:
            for step in range(steps):
                book(step, x=1)
    target = tmp_path / ("all.h5" if kind == "hdf5" else "all.tfrecord")
    hold.write(tmp_path / "run.hold").consolidate(target, delete_parts=True)
    with log(tmp_path, rank=0, format=kind) as book:
        assert book.last_step == 4
        for step in range(3, 7):
            book(step, x=1)
        assert book.dropped == 2
    assert rows(tmp_path / "run.hold", "worker", "step") == [(0, 5), (0, 6)]
    target.unlink()
    with pytest.raises(InputError, match="the rows of worker 1 were moved into .*/all.* which no longer exists"):
        log(tmp_path, rank=1, format=kind)


# ---- on_error="warn" in a training loop


class Hostile:
    """Nothing can be made of it, and it says so with any error."""

    def __array__(self, *_: Any) -> Any:
        raise KeyError("no")

    def __repr__(self) -> str:
        raise KeyError("no")


def test_no_value_raises_and_the_rest_of_its_row_is_logged(tmp_path: Path) -> None:
    import torch

    strange: list[Any] = [
        object(), Hostile(), 1j, [[1], [2, 3]], np.zeros((0, 2)), "\udc80", 1 << 80, {"a": 1}, lambda: 0, "text", b"",
        torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse(), torch.tensor(1j), torch.tensor([1.0]),
        np.datetime64(0, "s"),
    ]  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with log(tmp_path, on_error="warn", every_rows=7) as book:
            book(0, x=1.0)
            for step, value in enumerate(strange * 3, 1):
                book(step, x=value, y=step)
            for given in ("seven", 1.5, None, 1 << 80):
                book(given, x=1.0)  # type: ignore[arg-type]
            book(1000, x=float("nan"), y=None, step=1, worker=2, **{"": 1, "x/y": 1, "\udc80": 1, "y_present": 1})
            book(1001, x=torch.tensor(2.0), y=3)
            assert (book.lost, book.left_out, book.rows) == (4, 3 * len(strange) + 6, 3 * len(strange) + 3)
        book(1002, x=1.0)
        book.commit()
        assert book.lost == 5
    n = 3 * len(strange)
    assert repr(rows(tmp_path / "run.hold", "step", "x", "x_present", "y", "y_present")) == repr(
        [
            (0, 1.0, 1, 0, 0),
            *((step, np.nan, 0, step, 1) for step in range(1, n + 1)),
            (1000, np.nan, 1, 0, 0),
            (1001, 2.0, 1, 3, 1),
        ]
    )
    said = [str(one.message) for one in caught]
    assert len(said) == len(set(said)) <= len(strange) + 15  # each kind once, not each step
    assert {one.filename for one in caught} == {__file__}
    assert any("worker 0: this value is left out: column 'x': cannot make an array of this list" in one for one in said)
    assert any(
        "this row is not logged: TypeError: 'str' object cannot be interpreted as an integer" in one for one in said
    )
    assert any("this row is not logged: worker 0: this log is closed" in one for one in said)


@pytest.mark.needs("unshare")
def test_no_trouble_of_a_disk_raises_or_loses_a_row(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=3M none "$0" && exec "$@"'
    child = Path(__file__).with_name("log_trouble_child.py")
    command = ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), sys.executable, str(child), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, reason in [
        ("full", "No space left on device"),
        ("readonly", "Read-only file system"),
        ("emfile", "Too many open files|no file descriptor"),
        ("gone", "removed|No such file|gone"),
    ]:
        one = found[name]
        assert re.search(f"worker 0: what was logged cannot be written now: .*({reason})", one["said"][0]), one
        assert len(one["said"]) <= 3, one["said"]  # of ten steps in trouble
        assert one["mine"]
        # What was there went with the folder; all else is there, once.
        assert (one["steps"], one["lost"]) == ([*range(5 if name == "gone" else 0, 20)], 0), name


def test_what_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    hold.write(tmp_path / "run.hold", {"x": hold.Int64()})  # a folder of other data
    grad = np.zeros(2)
    with pytest.warns(RuntimeWarning, match="cannot be written now: .*expected a log, got a folder of other data"):
        book = log(tmp_path, on_error="warn", every=3600)
    with book:
        for step in range(3):
            grad += 1
            book(step, grad=grad, text="a")
        shutil.rmtree(tmp_path / "run.hold")
        book(3, grad=grad, late=1)
        book.commit()
        book(4, grad=grad, late=2)
        assert (book.lost, book.rows) == (0, 5)
    assert rows(tmp_path / "run.hold", "step", "grad", "late") == [
        (step, [min(step, 2) + 1.0] * 2, max(step - 2, 0)) for step in range(5)
    ]


def test_a_second_process_of_one_rank_is_warned_and_raises_nothing(tmp_path: Path) -> None:
    first, second = (log(tmp_path, rank=0, every_rows=2, on_error="warn") for _ in range(2))
    first(0, x=1)
    second(0, x=2)
    first(1, x=1)
    with pytest.warns(
        RuntimeWarning, match="another log of this process logs as worker 0 too: .*give each worker"
    ) as caught:
        for step in range(1, 6):
            second(step, x=2)
        second.close()
    first.close()
    assert (len(caught), second.lost, rows(tmp_path / "run.hold", "x")) == (1, 6, [(1,), (1,)])


def test_a_forked_child_is_warned_and_the_parent_has_its_rows(tmp_path: Path) -> None:
    with log(tmp_path, on_error="warn") as book:
        book(0, x=1)
        child = os.fork()
        if child == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                book(1, x=2)
                book.commit()
                book.close()
            os._exit(0 if len(caught) == 2 and book.lost == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        book(1, x=3)
    assert rows(tmp_path / "run.hold", "x") == [(1,), (3,)]
