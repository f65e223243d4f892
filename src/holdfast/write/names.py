"""Tasks, and the names of what belongs to them in a run's folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from .._base.launch import default_task
from ..formats.schema_json import schema_file_name

Format = Literal["hdf5", "tfrecord"]

SCHEMA_NAME = schema_file_name()
FOLDERS = ("parts", "tmp", "manifest", "quarantine")
SUFFIXES: dict[str, str] = {"hdf5": ".h5", "tfrecord": ".tfrecord"}

_TASK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@,-]{0,179}")
_PART = re.compile(rf"({_TASK.pattern})\.(\d+)(\.h5|\.tfrecord|\.json)")
_CLAIM = re.compile(rf"\.({_TASK.pattern})\.json")


def check_task(task: Any) -> str:
    """A task's name, which becomes a part of file names. None: the one of this process's rank, if it has one."""
    task = default_task() if task is None else task
    if task is None:
        text = 'expected task=, a name for this piece of work that a retry gives again, such as "rank3-epoch0"'
        raise ValueError(f"{text}: no launcher says which rank this process is")
    name = str(task) if isinstance(task, int) and not isinstance(task, bool) else task
    if not isinstance(name, str) or not _TASK.fullmatch(name):
        wanted = "a task's name of up to 180 of A-Z a-z 0-9 _ . = + @ , - that begins with a letter, a digit or _"
        raise ValueError(f"expected {wanted}, got {task!r}")
    return name


def check_attempt(attempt: Any) -> int | None:
    if attempt is not None and (isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 0):
        raise ValueError(f"expected an attempt's number from 0 up, got {attempt!r}")
    return attempt


def check_format(kind: Any) -> Format:
    if kind not in SUFFIXES:
        raise ValueError(f'expected format to be "hdf5" or "tfrecord", got {kind!r}')
    return kind  # type: ignore[no-any-return]


def data_name(task: str, attempt: int, kind: str) -> str:
    return f"{task}.{attempt}{SUFFIXES[kind]}"


def record_name(task: str, attempt: int) -> str:
    return f"{task}.{attempt}.json"


def claim_name(task: str) -> str:
    """Of a task there is one, whichever attempt it was: who makes it has committed. Hidden, so that no reader takes it
    for a sample."""
    return f".{task}.json"


def parse_name(name: str) -> tuple[str, int, str] | None:
    """`rank3.0.h5` -> ("rank3", 0, ".h5"); None: not a name of ours."""
    found = _PART.fullmatch(name)
    return (found[1], int(found[2]), found[3]) if found else None


def parse_claim(name: str) -> str | None:
    found = _CLAIM.fullmatch(name)
    return found[1] if found else None


# ---- of all names in `parts`


def records_in(names: Iterable[str]) -> list[str]:
    """Those of the committed parts' records, in their order."""
    return sorted(name for name in names if (found := parse_name(name)) and found[2] == ".json")


def claims_in(names: Iterable[str]) -> list[str]:
    """The tasks that are committed, visibly or not."""
    return sorted(task for name in names if (task := parse_claim(name)) is not None)


def strays_in(names: Iterable[str]) -> list[str]:
    """Data without a record: of an attempt that is about to commit, or that died then."""
    there = set(names)
    found = [(name, parse_name(name)) for name in sorted(there)]
    return [name for name, one in found if one and one[2] != ".json" and record_name(one[0], one[1]) not in there]
