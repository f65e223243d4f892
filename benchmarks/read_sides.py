"""The sides of benchmarks/read.py: each in a process of its own, in the Python that has what it needs."""

from __future__ import annotations

import sys

from sides import Side, SideError, Sides, _python_of

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


class ReadSides(Sides):
    """TensorFlow, torch and PyPI's tfrecord do not go together in one process."""

    def _start(self, name: str) -> Side:
        python = _python_of("pypi_tfrecord") if name == "read_pypi" else sys.executable
        side = Side(name, python, QUIET)
        self._stack.callback(side.close)
        self.facts[name] = side.call("facts")
        return side


def versions(sides: Sides) -> dict[str, str]:
    told: dict[str, str] = {}
    for facts in sides.facts.values():
        told = facts["versions"] | told
    return told


__all__ = ["ReadSides", "SideError", "versions"]
