"""The table of commands is what the commands say of themselves."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import click
import pytest

from holdfast.cli.app import EXIT_CODES, LINES, holdfast


@pytest.mark.parametrize("name", LINES)
def test_a_command_is_its_module(name: str) -> None:
    module = importlib.import_module(f"holdfast.cli.{name}")
    command = holdfast.get_command(click.Context(holdfast), name)
    assert command is getattr(module, name)
    assert command.help == module.__doc__
    assert LINES[name] == (module.__doc__ or "").splitlines()[0]


def test_there_are_no_other_commands() -> None:
    assert holdfast.get_command(click.Context(holdfast), "exits") is None


def test_the_exit_codes_are_the_documented_ones() -> None:
    listed = [line.split()[0] for line in EXIT_CODES.splitlines() if line[2:3].isdigit()]
    assert listed == ["0", "1", "2", "3", "10", "70", "130"]


def test_the_overview_and_the_version_load_neither_numpy_nor_rich() -> None:
    program = (
        "import sys; from holdfast.cli import main; codes = main(['--version']), main([]); "
        "print(codes, sorted({'numpy', 'rich', 'holdfast.data.formats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "(0, 0) []"


WITHOUT_CODEC = """
import sys
sys.modules["holdfast._native._codec"] = None  # as if it had not been compiled
from holdfast.cli import main
main(["--version"])
"""


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("", "; pure Python codec: there was no compiler at installation; slower, same results)"),
        ("0", "; pure Python codec: selected by HOLDFAST_NATIVE=0; slower, same results)"),
        ("1", "; no codec: HOLDFAST_NATIVE=1 requires the compiled one, and "),
    ],
)
def test_the_version_without_a_compiled_codec(choice: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CODEC],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_NATIVE": choice},
        check=True,
    )
    assert shown in done.stdout
    assert done.stdout.count("\n") == 1
