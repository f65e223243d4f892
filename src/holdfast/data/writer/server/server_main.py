"""The process of `out.server()`. Started by server_process.py.

The first message on stdin has the directory, the settings and the parent process. Once it is answered, commands follow:
`stats` and `stop`. Answers go to stdout: the address, or why there is none; statistics; how it ended.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from ...._util.fds import take_stdout
from ...._util.framing import MessageReceiver, send_message
from ...._util.process import ProcessMark, end_with_marked
from ....errors import HoldfastError
from ..directory import read_schema, remove_stale_files
from .server import CentralWriter
from .server_process import ServerSettings


def main() -> int:
    out = take_stdout()
    commands = MessageReceiver(0)
    first = commands.receive()
    if first is None:
        return 1
    job = first.head
    end_with_marked(ProcessMark(*job["parent"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def reply(content: dict[str, Any]) -> None:
        try:
            send_message(out, content)
        except BrokenPipeError:
            pass

    try:
        folder = Path(job["folder"])
        schema = read_schema(folder)
        remove_stale_files(folder)
        server = CentralWriter(folder, schema, ServerSettings(**job["settings"]))
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        server.watch(0, lambda: _handle_commands(server, commands, reply))
        reply({"address": server.address, "epoch": server.journal.epoch})
        server.run()
        reply({"stopped": True})
        return 0
    except (HoldfastError, ValueError) as error:
        reply({"error": type(error).__name__, "text": str(error)})
    except OSError as error:
        reply({"error": "WriteError", "text": f"the central writer failed: {error.strerror}: {error.filename}"})
    return 3


def _handle_commands(server: CentralWriter, commands: MessageReceiver, reply: Any) -> None:
    is_open = commands.read()
    while (message := commands.take()) is not None:
        if message.head["command"] == "stats":
            reply({"stats": server.stats()})
        elif message.head["command"] == "stop":
            server.stop()
    if not is_open:
        server.unwatch(0)
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
