"""Where a merge works until its file has its name: a hidden folder beside the target, under the target's own lock.

A killed merge leaves it there, and the next one of the same sources goes on with it; one of others begins anew.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...._base.atomic import PartialFile, sync_name
from ....errors import TargetExistsError, WriteError
from .failpoints import failpoint

_JOB, _RESULT, _ALIVE = "job.json", "result.json", "alive"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def work_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.merging")


class WorkFolder:
    """`data` is the file to be. Use `commit`, `remove`, or `leave` for the next one to go on."""

    def __init__(self, target: Path, data: str, *, overwrite: bool) -> None:
        self.target, self.path = target, work_path(target)
        self.data = self.path / data
        self._overwrite = overwrite
        # A killed merge may have given its file the name already: that is looked at under the lock.
        again = overwrite or self._is_linked()
        self._lock = PartialFile(target, overwrite=again)

    def _is_linked(self) -> bool:
        try:
            return os.path.samefile(self.data, self.target)
        except OSError:
            return False

    def take_up(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The result, if a killed merge of the same job had only its tidying left."""
        with suppress(FileNotFoundError), being_alive(self.path):
            pass  # the child of a killed merge dies with it, but it may be in the middle of a write
        if _read(self.path / _JOB) == job:
            result = _read(self.path / _RESULT)
            if self._is_linked() and result is not None:
                return result
            (self.path / _RESULT).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        if not self._overwrite and os.path.lexists(self.target):
            raise TargetExistsError(f"{self.target} is there already; name another file or allow it to be replaced")
        self.path.mkdir(exist_ok=True)
        (self.path / _JOB).write_text(json.dumps(job))
        failpoint("merge-began")
        return None

    def commit(self, result: dict[str, Any]) -> None:
        (self.path / _RESULT).write_text(json.dumps(result))
        failpoint("merge-result")
        try:
            if self._overwrite:
                os.replace(self.data, self.target)
            else:
                self._link()
        except OSError as error:
            raise WriteError(f"cannot write {self.target}: {error.strerror}") from error
        sync_name(self.target)
        failpoint("merge-linked")

    def _link(self) -> None:
        # link fails when the name is taken; rename would replace what somebody put there meanwhile.
        try:
            os.link(self.data, self.target)
        except FileExistsError:
            raise TargetExistsError(f"{self.target} appeared while it was being written; it was not touched") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(self.data, self.target)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        failpoint("merge-cleaned")
        self._lock.discard()

    def leave(self) -> None:
        """As a kill would: what was done is there for the next one."""
        self._lock.discard()


@contextmanager
def being_alive(folder: Path) -> Iterator[None]:
    """One process at a time works in the folder: who comes next waits for the last to be gone."""
    fd = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
