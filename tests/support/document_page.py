"""Runs the code blocks of a page in its order, in one folder that has nothing but the examples.

python      in one interpreter for the whole page
console     each command by bash; document_blocks.py says how its output is compared
sh          make targets: they must exist
json toml   must parse
text …      shown only
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from document_blocks import Block, Command, blocks, commands, matches
from line_child import LineChild

SHOWN_ONLY = {"text", "c", "yaml", "diff"}
# A make started by make listens to the one above it.
ABOVE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKE_TERMOUT", "MAKE_TERMERR")


class Page:
    """Runs the blocks of one page; every problem is a line that names the place."""

    def __init__(self, path: Path, folder: Path, top: Path) -> None:
        self.path = path
        self.top = top
        self.folder = folder / "page"
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(top / "examples")
        self.env = {name: value for name, value in os.environ.items() if name not in ABOVE}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"
        self.env |= {"COLUMNS": "80", "NO_COLOR": "1", "MPLBACKEND": "Agg"}
        runner = [sys.executable, str(Path(__file__).with_name("document_runner.py"))]
        self.interpreter = LineChild(runner, folder / "said.txt", env=self.env, cwd=self.folder)

    def run(self) -> list[str]:
        with self.interpreter:
            return [problem for block in blocks(self.path.read_text()) for problem in self.run_block(block)]

    def run_block(self, block: Block) -> list[str]:
        match block.language:
            case "python":
                return self.run_python(block)
            case "console":
                return self.run_console(block)
            case "sh":
                return self.check_make(block)
            case "json":
                return self.parse(block, json.loads)
            case "toml":
                return self.parse(block, tomllib.loads)
            case "":
                return [self.problem(block.line, "a block without a language: say what it is, `text` if nothing else")]
            case language if language in SHOWN_ONLY:
                return []
            case language:
                return [self.problem(block.line, f"no rule for a block of {language!r}")]

    def run_python(self, block: Block) -> list[str]:
        failure = self.interpreter.ask({"page": str(self.path), "line": block.line, "source": block.text})
        return [self.problem(block.line, failure)] if failure else []

    def run_console(self, block: Block) -> list[str]:
        return [problem for command in commands(block) for problem in self.run_command(command)]

    def run_command(self, command: Command) -> list[str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.source],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        got = done.stdout.decode(errors="replace")
        if done.returncode == command.exit_code and matches(command.output, got, numbers_vary=command.numbers_vary):
            return []
        wanted = f"--- expected, with exit code {command.exit_code}\n{command.output}"
        return [
            self.problem(
                command.line,
                f"$ {command.source}\n{wanted}\n--- got, with exit code {done.returncode}\n{got}",
            )
        ]

    def unknown_extras(self, line: str) -> list[str]:
        path = self.top / "pyproject.toml"
        project = tomllib.loads(path.read_text())["project"] if path.exists() else {}
        named = [name for found in re.findall(r"\[([\w,]+)\]", line) for name in found.split(",")]
        return [name for name in named if name not in project.get("optional-dependencies", {})]

    def check_make(self, block: Block) -> list[str]:
        problems = []
        for number, line in enumerate(block.text.splitlines(), start=block.line):
            words = line.partition("#")[0].split()
            if words[:2] == ["pip", "install"]:  # it would need a network: what it names must be there
                problems += [self.problem(number, f"no such extra: {name}") for name in self.unknown_extras(line)]
            elif words and words[0] != "make":
                problems.append(self.problem(number, f"expected `make …` in a block of sh, got: {line}"))
            elif words:
                done = subprocess.run(
                    ["make", "-n", *words[1:]],
                    cwd=self.top,
                    env=self.env,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    problems.append(self.problem(number, f"{line}: {done.stderr}"))
        return problems

    def parse(self, block: Block, loads: Callable[[str], object]) -> list[str]:
        try:
            loads(block.text)
        except ValueError as error:
            return [self.problem(block.line, f"this is not {block.language}: {error}")]
        return []

    def problem(self, line: int, what: str) -> str:
        return f"{self.path.relative_to(self.top)}, line {line}: {what}"
