"""Words and values as they are shown."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from holdfast._util.text import counted, printable
from holdfast.cli.tables import table
from holdfast.data.formats.sections import as_text
from holdfast.data.formats.tfrecord.inspect import as_json


def test_counted() -> None:
    assert [counted(n, "file") for n in (0, 1, 2, 12345)] == ["0 files", "1 file", "2 files", "12,345 files"]


def test_what_is_printable_stays_and_the_rest_is_shown_as_what_it_is() -> None:
    assert printable("größe/データ [x] ✓") == "größe/データ [x] ✓"
    assert printable("a\x1b[31m\n\udcff\u202e") == r"a\x1b[31m\n\udcff\u202e"


TEXTS = {
    (7,): "7",
    (-1,): "-1",
    (): "[]",
    (0.1, 1e-9, 123456789.0): "[0.1, 1e-09, 1.235e+08]",
    tuple(range(8)): "[0, 1, 2, 3, 4, 5, …] (8 values)",
    (b"cat",): "'cat'",
    (b"\x89PNG" + bytes(99),): r"b'\x89PNG\x00\x00\x00\x00\x00\x00\x00\x00…' (103 bytes)",
    ("é".encode() * 40,): "'" + "é" * 20 + "…' (80 bytes)",
    (b"",): "b''",
}


@pytest.mark.parametrize(("values", "text"), TEXTS.items())
def test_values_for_people(values: tuple[object, ...], text: str) -> None:
    assert as_text(values) == text


def test_steps_for_people() -> None:
    assert as_text([[1], [2, 3], []]) == "[1, [2, 3], []]"
    assert as_text([[1, 2]] * 9).endswith("…] (9 steps)")


def test_values_for_machines() -> None:
    assert as_json([7]) == 7
    assert as_json([0.1 + 1e-9, 2.0]) == [0.1, 2.0]
    assert as_json(list(range(99))) == {"length": 99, "values": list(range(16))}
    assert as_json([b"cat"]) == {"length": 3, "text": "cat"}
    assert as_json([b"\xff" * 99]) == {"length": 99, "hex": "ff" * 64}
    assert as_json([[1], [2.5, 3.5]]) == [1, [2.5, 3.5]]
    strange = as_json([math.nan, math.inf, -math.inf])
    assert json.loads(json.dumps(strange, allow_nan=False)) == ["nan", "inf", "-inf"]


def test_a_table_for_a_pipe_has_no_lines_and_cuts_nothing() -> None:
    console = Console(width=1 << 14, file=open("/dev/null", "w"), record=True)  # noqa: SIM115 - closed below
    with console.file:
        console.print(table(["file", ">size"], [("x" * 300, "1"), ("[red]y", "22")], terminal=False, indent=2))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines == ["  file" + " " * 298 + "size", "  " + "x" * 300 + "     1", "  [red]y" + " " * 294 + "    22"]
