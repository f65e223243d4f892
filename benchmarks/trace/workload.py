"""A program that makes descriptors, as the benchmark traces it: `workload.py WORK COUNT FOLDER [audit|wrap]`."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from pathlib import Path
from typing import Any

_stacks: dict[tuple[tuple[str, int], ...], int] = {}


def note_stack(*_: Any) -> None:
    """Counts the stack of the caller, as a recorder in Python would."""
    stack = tuple((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1)))
    _stacks[stack] = _stacks.get(stack, 0) + 1


def add_audit_hook() -> None:
    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in ("open", "socket.__new__"):
            note_stack()

    sys.addaudithook(hook)


def wrap_functions() -> None:
    def wrapped(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            note_stack()
            return function(*args, **kwargs)

        return call

    for name in ("open", "close", "pipe", "dup"):
        setattr(os, name, wrapped(getattr(os, name)))
    builtins.open = wrapped(builtins.open)


def deep(count: int, _: Path, depth: int = 20) -> None:
    if depth:
        deep(count, _, depth - 1)
        return
    for _number in range(count):
        os.close(os.open(os.devnull, os.O_RDONLY))


def pipes(count: int, _: Path) -> None:
    for _number in range(count):
        for fd in os.pipe():
            os.close(fd)


def files(count: int, folder: Path) -> None:
    paths = sorted(str(path) for path in folder.iterdir())
    for number in range(count):
        with open(paths[number % len(paths)], "rb") as file:
            file.read()


def loader(count: int, folder: Path) -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset

    paths = sorted(str(path) for path in folder.iterdir())[:600]

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, at: int) -> Any:
            with open(paths[at], "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

    torch.set_num_threads(1)
    for _ in range(count):
        for _batch in DataLoader(Files(), batch_size=32, num_workers=2, multiprocessing_context="fork"):
            pass


if __name__ == "__main__":
    work, count, folder, *mode = sys.argv[1:]
    if mode == ["audit"]:
        add_audit_hook()
    elif mode == ["wrap"]:
        wrap_functions()
    {"deep": deep, "pipe": pipes, "files": files, "loader": loader}[work](int(count), Path(folder))
    # ru_maxrss would include that of the parent before the exec.
    print(
        next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    )
