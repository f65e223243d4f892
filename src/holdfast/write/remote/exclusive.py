"""Creating a file that must not be there yet, whole, in one step: what a commit stands on.

fsspec's own `mode="create"` looks first and writes then, unless a store does better: between the two somebody else may
write. So only those stores are taken that are known to do better.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from typing import Any

from ...errors import WriteError

Create = Callable[[Any, str, bytes], None]

_BY_CONDITION = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
_DRAFT = ".partial"
_KNOWN = "s3://, gs://, az://, webhdfs:// or memory://"


def check_scheme(url: str) -> str:
    """Before anybody is asked: whether its kind of store can do it at all."""
    scheme = url.partition("://")[0].lower()
    if scheme not in (*_BY_CONDITION, "webhdfs", "memory"):
        more = ": pyarrow replaces what is there, so give webhdfs:// and the name node's HTTP port" * (scheme == "hdfs")
        text = f"expected a store that creates a file only if it is not there yet ({_KNOWN}), got {scheme}://{more}"
        raise WriteError(f"{url}: {text}")
    return scheme


def is_draft(name: str) -> bool:
    """A file that is about to get its name, or whose writer died then."""
    return name.endswith(_DRAFT)


def find_create(url: str, fs: Any) -> Create:
    """How a store makes a file: a FileExistsError says that it is there already."""
    scheme = check_scheme(url)
    if scheme == "memory":
        return _in_memory
    if scheme == "webhdfs":
        return _by_rename
    if scheme[:1] in "sg" and "mode" not in inspect.signature(fs._pipe_file).parameters:
        package = type(fs).__module__.partition(".")[0]
        raise WriteError(f"{url}: expected a {package} that can create files exclusively, got an older one")
    return _by_condition


def _by_condition(fs: Any, path: str, data: bytes) -> None:
    """One request with a condition: If-None-Match, or what the store calls it."""
    fs.pipe_file(path, data, mode="create")


def _in_memory(fs: Any, path: str, data: bytes) -> None:
    from fsspec.implementations.memory import MemoryFile

    path = fs._strip_protocol(path)
    made = MemoryFile(fs, path, data)
    if fs.store.setdefault(path, made) is not made:  # one step, among threads too
        raise FileExistsError(path)


def _by_rename(fs: Any, path: str, data: bytes) -> None:
    """HDFS shows a file while it is written; but it renames in one step, and never onto one that is there."""
    draft = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}{_DRAFT}"
    fs.pipe_file(draft, data)
    try:
        moved = fs._call("RENAME", "put", path=draft, destination=fs._strip_protocol(path)).json()["boolean"]
        if not moved:
            raise FileExistsError(path) if fs.exists(path) else OSError(f"{path}: it cannot be given its name")
    except BaseException:
        fs.rm_file(draft)
        raise
