from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import holdfast as hold


@pytest.fixture
def dataset(tmp_path: Path) -> hold.Dataset:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"id": hold.Int64()}) as writer:
        writer.extend({"id": np.arange(100)})
    return hold.read(tmp_path).batch(10)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_in_a_file(dataset: hold.Dataset) -> None:
    out = io.StringIO()
    with dataset.iterate() as it:
        assert len(list(hold.progress(it, out=out, every=0))) == 10
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[4].startswith("epoch 0: 50 of 100 samples (50 %), ")
    assert lines[-1].startswith("epoch 0: 100 of 100 samples (100 %), ")


def test_one_line_in_a_terminal(dataset: hold.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    assert len(list(hold.progress(dataset, out=out, every=0))) == 10
    text = out.getvalue()
    assert text.count("\n") == 1
    assert {len(line) for line in text.rstrip("\n").split("\r")[1:]} == {59}


def test_a_short_epoch_shows_nothing_in_a_terminal(dataset: hold.Dataset) -> None:
    out = Terminal()
    list(hold.progress(dataset, out=out, every="1min"))
    assert out.getvalue() == ""


def test_a_closed_stderr_stops_nothing(dataset: hold.Dataset) -> None:
    out = io.StringIO()
    batches = hold.progress(dataset, out=out, every=0)
    next(batches)
    out.close()
    with pytest.raises(ValueError, match="closed"):
        out.isatty()
    assert len(list(batches)) == 9


def test_what_has_no_progress_is_refused() -> None:
    with pytest.raises(TypeError, match="got list"):
        hold.progress([])  # type: ignore[arg-type]
