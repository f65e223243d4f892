"""HDF5 files as shards: what becomes which column, whose handle is used, and what is said when it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.shard import HDF5Shard
from holdfast.data.formats.registry import open_shard
from holdfast.errors import CorruptError, DataError, DecodeError, FormatError, InputError, UnfinishedError


def made(folder: Path, **datasets: Any) -> Path:
    path = folder / "data.h5"
    with h5py.File(path, "x") as file:
        for name, data in datasets.items():
            file.create_dataset(name, data=data)
    return path


def vlen(path: Path, name: str, rows: list[list[Any]], dtype: Any) -> None:
    with h5py.File(path, "a") as file:
        dataset = file.create_dataset(name, (len(rows),), dtype=h5py.vlen_dtype(dtype))
        for i, row in enumerate(rows):
            dataset[i] = np.array(row, dtype)


def descriptors_of(path: Path) -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # the listing's own
    return links.count(str(path))


class TestColumns:
    def test_lists_are_ragged(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(3))
        vlen(path, "boxes", [[1, 2], [], [3, 4, 5, 6]], np.float32)
        with open_shard(path) as shard:
            assert shard.schema == {"boxes": hold.Ragged(hold.Float32()), "x": hold.Int64()}
            batch = shard.read(0, 3, {"boxes": hold.Ragged(hold.Float32(2))})
            assert batch["boxes"].tolist() == [[[1, 2]], [], [[3, 4], [5, 6]]]

    def test_lists_of_another_size_are_refused(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(2))
        vlen(path, "boxes", [[1, 2], [3]], np.float32)
        with open_shard(path) as shard:
            with pytest.raises(DecodeError, match="'boxes' expected lists of a multiple of 2 values, got 1"):
                shard.read(0, 2, {"boxes": hold.Ragged(hold.Float32(2))})

    def test_a_row_of_uint8_as_bytes(self, tmp_path: Path) -> None:
        image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        with open_shard(made(tmp_path, image=image)) as shard:
            assert shard.schema == {"image": hold.Array("uint8", 3, 4)}
            got = shard.read(0, 2, {"image": hold.Bytes()})["image"]
            assert got.tolist() == [image[0].tobytes(), image[1].tobytes()]

    def test_groups_and_keys(self, tmp_path: Path) -> None:
        path = made(tmp_path, **{"train/label": np.arange(4), "version": 3})
        with open_shard(path) as shard:
            assert list(shard.schema) == ["train/label"]
            assert shard.read(1, 3, {"y": hold.Int64(key="train/label")})["y"].tolist() == [1, 2]

    def test_a_default_for_a_dataset_that_is_not_there(self, tmp_path: Path) -> None:
        with open_shard(made(tmp_path, x=np.arange(2))) as shard:
            schema = {"w": hold.Float32(2, default=1.5), "s": hold.Bytes(default=b"-")}
            batch = shard.read_rows([1, 0], schema)
            assert batch["w"].tolist() == [[1.5, 1.5]] * 2
            assert batch["s"].tolist() == [b"-", b"-"]

    @pytest.mark.parametrize(
        ("data", "column", "said"),
        [
            (np.zeros(2), hold.Int64(), r"""'x' holds Array\("float64"\), expected Int64\(\)"""),
            (np.zeros((2, 3)), hold.Float32(4), "4 values per row, got 3"),
            (
                np.array([1, 2**64 - 1], np.uint64),
                hold.Int64(),
                "record 1: dataset 'x' has 18446744073709551615, which",
            ),
            (np.array([0, 255, 256]), hold.Array("uint8"), "record 2: dataset 'x' has 256, which uint8 cannot hold"),
            (np.array([0, 1, 2]), hold.Array("bool"), "record 2: dataset 'x' has 2, which bool cannot hold"),
            (np.array([1, 1e300]), hold.Float32(), r"record 1: dataset 'x' has 1e\+300, which float32 cannot hold"),
            (np.zeros(2, [("a", "i4")]), hold.Int64(), "compound"),
        ],
    )
    def test_what_does_not_fit_is_reported(self, tmp_path: Path, data: Any, column: Any, said: str) -> None:
        with open_shard(made(tmp_path, x=data)) as shard, pytest.raises(DecodeError, match=said) as caught:
            shard.read(0, len(shard), {"x": column})
        assert "data.h5" in str(caught.value)

    def test_an_unknown_type_is_named_and_can_be_left_out(self, tmp_path: Path) -> None:
        path = made(tmp_path, odd=np.zeros(2, [("a", "i4")]), x=np.arange(2))
        with (
            open_shard(path) as shard,
            pytest.raises(FormatError, match="data.h5: dataset 'odd' has the type compound"),
        ):
            _ = shard.schema
        with open_shard(path, {"x": hold.Int64()}) as shard:
            assert shard.read(0, 2)["x"].tolist() == [0, 1]

    def test_unequal_lengths_are_named_and_can_be_left_out(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(2), y=np.arange(3))
        with pytest.raises(FormatError, match="data.h5: datasets differ in length: 'x' has 2 rows, 'y' has 3"):
            open_shard(path)
        with open_shard(path, {"y": hold.Int64()}) as shard:
            assert len(shard) == 3
            with pytest.raises(FormatError, match="dataset 'x' has 2 rows, the others have 3"):
                shard.read(0, 1, {"x": hold.Int64()})

    def test_chunks_are_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "data.h5"
        with h5py.File(path, "x") as file:
            file.create_dataset("x", data=np.arange(100), chunks=(16,))
        with open_shard(path) as shard:
            assert shard.rows_per_chunk == 16
            rows = np.random.default_rng(3).permutation(100)
            assert shard.read_rows(rows)["x"].tolist() == rows.tolist()


class TestBadFiles:
    def test_not_hdf5(self, tmp_path: Path) -> None:
        path = tmp_path / "data.h5"
        path.write_bytes(b"no such thing" * 99)
        with pytest.raises(FormatError, match="data.h5: not an HDF5 file"):
            open_shard(path)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "data.h5"
        path.write_bytes(b"")
        with pytest.raises(FormatError, match="the file is empty"):
            open_shard(path)

    def test_a_cut_file(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(5000))
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(CorruptError, match="data.h5 at byte [0-9,]+: the file is truncated: truncated file"):
            open_shard(path)

    def test_a_folder_and_a_pipe(self, tmp_path: Path) -> None:
        (tmp_path / "a.h5").mkdir()
        os.mkfifo(tmp_path / "b.h5")
        for name, kind in (("a.h5", "a directory"), ("b.h5", "a special file")):
            with pytest.raises(InputError, match=f"{name}: expected a file to read, got {kind}"):
                open_shard(tmp_path / name)

    def test_no_rows_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="no dataset with rows"):
            open_shard(made(tmp_path, version=3))

    def test_a_virtual_dataset_is_refused(self, tmp_path: Path) -> None:
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource("gone.h5", "x", (4,))
        path = tmp_path / "view.h5"
        with h5py.File(path, "x") as file:
            file.create_virtual_dataset("x", layout)
        with pytest.raises(FormatError, match=r"'x' is virtual.*gone\.h5"):
            open_shard(path)

    def test_a_damaged_chunk_names_file_and_dataset(self, tmp_path: Path) -> None:
        path = tmp_path / "data.h5"
        with h5py.File(path, "x") as file:
            dataset = file.create_dataset("x", data=np.arange(1000), chunks=(500,), fletcher32=True)
            offset = dataset.id.get_chunk_info(1).byte_offset
        data = bytearray(path.read_bytes())
        data[offset + 9] ^= 1
        path.write_bytes(data)
        with open_shard(path) as shard:
            assert shard.read(0, 500)["x"][-1] == 499
            with pytest.raises(CorruptError, match="data.h5: dataset 'x': rows 400 to 599 cannot be read"):
                shard.read(400, 600)

    def test_a_file_locked_by_its_writer(self, tmp_path: Path) -> None:
        path = tmp_path / "data.h5"
        code = "import h5py,sys; f=h5py.File(sys.argv[1],'x'); f['x']=[1]; f.flush(); print('up',flush=True); input()"
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "up\n"
            with pytest.raises(UnfinishedError, match=f"data.h5: it is locked by process {writer.pid}"):
                open_shard(path)
            writer.communicate("\n", timeout=60)
        with open_shard(path) as shard:
            assert shard.read(0, 1)["x"].tolist() == [1]


class TestHandles:
    def test_a_file_is_open_once_however_often_it_is_opened(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(4))
        with HDF5Shard(path) as one:
            with HDF5Shard(path) as two:
                assert descriptors_of(path) == 1
            assert one.read(0, 1)["x"].tolist() == [0]
            with pytest.raises(ValueError, match="closed"):
                two.read(0, 1)
        assert descriptors_of(path) == 0

    def test_a_child_and_its_child_open_their_own(self, tmp_path: Path) -> None:
        from holdfast.testing import _in_child

        path = made(tmp_path, x=np.arange(4))
        before = len(os.listdir("/proc/self/fd"))
        with HDF5Shard(path) as one, HDF5Shard(path) as two:

            def look() -> list[Any]:
                inherited = descriptors_of(path)
                got = [shard.read(0, 4)["x"].tolist() for shard in (one, two)]
                # The pipe to the parent is one more for each fork.
                return [inherited, got, descriptors_of(path), len(os.listdir("/proc/self/fd"))]

            def grandchild() -> list[Any]:
                return [look(), _in_child(look)]

            rows = [[0, 1, 2, 3]] * 2
            assert _in_child(grandchild) == [[0, rows, 1, before + 3], [0, rows, 1, before + 5]]
            assert [shard.read(0, 4)["x"].tolist() for shard in (one, two)] == rows
            assert _is_locked(path)

    def test_a_child_that_closes_leaves_its_parents_lock(self, tmp_path: Path) -> None:
        from holdfast.testing import _in_child

        path = made(tmp_path, x=np.arange(4))
        with HDF5Shard(path) as shard:
            assert _in_child(shard.close) is None
            assert _is_locked(path)
            assert shard.read(0, 2)["x"].tolist() == [0, 1]

    def test_a_child_does_not_take_another_file_for_its_own(self, tmp_path: Path) -> None:
        from holdfast.testing import _in_child

        path = made(tmp_path, x=np.arange(4))
        with HDF5Shard(path) as shard:
            path.rename(tmp_path / "old.h5")
            made(tmp_path, x=np.arange(9))

            def look() -> str:
                with pytest.raises(InputError) as caught:
                    shard.read(0, 4)
                return str(caught.value)

            assert "it was replaced by another file" in _in_child(look)
            assert shard.read(3, 4)["x"].tolist() == [3]

    def test_a_shard_that_is_lost_says_so(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(4))
        shard = HDF5Shard(path)
        with pytest.warns(ResourceWarning, match="never closed"):
            del shard
        assert descriptors_of(path) == 0

    def test_a_failed_open_leaves_nothing(self, tmp_path: Path) -> None:
        path = made(tmp_path, x=np.arange(4), y=np.arange(5))
        with pytest.raises(DataError):
            HDF5Shard(path)
        assert descriptors_of(path) == 0


def _is_locked(path: Path) -> bool:
    import fcntl

    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
