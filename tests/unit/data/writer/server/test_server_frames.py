"""Frames and segments: what goes in comes out, and what is torn or flipped is never taken for whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.data.writer.factories_rows import SCHEMA, rows

import holdfast as hold
from holdfast._native.checksum import combine
from holdfast._native.codec import crc32c
from holdfast.data.formats.row_buffers import buffers_of
from holdfast.data.formats.tfrecord.column_encoding import batch_maker
from holdfast.data.writer.server.frame_builder import FrameBuilder, WireFrame
from holdfast.data.writer.server.protocol import FrameError, FrameLayout, pack_head, pack_meta, parse_head, parse_meta
from holdfast.data.writer.server.segment import Segment, SegmentView, scan


def packed(frame: WireFrame, producer: str = "p", epoch: int = 1) -> bytes:
    meta = pack_meta(producer, [len(piece) for piece in frame.pieces], frame.crcs)
    head = pack_head(
        meta, flags=frame.flags, epoch=epoch, first=frame.first, rows=frame.rows, payload_bytes=frame.bytes
    )
    return head + b"".join(frame.pieces)


def frame_of(layout: FrameLayout, first: int, count: int) -> WireFrame:
    chunk = FrameBuilder(layout)
    buffers, _ = buffers_of(SCHEMA, rows(first, count))
    assert chunk.add(buffers, 0, count) == count
    return chunk.take(first)


def as_lists(layout: FrameLayout, frame: WireFrame, schema: Any) -> dict[str, Any]:
    payload = memoryview(b"".join(frame.pieces))
    buffers = layout.take(frame.rows, payload, [len(piece) for piece in frame.pieces])
    return {name: column.tolist() for name, column in batch_maker(schema)(buffers, None).items()}


@pytest.mark.parametrize("codec", [None, "gzip", "lzf"])
@pytest.mark.parametrize("start", [0, 3])
def test_rows_of_every_kind_come_out_of_a_frame(codec: Any, start: int) -> None:
    layout = FrameLayout(SCHEMA, 16, codec)
    buffers, _ = buffers_of(SCHEMA, rows(0, 12))
    chunk = FrameBuilder(layout)
    assert chunk.add(buffers, start, 12) == 12
    more, _ = buffers_of(SCHEMA, rows(12, 30))
    assert chunk.add(more, 0, 30) == 4 + start
    assert chunk.is_full
    frame = chunk.take(5)
    assert (frame.first, frame.end, frame.flags) == (5, 21, 1)
    assert as_lists(layout, frame, SCHEMA) == rows(start, 16)


def test_large_rows_make_frames_of_their_own() -> None:
    schema = {"image": hold.Bytes(), "x": hold.Int64()}
    layout = FrameLayout(schema, 64)
    buffers, count = buffers_of(schema, {"image": [bytes([i]) * 1_000_000 for i in range(20)], "x": list(range(20))})
    chunk, got, at = FrameBuilder(layout), [], 0
    while at < count:
        at = chunk.add(buffers, at, count)
        if chunk.is_full or at == count:
            frame = chunk.take(0)
            assert frame.bytes < 9_000_000
            got += as_lists(layout, frame, schema)["x"]
    assert got == list(range(20))


COLUMN = st.sampled_from(
    [
        hold.Int64(),
        hold.Float32(2),
        hold.Bytes(),
        hold.Bytes(2),
        hold.Ragged(hold.Int64(2)),
        hold.Ragged(hold.Bytes()),
        hold.Ragged(hold.Ragged(hold.Float32())),
    ]
)


def value_of(column: Any, number: int) -> Any:
    if isinstance(column, hold.Ragged):
        return [value_of(column.inner, number + i) for i in range(number % 4)]
    if isinstance(column, hold.Bytes):
        return [b"%d" % number, b""] if column.shape else b"s" * (number % 7)
    return [number] * column.count if column.shape else number


@settings(max_examples=40, deadline=None)
@given(
    columns=st.lists(COLUMN, min_size=1, max_size=4), steps=st.lists(st.integers(1, 9), max_size=6), gzip=st.booleans()
)
def test_any_schema_in_any_steps(columns: list[Any], steps: list[int], gzip: bool) -> None:
    schema = {f"c{i}": column for i, column in enumerate(columns)}
    layout = FrameLayout(schema, 8, "gzip" if gzip else None)
    total = sum(steps)
    wanted = {name: [value_of(column, i) for i in range(total)] for name, column in schema.items()}
    chunk, got, first = FrameBuilder(layout), {name: [] for name in schema}, 0  # type: ignore[var-annotated]
    for step in steps:
        buffers, _ = buffers_of(schema, {name: column[first : first + step] for name, column in wanted.items()})
        at, first = 0, first + step
        while at < step:
            at = chunk.add(buffers, at, step)
            if chunk.is_full or (at == step and first == total):
                frame = chunk.take(0)
                for name, column in as_lists(layout, frame, schema).items():
                    got[name] += column
    assert got == wanted


def test_a_flip_anywhere_in_a_head_is_seen() -> None:
    layout = FrameLayout(SCHEMA, 16)
    data = packed(frame_of(layout, 0, 3))
    head = parse_head(data)
    stop = len(data) - head.payload_bytes
    assert parse_meta(head, data).producer == "p"
    for at in range(stop):
        for bit in (1, 16, 128):
            wrong = bytearray(data)
            wrong[at] ^= bit
            with pytest.raises(FrameError):
                again = parse_head(wrong)
                parse_meta(again, wrong)


def made(folder: Path, layout: FrameLayout, frames: list[bytes]) -> Path:
    segment = Segment(folder, 1, 1, {"schema": {}, "chunk_rows": layout.chunk_rows, "codec": None})
    for frame in frames:
        segment.append([frame[:10], frame[10:]], 1)
    segment.close()
    return segment.path


def three() -> tuple[FrameLayout, list[bytes]]:
    layout = FrameLayout(SCHEMA, 4)
    return layout, [packed(frame_of(layout, first, 3)) for first in (0, 3, 6)]


def test_torn_at_every_byte_of_a_frame(tmp_path: Path) -> None:
    layout, frames = three()
    path = made(tmp_path, layout, frames)
    whole = path.read_bytes()
    begins = len(whole) - len(frames[2])
    for size in range(begins, len(whole)):
        os.truncate(path, size) if size == begins else path.write_bytes(whole[:size])
        found = scan(path)
        assert (found.end, found.watermarks, found.resumes) == (begins, {"p": 6}, None)
        assert (found.bad is None) == (size == begins)
    path.write_bytes(whole)
    assert scan(path).watermarks == {"p": 9}


def test_torn_in_the_segments_own_head(tmp_path: Path) -> None:
    layout, frames = three()
    path = made(tmp_path, layout, frames[:1])
    whole = path.read_bytes()
    for size in range(len(whole) - len(frames[0])):
        path.write_bytes(whole[:size])
        assert (scan(path).watermarks, scan(path).end) == ({}, 0)


def test_a_flip_in_any_byte_of_a_segment_is_seen_and_is_no_torn_tail(tmp_path: Path) -> None:
    layout, frames = three()
    path = made(tmp_path, layout, frames)
    whole = path.read_bytes()
    begins = len(whole) - len(frames[2]) - len(frames[1])
    for at in range(begins, begins + len(frames[1])):
        wrong = bytearray(whole)
        wrong[at] ^= 4
        path.write_bytes(wrong)
        found = scan(path)
        assert (found.end, found.watermarks) == (begins, {"p": 3})
        assert found.resumes == len(whole) - len(frames[2])


def test_a_segment_cuts_what_it_could_not_write(tmp_path: Path) -> None:
    _, frames = three()
    segment = Segment(tmp_path, 1, 1, {})
    segment.append([frames[0]], 1)
    end = segment.end
    with pytest.raises(BufferError):
        segment.append([memoryview(np.zeros((4, 4))[:, 0])], 1)  # nothing that can be written
    assert segment.end == end
    segment.append([frames[1]], 1)
    segment.close()
    assert scan(segment.path).watermarks == {"p": 6}
    with SegmentView(segment.path) as view:
        assert [placed.head.first for placed in view.frames()] == [0, 3]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_are_joined(one: bytes, other: bytes) -> None:
    assert combine(crc32c(one), crc32c(other), len(other)) == crc32c(one + other)
