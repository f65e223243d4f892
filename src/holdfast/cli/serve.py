"""Run the central writer of a dataset directory.

Listens in FOLDER, which hold.write has created. Producers of any launcher
connect with hold.connect(FOLDER, …) or with the address, the first line on
stdout. Rows are acknowledged once they are in the journal, and sealed into
parts from time to time. Ctrl-C or SIGTERM stops the server: it accepts what
was already sent, seals everything into parts and exits. After a kill, start it
again: it continues with every row that it has acknowledged.

By default it listens on a Unix socket in FOLDER that only this user can
access. A TCP address requires a token, from HOLDFAST_TOKEN or a file, which
producers must have too; rows are sent unencrypted.

Examples:

  holdfast serve run.hold
  holdfast serve run.hold --listen tcp://10.0.0.5:7070 --token-file token

With --json, one line at the start and one at the end:

  {"address": "unix:/data/run.hold/journal/serve.sock", "pid": 4711}
  {"rows": 120000, "frames": 240, "bytes": 61440000, "parts": 2}

Exit codes: 0 stopped, with all rows in parts; 3 FOLDER cannot be served, or
another server has taken over.
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
from .app import FINE, command, seconds_of, size_of, usage_error
from .console import Screen


@command(__doc__)
@click.argument("folder", metavar="FOLDER")
@click.option("--listen", metavar="WHERE", help="Listen on unix, unix:PATH or tcp://HOST:PORT.  [default: unix]")
@click.option(
    "--ack",
    type=click.Choice(["process", "disk"]),
    default="process",
    help="Acknowledge rows when written, or when synced to disk.  [default: process]",
)
@click.option("--token-file", metavar="FILE", help="Read the token from FILE.  [default: HOLDFAST_TOKEN]")
@click.option(
    "--memory", callback=size_of, default="256MB", metavar="SIZE", help="Memory for incoming rows.  [default: 256MB]"
)
@click.option(
    "--part-size", callback=size_of, default="64MiB", metavar="SIZE", help="Seal a part at this size.  [default: 64MiB]"
)
@click.option(
    "--part-after",
    callback=seconds_of,
    default="60s",
    metavar="TIME",
    help="Seal a part after this time.  [default: 60s]",
)
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="Compress parts.  [default: the schema's]"
)
@click.option("--take-over", is_flag=True, help="Replace a running server: it exits, and no row is lost.")
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
    from ..data.formats.hdf5.schema_layout import check_keys
    from ..data.formats.hdf5.writer import packings
    from ..data.writer.directory import read_schema, remove_stale_files
    from ..data.writer.server.server import CentralWriter
    from ..data.writer.server.server_process import make_settings

    path = Path(os.path.abspath(folder))
    try:
        settings = make_settings(
            address=listen,
            ack=ack,
            queue_bytes=memory,
            segment_bytes=part_size,
            seal_after=part_after,
            token=None if token_file is None else _token_of(token_file),
            take_over=take_over,
            codec=codec,
        )
        schema = read_schema(path)
        check_keys(schema)  # before rows are accepted that cannot be stored in a part
        packings(schema, codec)
        remove_stale_files(path)
        server = CentralWriter(path, schema, settings)
    except SchemaError as error:
        raise InputError(f"{path}: {error}") from error
    except ValueError as error:
        raise usage_error(str(error)) from error
    _stop_by_signals(server)
    _print_line(screen, {"address": server.address, "pid": os.getpid()}, server.address)
    found = server.stats()
    waiting = f", {counted(found['segments'], 'segment')} of the journal to seal" if found["segments"] else ""
    screen.print(f"serving {printable(str(path))} (epoch {found['epoch']}{waiting}); press Ctrl-C to stop")
    server.run()
    found = server.stats()
    end = {"rows": found["rows"], "frames": found["frames"], "bytes": found["bytes"], "parts": found["sealed"]}
    rows, parts = counted(found["rows"], "row"), counted(found["sealed"], "part")
    _print_line(screen, end, f"stopped: {rows} accepted, {format_bytes(found['bytes'])}; {parts} written")
    return FINE


def _print_line(screen: Screen, facts: dict[str, Any], line: str) -> None:
    """Prints one line of text or of JSON at once: other programs wait for it."""
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
        raise InputError(f"{name}: expected a token, got a file that is not text") from None
    if not token:
        raise InputError(f"{name}: expected a token, got an empty file")
    return token


def _stop_by_signals(server: Any) -> None:
    """Stops the server at the first signal; a second Ctrl-C exits at once, which loses no row either."""

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
