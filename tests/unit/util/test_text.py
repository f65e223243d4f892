from __future__ import annotations

from typing import Any

import pytest

from holdfast._util.text import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MB", 256_000_000),
        ("1.5 GiB", 3 << 29),
        ("64k", 64_000),
        (17, 17),
        ("17", 17),
        ("2 kib", 2048),
        ("1TB", 10**12),
        ("3b", 3),
    ],
)
def test_sizes_people_write(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "-3MB", "1e9", 0, -1, "0", None, True, "9" * 400])
def test_other_things_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_234_567, "1.23 MB"),
        (999_999, "1.00 MB"),
        (34_000_000_000, "34.0 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_people_read(size: int, text: str) -> None:
    assert format_bytes(size) == text
