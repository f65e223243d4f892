"""What the pages say is true: their code runs, their commands print what is shown, their links lead on.

How a page's blocks are run: document_page.py. How a console block is written: document_blocks.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from document_blocks import prose
from document_page import Page

TOP = Path(__file__).resolve().parents[2]
PAGES = [
    *(path for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md") if (path := TOP / name).exists()),
    *sorted((TOP / "docs").rglob("*.md")),
]


def name(path: Path) -> str:
    return str(path.relative_to(TOP))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_code_runs(path: Path, tmp_path: Path) -> None:
    problems = Page(path, tmp_path, TOP).run()
    assert not problems, "\n\n".join(["", *problems])


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    """To files; mkdocs, below, looks at the anchors too."""
    targets = re.findall(r"\]\(<?([^)\s>]+)", prose(path.read_text()))
    files = [target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
    missing = [file for file in files if file and not (path.parent / file).exists()]
    assert not missing, f"{name(path)} links to what is not there: {missing}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("documents") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", made],
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return made


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    outside = [
        f"{page.name}: {found}"
        for page in site.rglob("*.html")
        for found in re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="(?:https?:)?//[^"]+"', page.read_text())
    ]
    assert not outside, f"pages that load from elsewhere: {outside}"


@pytest.mark.parametrize(
    "words",
    [
        "Too many open files",
        "Bad file descriptor",
        "DataLossError",
        "received 0 items of ancdata",
        "ancdata",
        "unable to lock file",
        "Resource temporarily unavailable",
        "Stale file handle",
        "No such file or directory",
        "Killed",
    ],
)
def test_the_sites_search_finds_an_error_message(site: Path, words: str) -> None:
    """The search looks for words in this index, those of titles first; a title of the page on errors has them all."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = [one["title"] for one in entries if one["location"].startswith("errors.html#")]
    assert any(words.lower() in title.lower() for title in found), found


def test_the_page_on_errors_is_what_the_table_says() -> None:
    done = subprocess.run(
        [sys.executable, TOP / "tools" / "errors_page.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# The brackets keep this line from finding itself.
PRIVATE = re.compile(r"(?<![\w.~-])/(?:[w]ork|[r]oot)/|pypi[.]org/simple|[p]ythonhosted[.]org")
FOLDERS = ("src", "native", "tests", "docs", "tools", "benchmarks", "examples", ".ci")
TEXTS = {".py", ".pyi", ".c", ".h", ".md", ".toml", ".yml", ".sh", ".txt", ".html", ".css", ".js", ""}


def sources() -> list[Path]:
    files = [path for path in TOP.iterdir() if path.is_file() and path.name != ".git"]
    files += [path for folder in FOLDERS for path in (TOP / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix in TEXTS and "__pycache__" not in path.parts]


def test_nothing_names_one_machine() -> None:
    """A path or a host that only one machine knows makes the next one fail."""
    found = [
        f"{name(path)}, line {number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)
