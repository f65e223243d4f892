"""Reads with worker processes, as told; prints what a test waits for. Arguments: folder, what to do."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import holdfast as hold

SCHEMA = {"id": hold.Int64()}


def work(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 500 and os.environ.get("HANG"):
        print(f"at 500 in {os.getpid()}", flush=True)
        time.sleep(1000)
    return {"id": sample["id"] * 2}


def main() -> None:
    folder, timeout = sys.argv[1], float(sys.argv[2])
    ds = hold.read(folder, SCHEMA).map(work, 2, "processes", timeout=timeout).batch(50).prefetch("1MB")
    with ds.iterate() as it:
        for number, batch in enumerate(it):
            assert len(batch["id"]) == 50
            if number == 2:
                print("going", flush=True)


if __name__ == "__main__":
    try:
        main()
    except hold.HoldfastError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
