"""The central writer of a run, for producers of any launcher.

Listens in FOLDER, which hold.write has made: producers connect with
hold.connect(FOLDER, …) or by the address, which is the first line on stdout.
Rows are acknowledged when they are written to the journal, and made parts of
from time to time. Ctrl-C or SIGTERM stops it: it takes what was sent, makes
parts of everything and ends. After a kill, start it again: it goes on with
all that it has acknowledged.

By default it listens at a Unix socket in FOLDER that only this user can
reach. Over the network it wants a token, from HOLDFAST_TOKEN or a file, which
producers must know as well; rows are not encrypted on their way.

Examples:

  holdfast serve run.hold
  holdfast serve run.hold --listen tcp://10.0.0.5:7070 --token-file token

With --json, one line at the start and one at the end:

  {"address": "unix:/data/run.hold/journal/serve.sock", "pid": 4711}
  {"rows": 120000, "frames": 240, "bytes": 61440000, "parts": 2}

Exit codes: 0 stopped, and everything is in parts; 3 FOLDER cannot be served,
or another server has taken over.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import click

from .._util.text import counted, format_bytes, printable
from ..errors import InputError, SchemaError
from .app import FINE, command, size_of
from .console import Screen, seconds_of


@command(__doc__)
@click.argument("folder", metavar="FOLDER")
@click.option("--listen", metavar="WHERE", help="unix, unix:PATH or tcp://HOST:PORT.  [default: unix]")
@click.option(
    "--ack",
    type=click.Choice(["process", "disk"]),
    default="process",
    help="When a row counts: written, or on disk as well.  [default: process]",
)
@click.option("--token-file", metavar="FILE", help="Holds the token.  [default: HOLDFAST_TOKEN]")
@click.option(
    "--memory", callback=size_of, default="256MB", metavar="SIZE", help="For what comes in.  [default: 256MB]"
)
@click.option("--part-size", callback=size_of, default="64MiB", metavar="SIZE", help="Of a part.  [default: 64MiB]")
@click.option("--part-after", callback=seconds_of, default="60s", metavar="TIME", help="Or that long.  [default: 60s]")
@click.option("--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="Of parts.  [default: the schema's]")
@click.option("--take-over", is_flag=True, help="Also from a server that is alive: it ends, and loses nothing.")
def serve(
    screen: Screen,
    folder: str,
    listen: str | None,
    ack: Any,
    token_file: str | None,
    memory: int,
    part_size: int,
    part_after: float,
    codec: Any,
    take_over: bool,
) -> int:
    from ..formats.hdf5.schema_layout import check_keys
    from ..formats.hdf5.writer import packings
    from ..writer.directory import read_schema, remove_stale_files
    from ..writer.server.server import CentralWriter
    from ..writer.server.server_process import make_settings

    path = Path(os.path.abspath(folder))
    try:
        settings = make_settings(
            address=listen,
            ack=ack,
            queue_bytes=memory,
            segment_bytes=part_size,
            seal_after_s=part_after,
            token=None if token_file is None else _token_of(token_file),
            take_over=take_over,
            codec=codec,
        )
        schema = read_schema(path)
        check_keys(schema)  # now, and not when rows were taken that no part can be made of
        packings(schema, codec)
        remove_stale_files(path)
        server = CentralWriter(path, schema, settings)
    except SchemaError as error:
        raise InputError(f"{path}: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    _stop_by_signals(server)
    _say(screen, {"address": server.address, "pid": os.getpid()}, server.address)
    found = server.stats()
    waiting = f", {counted(found['segments'], 'segment')} of the journal to make parts of" if found["segments"] else ""
    screen.print(f"serving {printable(str(path))} (epoch {found['epoch']}{waiting}); Ctrl-C stops")
    server.run()
    found = server.stats()
    end = {"rows": found["rows"], "frames": found["frames"], "bytes": found["bytes"], "parts": found["sealed"]}
    rows, parts = counted(found["rows"], "row"), counted(found["sealed"], "part")
    _say(screen, end, f"stopped: {rows} taken, {format_bytes(found['bytes'])}; {parts} made")
    return FINE


def _say(screen: Screen, facts: dict[str, Any], line: str) -> None:
    """One line at once, for people or for machines: others wait for it."""
    if screen.as_json:
        click.echo(json.dumps(facts))
    else:
        screen.print(printable(line))


def _token_of(name: str) -> str:
    try:
        token = Path(name).read_text().strip()
    except OSError as error:
        raise InputError(f"{name}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{name}: expected a token, the file holds no text") from None
    if not token:
        raise InputError(f"{name}: expected a token, the file is empty")
    return token


def _stop_by_signals(server: Any) -> None:
    """The first one stops it in order; Ctrl-C a second time ends it at once, which loses nothing either."""

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
