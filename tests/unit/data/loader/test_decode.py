"""Dataset.decode: the same pixels from every format and executor, and after a resume; corrupt images are named."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import holdfast as hold
from holdfast.data.loader.pipeline.collate import Slots, collate
from holdfast.errors import InputError, MapError

COUNT = 48


def encoded(number: int) -> bytes:
    """Makes images of different sizes: two of three are JPEGs, the others PNGs."""
    hues = np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(hues).resize((40 + number, 70 - number)).save(out, "PNG" if number % 3 == 2 else "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("images")
    (home / "files").mkdir()
    for shard in range(2):
        mine = range(shard * COUNT // 2, (shard + 1) * COUNT // 2)
        with hold.TFRecordWriter(home / f"{shard}.tfrecord", {"image": hold.Bytes(), "id": hold.Int64()}) as writer:
            writer.extend({"image": [encoded(number) for number in mine], "id": list(mine)})
        with tarfile.open(home / f"{shard}.tar", "w") as tar:
            for number in mine:
                entry = tarfile.TarInfo(f"{number:03}.img")
                entry.size = len(encoded(number))
                tar.addfile(entry, io.BytesIO(encoded(number)))
    for number in range(COUNT):
        (home / "files" / f"{number:03}.jpg").write_bytes(encoded(number))
    return home


def records(folder: Path) -> Any:
    return hold.read(f"{folder}/*.tfrecord")


def ledger(batches: Any) -> list[tuple[int, int]]:
    """Lists the samples by their ids and the checksums of their pixels."""
    return [
        (int(number), zlib.crc32(np.ascontiguousarray(pixels)))
        for batch in batches
        for number, pixels in zip(batch["id"], batch["image"], strict=True)
    ]


def test_every_format_gives_the_pixels_of_decode_image(folder: Path) -> None:
    wanted = [hold.decode_image(encoded(number), size=(16, 24), crop="center") for number in range(COUNT)]
    reads = [(f"{folder}/*.tfrecord", "image"), (f"{folder}/*.tar", "img"), (f"{folder}/files", "data")]
    for paths, column in reads:
        batches = list(hold.read(paths).decode(column, size=(16, 24), crop="center").batch(10))
        assert [batch[column].shape for batch in batches] == [(10, 16, 24, 3)] * 4 + [(8, 16, 24, 3)]
        np.testing.assert_array_equal(np.concatenate([batch[column] for batch in batches]), wanted)
    whole = next(iter(records(folder).decode("image", mode="L")))
    np.testing.assert_array_equal(whole["image"], hold.decode_image(encoded(0), "L"))


def test_crops_are_the_same_wherever_they_run_and_after_a_resume(folder: Path) -> None:
    def dataset(**options: Any) -> Any:
        base = records(folder).shuffle(seed=3)
        return base.decode("image", size=12, crop="random", dtype="float32", mean=0.5, layout="CHW", **options)

    wanted = ledger(dataset().batch(8).iterate(epoch=1))
    assert sorted(number for number, _ in wanted) == list(range(COUNT))
    assert len({checksum for _, checksum in wanted}) == COUNT
    for options in ({"where": "inline"}, {"num_workers": 3}, {"where": "processes", "num_workers": 2}):
        with dataset(**options).batch(8).iterate(epoch=1) as whole:
            assert ledger(whole) == wanted, options
    ranks = [ledger(dataset().shard((rank, 2)).batch(4).iterate(epoch=1)) for rank in range(2)]
    assert [one for pair in zip(*ranks, strict=True) for one in pair] == wanted
    with dataset().batch(8).prefetch(2).iterate(epoch=1) as begun:
        seen = ledger(next(begun) for _ in range(2))
        state = begun.state_dict()
    with dataset(num_workers=1).batch(5).iterate() as resumed:
        resumed.load_state_dict(state)
        seen += ledger(resumed)
    assert seen == wanted
    assert dict(ledger(dataset().batch(8).iterate(epoch=2))) != dict(wanted)


def test_draws_of_a_random_map_are_not_those_of_the_crop(folder: Path) -> None:
    def draws(base: Any) -> list[float]:
        drawn = base.map(lambda sample, rng: {"x": rng.random()}, random=True)
        return [sample["x"] for sample in drawn]

    base = records(folder).shuffle(seed=3)
    assert draws(base.decode("image", size=4, crop="random")) == draws(base)
    crops = [one["image"] for one in base.decode("image", size=4, crop="random").select("image")]
    assert len({one.tobytes() for one in crops}) == COUNT


def test_corrupt_images_are_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "some.tfrecord"
    images = [encoded(number) for number in range(8)]
    images[2], images[5] = images[2][:-60], b"no image"
    with hold.TFRecordWriter(path, {"image": hold.Bytes(), "id": hold.Int64()}) as writer:
        writer.extend({"image": images, "id": list(range(8))})
    with pytest.raises(MapError, match=r"some\.tfrecord.*record 2.*cannot decode an image of"):
        list(hold.read(path).decode("image", size=9).batch(8))
    with hold.read(path).decode("image", size=9, on_error="skip").batch(8).iterate() as batches:
        [batch] = batches
        assert [(one.path, one.record) for one in batches.skipped()] == [(str(path), 2), (str(path), 5)]
    assert batch["id"].tolist() == [0, 1, 3, 4, 6, 7]
    wanted = [hold.decode_image(images[number], size=9) for number in batch["id"]]
    np.testing.assert_array_equal(batch["image"], wanted)
    with pytest.raises(MapError, match="record 5"):
        list(hold.read(path).decode("image", size=9, on_error="skip", max_errors=1).batch(8))


def test_batches_are_written_in_place(folder: Path) -> None:
    """The pixels of a batch are one array, that of the slots: nothing was copied."""
    [batch] = records(folder).decode("image", size=6).batch(COUNT)
    assert type(batch["image"]) is np.ndarray
    assert type(batch["image"].base) is Slots
    slots = Slots((3, 2), np.uint8)
    slots[...] = np.arange(6).reshape(3, 2)
    rows = [slots.row(row) for row in range(3)]
    for kept in ([0, 1], [2, 1, 0], [0, 0, 1]):  # other rows, or in another order: those
        found = collate([{"x": rows[row]} for row in kept])["x"]
        assert found.tolist() == [rows[row].tolist() for row in kept]
        assert not np.shares_memory(found, slots)
    assert collate([{"x": row[:1]} for row in rows])["x"].tolist() == [[0], [2], [4]]


def test_a_batch_that_is_kept_is_not_written_again(folder: Path) -> None:
    """The memory of released batches is used again, and only that."""
    wanted = [batch["image"].tobytes() for batch in records(folder).decode("image", size=6).batch(4).repeat(3)]
    with records(folder).decode("image", size=6, num_workers=2).batch(4).repeat(3).prefetch(2).iterate() as batches:
        addresses, kept = [], []
        for number, batch in enumerate(batches):
            addresses.append(batch["image"].ctypes.data)
            if number % 5 == 0:
                kept.append((number, batch["image"][1:3]))  # a part keeps all of it
    assert len(set(addresses)) < len(addresses)
    assert all(image.tobytes() in wanted[number] for number, image in kept)


def test_wrong_calls(folder: Path) -> None:
    base = records(folder)
    schema = {"image": hold.Bytes(), "id": hold.Int64()}
    with pytest.raises(InputError, match="there is no column 'imgae'. Did you mean 'image'"):
        hold.read(f"{folder}/*.tfrecord", schema).decode("imgae", size=4)
    with pytest.raises(MapError, match="there is no column 'imgae'. Did you mean 'image'"):
        next(iter(base.decode("imgae", size=4)))
    with pytest.raises(MapError, match="expected an encoded image as bytes, got int64"):
        next(iter(base.decode("id", size=4)))
    with pytest.raises(ValueError, match=r"call decode\(\) before batch\(\)"):
        base.batch(4).decode("image", size=4)
    with pytest.raises(ValueError, match="crop goes with a size"):
        base.decode("image", crop="random")
    with pytest.raises(ValueError, match="a random function before it would repeat its result"):
        base.decode("image", size=4, crop="random").cache()
    cached = base.decode("image", size=4).cache().batch(4)
    assert ledger(cached) == ledger(cached)
