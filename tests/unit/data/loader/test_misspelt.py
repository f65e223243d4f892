"""A misspelt column is answered with those there are and the nearest one; a missing file is a FileNotFoundError."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast.errors import DecodeError, HoldfastError, InputError, MissingFileError, SchemaError

SCHEMA = {"image": hold.Bytes(), "label": hold.Int64(), "weight": hold.Float32(2)}
LABLE = {"lable": hold.Int64()}

pytestmark = pytest.mark.formats


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    out = hold.write(folder, SCHEMA)
    for task, format in (("a", "hdf5"), ("b", "tfrecord")):
        with out.part(task, format) as part:  # type: ignore[arg-type]
            part.extend({"image": [b"x"] * 3, "label": np.arange(3), "weight": np.zeros((3, 2), np.float32)})
    hold.convert([folder / "parts" / "b.0.tfrecord"], folder / "c.tar")
    return folder


@pytest.mark.parametrize("name", ["parts/a.0.h5", "parts/b.0.tfrecord"])
def test_reading_a_misspelt_column_names_the_nearest(run: Path, name: str) -> None:
    with pytest.raises(DecodeError, match=r"'lable' is missing.*Did you mean 'label'\?.*: 'image', 'label', 'weight'$"):
        list(hold.read(run / name, schema=LABLE).batch(2))


def test_a_tar_is_answered_with_the_members_of_the_sample(run: Path) -> None:
    with pytest.raises(DecodeError, match=r"no member 'lable.*Did you mean 'label[^']*'\? It has: 'image"):
        list(hold.read(run / "c.tar", schema={"lable": hold.Int64(key="lable.json")}).batch(2))


def test_a_reader_of_a_packed_file_answers_too(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord.gz", {"label": hold.Int64()}, compression="gzip") as writer:
        writer.extend({"label": np.arange(3)})
    with (
        hold.TFRecordReader(tmp_path / "a.tfrecord.gz") as reader,
        pytest.raises(DecodeError, match=r"Did you mean 'label'\? The record has: 'label'$"),
    ):
        list(reader.batches(LABLE, 2))


def test_a_feature_that_is_there_and_empty_is_not_called_misspelt(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"label": hold.Ragged(hold.Int64())}) as writer:
        writer.extend({"label": [[]]})
    with hold.TFRecordReader(tmp_path / "a.tfrecord") as reader, pytest.raises(DecodeError) as caught:
        list(reader.batches({"label": hold.Int64()}, 2))
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("format", ["hdf5", "tfrecord"])
def test_appending_a_misspelt_column_names_the_nearest(run: Path, format: Any) -> None:
    wanted = (
        r"missing \['label'\]; unknown \['lable'\]. Did you mean 'label'\? The schema has: 'image', 'label', 'weight'$"
    )
    with pytest.raises(SchemaError, match=wanted), hold.write(run).part("d", format) as part:
        part.append(image=b"x", lable=1, weight=np.zeros(2, np.float32))


def test_a_name_unlike_all_others_gets_the_list_alone(run: Path) -> None:
    with pytest.raises(DecodeError, match=r"'zzz' is missing. There are: 'image'"):
        list(hold.read(run / "parts" / "a.0.h5", schema={"zzz": hold.Int64()}).batch(2))


# ---- a missing file


OPENERS: dict[str, Callable[[str], Any]] = {
    "read": lambda path: list(hold.read(path).batch(2)),
    "reader": hold.TFRecordReader,
    "records": hold.Records,
    "convert": lambda path: hold.convert([path], f"{path}.out.h5"),
    "write": hold.write,
}


@pytest.mark.parametrize("name", ["a.tfrecord", "a.h5", "a.tar", "no/a-*.tfrecord", "no/folder"])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path, opener: str, name: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(FileNotFoundError) as caught:
        OPENERS[opener](path)
    error = caught.value
    assert isinstance(error, InputError)
    assert (error.errno, error.filename) == (errno.ENOENT, path)
    assert str(error).startswith(f"{path}: ")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.errno, again.filename) == (type(error), str(error), error.errno, path)


def test_it_crosses_processes(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(MissingFileError) as caught:
        pool.submit(hold.TFRecordReader, tmp_path / "a.tfrecord").result()
    assert caught.value.filename == str(tmp_path / "a.tfrecord")


def test_a_file_that_may_not_be_read_is_not_called_missing(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as caught:
        hold.TFRecordReader(tmp_path)
    assert not isinstance(caught.value, FileNotFoundError)
