"""One task on its way: what it is called, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .memory import NO_SAMPLE

Label = Callable[[int], str] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Task:
    """`data` for the work; `label` names sample i of it in messages: a function of i, or the names themselves."""

    data: Any
    label: Label = None


@dataclass(slots=True, eq=False)
class Job:
    """A task's place in the order of results. `settled`: it has its `value`, or its `error`."""

    number: int
    run: int
    label: Label
    settled: bool = False
    value: Any = None
    error: Exception | None = None

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        self.settled, self.value, self.error = True, value, error

    def name(self, sample: int) -> str:
        if sample == NO_SAMPLE:
            return f"task {self.number}, before its first sample"
        with suppress(Exception):  # a message about one error is not the place for another
            if callable(self.label):
                return str(self.label(sample))
            if self.label is not None:
                return str(self.label[sample])
        return f"sample {sample} of task {self.number}"
