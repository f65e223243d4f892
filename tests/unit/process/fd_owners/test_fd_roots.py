from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.process.fd_owners.fd_readers import Mapping, parse_maps
from holdfast.process.fd_owners.paths import is_mine, line_of_variable, short_file

MODULE = """import os
keeper = 1
def work():
    keep = 2
if keep == 3:
    pass
keep: dict[str, int] = {}
keep = 4
first, second = 1, 2
with open(os.devnull) as file:
    pass
for one in ():
    pass
class Thing:
    pass
async def run(): ...
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("keep", 7), ("keeper", 2), ("first", 9), ("file", 10), ("one", 12), ("Thing", 14), ("run", 16), ("absent", None)],
)
def test_the_line_of_a_variable(tmp_path: Path, name: str, line: int | None) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert line_of_variable(str(path), name) == line


def test_no_source() -> None:
    assert line_of_variable("/no/such/file.py", "keep") is None


def test_own_code_and_libraries() -> None:
    assert is_mine(__file__)
    assert not is_mine(json.__file__)
    assert not is_mine(pytest.__file__)
    assert not is_mine("<frozen importlib._bootstrap>")


def test_short_files() -> None:
    assert short_file("/a/b/worker.py") == "worker.py"
    assert short_file("/a/b/__init__.py") == "b/__init__.py"


def test_maps() -> None:
    text = (
        "5581e000-5581f000 r--p 00000000 fd:01 777                        /usr/bin/python3 with spaces\n"
        "5590a000-5590b000 rw-p 00000000 00:00 0                          [heap]\n"
        "7f1c6a400000-7f1c6a401000 rw-s 00000000 00:19 1031               /dev/shm/psm_4f2a (deleted)\n"
        "7f1c6a500000-7f1c6a501000 rw-p 00000000 00:00 0\n"
    )
    assert parse_maps(text) == [
        Mapping(0x5581E000, 0x5581F000, 777, "/usr/bin/python3 with spaces"),
        Mapping(0x7F1C6A400000, 0x7F1C6A401000, 1031, "/dev/shm/psm_4f2a (deleted)"),
    ]
    assert parse_maps(f"{os.sep}") == []
