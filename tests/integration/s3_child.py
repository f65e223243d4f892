"""Reads shards from an S3 store, as a user's program would, and says as JSON what it found."""

from __future__ import annotations

import json
import sys

from holdfast.data.inputs import find_sources
from holdfast.data.loader.sources.catalog import Catalog
from holdfast.data.loader.sources.download_cache import DownloadCache
from holdfast.errors import HoldfastError


def read(folder: str, max_bytes: int, what: list[str]) -> dict[str, object]:
    try:
        catalog = Catalog(find_sources(what), cache=DownloadCache(folder, max_bytes))
        found: list[int] = []
        with catalog.pool(4) as pool:
            for number in range(len(catalog)):
                with catalog.use(number, pool) as shard:
                    found += [int(n) for n in shard.read(0, len(shard))["n"]]
    except HoldfastError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"paths": catalog.paths, "counts": catalog.counts, "found": found}


if __name__ == "__main__":
    folder, max_bytes, each = sys.argv[1:]
    print(json.dumps([read(folder, int(max_bytes), what) for what in json.loads(each)]))
