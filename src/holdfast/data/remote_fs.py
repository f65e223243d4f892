"""Opens remote stores through fsspec, with retries; fsspec is imported when a URL is first used.

Every error becomes one type that names the URL.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import HoldfastError, InputError, MissingFileError

T = TypeVar("T")
Options = Mapping[str, Any]

PAUSES_S = (0.25, 1.0, 4.0)  # before the second, third and last try
LIMIT_S = 120.0  # of a read that makes no progress; packages of stores have limits of their own, or none

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
    """Returns the file system of a URL (fsspec caches one per process) and the path in it."""
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
        raise InputError(f"{url}: cannot reach the store: {error}") from error
    return fs, path


def ask(
    url: str,
    question: Callable[[], T],
    wrong: type[HoldfastError] = InputError,
    progress: Callable[[], int] | None = None,
) -> T:
    """Calls the store; retries transient errors and turns the others into an error that names the URL.

    progress: the bytes so far of a read that may take long
    """
    for pause_s in (*PAUSES_S, None):
        try:
            # A write that was given up may still arrive, also after its retry.
            return _within_limit(question, progress) if wrong is InputError else question()
        except HoldfastError:
            raise
        except Exception as error:
            if pause_s is None or is_final(error):
                text = f"{url}: {reason_of(error)}"
                if wrong is InputError and isinstance(error, FileNotFoundError):
                    raise MissingFileError(text, url) from error
                raise wrong(text) from error
            time.sleep(pause_s)
    raise AssertionError


def _within_limit(question: Callable[[], T], progress: Callable[[], int] | None) -> T:
    """Calls in a thread of its own. TimeoutError: no answer and no progress for LIMIT_S; the thread is left behind."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            errors.append(error)
        finally:
            ended.set()

    ended = threading.Event()
    threading.Thread(target=call, name="holdfast-store", daemon=True).start()
    before = -1
    while not ended.wait(LIMIT_S):
        now = progress() if progress is not None else before
        if now == before:
            raise TimeoutError(f"the store did not answer for {LIMIT_S:g} s")
        before = now
    if errors:
        raise errors[0]
    return answers[0]


def is_final(error: Exception) -> bool:
    """Whether retrying cannot help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return True
    return isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES


def reason_of(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the store has no such file"
    if isinstance(error, PermissionError):
        return f"no permission: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"


def url_of(given: str, path: str) -> str:
    """Returns the URL of a path in the same store."""
    if "://" in path:
        return path
    scheme, _, rest = given.partition("://")
    host = rest.partition("/")[0] if scheme in _WITH_HOST else ""
    return f"{scheme}://{host}{path}"
