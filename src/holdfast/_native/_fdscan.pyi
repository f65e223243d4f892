"""Declares the compiled loops. `native/fdscan/module.c` documents each function."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])

def read_targets(prefix: str, names: Sequence[str], place: int, /) -> list[str]: ...
def read_modes(prefix: str, names: Sequence[str], place: int, /) -> list[int]: ...
def describe(
    fds: Sequence[int],
    targets: Sequence[str],
    row: type[Row],
    kinds: tuple[Any, ...],
    kind_of: Callable[[str], tuple[Any, int | None]],
    /,
) -> list[Row]: ...
def ask(fds: list[int], /) -> bytes: ...
def ask_other(pidfd: int, fds: list[int], at_once: int, /) -> bytes: ...
def pair_pipes(
    tables: Mapping[int, Iterable[Any]],
    access: Callable[[int, list[int]], Mapping[int, str]],
    poll: Callable[[int, list[int]], Mapping[int, Any]] | None,
    pipe: Any,
    row: type[Row],
    fates: tuple[Any, ...],
    /,
) -> dict[int, list[Row]]: ...
def parse_unix(data: bytes, at: int, row: type[Row], rows: list[Row], /) -> int: ...
