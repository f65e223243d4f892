"""The commands by purpose. A command's module is loaded when the command is called, so the rest is quick."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches

import click

from .screen import bold
from .version import version_line

# Each line is the first line of the command's docstring; a test compares them.
COMMANDS = {
    "Look": {
        "doctor": "Whether processes leak descriptors, when they run dry, what to do.",
        "top": "Processes and their descriptors, live.",
        "plan": "What a run will need, against what this machine gives.",
        "explain": "What an error really means, here and now.",
    },
    "Look into files": {
        "inspect": "What is in files: records, sizes, the schema, first values.",
        "verify": "Whether files are whole, and where they are not.",
    },
    "Repair": {
        "salvage": "Every intact record of a damaged file, in a new one.",
    },
    "Reshape": {
        "split": "Many files from one, or from many others.",
        "merge": "One file from many.",
        "convert": "From one format to another: TFRecord, HDF5 and tar.",
        "index": "Where every record begins, for reading by number.",
    },
    "Write": {
        "serve": "The central writer of a run, for producers of any launcher.",
    },
    "Learn": {
        "demo": "The main job end to end, on data it makes, in under a minute.",
    },
}

LINES = {name: line for group in COMMANDS.values() for name, line in group.items()}

ABOUT = "holdfast keeps multi-process ML data I/O alive and intact."

EXIT_CODES = """\
  0    fine
  1    something was found: data that are damaged, unfinished, of another kind
  2    wrong usage: an option, a schema, or files that do not fit together
  3    cannot read or write: no such file, the same file twice, no permission,
       a target that is there already, disk full, …
  70   a bug in holdfast
  130  interrupted with Ctrl-C (128 + its number for another signal)"""


class Overview(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(LINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LINES:
            return None
        command = getattr(importlib.import_module(f".{cmd_name}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in LINES:
            near = get_close_matches(args[0], LINES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"no such command: {args[0]}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [ABOUT, "", "Usage: holdfast COMMAND [OPTIONS] …", ""]
        for purpose, commands in COMMANDS.items():
            lines.append(bold(purpose, sys.stdout))
            lines += [f"  {name:<10} {line.rstrip('.')}" for name, line in commands.items()]
            lines.append("")
        lines += [bold("Options", sys.stdout)]
        lines += [f"  {'--version':<10} The version, and how the codec was built"]
        lines += [f"  {'--debug':<10} Show the traceback of an error"]
        lines += [f"  {'--help':<10} This page; `holdfast COMMAND --help` has more, with an example", ""]
        lines += [bold("Exit codes", sys.stdout), *EXIT_CODES.splitlines()]
        formatter.write("\n".join(lines) + "\n")


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(version_line())
        ctx.exit()


@click.group(cls=Overview, invoke_without_command=True)
@click.option("--debug", is_flag=True, expose_value=False)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version)
@click.pass_context
def holdfast(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
