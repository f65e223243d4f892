"""`holdfast` itself: its overview, its version, its help, and what it says to wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import holdfast, on_terminal, refused, without_styles

import holdfast as hold
from holdfast._native import codec
from holdfast.cli.app import COMMANDS, LINES


def test_without_arguments_it_shows_the_commands_by_purpose() -> None:
    done = holdfast()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for purpose, commands in COMMANDS.items():
        at = lines.index(purpose)
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == list(commands)
    assert "130  interrupted" in done.stdout
    assert max(map(len, lines)) <= 80


def test_help_is_the_same_screen() -> None:
    assert holdfast("--help").stdout == holdfast().stdout


@pytest.mark.formats
def test_the_version_is_one_line_that_says_which_codec() -> None:
    done = holdfast("--version")
    kind = f"compiled codec, {codec.crc_kind()}" if codec.NATIVE else "pure Python codec: "
    assert done.stdout.startswith(f"holdfast {hold.__version__} (distribution holdfast-io; {kind}")
    assert done.stdout.count("\n") == 1
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", LINES)
def test_each_command_has_a_page_with_an_example_and_its_exit_codes(command: str) -> None:
    done = holdfast(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        f"Usage: holdfast {command} ",
        LINES[command],
        "Example",
        f"\n  holdfast {command} ",
        "\nExit codes: 0 ",
    ):
        assert part in done.stdout
    for option in ("--json", "-q, --quiet", "--debug"):
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_on_a_terminal_headings_are_bold_unless_colours_are_not_wanted() -> None:
    assert "\x1b[1mRepair\x1b[0m" in on_terminal()[0]
    assert "\x1b" not in on_terminal(NO_COLOR="1")[0]
    assert without_styles(on_terminal()[0]) == holdfast().stdout


EITHER = "expected either the number of files (-n) or their size (--size)"
WRONG = {
    "verfy": "no such command: verfy; did you mean verify?",
    "frobnicate": "no such command: frobnicate",
    "--frobnicate": "no such option: --frobnicate",
    "verify --jsn x": "verify: no such option: --jsn; did you mean --jobs or --json or --run?",
    "verify": "verify: missing argument 'FILE...'",
    "verify -j 0 x": "verify: invalid value for '-j' / '--jobs': 0 is not in the range x>=1",
    "salvage x": "salvage: expected IN and OUT, got 'x' alone; --in-place needs no OUT",
    "salvage x y z": "salvage: expected a directory as OUT for 2 files, got 'z'; end it with / to create it",
    "merge x": "merge: missing option '-o' / '--out'",
    "split x -o d": f"split: {EITHER}",
    "split x -o d -n 2 --size 1MB": f"split: {EITHER}",
    "split x -o d --size big": "split: invalid value for '--size': expected a size such as 256MB or 1.5GiB, got 'big'",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_is_one_sentence_and_exit_code_2(line: str, tmp_path: Path) -> None:
    said, _, see = refused(*line.split(), code=2, cwd=tmp_path).rpartition(" (see ")
    assert said == WRONG[line]
    command = line.split()[0] if ":" in said and line.split()[0] in LINES else ""
    assert see == f"`holdfast {command} --help`)".replace("  ", " ")
    assert list(tmp_path.iterdir()) == []
