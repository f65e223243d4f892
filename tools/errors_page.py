"""Generate docs/errors.md from the rules of `holdfast explain`.

python tools/errors_page.py           writes the page
python tools/errors_page.py --check   exits with 1 if the page is out of date
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.process.error_guide import rules_fds, rules_files, rules_processes, rules_workers
from holdfast.process.error_guide.rules import Rule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
ROWS = (*rules_fds.RULES, *rules_files.RULES, *rules_files.GENERAL, *rules_workers.RULES, *rules_processes.RULES)
_TOP = """\
# Error messages

This page explains error messages of training jobs: what they mean, what they are often mistaken for, and what to do.
`holdfast explain "MESSAGE"` adds what it finds on your machine: which limit is reached, how much of it is used, and
which process holds the lock. `holdfast explain train.log` finds these errors in a log. `tools/errors_page.py` generates
this page.
"""


def page() -> str:
    return "\n".join([_TOP, *("\n".join(_section(rule)) for rule in ROWS)])


def _section(rule: Rule) -> Iterator[str]:
    number = "" if rule.errno is None else f" ({errno.errorcode[rule.errno]}, errno {rule.errno})"
    yield f"## {rule.title}{number}\n"
    words = [needle.strip(" :") for needle in rule.needles if not needle.startswith(("errno", "error("))]
    yield "Recognised by: " + ", ".join(f"`{word}`" for word in words) + ".\n"
    yield f"{rule.says}\n"
    yield f"**Mistaken for:** {rule.mistaken_for}\n"
    yield from (f"{at}. {one}" for at, one in enumerate(rule.advice, 1))
    yield ""
    if rule.remedy is not None:
        name = rule.remedy.page.removeprefix("docs/")
        # Not a Python block: tests run those, and these lines need data that does not exist.
        yield f"With holdfast, see [{name.removesuffix('.md')}]({name}):\n"
        yield "```text"
        yield from rule.remedy.code
        yield "```\n"


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == page():
            return 0
        print("docs/errors.md is out of date: run python tools/errors_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
