"""The process of `out.server()`. Started by server_process.py.

The first line on stdin is JSON: the directory, the settings, the parent process. Then come the commands `stats` and
`stop`. Answers go to stdout as JSON lines: the address, or why there is none; statistics; how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ..._util.fds import take_stdout
from ..._util.process import ProcessMark, end_with_marked
from ...errors import HoldfastError
from ..directory import read_schema, remove_stale_files
from .server import CentralWriter
from .server_process import ServerSettings


def main() -> int:
    out = take_stdout()
    job = json.loads(_line())
    end_with_marked(ProcessMark(*job["parent"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def reply(content: dict[str, Any]) -> None:
        try:
            os.write(out, json.dumps(content).encode() + b"\n")
        except BrokenPipeError:
            pass

    try:
        folder = Path(job["folder"])
        schema = read_schema(folder)
        remove_stale_files(folder)
        server = CentralWriter(folder, schema, ServerSettings(**job["settings"]))
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        server.watch(0, lambda: _handle_command(server, reply))
        reply({"address": server.address, "epoch": server.journal.epoch})
        server.run()
        reply({"stopped": True})
        return 0
    except (HoldfastError, ValueError) as error:
        reply({"error": type(error).__name__, "text": str(error)})
    except OSError as error:
        reply({"error": "WriteError", "text": f"the central writer failed: {error.strerror}: {error.filename}"})
    return 3


def _line() -> bytes:
    """Reads one line from stdin without buffering: the event loop reads the rest."""
    data = bytearray()
    while not data.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            sys.exit(1)
        data += one
    return bytes(data)


def _handle_command(server: CentralWriter, reply: Any) -> None:
    data = os.read(0, 4096)
    for word in data.decode(errors="replace").split():
        if word == "stats":
            reply({"stats": server.stats()})
        elif word == "stop":
            server.stop()
    if not data:
        server.unwatch(0)
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
