"""The checkpoint of an epoch: its position and a fingerprint of the data, in a few hundred bytes of JSON.

A position is an epoch and a number of samples. It says nothing about batches, ranks or workers, so any number of them
can resume from it. On other data or in another order it means nothing: the state has a fingerprint of both, and a state
with another fingerprint is an error that says what differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import StateError
from ...schema import Schema
from .order.dataset_split import PickedOrder
from .order.shuffle import SampleOrder

_KIND = "holdfast read state 1"
_DIGESTS = {
    "names": "the shards have other names, or come in another order",
    "counts": "shards have other numbers of samples",
    "sizes": "shards have other sizes",
    "schema": "the schema is another one",
}
_NUMBERS = {
    "shards": "shards",
    "samples": "samples",
    "size_bytes": "bytes",
}
_SETTINGS = {
    "seed": "the seed",
    "lanes": "the number of lanes",
    "window": "the window",
    "mix": "the mix",
    "split": "the split",
    "selection": "what take() and skip() select",
}


class Position(NamedTuple):
    """`done` samples of epoch `epoch` have been read, over all ranks."""

    epoch: int
    done: int


def fingerprint(
    order: SampleOrder | PickedOrder,
    names: Sequence[str],
    counts: Sequence[int],
    sizes_bytes: Sequence[int],
    schema: Schema,
) -> dict[str, Any]:
    """Fingerprints an order and its data, without the shards' folder and dates: a copy elsewhere is the same data."""
    if not len(names) == len(counts) == len(sizes_bytes):
        raise ValueError(
            f"expected as many names as counts and sizes, got {len(names)}, {len(counts)}, {len(sizes_bytes)}"
        )
    return {
        "shards": len(names),
        "samples": sum(counts),
        "size_bytes": sum(sizes_bytes),
        "names": _digest(_without_folder(names)),
        "counts": _digest(counts),
        "sizes": _digest(sizes_bytes),
        "schema": schema_digest(schema),
        "seed": order.seed,
        "lanes": order.lanes,
        "window": order.window,
    }


def schema_digest(*schemas: Schema) -> str:
    """Hashes schemas. Several equal ones have the digest of one."""
    each = [_digest(f"{name}={schema[name]!r}" for name in sorted(schema)) for schema in schemas]
    return each[0] if len(set(each)) == 1 else _digest(each)


def save_state(position: Position, made_from: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state as JSON has it."""
    return {"kind": _KIND, "epoch": position.epoch, "done": position.done, "fingerprint": dict(made_from)}


def load_state(state: Mapping[str, Any], now: Mapping[str, Any], *, samples_of: Callable[[int], int]) -> Position:
    """Returns the position in a state; StateError if the fingerprint `now` is another one.

    samples_of: how many samples an epoch has
    """
    if not isinstance(state, Mapping) or state.get("kind") != _KIND:
        got = state.get("kind") if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"expected a state of kind {_KIND!r}, got {got!r}")
    then = state.get("fingerprint")
    if not isinstance(then, Mapping):
        raise StateError(f"expected a state with a fingerprint, got {then!r}")
    different = differences(then, now)
    if different:
        raise StateError(f"the state is of other data or another order: {'; '.join(different)}")
    epoch = _count(state, "epoch")
    done = _count(state, "done")
    samples = samples_of(epoch)
    if done > samples:
        raise StateError(f"expected up to the {samples:,} samples of an epoch, got {done:,}")
    return Position(epoch=epoch, done=done)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describes what differs: the data first, then their order."""
    found = [
        f"{_number(then.get(part))} {what} then, {_number(now.get(part))} now"
        for part, what in _NUMBERS.items()
        if then.get(part) != now.get(part)
    ]
    if not found or then.get("shards") == now.get("shards"):
        found += [text for part, text in _DIGESTS.items() if then.get(part) != now.get(part)]
    elif then.get("schema") != now.get("schema"):
        found.append(_DIGESTS["schema"])
    return found + [
        f"{what} was {then.get(part)!r}, and is {now.get(part)!r}"
        for part, what in _SETTINGS.items()
        if then.get(part) != now.get(part) and (part != "selection" or part in then)  # older states have none
    ]


def _without_folder(names: Sequence[str]) -> list[str]:
    """Returns the names relative to the folder that all are in."""
    folders = [name.split("/")[:-1] for name in names]
    shared = 0
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared += 1
    return ["/".join(name.split("/")[shared:]) for name in names]


def _digest(parts: Iterable[object]) -> str:
    """Hashes each part after its length: ("a", "bc") is not ("ab", "c")."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode("utf-8", "surrogateescape")
        hashed.update(f"{len(text)}:".encode() + text)
    return hashed.hexdigest()


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else repr(value)


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateError(f"{name} in a saved state must be a non-negative integer, got {value!r}")
    return value
