"""A training loop that logs with on_error="warn" on a small disk of its own, while one thing after another goes wrong.

Prints as JSON what was warned of and what is in the logs.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold

root = Path(sys.argv[1])
found: dict[str, Any] = {}


def steps(name: str) -> list[int]:
    out = hold.write(root / f"{name}.hold")
    assert out.verify().ok
    with hold.read(str(out.folder)).shard(None).batch(100).iterate() as batches:
        return [step for batch in batches for step in batch["step"].tolist()]


def train(name: str, before: Any, after: Any, **values: Any) -> None:
    """Steps 0 to 4 are fine, 5 to 14 are in trouble, 15 to 19 are fine again; each is a commit of its own."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hold.log(root, rank=0, name=name, every_rows=1, on_error="warn") as log:
            for step in range(20):
                if step == 5:
                    undo = before()
                if step == 15:
                    after(undo)
                log(step, x=step, **values)
    mine = [Path(one.filename).name == Path(__file__).name for one in caught]
    said = [str(one.message) for one in caught]
    found[name] = {"said": said, "steps": steps(name), "lost": log.lost, "mine": all(mine)}


def fill() -> Path:
    path = root / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return path


def use_up() -> list[int]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


def remount(how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(root)], check=True)


train("full", fill, lambda path: path.unlink(), array=np.zeros(1000))
train("readonly", lambda: remount("ro"), lambda _: remount("rw"))
train("emfile", use_up, lambda taken: [os.close(fd) for fd in taken])
train("gone", lambda: shutil.rmtree(root / "gone.hold"), lambda _: None)
print(json.dumps(found))
