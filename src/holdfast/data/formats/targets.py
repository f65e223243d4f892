"""Names, divides and publishes the output files of split and convert."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..._util.atomic import publish_files
from ..._util.text import format_bytes
from ...errors import DataError, InputError, SchemaError, TargetExistsError, WriteError
from .base import FileEntry, Format
from .columns import Ints
from .registry import FORMATS
from .tfrecord.manifest import renew_in_manifest, write_manifest

MAX_SHARDS = 99_999  # shard numbers have five digits, so that names sort
SHARD_NUMBER = r"-\d{5}-of-\d{5}"


@dataclass(frozen=True, slots=True)
class TargetName:
    """The name of a target: `folder`/`stem``suffix`."""

    folder: Path
    stem: str
    suffix: str
    kind: Format

    @property
    def name(self) -> str:
        return self.stem + self.suffix

    def shards(self, count: int) -> list[str]:
        """Returns the names of shards, numbered as TensorFlow's tools do: sorted names keep the order."""
        return [f"{self.stem}-{number:05d}-of-{count:05d}{self.suffix}" for number in range(count)]

    def is_shard(self, name: str) -> bool:
        """Returns whether a file's name could be that of a shard of this target."""
        return re.fullmatch(rf"{re.escape(self.stem)}{SHARD_NUMBER}{re.escape(self.suffix)}", name) is not None

    def existing_shards(self) -> list[str]:
        return list(filter(self.is_shard, os.listdir(self.folder))) if self.folder.is_dir() else []


def parse_target(target: str | os.PathLike[str]) -> TargetName:
    """Parses a path. Raises a ValueError if its suffix is not one of a format."""
    if "://" in os.fsdecode(target):
        raise ValueError(f"expected a local file to write to, got the URL {os.fspath(target)!r}")
    path = Path(os.fsdecode(target))
    for kind in FORMATS.values():
        for suffix in kind.written:
            stem = path.name[: -len(suffix)]
            if path.name.lower().endswith(suffix) and stem:
                return TargetName(path.parent, stem, path.name[len(stem) :], kind)
    names = [kind.written[0] for kind in reversed(FORMATS.values()) if kind.written]
    raise ValueError(f"expected a name that ends in {', '.join(names)} to write to, got {os.fspath(target)!r}")


def check_no_other_shards(target: TargetName, names: Sequence[str]) -> None:
    """Raises an error if the folder has shards of another shard count: readers would get every sample twice."""
    others = sorted(set(target.existing_shards()) - set(names))
    if others:
        text = f"{target.folder / others[0]} is of another number of shards: with {len(names):,} more beside it,"
        raise TargetExistsError(f"{text} samples would be read twice. Remove it first, or name another file")


def publish(
    entries: Sequence[FileEntry], target: TargetName, names: list[str], *, overwrite: bool = False
) -> list[FileEntry]:
    """Moves staged files to their names. Lists TFRecord shards in the manifest, so that a missing one is noticed;
    a single file is only updated there if it was listed before. After an error none of them stays."""
    files = [entry._replace(path=str(target.folder / name)) for entry, name in zip(entries, names, strict=True)]

    def list_files() -> None:
        if names == [target.name]:
            renew_in_manifest(files[0])
        else:
            write_manifest(target.folder, files)

    then = list_files if target.kind.has_manifest else None
    publish_files([Path(entry.path) for entry in entries], target.folder, names, overwrite=overwrite, then=then)
    return files


class ShardCut:
    """Divides rows into shards, in order. `limits`: the rows of each shard; otherwise as many as `shard_bytes` hold."""

    def __init__(self, limits: Sequence[int] = (), *, shard_bytes: int | None = None) -> None:
        self.counts = [0]  # rows in each shard so far
        self._limits, self._shard_bytes = limits, shard_bytes
        self._used_bytes = 0  # of the last shard

    def spans(self, rows: int, bounds: Ints | None = None) -> Iterator[tuple[int, int, int]]:
        """Yields shards, and the first row and the end of what goes there. `bounds`: where each of the rows begins,
        in bytes, and where the last one ends."""
        at = 0
        while at < rows:
            room = self._limits[len(self.counts) - 1] - self.counts[-1] if bounds is None else self._fitting(bounds, at)
            if room <= 0:
                self._next_shard()
                continue
            stop = min(rows, at + room)
            yield len(self.counts) - 1, at, stop
            self.counts[-1] += stop - at
            self._used_bytes += 0 if bounds is None else int(bounds[stop] - bounds[at])
            at = stop

    def _fitting(self, bounds: Ints, at: int) -> int:
        assert self._shard_bytes is not None
        fit = int(np.searchsorted(bounds, bounds[at] + self._shard_bytes - self._used_bytes, "right")) - 1 - at
        return max(fit, 0 if self.counts[-1] else 1)  # a row larger than a shard gets one of its own

    def _next_shard(self) -> None:
        if self._shard_bytes is not None and len(self.counts) == MAX_SHARDS:
            size = format_bytes(self._shard_bytes)
            raise ValueError(f"expected a size that gives at most {MAX_SHARDS:,} files, got {size}")
        self.counts.append(0)
        self._used_bytes = 0


@contextmanager
def renaming(hidden: str, shown: str) -> Iterator[None]:
    """Replaces the path of a temporary file, which matches the pattern `hidden`, by `shown` in errors."""
    try:
        yield
    except DataError as error:
        path = re.sub(hidden, lambda _: shown, error.path)
        if path == error.path:
            raise
        raise type(error)(path, error.record, error.offset, error.reason, error.hint) from error
    except (InputError, SchemaError, WriteError) as error:
        text = re.sub(hidden, lambda _: shown, str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error
