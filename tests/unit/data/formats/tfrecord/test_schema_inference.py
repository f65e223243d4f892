"""Counting a record's values without looking at them: the same answer as looking, or none."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.tfrecord.schema_inference import NotAnExample, _features, counted, infer_schema

pytestmark = pytest.mark.formats

SCHEMA = {"a": hold.Int64(), "b": hold.Float32(3), "c": hold.Ragged(hold.Bytes()), "ü": hold.Ragged(hold.Int64())}


def records(path: Path) -> list[bytes]:
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        for i in range(20):
            long = [b"x" * (i * 40)] * i
            writer.append(a=(-1) ** i * 7**i, b=[i, 0, 1], c=long, ü=list(range(i * 20)))
    with hold.TFRecordReader(path) as reader:
        return [bytes(record) for record in reader]


def looked_at(record: bytes) -> dict[str, tuple[int, int]]:
    found: Any = _features(record)
    return {name: (one.kind, one.count) for name, one in found.items()}


def test_the_same_as_looking(tmp_path: Path) -> None:
    for i, record in enumerate(records(tmp_path / "a.tfrecord")):
        assert counted(record) == looked_at(record)
        assert counted(record) == {
            "a": (codec.INT64, 1),
            "b": (codec.FLOAT32, 3),
            "c": (codec.BYTES, i),
            "ü": (codec.INT64, i * 20),
        }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return records(tmp_path_factory.mktemp("counted") / "a.tfrecord")


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_of_damaged_records_none_or_the_same(whole: list[bytes], data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from(whole)))
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(record[: data.draw(st.integers(0, len(record)))])
    found = counted(cut)
    if found is not None:
        try:
            assert found == looked_at(cut)
        except ValueError:
            pass  # it says how many, not whether each of them is good: whoever reads it finds that out


@pytest.mark.parametrize("data", [b"", b"\n", b"\x0a\x05\x0a\x03\x0a\x01a", b"\x12\x00", b"\xff" * 9])
def test_what_is_not_as_usual(data: bytes) -> None:
    assert counted(data) is None


def test_unpacked_numbers_and_values_in_pieces_are_inspected() -> None:
    unpacked = b"\x0a\x0e\x0a\x0c\x0a\x01a\x12\x07\x1a\x05\x08\x01\x08\x02\x08"
    assert counted(unpacked[:-1] + b"\x08") is None
    two = b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x07"
    assert counted(two) == {"a": (codec.INT64, 1)}
    assert infer_schema([two, two]).schema == {"a": hold.Int64()}
    with pytest.raises(NotAnExample, match="record 1 is not"):
        infer_schema([two, b"\xff"])


def test_a_schema_without_examples_takes_no_room_for_them(tmp_path: Path) -> None:
    schema = {"x": hold.Float32(200_000)}
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", schema) as writer:
        writer.append(x=[1.0] * 200_000)
    with hold.TFRecordReader(tmp_path / "a.tfrecord") as reader:
        [record] = [bytes(one) for one in reader]
    tracemalloc.start()
    try:
        found = infer_schema([record], with_examples=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.schema, found.examples) == (schema, {})
    assert peak < len(record)
