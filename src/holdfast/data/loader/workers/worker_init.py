"""What a worker gets before its first task: import paths, arguments, the layout of shared memory and the work itself.

A worker imports the main script only when it needs something of it: the script may load a framework for nothing.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import process, spawn
from typing import Any

from .shared_memory import SharedLayout

_NO_GUARD = (
    "the main script opens a process pool while a worker imports it to find the work. Put what runs under\n"
    '    if __name__ == "__main__":\n'
    'or move the work to a module of its own, or use where="threads"'
)


@dataclass(frozen=True, slots=True)
class WorkerInit:
    layout: SharedLayout
    preparation: dict[str, Any]
    main: tuple[str, str] | None  # how to import the main script: by name or by path
    work: bytes


def write_init(work: Callable[..., Any], layout: SharedLayout) -> int:
    """Returns a memory file with the init message. Raises TypeError for work that does not pickle."""
    preparation = spawn.get_preparation_data("holdfast-worker")
    preparation["authkey"] = bytes(preparation["authkey"])
    main = None
    for how in ("init_main_from_name", "init_main_from_path"):
        if how in preparation:
            main = (how, preparation.pop(how))
    init = WorkerInit(layout, preparation, main, _pickle_work(work, has_main=main is not None))
    fd = os.memfd_create("holdfast-init", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        pickle.dump(init, file, protocol=5)
    return fd


def read_init(fd: int) -> WorkerInit:
    try:
        # pread, because all workers share one open file and so one position in it.
        init: WorkerInit = pickle.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)
    return init


def _pickle_work(work: Callable[..., Any], *, has_main: bool) -> bytes:
    try:
        data = pickle.dumps(work, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"expected work that can be sent to another process, got {_name(work)} ({error}); "
            'use a function at the top level of a module, or where="threads"'
        ) from error
    if b"__main__" in data and not has_main:
        raise TypeError(
            f"expected work that another process can import, got {_name(work)} from an interactive session; "
            'put it in a module, or use where="threads"'
        )
    return data


def _name(work: Callable[..., Any]) -> str:
    return str(getattr(work, "__qualname__", None) or repr(work))


# ---- in a worker

_main: tuple[str, str] | None = None
_importing = False


def apply_init(init: WorkerInit) -> None:
    global _main
    _main = init.main
    spawn.prepare(init.preparation)


def import_main() -> None:
    """Imports the main script under another name, as multiprocessing does: what is under its guard does not run."""
    global _main, _importing
    if _main is None:
        return
    (how, what), _main = _main, None
    current: Any = process.current_process()
    _importing = current._inheriting = True  # multiprocessing starts no processes meanwhile, and neither do pools
    try:
        if how == "init_main_from_name":
            spawn._fixup_main_from_name(what)  # type: ignore[attr-defined]
        else:
            spawn._fixup_main_from_path(what)  # type: ignore[attr-defined]
    finally:
        _importing = False
        del current._inheriting


def check_not_importing_main() -> None:
    if _importing:
        raise RuntimeError(_NO_GUARD)
