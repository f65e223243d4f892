"""Reads numbers that are 1, 2, 3, … with few descriptors, and says in JSON what came: all of them, an error, or others.

python side_write_view.py holdfast|h5py PATH COUNT DESCRIPTORS
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import numpy as np

from holdfast.errors import HoldfastError


def with_holdfast(path: str) -> Any:
    import holdfast as hold

    with hold.read(path, {"x": hold.Int64()}).batch(64).iterate() as batches:
        return np.concatenate([batch["x"] for batch in batches])


def with_h5py(path: str) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["x"][:]


def main() -> None:
    reader, path, count, descriptors = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = descriptors if hard < 0 else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    try:
        found = (with_holdfast if reader == "holdfast" else with_h5py)(path)
    except (OSError, HoldfastError) as error:
        print(json.dumps({"outcome": type(error).__name__, "wrong": 0}))
        return
    wrong = count - len(np.intersect1d(found, np.arange(1, count + 1)))
    outcome = "right data" if len(found) == count and not wrong else f"{wrong} of {count} values wrong, no error"
    print(json.dumps({"outcome": outcome, "wrong": wrong}))


if __name__ == "__main__":
    main()
