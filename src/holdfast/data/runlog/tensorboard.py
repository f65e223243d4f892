"""Writes a log as TensorBoard event files: TFRecords of tensorflow.Event messages, one run a worker."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from ...schema import Array
from ..formats.tfrecord.writer import TFRecordWriter
from ..loader.dataset import read
from .rows import OWN, check_own, is_presence

_BATCH = 10_000
_DOUBLE, _FLOAT, _VARINT, _BYTES = 1, 5, 0, 2  # protobuf's wire types


class Exported(NamedTuple):
    """paths: the event files; left_out: columns that are no scalars, which TensorBoard would show as other kinds."""

    paths: list[Path]
    values: int
    left_out: list[str]


def export(log: str, folder: str | os.PathLike[str]) -> Exported:
    """Writes the scalars of a log, a `run.hold` or a file merged from it, to FOLDER/worker-00000/events.out.tfevents.*.

    The same log has the same file names: another export replaces the files.
    """
    dataset = read(log)
    schema = dataset.schema
    check_own(schema, log)
    metrics = [name for name in schema if name not in OWN and not is_presence(schema, name)]
    scalars = [name for name in metrics if isinstance(one := schema[name], Array) and not one.shape]
    flags = {name: f"{name}_present" for name in scalars if is_presence(schema, f"{name}_present")}
    columns = [*OWN, *scalars, *flags.values()]
    records: dict[int, list[bytes]] = {}  # of every worker: the rows of a central writer come in any order
    started_s: dict[int, float] = {}
    n_values = 0
    with dataset.select(*columns).shard(None).batch(_BATCH).iterate() as batches:
        for batch in batches:
            for each in zip(*(column.tolist() for column in batch.values()), strict=True):
                row = dict(zip(batch, each, strict=True))
                values = {name: row[name] for name in scalars if name not in flags or row[flags[name]]}
                worker, time_s = row["worker"], row["time_ns"] / 1e9
                if worker not in records:
                    records[worker] = [_event(time_s, 0, (_field(3, _BYTES, b"brain.Event:2")))]
                    started_s[worker] = time_s
                records[worker].append(_event(time_s, row["step"], _summary(values)))
                n_values += len(values)
    paths = []
    for worker, events in sorted(records.items()):
        path = Path(folder) / f"worker-{worker:05d}" / f"events.out.tfevents.{int(started_s[worker]):010d}.holdfast"
        path.parent.mkdir(parents=True, exist_ok=True)
        with TFRecordWriter(path, overwrite=True) as writer:
            for event in events:
                writer.write(event)
        paths.append(path)
    return Exported(paths, n_values, [name for name in metrics if name not in scalars])


# ---- protobuf: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto


def _event(time_s: float, step: int, what: bytes) -> bytes:
    return _field(1, _DOUBLE, struct.pack("<d", time_s)) + _field(2, _VARINT, _varint(step)) + what


def _summary(values: dict[str, Any]) -> bytes:
    each = (_field(1, _BYTES, tag.encode()) + _field(2, _FLOAT, _float(value)) for tag, value in values.items())
    return _field(5, _BYTES, b"".join(_field(1, _BYTES, value) for value in each))


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _field(number: int, kind: int, data: bytes) -> bytes:
    return _varint(number << 3 | kind) + (_varint(len(data)) if kind == _BYTES else b"") + data


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
