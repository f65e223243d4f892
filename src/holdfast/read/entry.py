"""hold.read and hold.mix: where a pipeline begins."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .._base.units import parse_bytes
from ..formats.shard import GivenSchema
from ..schema import check_schema
from .dataset import Dataset, Sample
from .settings import OnCorrupt, Settings, one_of, whole
from .sources.find import find_sources
from .sources.mix import MixSource, Until
from .sources.run import run_schema
from .sources.source import FileSource

Given = str | os.PathLike[str]


def read(
    what: Given | Iterable[Given],
    schema: GivenSchema | None = None,
    *,
    verify: str = "all",
    on_corrupt: OnCorrupt = "raise",
    max_corrupt: int = 100,
    keep_doubtful: bool = False,
    labels_from_folders: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    cache_folder: Given | None = None,
    cache_bytes: str | int = "20GB",
) -> Dataset[Sample]:
    """Samples from TFRecord, HDF5, tar and other files: a path, a glob, a folder, a URL, or a list of them.

    schema:       the columns to read; by default what the files have, or the run that they are parts of
    verify:       "all" checks the CRC of every TFRecord, "header" only that of its length
    on_corrupt:   "skip" leaves out damaged samples and shards, up to `max_corrupt`, and lists them in losses();
                  "salvage" gets back records of which only the header is damaged, too
    keep_doubtful: reads TFRecords that might be data of a damaged record, too: right where no record holds TFRecords
    labels_from_folders: small files in folders get a column "label": the number of their folder
    storage_options: options for URLs, as fsspec takes them; shards are brought into `cache_folder`, up to `cache_bytes`
    """
    columns = None if schema is None else check_schema(schema)
    if verify not in ("all", "header"):
        raise ValueError(f"expected verify to be 'all' or 'header', got {verify!r}")
    one_of("on_corrupt", on_corrupt, OnCorrupt)
    whole("max_corrupt", max_corrupt, 0)
    if keep_doubtful and on_corrupt == "raise":
        raise ValueError("keep_doubtful=True goes with on_corrupt='skip' or 'salvage', got on_corrupt='raise'")
    remote = {"folder": cache_folder, "most_bytes": parse_bytes(cache_bytes), "options": storage_options}
    specs = find_sources(what, storage_options)
    source = FileSource(
        specs,
        run_schema(specs, storage_options) if columns is None else columns,
        remote,
        verify=verify,
        labels_from_folders=labels_from_folders,
        on_corrupt=on_corrupt,
        max_corrupt=max_corrupt,
        keep_doubtful=bool(keep_doubtful),
    )
    # What can be salvaged was when the shards were looked at: behind that, both skip.
    return Dataset(source, Settings(on_corrupt="raise" if on_corrupt == "raise" else "skip", max_corrupt=max_corrupt))


def mix(
    datasets: Mapping[Dataset, float] | Sequence[tuple[Dataset, float]], *, seed: int = 0, until: Until = "first"
) -> Dataset[Sample]:
    """Several datasets in one, each with its share of the samples: `hold.mix({a: 0.7, b: 0.3})`.

    until: an epoch ends when the "first" of them is used up; or when "all" are, the others beginning again
    """
    parts = [_weighted(part) for part in (datasets.items() if isinstance(datasets, Mapping) else datasets)]
    if not parts:
        raise ValueError("mix: expected at least one dataset, got none")
    source = MixSource([(dataset._source, dataset._settings, weight) for dataset, weight in parts], seed, until)
    first = parts[0][0]._settings
    return Mixture(source, Settings(seed=seed, on_corrupt=first.on_corrupt, max_corrupt=first.max_corrupt))


def _weighted(part: Any) -> tuple[Dataset, float]:
    """A dataset and its weight, if they can be mixed."""
    try:
        dataset, weight = part
    except TypeError:
        raise TypeError(f"mix: expected datasets with weights, as {{a: 0.7, b: 0.3}}, got {part!r}") from None
    if not isinstance(dataset, Dataset):
        raise TypeError(f"mix: expected datasets of hold.read(), got {dataset!r}")
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not 0 < float(weight) < math.inf:
        raise ValueError(f"mix: expected weights above 0, got {weight!r}")
    one, plain = dataset._settings, Settings()
    order = {"seed", "window_bytes", "window_samples", "lanes", "on_corrupt", "max_corrupt"}
    said = [field.name for field in fields(one) if getattr(one, field.name) != getattr(plain, field.name)]
    if set(said) - order:
        raise ValueError(
            "mix: expected datasets with at most a shuffle(), got one with more: shard, map, take, repeat, limit "
            "and batch what is mixed"
        )
    return dataset, float(weight)


class Mixture(Dataset):
    """A Dataset of several that are mixed: it has its order, and epochs may differ in length by a few samples."""

    def shuffle(self, *_: Any, **__: Any) -> Dataset:
        raise ValueError("shuffle: expected it on the datasets that are mixed, got it on the mix")
