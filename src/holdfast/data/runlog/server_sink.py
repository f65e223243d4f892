"""Sends one worker's rows to a central writer, which takes each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, SchemaError, WriteError
from ..writer.server.client import Producer, connect
from .rows import Reject, Row, Schema, check_own, fitted, joined

_ALL_STEPS = range(1 << 62)


class ServerSink:
    """The sequence number of a row is the index of its step in `steps`, so the writer's count gives the last step.

    last_step  the last step that the writer has of this worker; None: there is none
    """

    def __init__(self, address: str, worker: int, steps: range | None, timeout_s: float, end_s: float) -> None:
        """end_s: the timeout of the last commit, after which waiting rows are lost."""
        self.name = address
        self.schema: Schema | None = None
        self.last_step: int | None = None
        self._worker = worker
        self._steps = _ALL_STEPS if steps is None else steps
        if not isinstance(self._steps, range) or self._steps.step < 1:
            raise ValueError(f"expected steps to be an ascending range, such as range(0, 1000, 10), got {steps!r}")
        self._timeout_s, self._end_s = timeout_s, end_s
        self._producer: Producer | None = None
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

    def open_for(self, values: Mapping[str, Any], reject: Reject) -> None:
        """Connects. The columns are the writer's own; fit() checks rows against them."""
        if self._producer is None:
            self.open_if_there()

    def open_if_there(self) -> bool:
        """Connects. Returns True: a central writer always has a directory with columns."""
        self._producer = connect(self.name, producer=f"log-{self._worker:05d}", timeout=self._timeout_s)
        try:
            self.schema = self._producer.schema
            check_own(self.schema, self.name)
            self._next = self._producer.next_seq
            if self._next > len(self._steps):
                text = f"the writer has {self._next:,} rows of worker {self._worker}"
                raise InputError(f"{self.name}: {text}, steps= has {len(self._steps):,}")
            self.last_step = self._steps[self._next - 1] if self._next else None
        except BaseException:
            self.close()
            raise
        return True

    # ---- writing

    def fit(self, values: Mapping[str, Any], reject: Reject) -> tuple[Schema, Row]:
        assert self.schema is not None
        return self.schema, fitted(self.schema, values, reject)

    def put(self, schema: Schema, row: Row) -> None:
        if self._has_gap:
            raise WriteError(f"{self.name}: earlier rows that it did not take were dropped; it takes no later ones")
        expected = self._steps[self._next] if self._next < len(self._steps) else None
        if row["step"] != expected:
            text = f"expected step {expected} next, got {row['step']}: a central writer counts a worker's rows"
            raise SchemaError(f"{self.name}: {text}; pass the steps that are logged as steps=")
        self._next += 1
        self._waiting.append(row)

    def commit(self, reject: Reject) -> None:
        """Returns when all rows are acknowledged. After an error, the others are kept for the next call."""
        assert self._producer is not None
        assert self.schema is not None
        before = self._producer.next_seq
        try:
            if self._waiting:
                self._producer.extend(joined(self.schema, self._waiting), self._timeout_s)
        finally:
            del self._waiting[: self._producer.next_seq - before]  # the client itself resends what it has taken
        self._producer.commit(self._timeout_s)

    def end(self) -> None:
        """Announces that the next commit is the last one."""
        self._timeout_s = self._end_s

    def drop(self) -> None:
        """Drops the rows that wait."""
        self._has_gap = self._has_gap or bool(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
