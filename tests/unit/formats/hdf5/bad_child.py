"""The child of formats/hdf5, with a library that crashes, hangs or cannot write where it is told to.

BAD_CHILD is `how:path:start`: at that piece of that dataset; `how:path:` at its head.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

from holdfast.formats.hdf5 import check, child, pieces, rescue, walk

how, where, start = os.environ["BAD_CHILD"].split(":")


def misbehave() -> None:
    if how == "hang":
        while True:
            pass
    os.kill(os.getpid(), getattr(signal, how))


def read_piece(dataset: Any, piece: pieces.Piece) -> Any:
    if dataset.name == where and start and piece.start[0] == int(start):
        misbehave()
    return pieces.read_piece(dataset, piece)


def decode_piece(dataset: Any, piece: pieces.Piece, kind: Any) -> None:
    read_piece(dataset, piece)


def identity(thing: Any) -> tuple[Any, ...]:
    if thing.name == where and not start:
        misbehave()
    return real_identity(thing)


real_identity = walk._identity
if how == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(start), int(start)))
else:
    check.read_piece = read_piece
    rescue.decode_piece = decode_piece
    walk._identity = identity

sys.exit(child.main())
