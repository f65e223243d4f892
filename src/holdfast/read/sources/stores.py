"""Remote stores by fsspec, which is imported when a URL is used. Their errors become one kind that names the URL."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...errors import InputError
from .names import committed, is_beside, is_glob, is_shard, is_small_file

T = TypeVar("T")
Options = Mapping[str, Any]

PAUSES_S = (0.25, 1.0, 4.0)  # before the second, third and last try

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hdfs": "pyarrow",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "hf": "huggingface_hub",
}
_WITH_HOST = ("hdfs", "webhdfs", "sftp", "ssh", "ftp", "smb")  # where fsspec's own paths leave the host out
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, KeyError)
_FINAL_NAMES = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError")


def open_store(url: str, options: Options | None = None) -> tuple[Any, str]:
    """The file system of a URL, as fsspec keeps it for this process, and the path in it."""
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0]
    try:
        fs, path = url_to_fs(url, **(options or {}))
    except ImportError as error:
        package = _PACKAGES.get(scheme, "the package for it")
        raise InputError(f"{url}: {scheme}:// needs the Python package {package}: pip install {package}") from error
    except ValueError as error:
        raise InputError(f"{url}: {error}") from error
    except OSError as error:
        raise InputError(f"{url}: its store cannot be reached: {error}") from error
    return fs, path


def ask(url: str, question: Callable[[], T]) -> T:
    """An answer from a store. What may pass is tried again; what does not becomes an InputError that names the URL."""
    for pause_s in (*PAUSES_S, None):
        try:
            return question()
        except InputError:
            raise
        except Exception as error:
            if pause_s is None or _is_final(error):
                raise InputError(f"{url}: {_reason(error)}") from error
            time.sleep(pause_s)
    raise AssertionError


def _is_final(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return True
    return isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the store has no such file"
    if isinstance(error, PermissionError):
        return f"no permission: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"


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
        raise InputError(f"{url}: wanted shards, nothing matches")
    small = [name for name in names if is_small_file(name)]
    if small:
        raise InputError(
            f"{url}: wanted shards, got single samples such as {small[0]}: pack them into shards or copy them here"
        )
    return [_url_of(url, name) for name in sorted(names, key=os.fsencode)]


def _in_folder(url: str, fs: Any, path: str) -> list[str]:
    every: list[str] = ask(url, lambda: fs.find(path))
    if f"{path}/schema.json" in every:
        start = f"{path}/parts/"
        parts = committed([name for name in every if name.startswith(start)])
        if not parts:
            raise InputError(f"{url}: wanted committed parts, this run has none yet")
        return parts
    inside = [name for name in every if not any(is_beside(part) for part in name[len(path) + 1 :].split("/"))]
    return [name for name in inside if is_shard(name)] or [name for name in inside if is_small_file(name)]


def _url_of(given: str, path: str) -> str:
    """The URL of a path in the same store."""
    if "://" in path:
        return path
    scheme, _, rest = given.partition("://")
    host = rest.partition("/")[0] if scheme in _WITH_HOST else ""
    return f"{scheme}://{host}{path}"
