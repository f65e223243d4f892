"""Tars for the tests, made with the standard library's tarfile."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Given = tuple[str, bytes]


def info(name: str, size: int = 0, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def make_tar(
    path: Path, members: Iterable[Given | tarfile.TarInfo], mode: str = "w", layout: int = tarfile.PAX_FORMAT
) -> Path:
    """Members in this order: a name and its data, or a TarInfo of something without data."""
    with tarfile.open(path, mode, format=layout) as tar:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                tar.addfile(info(member[0], len(member[1])), io.BytesIO(member[1]))
    return path


def header_of(name: str, size: int = 0, **fields: Any) -> bytes:
    """One ustar block with a good checksum, whatever it says."""
    return info(name, size, **fields).tobuf(tarfile.GNU_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


END = bytes(1024)
