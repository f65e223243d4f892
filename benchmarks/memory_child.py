"""How much a fresh process grows while holdfast reads one file: its peak resident size above the start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import holdfast as hold
from side_holdfast import SCHEMAS
from workload import BATCH


def resident_bytes(field: str) -> int:
    """From /proc/self/status: `VmHWM:     12345 kB`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def read_all(path: str, data: str, operation: str) -> int:
    with hold.TFRecordReader(path) as reader:
        if operation == "records":
            return sum(1 for _ in reader)
        return sum(len(batch["label"]) for batch in reader.batches(SCHEMAS[data], BATCH[data]))


def main() -> None:
    path, data, operation = sys.argv[1:]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    start = resident_bytes("VmRSS")
    records = read_all(path, data, operation)
    growth = resident_bytes("VmHWM") - start
    print(json.dumps({"growth_bytes": growth, "start_bytes": start, "records": records}))


if __name__ == "__main__":
    main()
