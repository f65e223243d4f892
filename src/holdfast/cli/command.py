"""What a command is: a function whose module's docstring is its --help, with the options every command has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import click

from .._base.units import parse_bytes
from ..errors import TargetExistsError
from .screen import Screen

COMPRESSION = click.Choice(["none", "gzip", "zlib"])


class Command(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TargetExistsError as error:
            if "force" in ctx.params and str(error).endswith("allow it to be replaced"):
                raise TargetExistsError(f"{error}, with --force") from error
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As it is written, not filled anew: examples and lists keep their lines."""
        formatter.write(f"\n{cleandoc(self.help or '')}\n")


def command(page: str | None) -> Callable[[Callable[..., int]], Command]:
    """Makes a command of a function that takes a Screen and its own options, and returns an exit code."""

    def make(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def run(as_json: bool, quiet: bool, debug: bool, **options: Any) -> int:
            return function(Screen(as_json=as_json, quiet=quiet), **options)

        made = click.command(function.__name__, cls=Command, help=page, short_help="")(run)
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on stdout."),
            click.Option(["-q", "--quiet"], is_flag=True, help="No text, no progress bar: the exit code tells."),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]
        return made

    return make


def size_of(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: `256MB` -> bytes."""
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
