"""Commands are waited for, but what they wrote is neither read nor closed."""

from __future__ import annotations

import subprocess

from rounds import KEPT, serve


def leak() -> None:
    for _ in range(2):
        process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
        process.wait()
        KEPT.append(process)


def honest() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        process.communicate()
    KEPT.append(process)


serve(leak, honest)
