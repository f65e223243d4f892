"""Names targets: a short, unique label for each process, which the process that replaces it inherits."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol, TypeVar

from ..._util.text import one_line
from ...procfs.processes import is_shell_command, is_wrapper

_MAX = 64
_MAX_WRAPPERS = 4
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*w?|(ba|da|z|k)?sh|node|perl|ruby|java")
_SETS_UP = re.compile(r"\.|cd|echo|export|set|source|test|trap|true|ulimit|umask")
_WRAPPER_OPTION_WITH_VALUE = frozenset({"-u", "-g", "-n", "-k", "-s", "-C", "-o", "-e"})
_AMOUNT = re.compile(r"[\d.,]+[smhd]?")
_OPTION_WITH_VALUE = frozenset({"-W", "-X"})


def short_name(command: str, name: str = "") -> str:
    """Returns what people call the program: the module or script of an interpreter, else the file name.

    `python3 -u -m ami.worker --all` is `ami.worker`, `/usr/bin/python train.py` is `train.py`, `bash` is `bash`, and
    `timeout 60 bash -c 'cd /srv && python train.py'` is `train.py`.
    """
    words = one_line(command).split(" ")
    for _ in range(_MAX_WRAPPERS):
        if not is_wrapper(" ".join(words)) or not (inner := _unwrapped(words)):
            break
        words = inner
    program = words[0].rpartition("/")[2] if words else ""
    if _INTERPRETER.fullmatch(program):
        program = _script(words[1:]) or program
    program = program.strip(":") or one_line(name) or "process"
    return program[:_MAX]


def _unwrapped(words: list[str]) -> list[str]:
    """Returns the command that a wrapper runs; of a shell, the first part that is not there to prepare another."""
    if is_shell_command(" ".join(words)):
        parts = re.split(r" ?(?:&&|\|\||;) ?", " ".join(words[2:]).strip("'\""))
        commands = [part.removeprefix("exec ").split(" ") for part in parts]
        return next((one for one in commands if one[0] and not _SETS_UP.fullmatch(one[0])), [])
    rest = iter(words[words.index("trace") + 1 :] if "trace" in words else words[1:])
    for word in rest:
        if word in _WRAPPER_OPTION_WITH_VALUE:
            next(rest, "")
        elif word and not word.startswith("-") and "=" not in word and not _AMOUNT.fullmatch(word):
            return [word, *rest]
    return []


def _script(words: list[str]) -> str:
    """Returns the module or script among an interpreter's arguments, "" for code on the command line."""
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if not word or re.fullmatch("-[a-z]*c", word):
            return ""
        if word in _OPTION_WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return word.rpartition("/")[2]
    return ""


def unique_label(wanted: str, taken: Collection[str]) -> str:
    """Returns `worker`, or `worker-2`, `worker-3`, … if that is taken."""
    wanted = one_line(wanted)[:_MAX] or "process"
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}-{number}" in taken:
        number += 1
    return f"{wanted}-{number}"


class TargetKey(NamedTuple):
    """How a target is recognised after a restart, of its process or of watch.

    source   "pid", "name:TEXT" for --name, "worker:N" for a worker of a supervisor
    command  its command line, shortened
    short    its short name
    """

    source: str
    command: str
    short: str

    def as_text(self) -> str:
        return json.dumps(self)


def parse_key(text: str) -> TargetKey:
    source, command, short = json.loads(text)
    return TargetKey(source, command, short)


class HasKey(Protocol):
    @property
    def key(self) -> TargetKey: ...


T = TypeVar("T", bound=HasKey)


def find_successor(key: TargetKey, ended: Iterable[T]) -> T | None:
    """Returns the ended target that a new process continues: of the same command, else of the same name and source.

    A worker of a supervisor continues itself only. A pid was asked for in person: only the same command will do.
    """
    there = list(ended)
    is_supervised = key.source.startswith("worker:")
    same = [
        one for one in there if one.key.command == key.command and one.key.source.startswith("worker:") == is_supervised
    ]
    if is_supervised:
        same = [one for one in same if one.key.source == key.source]
    elif not same and key.source != "pid":
        same = [one for one in there if (one.key.source, one.key.short) == (key.source, key.short)]
    return same[0] if same else None
