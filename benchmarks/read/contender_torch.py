"""torch's DataLoader with two workers over Datasets as a good engineer writes them by hand."""

from __future__ import annotations

import io
import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import h5py
import numpy as np
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from benchmarks.common.contenders import Job, serve
from benchmarks.common.workload import EMBED
from benchmarks.read.data import decode, random_box
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, CHUNK_ROWS, MEAN, SHUFFLE, SIDE, STD, WORKERS

_HEADER, _FOOTER = struct.Struct("<8sI").unpack, struct.Struct("<I").unpack


# ---- tf.train.Example --------------------------------------------------------------------------------------

_PACKAGE = "holdfast.bench"  # its own: the names of TensorFlow's messages may be taken


def _example_class() -> Any:
    """Defines tf.train.Example without TensorFlow, for protobuf's parser in C."""
    file = descriptor_pb2.FileDescriptorProto(name="holdfast_bench_example.proto", package=_PACKAGE, syntax="proto3")
    for name, kind in (("BytesList", "BYTES"), ("FloatList", "FLOAT"), ("Int64List", "INT64")):
        _field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        field = _field(feature, name.replace("List", "_list").lower(), number, "MESSAGE", name)
        field.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "STRING")
    _field(entry, "value", 2, "MESSAGE", "Feature")
    _field(features, "feature", 1, "MESSAGE", "Features.FeatureEntry", repeated=True)
    _field(file.message_type.add(name="Example"), "features", 1, "MESSAGE", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _field(message: Any, name: str, number: int, kind: str, of: str = "", repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=number)
    field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
    proto = descriptor_pb2.FieldDescriptorProto
    field.label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    return field


Example = _example_class()


# ---- TFRecord ----------------------------------------------------------------------------------------------


def records(path: str) -> Iterator[bytes]:
    """Checks both CRCs of every record with a CRC in C."""
    crc_of = google_crc32c.value
    with open(path, "rb", buffering=1 << 20) as file:
        while header := file.read(12):
            length, expected = _HEADER(header)
            if _masked(crc_of(length)) != expected:
                raise ValueError(f"{path}: bad length CRC")
            data = file.read(int.from_bytes(length, "little"))
            if _masked(crc_of(data)) != _FOOTER(file.read(4))[0]:
                raise ValueError(f"{path}: bad data CRC")
            yield data


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class ShuffledRecords(IterableDataset[Any]):
    """A worker interleaves its share of the files through a shuffle buffer."""

    def __init__(self, files: list[str], shuffle: int) -> None:
        self._files, self._shuffle = files, shuffle

    def shuffled(self) -> Iterator[bytes]:
        worker = get_worker_info()
        files = self._files if worker is None else self._files[worker.id :: worker.num_workers]
        buffer: list[bytes] = []
        rng = random.Random(worker.seed if worker else 0)
        for record in interleave([records(path) for path in files]):
            if len(buffer) < self._shuffle:
                buffer.append(record)
                continue
            place = int(rng.random() * self._shuffle)
            yield buffer[place]
            buffer[place] = record
        rng.shuffle(buffer)
        yield from buffer


def interleave(streams: list[Iterator[bytes]]) -> Iterator[bytes]:
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


class ExampleBatches(ShuffledRecords):
    """Parses batches into preallocated arrays: faster than samples and torch's default_collate."""

    def __init__(self, files: list[str], shuffle: int, batch: int, embed: int) -> None:
        super().__init__(files, shuffle)
        self._batch, self._embed = batch, embed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        records: list[bytes] = []
        for record in self.shuffled():
            records.append(record)
            if len(records) == self._batch:
                yield self._parsed(records)
                records = []
        if records:
            yield self._parsed(records)

    def _parsed(self, records: list[bytes]) -> dict[str, Any]:
        count = len(records)
        ids: list[bytes] = []
        label, weight = np.empty(count, np.int64), np.empty(count, np.float32)
        embed = np.empty((count, self._embed), np.float32)
        for row, record in enumerate(records):
            feature = Example.FromString(record).features.feature
            ids.append(feature["id"].bytes_list.value[0])
            label[row] = feature["label"].int64_list.value[0]
            weight[row] = feature["weight"].float_list.value[0]
            embed[row] = feature["embed"].float_list.value
        tensors = {"label": label, "weight": weight, "embed": embed}
        return {"id": ids, **{name: torch.from_numpy(array) for name, array in tensors.items()}}


class ImageRecords(ShuffledRecords):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in self.shuffled():
            feature = Example.FromString(record).features.feature
            image = decode(feature["image"].bytes_list.value[0])
            yield {"image": torch.from_numpy(image.copy()), "label": feature["label"].int64_list.value[0]}


class ResizedRecords(ShuffledRecords):
    """As torchvision's transforms of Pillow images; the draft mode has no scale that suffices."""

    def __init__(self, files: list[str], shuffle: int, is_random: bool) -> None:
        super().__init__(files, shuffle)
        self._is_random = is_random

    def __iter__(self) -> Iterator[dict[str, Any]]:
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        rng = random.Random()
        for record in self.shuffled():
            feature = Example.FromString(record).features.feature
            with Image.open(io.BytesIO(feature["image"].bytes_list.value[0])) as image:
                image.draft("RGB", (SIDE, SIDE))
                box = random_box(rng, *image.size) if self._is_random else None
                resized = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
            pixels = torch.from_numpy(np.array(resized)).float().div_(255).sub_(mean).div_(std)
            yield {"image": pixels, "label": feature["label"].int64_list.value[0]}


# ---- files -------------------------------------------------------------------------------------------------


class ImageFolder(Dataset[Any]):
    """As torchvision's ImageFolder: the classes are the sorted names of the folders."""

    def __init__(self, folder: str) -> None:
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self._samples = [
            (os.path.join(folder, name, file), label)
            for label, name in enumerate(classes)
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        path, label = self._samples[i]
        with open(path, "rb") as file:
            return {"image": torch.from_numpy(decode(file.read()).copy()), "label": label}


# ---- HDF5 --------------------------------------------------------------------------------------------------


class RowByRow(Dataset[Any]):
    """Opens the file in the worker when it is first needed: an h5py handle must not cross a fork."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = None
        with h5py.File(path, "r") as file:
            self._rows = len(file["label"])

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> dict[str, Any]:
        if self._file is None:
            self._file = h5py.File(self._path, "r")
            self._values, self._label = self._file["values"], self._file["label"]
        return {"values": torch.from_numpy(self._values[i]), "label": int(self._label[i])}


class ByBlocks(Sampler[int]):
    """Takes some blocks at a time in random order, and shuffles their rows."""

    def __init__(self, rows: int, block: int, shuffle: int) -> None:
        self._rows, self._block, self._shuffle = rows, block, shuffle

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        starts = (torch.randperm(-(-self._rows // self._block)) * self._block).tolist()
        together = max(1, self._shuffle // self._block)
        for i in range(0, len(starts), together):
            rows = [
                row for start in starts[i : i + together] for row in range(start, min(start + self._block, self._rows))
            ]
            for place in torch.randperm(len(rows)).tolist():
                yield rows[place]


# ---- pipelines ---------------------------------------------------------------------------------------------


def examples(job: Job) -> Batches:
    data = job["data"]
    # Each worker has a shuffle buffer of its own, of half the size.
    dataset = ExampleBatches(job["files"], SHUFFLE[data] // WORKERS, BATCH[data], EMBED)
    return iter(DataLoader(dataset, batch_size=None, num_workers=WORKERS))


def images(job: Job) -> Batches:
    data = job["data"]
    dataset = ImageRecords(job["files"], SHUFFLE[data] // WORKERS)
    return iter(DataLoader(dataset, BATCH[data], num_workers=WORKERS))


def files(job: Job) -> Batches:
    dataset = ImageFolder(job["files"][0])
    return iter(DataLoader(dataset, BATCH["files"], shuffle=True, num_workers=WORKERS))


def resize(job: Job) -> Batches:
    dataset = ResizedRecords(job["files"], SHUFFLE["photos"] // WORKERS, False)
    return iter(DataLoader(dataset, BATCH["photos"], num_workers=WORKERS))


def crop(job: Job) -> Batches:
    dataset = ResizedRecords(job["files"], SHUFFLE["photos"] // WORKERS, True)
    return iter(DataLoader(dataset, BATCH["photos"], num_workers=WORKERS))


def hdf5(job: Job) -> Batches:
    dataset = RowByRow(job["files"][0])
    order = ByBlocks(len(dataset), CHUNK_ROWS, SHUFFLE["hdf5"])
    return iter(DataLoader(dataset, BATCH["hdf5"], sampler=order, num_workers=WORKERS))


def hdf5_anywhere(job: Job) -> Batches:
    dataset = RowByRow(job["files"][0])
    return iter(DataLoader(dataset, BATCH["hdf5"], shuffle=True, num_workers=WORKERS))


def facts() -> dict[str, Any]:
    return {"versions": {"torch": str(torch.__version__), "numpy": np.__version__}}


if __name__ == "__main__":
    serve(operations(examples, images, files, resize, crop, hdf5, hdf5_anywhere), facts)
