"""Calls of the HDF5 library that h5py does not have."""

from __future__ import annotations

import threading
from pathlib import Path

import h5py

from holdfast.data.formats.hdf5 import raw_values


def test_the_library_is_called_in_one_thread_at_a_time(tmp_path: Path) -> None:
    """A foreign call releases the GIL: beside h5py in another thread, it crashed the process now and then."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = file.create_dataset("x", data=range(8), chunks=(4,)).id.get_create_plist()
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(raw_values.chunk_options(options)))
        with h5py._objects.phil:
            thread.start()
            thread.join(0.2)
            assert not found
        thread.join()
        assert found == [0]
