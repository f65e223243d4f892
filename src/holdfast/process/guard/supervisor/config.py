"""The options of `holdfast supervise`, from the command line and from a TOML file; both have the same names."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import EACCES, ENOENT, ENOEXEC
from typing import Any
from urllib.parse import urlsplit

from ...._util.text import names_there, parse_seconds
from ....errors import cannot_open
from ..caps import FDS, Cap
from .near_limit import NEAR
from .outside_caps import RESOURCES, cap_parser
from .worker_machine import RestartMode, RestartReason, RestartRules

MAX_WORKERS = 1000
_TABLE = "supervise"
_DEFAULT_PROGRESS_S = 600.0
_OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperviseOptions:
    """What to run and how. None: as in the worker's own Guard, or not at all."""

    command: tuple[str, ...]
    workers: int = 1
    name: str = ""
    caps: Mapping[RestartReason, Cap] = field(default_factory=dict)
    watches_limit: bool = True  # without a cap on descriptors
    progress_file: str | None = None
    progress_http: str | None = None
    progress_s: float | None = None
    frozen_s: float = 60.0
    drain_s: float | None = None
    stop_s: float = 10.0
    restart: RestartMode = RestartMode.ON_FAILURE
    rules: RestartRules = field(default_factory=RestartRules)
    tick_s: float = 1.0

    @property
    def probe_s(self) -> float:
        """How long a progress file or page may stay silent."""
        return _DEFAULT_PROGRESS_S if self.progress_s is None else self.progress_s


def read_config(path: str) -> dict[str, Any]:
    """Reads the table [supervise] of a file. InputError: it cannot be read; ValueError: it is not right."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise cannot_open(path, error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected TOML: {error}") from None
    table = document.get(_TABLE)
    if not isinstance(table, dict):
        raise ValueError(f"{path}: expected a table [{_TABLE}], got {', '.join(document) or 'an empty file'}")
    values = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in NAMES:
            raise ValueError(f"{path}: no such key: {key!r}. {names_there(name, sorted(NAMES))}")
        try:
            NAMES[name](value)
        except ValueError as error:
            raise ValueError(f"{path}: {key}: {error}") from None
        values[name] = value
    return values


def make_options(values: Mapping[str, Any]) -> SuperviseOptions:
    """Makes the options from values by name; those that are None are left out. ValueError names the wrong one."""
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            parsed[name] = NAMES[name](value)
        except ValueError as error:
            raise ValueError(f"--{name}: {error}") from None
    if not parsed.get("command"):
        raise ValueError("expected a command to run: holdfast supervise -- COMMAND …")
    if parsed.get("progress-file") and parsed.get("progress-http"):
        raise ValueError("expected --progress-file or --progress-http, got both")
    if parsed.get(FDS.name) == _OFF:
        del parsed[FDS.name]
        parsed["watches-limit"] = False
    caps = {reason: parsed.pop(reason.value) for reason in RESOURCES if reason.value in parsed}
    rules = {
        field_name: parsed.pop(name)
        for name, field_name in (
            ("backoff", "first_s"),
            ("backoff-limit", "longest_s"),
            ("max-failures", "failures"),
            ("failure-window", "window_s"),
        )
        if name in parsed
    }
    fields = {_FIELDS.get(name, name.replace("-", "_")): value for name, value in parsed.items()}
    return SuperviseOptions(caps=caps, rules=RestartRules(**rules), **fields)


def watched_words(options: SuperviseOptions) -> str:
    """Describes in one line what is watched, and what is not."""
    watched = ["whether the program ends or is stopped"]
    if RestartReason.FDS not in options.caps and options.watches_limit:
        watched.append(f"descriptors (it is replaced if it stays at {NEAR:.0%} of its limit)")
    watched += [f"its {reason}" for reason in options.caps]
    probed = options.progress_file or options.progress_http
    if probed:
        return f"watches {', '.join([*watched, f'its progress ({probed})'])}"
    return (
        f"watches {', '.join(watched)}; whether it makes progress is only known with a hold.Guard in it, "
        "--progress-file or --progress-http"
    )


def name_of(command: tuple[str, ...]) -> str:
    """Returns the name of the program, or of the script or module that Python runs."""
    program, *rest = [os.path.basename(word) for word in command]
    script = next((word for word in rest if not word.startswith("-")), program)
    is_python = program.startswith("python") and "-c" not in rest
    return script.removesuffix(".py") if is_python else program


def run_hint(command: tuple[str, ...], number: int) -> str:
    """Returns what to write instead, for the usual slips."""
    program = command[0]
    if number == ENOEXEC:
        return " (does the script begin with #! ?)"
    if number == ENOENT and len(command) == 1 and " " in program:
        return f" (without the quotes: holdfast supervise -- {program})"
    if number in (ENOENT, EACCES) and program.endswith(".py") and os.path.isfile(program):
        return f" (a script needs its interpreter: holdfast supervise -- python {shlex.join(command)})"
    return ""


# ---- values


def _fds(value: object) -> Cap | str:
    return _OFF if value == _OFF else cap_parser(FDS)(value)


def _command(value: object) -> tuple[str, ...]:
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"expected a list of words, got {value!r}")
    if not words[0] or any("\0" in word for word in words):
        raise ValueError(f"expected the name of a program, got {words[0]!r}")
    return tuple(words)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"expected a text, got {value!r}")
    return value


def _url(value: object) -> str:
    text = _text(value)
    parts = urlsplit(text.replace("{worker}", "1"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected a URL such as http://127.0.0.1:8000/healthz, got {text!r}")
    _ = parts.port  # raises ValueError if it is no port
    return text


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a time such as 30s, 5m or 1h, got {value!r}")
    return parse_seconds(value)


def _number(least: int, maximum: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = "" if isinstance(value, bool) else str(value)
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= maximum:
            raise ValueError(f"expected a number from {least} to {maximum:,}, got {value!r}")
        return int(text)

    return parse


def _mode(value: object) -> RestartMode:
    try:
        return RestartMode(str(value))
    except ValueError:
        raise ValueError(f"expected {', '.join(RestartMode)}, got {value!r}") from None


_FIELDS = {
    "progress-timeout": "progress_s",
    "frozen-timeout": "frozen_s",
    "drain-timeout": "drain_s",
    "stop-timeout": "stop_s",
    "tick": "tick_s",
}
NAMES: dict[str, Callable[[object], Any]] = {
    "command": _command,
    "workers": _number(1, MAX_WORKERS),
    "name": _text,
    **{reason.value: cap_parser(what) for reason, what in RESOURCES.items()},
    FDS.name: _fds,
    "progress-file": _text,
    "progress-http": _url,
    "progress-timeout": _seconds,
    "frozen-timeout": _seconds,
    "drain-timeout": _seconds,
    "stop-timeout": _seconds,
    "restart": _mode,
    "backoff": _seconds,
    "backoff-limit": _seconds,
    "max-failures": _number(0, 1_000_000),
    "failure-window": _seconds,
    "tick": _seconds,
}
