"""A child process with a real torch in it, which plays the cases of one program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Self

from line_child import LineChild

_TESTS = str(Path(__file__).parent)


class TorchChild(LineChild):
    def __init__(self, program: Path, said: Path) -> None:
        path = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
        super().__init__([sys.executable, str(program)], said, env=os.environ | {"PYTHONPATH": path})

    def __enter__(self) -> Self:
        return self

    def play(self, case: str, **options: Any) -> Any:
        return self.ask({"case": case, **options})
