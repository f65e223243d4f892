"""torch Datasets as a good engineer writes them by hand. They know nothing of holdfast."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import h5py
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from read_example import Example
from read_images import decode

_HEADER, _FOOTER = struct.Struct("<8sI").unpack, struct.Struct("<I").unpack


# ---- TFRecord ----------------------------------------------------------------------------------------------


def records(path: str) -> Iterator[bytes]:
    """Both CRCs of every record, by a CRC in C."""
    crc_of = google_crc32c.value
    with open(path, "rb", buffering=1 << 20) as file:
        while header := file.read(12):
            length, wanted = _HEADER(header)
            if _masked(crc_of(length)) != wanted:
                raise ValueError(f"{path}: bad length CRC")
            data = file.read(int.from_bytes(length, "little"))
            if _masked(crc_of(data)) != _FOOTER(file.read(4))[0]:
                raise ValueError(f"{path}: bad data CRC")
            yield data


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class ShuffledRecords(IterableDataset[Any]):
    """A worker reads its share of the files, a record of each in turn, through a shuffle buffer."""

    def __init__(self, files: list[str], reach: int) -> None:
        self._files, self._reach = files, reach

    def shuffled(self) -> Iterator[bytes]:
        worker = get_worker_info()
        files = self._files if worker is None else self._files[worker.id :: worker.num_workers]
        buffer: list[bytes] = []
        dice = random.Random(worker.seed if worker else 0)
        for record in in_turn([records(path) for path in files]):
            if len(buffer) < self._reach:
                buffer.append(record)
                continue
            place = int(dice.random() * self._reach)
            yield buffer[place]
            buffer[place] = record
        dice.shuffle(buffer)
        yield from buffer


def in_turn(streams: list[Iterator[bytes]]) -> Iterator[bytes]:
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


class ExampleBatches(ShuffledRecords):
    """Whole batches, parsed into arrays made beforehand: quicker than samples and torch's default_collate."""

    def __init__(self, files: list[str], reach: int, batch: int, embed: int) -> None:
        super().__init__(files, reach)
        self._batch, self._embed = batch, embed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        held: list[bytes] = []
        for record in self.shuffled():
            held.append(record)
            if len(held) == self._batch:
                yield self._parsed(held)
                held = []
        if held:
            yield self._parsed(held)

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


# ---- files -------------------------------------------------------------------------------------------------


class ImageFolder(Dataset[Any]):
    """What torchvision's does: the classes are the folders' names, sorted."""

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
    """Opened in the worker when it is first needed: an h5py handle must not cross a fork."""

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
    """Blocks in random order, some of them at a time, and the rows of those shuffled."""

    def __init__(self, rows: int, block: int, reach: int) -> None:
        self._rows, self._block, self._reach = rows, block, reach

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        starts = (torch.randperm(-(-self._rows // self._block)) * self._block).tolist()
        together = max(1, self._reach // self._block)
        for i in range(0, len(starts), together):
            rows = [
                row for start in starts[i : i + together] for row in range(start, min(start + self._block, self._rows))
            ]
            for place in torch.randperm(len(rows)).tolist():
                yield rows[place]
