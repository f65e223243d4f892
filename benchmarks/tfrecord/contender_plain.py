"""No library: reads the bytes and nothing else, or parses TFRecord frames in plain Python."""

from __future__ import annotations

import importlib
import importlib.metadata
import struct
from typing import Any

from benchmarks.common.contenders import Job, Pass, serve

BUFFER_BYTES = 1 << 20


def readinto(job: Job) -> Pass:
    """The speed of the page cache, an upper bound for everything that reads the bytes."""
    buffer = bytearray(BUFFER_BYTES)
    total = 0
    for path in job["files"]:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
    if total != job["bytes"]:
        raise ValueError(f"expected {job['bytes']:,} bytes, got {total:,}")
    return Pass(job["records"])


def records(job: Job) -> Pass:
    """Checks both CRCs of every record with a CRC in C."""
    crc_of = importlib.import_module("google_crc32c").value
    unpack_header, unpack_footer = struct.Struct("<8sI").unpack, struct.Struct("<I").unpack
    count = 0
    for path in job["files"]:
        with open(path, "rb") as file:
            while header := file.read(12):
                length, expected = unpack_header(header)
                crc = crc_of(length)
                if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != expected:
                    raise ValueError("bad length CRC")
                data = file.read(int.from_bytes(length, "little"))
                crc = crc_of(data)
                if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != unpack_footer(file.read(4))[0]:
                    raise ValueError("bad data CRC")
                count += 1
    return Pass(count)


def facts() -> dict[str, Any]:
    try:
        return {"versions": {"google-crc32c": importlib.metadata.version("google-crc32c")}}
    except importlib.metadata.PackageNotFoundError:
        return {"versions": {}}  # only reading needs no package


if __name__ == "__main__":
    serve([readinto, records], facts)
