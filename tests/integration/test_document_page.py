"""A page's mistakes are found, each named by its line; and what is right passes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from document_page import Page


def problems(tmp_path: Path, page: str) -> list[str]:
    (tmp_path / "Makefile").write_text("there:\n\ttouch $@\n")
    path = tmp_path / "page.md"
    path.write_text(textwrap.dedent(page))
    return Page(path, tmp_path, tmp_path).run()


def test_blocks_of_a_page_share_folder_and_interpreter(tmp_path: Path) -> None:
    page = """
        ```python
        from pathlib import Path
        Path("made").write_text("by python\\n")
        ```
        ```console
        $ cat made; false
        # exit 1
        by …
        $ echo by bash > made
        ```
        ```python
        print("does not disturb")
        assert Path("made").read_text() == "by bash\\n"
        ```
        ```sh
        make there  # and a word on it
        ```
        ```json
        {"a": 1}
        ```
        ```text
        anything
        ```
    """
    assert problems(tmp_path, page) == []
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("block", "line", "told"),
    [
        ("```python\nx = 1\nassert x == 2\n```", 3, 'page.md", line 4, in <module>'),
        ("```python\nimport sys; sys.exit(3)\n```", 3, "SystemExit: 3"),
        ("```console\n$ echo one\ntwo\n```", 3, "two\n--- got, with exit code 0\none"),
        ("```console\n$ true\n$ false\n```", 4, "with exit code 1"),
        ("```sh\nmake nowhere\n```", 3, "No rule to make target"),
        ("```sh\nrm -rf .\n```", 3, "expected `make …`"),
        ("```sh\npip install '.[tset]'\n```", 3, "no such extra: tset"),
        ("```json\n{,}\n```", 3, "this is not json"),
        ("```\nwhat?\n```", 3, "say what it is"),
        ("```cobol\nSTOP RUN.\n```", 3, "no rule for a block of 'cobol'"),
    ],
    ids=["python", "exit", "output", "code", "target", "sh", "extra", "json", "plain", "unknown"],
)
def test_a_mistake_is_named_by_its_line(tmp_path: Path, block: str, line: int, told: str) -> None:
    found = problems(tmp_path, f"# Page\n{block}\n")
    assert len(found) == 1
    assert found[0].startswith(f"page.md, line {line}: ")
    assert told in found[0]
