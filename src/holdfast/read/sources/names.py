"""What a name says about a file before anybody looks at it: a shard, a single sample, something beside them, a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ...errors import InputError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = re.compile(r"(file|local)://")
_SHARD = re.compile(
    r"\.(tfrecords?|tfrec)([-.]\d+(-of-\d+)?)?(\.(gz|gzip|zlib|zz))?$"
    r"|-\d{5}-of-\d{5}(\.(gz|gzip|zlib|zz))?$"  # as TensorFlow's own tools number them, often without a suffix
    r"|\.(h5|hdf5|hdf)$"
    r"|\.(tar|tar\.(gz|bz2|xz)|tgz|tbz2|txz)$",
    re.IGNORECASE,
)
_SMALL = re.compile(r"\.(jpe?g|png|gif|webp|bmp|p[bgnp]m|tiff?|txt)$", re.IGNORECASE)
_BESIDE = re.compile(r"^\.|\.(index|json|partial|tmp|temp|part)$|~$", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 100_000  # names that one pattern may stand for


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def local_path(text: str) -> str:
    """A file:// URL as the path it is; anything else as it was."""
    found = _LOCAL.match(text)
    if found:
        return text[found.end() :]
    return os.path.expanduser(text) if text.startswith("~") else text


def is_shard(path: str) -> bool:
    return _SHARD.search(path) is not None


def is_small_file(path: str) -> bool:
    """A sample by itself."""
    return _SMALL.search(path) is not None


def is_beside(path: str) -> bool:
    """Hidden, unfinished, or about the data: never the data."""
    return _BESIDE.search(path.rpartition("/")[2]) is not None


def is_glob(text: str) -> bool:
    # In the address of a web page the question mark has another meaning.
    return re.search(r"[*\[]" if text.startswith("http") else r"[*?\[]", text) is not None


def committed(names: list[str]) -> list[str]:
    """Of the names in a `parts` folder those that are there for good: a .json beside them says so."""
    there = set(names)
    return sorted(
        (
            name
            for name in names
            if not is_beside(name) and (f"{name}.json" in there or f"{os.path.splitext(name)[0]}.json" in there)
        ),
        key=os.fsencode,
    )


def expand_braces(text: str) -> Iterator[str]:
    """`{a,b}` and `{000..031}`, as WebDataset and shells have them. Braces that hold neither stay."""
    for number, one in enumerate(_expand(text)):
        if number == _MOST:
            raise InputError(f"{text}: expected braces that stand for up to {_MOST:,} names, got more")
        yield one


def _expand(text: str) -> Iterator[str]:
    start = text.find("{")
    parts = _inside(text, start) if start >= 0 else None
    if parts is None:
        # Nothing, or an opening brace that none closes.
        yield text
        return
    end = start + sum(map(len, parts)) + len(parts) + 1
    for choice in _choices(parts):
        for rest in _expand(text[end:]):
            yield text[:start] + choice + rest


def _inside(text: str, start: int) -> list[str] | None:
    """What is between the commas of the braces that open at `start`; None when they do not close."""
    parts, depth, begin = [], 0, start + 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0 or (depth == 1 and text[at] == ","):
            parts.append(text[begin:at])
            begin = at + 1
        if depth == 0:
            return parts
    return None


def _choices(parts: list[str]) -> Iterator[str]:
    if len(parts) > 1:
        for part in parts:
            yield from _expand(part)
    elif found := _RANGE.fullmatch(parts[0]):
        first, last = int(found[1]), int(found[2])
        width = max(len(found[1]), len(found[2])) if "0" in (found[1][0], found[2][0]) else 0
        step = 1 if last >= first else -1
        yield from (f"{number:0{width}}" for number in range(first, last + step, step))
    else:
        yield from (f"{{{one}}}" for one in _expand(parts[0]))
