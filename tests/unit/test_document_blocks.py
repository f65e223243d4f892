"""Reading a page's blocks, and comparing what is shown with what was printed."""

from __future__ import annotations

import pytest

from document_blocks import Block, Command, blocks, commands, matches, prose

PAGE = """\
# Title
```python title="a.py"
x = 1
```
1. In a list:

    ~~~text
      kept
    ```
    ~~~
and [a link](b.md) `[not](one)`
"""


def test_blocks_have_language_line_and_dedented_text() -> None:
    assert list(blocks(PAGE)) == [Block("python", 3, "x = 1"), Block("text", 8, "  kept\n```")]


def test_prose_is_the_rest() -> None:
    assert prose(PAGE).splitlines() == ["# Title", "1. In a list:", "", "and [a link](b.md) "]


def test_an_open_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 1: this block is never closed"):
        list(blocks("```python\nx = 1\n"))


def test_commands_take_output_and_exit_code() -> None:
    text = "$ true\n$ one \\\n> two \\\n    three\n# exit 2\nsaid\n\nmore\n$ last"
    assert commands(Block("console", 10, text)) == [
        Command(10, "true", 0, ""),
        Command(11, "one \\\ntwo \\\n    three", 2, "said\n\nmore"),
        Command(18, "last", 0, ""),
    ]


def test_output_without_a_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 3: a console block starts with a command"):
        commands(Block("console", 3, "said"))


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("", "", True),
        ("", "something\n", False),
        ("a\nb", "a  \nb\n\n", True),
        ("  a", "a", False),
        ("a\n…\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nd\n", True),
        ("a\n…", "a\nb", True),
        ("a\n…", "b", False),
        ("in … s", "in 0.31 s", True),
        ("in … s", "in 0.31\nm s", False),
        ("(a.b)*", "(a.b)*", True),
        ("a.b", "axb", False),
    ],
)
def test_dots_stand_for_anything_and_all_else_for_itself(wanted: str, got: str, same: bool) -> None:
    assert matches(wanted, got) is same


def test_numbers_of_another_run_are_no_difference_but_words_are() -> None:
    [command] = commands(Block("console", 1, "$ look 12  # numbers vary\ngrew by 1,024 in 5 s  █▊░░░ 7.7 %"))
    assert command.numbers_vary
    for got, same in [
        ("grew by 3 in 1 min 18 s  ▏░░░░ 0.1 %", True),
        ("grew by 3 in\n  5 s   █▊░░░ 12 %", True),
        ("shrank by 3 in 5 s  ▏░░░░ 0.1 %", False),
        ("grew by 3 in 5 s  ▏░░░░ 0.1 %  sure", False),
        ("grew by 3", False),
    ]:
        assert matches(command.output, got, numbers_vary=command.numbers_vary) is same, got
    assert not matches(command.output, "grew by 3 in 5 s  █▊░░░ 7.7 %")
