"""Merges that meet damaged sources or a full disk: nothing wrong gets a name, and nothing is left behind."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_hdf5 import chunk_places, flip
from factories_merge import nothing_left, table, write_file

from holdfast._native import codec
from holdfast.data.formats.hdf5 import sandbox
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.errors import CorruptError

# ---- damaged sources


def record(path: Path) -> None:
    """What hold.write would have put beside it."""
    data = path.read_bytes()
    chunks = {}
    for name in ("id", "train/x", "train/image"):
        places = chunk_places(path, name)
        chunks[name] = [[at, size, codec.crc32c(data[at : at + size])] for at, size in places]
    facts = {"file": path.name, "bytes": len(data), "crc32c": codec.crc32c(data), "chunks": chunks}
    path.with_suffix(".json").write_text(json.dumps(facts))


@pytest.mark.parametrize("packing", [{}, {"compression": "gzip"}, {"compression": "lzf"}], ids=str)
@pytest.mark.parametrize("order", ["exact", "any"])
def test_flips_are_found_by_the_record(tmp_path: Path, packing: Any, order: Any) -> None:
    paths = [write_file(tmp_path / f"w{i}.h5", table(0, n), chunks=8, **packing) for i, n in enumerate((19, 32))]
    for path in paths:
        record(path)
    made = merge_hdf5(paths, tmp_path / "good.h5", order=order)
    assert made.checked > 0
    places = [place for name in ("train/x", "train/image") for place in chunk_places(paths[1], name)]
    for at, size in random.Random(1).sample(places, 3):
        flip(paths[1], at + size // 2)
        with pytest.raises(CorruptError, match=r"w1\.h5 at byte .*: dataset '/train/.*: the crc32c of a chunk is"):
            merge_hdf5(paths, tmp_path / "bad.h5", order=order)
        flip(paths[1], at + size // 2)
    assert not (tmp_path / "bad.h5").exists()
    assert nothing_left(tmp_path)


def test_an_object_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        header = h5py.h5o.get_info(file.create_dataset("x", data=np.arange(9)).id).addr
    flip(path, header + 20)
    with pytest.raises(CorruptError, match=r"a\.h5: /x: cannot be opened: "):
        merge_hdf5([path], tmp_path / "out.h5")
    assert nothing_left(tmp_path)


def test_a_library_that_crashes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "a.h5", table(0, 9))
    monkeypatch.setattr(sandbox, "PROGRAM", [sys.executable, "-c", "import os; os.abort()"])
    with pytest.raises(CorruptError, match=r"a\.h5: the HDF5 library crashed here \(SIGABRT\)"):
        merge_hdf5([path], tmp_path / "out.h5")
    assert nothing_left(tmp_path)


# ---- a full disk

FULL = """
import os, sys
from pathlib import Path
from holdfast.errors import WriteError
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
small, *files = sys.argv[1:]
refused = made = 0
for step in range(10):
    with open(f"{small}/ballast", "wb") as ballast:
        free = os.statvfs(small).f_bavail * 4096
        os.posix_fallocate(ballast.fileno(), 0, max(free - 4096 * (1 << step), 1))
    try:
        merge_hdf5(files, f"{small}/out.h5", order=("exact", "any")[step % 2])
        made += 1
    except WriteError as error:
        assert "No space left on device" in str(error), error
        assert not os.path.exists(f"{small}/out.h5")
        refused += 1
    left = [name for name in os.listdir(small) if name not in ("ballast", "out.h5")]
    assert not left, left
    for name in os.listdir(small):
        os.unlink(f"{small}/{name}")
print(refused, made)
"""


@pytest.mark.needs("unshare")
def test_a_full_disk(tmp_path: Path) -> None:
    files = []
    for i in range(3):
        path = write_file(tmp_path / f"w{i}.h5", table(1000 * i, 67 + i), chunks=8, compression="gzip")
        with h5py.File(path, "a") as file:
            file.create_dataset("plain", data=np.arange(9000).reshape(-1, 3), chunks=(64, 3))
            file.create_dataset("text", data=[b"text"] * 67, dtype=h5py.string_dtype())
            file["flat"] = np.arange(9000)
        files.append(path)
    small = tmp_path / "small"
    small.mkdir()
    command = f"mount -t tmpfs -o size=2m small {small} && exec {sys.executable} -W error -c '{FULL}' \"$@\""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(small), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    refused, made = map(int, done.stdout.split())
    assert refused >= 3
    assert made >= 2
    shutil.rmtree(small)
