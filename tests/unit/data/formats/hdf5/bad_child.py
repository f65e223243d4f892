"""The child of formats/hdf5, with a library that crashes, hangs or cannot write where it is told to.

BAD_CHILD is `how:path:start`: at that piece of that dataset, or at "any"; `how:path:` at its head.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

from holdfast.data.formats.hdf5 import chunks, object_walk, salvage_child, sandbox_main, verify_child

how, where, start = os.environ["BAD_CHILD"].split(":")


def misbehave() -> None:
    if how == "hang":
        while True:
            pass
    os.kill(os.getpid(), getattr(signal, how))


def read_piece(dataset: Any, piece: chunks.ChunkPiece) -> Any:
    if dataset.name == where and start in ("any", str(piece.start[0])):
        misbehave()
    return chunks.read_piece(dataset, piece)


def read_unconverted(dataset: Any, start: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    return read_piece(dataset, chunks.ChunkPiece(start, sizes))


def identity(thing: Any) -> tuple[Any, ...]:
    if thing.name == where and not start:
        misbehave()
    return real_identity(thing)


real_identity = object_walk._identity
if how == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(start), int(start)))
else:
    verify_child.read_piece = read_piece
    salvage_child.read_unconverted = read_unconverted
    object_walk._identity = identity

sys.exit(sandbox_main.main())
