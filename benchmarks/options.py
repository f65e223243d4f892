"""The options that the benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sides import HERE


def options_of(about: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"a number is the best of so many ({rounds})")
    parser.add_argument("--only", metavar="1,4", help="these rows of the table only")
    parser.add_argument("--quick", action="store_true", help="little data: shows that it works, not how fast")
    parser.add_argument("--out", type=Path, help="where to save; of a whole run benchmarks/results")
    return parser


def parsed(parser: argparse.ArgumentParser, rows: Sequence[str]) -> argparse.Namespace:
    """What was given, `only` as a list."""
    arguments = parser.parse_args()
    arguments.only = list(rows) if arguments.only is None else arguments.only.split(",")
    if unknown := set(arguments.only) - set(rows):
        parser.error(f"wanted rows from {rows[0]} to {rows[-1]}, got {', '.join(sorted(unknown))}")
    if arguments.rounds < 1:
        parser.error(f"wanted at least one round, got {arguments.rounds}")
    whole = not arguments.quick and set(arguments.only) == set(rows)
    if arguments.out is None and whole:
        arguments.out = HERE / "results"  # a part of a run must not replace the results of a whole one
    return arguments
