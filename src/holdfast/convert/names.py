"""What a target's name says: its format, and how its shards are called."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["tfrecord", "hdf5", "tar"]

_SUFFIX = re.compile(
    r"(?P<tfrecord>\.(tfrecords?|tfrec)(\.(gz|gzip|zlib|zz))?)$|(?P<hdf5>\.(h5|hdf5|hdf))$|(?P<tar>\.tar)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Name:
    """A target: `stem` and `suffix` make its name in `folder`."""

    folder: Path
    stem: str
    suffix: str
    kind: Kind

    @property
    def whole(self) -> str:
        return self.stem + self.suffix

    def shard(self, number: int, count: int) -> str:
        """As TensorFlow's tools number them: sorted names keep the order."""
        return f"{self.stem}-{number:05d}-of-{count:05d}{self.suffix}"

    def is_shard(self, name: str) -> bool:
        """Whether a file's name is one that a shard of this target could have."""
        return re.fullmatch(rf"{re.escape(self.stem)}-\d{{5}}-of-\d{{5}}{re.escape(self.suffix)}", name) is not None


def parse_target(target: str | os.PathLike[str]) -> Name:
    """ValueError: the name does not say which format is expected."""
    if "://" in os.fsdecode(target):
        raise ValueError(f"expected a file on this machine to write to, got the URL {os.fspath(target)!r}")
    path = Path(os.fsdecode(target))
    found = _SUFFIX.search(path.name)
    if found is None or found.start() == 0:
        wanted = "a name that ends in .tfrecord (or .tfrecord.gz, .tfrecord.zlib), .h5 or .tar"
        raise ValueError(f"expected {wanted} to write to, got {os.fspath(target)!r}")
    kind: Kind = "tfrecord" if found["tfrecord"] else "hdf5" if found["hdf5"] else "tar"
    return Name(path.parent, path.name[: found.start()], found[0], kind)
