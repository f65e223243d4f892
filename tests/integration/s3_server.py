"""A real server that speaks S3, on loopback: its address on the first line of stdout, until stdin ends."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

_put_object = S3Response.put_object
_turn = threading.Lock()


def _put_one(self: S3Response) -> Any:
    """S3 looks at a condition and writes in one step: so no other thread may come between the two."""
    with _turn:
        return _put_object(self)


S3Response.put_object = _put_one  # type: ignore[method-assign]

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
server.stop()
