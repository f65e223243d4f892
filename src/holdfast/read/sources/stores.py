"""What a URL stands for in its store: a shard, a glob's shards, a folder's, a run's committed parts."""

from __future__ import annotations

import os
from typing import Any

from ..._base.stores import Options, ask, open_store, url_of
from ...errors import InputError, MissingFileError
from .names import committed, is_beside, is_glob, is_shard, is_small_file


def find_remote(url: str, options: Options | None = None) -> list[str]:
    """The URLs of the shards that a URL, a glob or a folder stands for."""
    if is_shard(url) and not is_glob(url) and not url.endswith("/"):
        return [url]  # to ask for each of a thousand whether it is there takes as long as to open it
    fs, path = open_store(url, options)
    fs.invalidate_cache()  # what was there when somebody asked before is not what is there
    if is_glob(url):
        found = ask(url, lambda: fs.glob(path, detail=True))
        names = [name for name, info in found.items() if info["type"] == "file" and not is_beside(name)]
    elif ask(url, lambda: fs.info(path))["type"] == "file":
        return [url]
    else:
        names = _in_folder(url, fs, path.rstrip("/"))
    if not names:
        raise MissingFileError(f"{url}: expected shards, nothing matches", url)
    small = [name for name in names if is_small_file(name)]
    if small:
        raise InputError(
            f"{url}: expected shards, got single samples such as {small[0]}: pack them into shards or copy them here"
        )
    return [url_of(url, name) for name in sorted(names, key=os.fsencode)]


def _in_folder(url: str, fs: Any, path: str) -> list[str]:
    every: list[str] = ask(url, lambda: fs.find(path))
    if f"{path}/schema.json" in every:
        start = f"{path}/parts/"
        parts = committed([name for name in every if name.startswith(start)])
        if not parts:
            raise InputError(f"{url}: expected committed parts, this run has none yet")
        return parts
    inside = [name for name in every if not any(is_beside(part) for part in name[len(path) + 1 :].split("/"))]
    return [name for name in inside if is_shard(name)] or [name for name in inside if is_small_file(name)]
