"""One worker's rows through a central writer, which takes each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError, SchemaError, WriteError
from ..writer.server.client import Producer, connect
from .rows import Refuse, Row, Schema, check_own, fitted, joined

_ALL_STEPS = range(1 << 62)


class ServerSink:
    """A row's number is that of its step among `steps`: so the writer's own count says which step was the last.

    last_step  that the writer has of this worker, None: there is none
    """

    def __init__(self, address: str, worker: int, steps: range | None, timeout_s: float, end_s: float) -> None:
        """end_s: the timeout of the last commit, after which rows that wait are lost."""
        self.name = address
        self.schema: Schema | None = None
        self.last_step: int | None = None
        self._worker = worker
        self._steps = _ALL_STEPS if steps is None else steps
        if not isinstance(self._steps, range) or self._steps.step < 1:
            raise ValueError(f"expected steps to be a range that grows, such as range(0, 1000, 10), got {steps!r}")
        self._timeout_s, self._end_s = timeout_s, end_s
        self._link: Producer | None = None
        self._next = 0
        self._waiting: list[Row] = []
        self._has_gap = False

    # ---- beginning

    def open(self, schema: Schema) -> None:
        self.open_if_there()
        assert self.schema is not None
        for name in [*schema, *(name for name in self.schema if name not in schema)]:
            ours, theirs = (repr(one[name]) if name in one else "no such column" for one in (schema, self.schema))
            if ours != theirs:
                self.close()
                raise SchemaError(f"{self.name}: column {name!r} is {theirs} there, got {ours}")

    def open_for(self, values: Mapping[str, Any], refuse: Refuse) -> None:
        """A central writer's columns are what they are: whether a row fits them, fit() tells."""
        if self._link is None:
            self.open_if_there()

    def open_if_there(self) -> bool:
        """A central writer always is: it has the folder, and knows its columns."""
        self._link = connect(self.name, producer=f"log-{self._worker:05d}", timeout=self._timeout_s)
        try:
            self.schema = self._link.schema
            check_own(self.schema, self.name)
            self._next = self._link.next_seq
            if self._next > len(self._steps):
                text = f"the writer has {self._next:,} rows of worker {self._worker}"
                raise InputError(f"{self.name}: {text}, steps= has {len(self._steps):,}")
            self.last_step = self._steps[self._next - 1] if self._next else None
        except BaseException:
            self.close()
            raise
        return True

    # ---- writing

    def fit(self, values: Mapping[str, Any], refuse: Refuse) -> tuple[Schema, Row]:
        assert self.schema is not None
        return self.schema, fitted(self.schema, values, refuse)

    def put(self, schema: Schema, row: Row) -> None:
        if self._has_gap:
            raise WriteError(f"{self.name}: rows that it did not take were given up; it takes no later ones")
        wanted = self._steps[self._next] if self._next < len(self._steps) else None
        if row["step"] != wanted:
            text = f"expected step {wanted} next, got {row['step']}: a central writer counts a worker's rows"
            raise SchemaError(f"{self.name}: {text}; say with steps= which steps are logged")
        self._next += 1
        self._waiting.append(row)

    def commit(self, refuse: Refuse) -> None:
        """All rows are acknowledged when this returns. An error: those that are not are kept, for the next time."""
        assert self._link is not None
        assert self.schema is not None
        before = self._link.next_seq
        try:
            if self._waiting:
                self._link.extend(joined(self.schema, self._waiting), self._timeout_s)
        finally:
            del self._waiting[: self._link.next_seq - before]  # those it has it sends again by itself
        self._link.commit(self._timeout_s)

    def end(self) -> None:
        """The next commit is the last one."""
        self._timeout_s = self._end_s

    def forget(self) -> None:
        self._has_gap = self._has_gap or bool(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
