"""Commands that wait for ever, on input that never comes: they hold none of the victim's descriptors."""

from __future__ import annotations

import os
import subprocess

from rounds import KEPT, serve

# They end with the victim, however it ends: nobody is left to write then.
IN, OUT = os.pipe()


def _start() -> None:
    KEPT.append(subprocess.Popen(["cat"], stdin=IN))


def leak() -> None:
    _start()


def honest() -> None:
    if len(KEPT) < 2:
        _start()


serve(leak, honest)
os.close(OUT)
for process in KEPT:
    process.wait()
