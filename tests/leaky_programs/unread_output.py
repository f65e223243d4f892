"""Waits for commands but neither reads nor closes their output."""

from __future__ import annotations

import subprocess

from leak_rounds import KEPT, serve


def leak() -> None:
    for _ in range(2):
        process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
        process.wait()
        KEPT.append(process)


def clean() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        process.communicate()
    KEPT.append(process)


serve(leak, clean)
