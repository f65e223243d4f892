"""hold.log() and Log: rows are buffered, and committed to a sink by rows, bytes and seconds."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # registers its exit function before ours, at the end of this module
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from operator import index
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from ..._util.process import call_after_fork
from ..._util.rank import find_rank
from ..._util.text import time_argument
from ...errors import ClosedWriterError, ForkedWriterError, HoldfastError, InputError, SchemaError
from ...schema import Column, Value
from ..writer.directory import Format, check_format, check_task
from .part_sink import PartSink
from .rows import Schema, bytes_of, copied, given_schema
from .server_sink import ServerSink

Replay = Literal["drop", "keep"]
OnError = Literal["raise", "warn"]

_PART_BYTES = 64 << 20
_MAX_BUFFER_BYTES = 4 * _PART_BYTES  # of rows that cannot be written
_SERVER_S, _SHORT_S = 60.0, 5.0  # to wait for a central writer: with on_error="raise" and "warn"
_LATER = "what was logged cannot be written now"
_VARYING = re.compile(r"got .*|\d+|'[^']*'$")  # what differs between two errors of one kind
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


class _EarlyRow(NamedTuple):
    """A row from before the log could be opened."""

    step: int
    time_ns: int
    values: dict[str, Any]


def _ignore(error: SchemaError) -> None:
    """Does nothing: the error is reported when the row is put."""


def _levels_to_caller() -> int:
    """Returns the stacklevel of the program's own line, for a warning."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, levels = frame.f_back, levels + 1
    return levels


def log(
    logdir: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    schema: Mapping[str, Column | type[Value]] | None = None,
    name: str = "run",
    every_rows: int = 10_000,
    every: float | str = 60.0,
    replay: Replay = "drop",
    on_error: OnError = "raise",
    format: Format = "hdf5",
    storage_options: Mapping[str, Any] | None = None,
    server: str | None = None,
    steps: range | None = None,
    timeout: float | str | None = None,
) -> Log:
    """Opens a log that every worker of a training writes to: `with hold.log("logs/exp1") as log: log(step, loss=0.3)`.

    Args:
        logdir: A folder or a URL, in which run.hold is made.
        rank: This worker's number; None: the launcher's.
        schema: The first columns, besides step, worker and time_ns; None: inferred from the first row.
        name: The name of another log in the same logdir: "eval" makes eval.hold.
        every_rows, every: Commit after so many rows, or with the first row so long after the last commit, in seconds or
            as a text such as "10min". A crash loses the rows since.
        replay: "drop" leaves out steps up to this worker's last one, which a restart from a checkpoint logs again.
        on_error: "warn": logging never raises. A value that cannot be logged is left out of its row; a write that fails
            is retried with the next rows. Each kind of error is a warning once.
        format: The format of the parts: "hdf5" or "tfrecord".
        storage_options: Options for a URL, as fsspec takes them.
        server: A central writer, instead of a logdir: its address, or the folder it serves.
        steps: With a server: the steps that this worker logs, in order; None: every step from 0 on.
        timeout: With a server: how long to wait for it when the log is opened, when rows are committed and at the end;
            None: 60, but with on_error="warn" 5 before the end, so that a training is not held up.
    """
    if (logdir is None) == (server is None):
        raise ValueError("expected a logdir, or server= with the address of a central writer, and not both")
    if replay not in ("drop", "keep") or on_error not in ("raise", "warn"):
        expected = 'expected replay to be "drop" or "keep" and on_error "raise" or "warn"'
        raise ValueError(f"{expected}, got {replay!r} and {on_error!r}")
    if isinstance(every_rows, bool) or not isinstance(every_rows, int) or every_rows < 1:
        raise ValueError(f"every_rows must be a positive integer, got {every_rows!r}")
    every_s = time_argument(every, "every", endless=True)
    given_s = None if timeout is None else time_argument(timeout, "timeout", zero=False, endless=True)
    worker = _worker(rank, name)
    columns = None if schema is None else given_schema(schema)
    if server is not None:
        if replay == "keep":
            raise ValueError('replay="keep" is for a logdir: a central writer takes every row of a worker once')
        short_s = _SERVER_S if on_error == "raise" else _SHORT_S
        end_s, timeout_s = (_SERVER_S, short_s) if given_s is None else (given_s, given_s)
        target: PartSink | ServerSink = ServerSink(server, worker, steps, timeout_s, end_s)
    else:
        if steps is not None:
            raise ValueError("steps= is for a central writer: a logdir knows which steps it has")
        if timeout is not None:
            raise ValueError("timeout= is for a central writer: a logdir is written without waiting for one")
        assert logdir is not None
        if not os.fsdecode(logdir):
            raise ValueError('expected the name of a folder as logdir, got an empty one; "." is the one you are in')
        folder = f"{os.fsdecode(logdir).rstrip('/')}/{check_task(name)}.hold"
        target = PartSink(folder, worker, check_format(format), storage_options)
    return Log(target, worker, columns, every_rows, every_s, replay, on_error)


def _worker(rank: int | None, name: str) -> int:
    if rank is not None:
        if isinstance(rank, bool) or index(rank) < 0:
            raise ValueError(f"rank must be a non-negative integer, got {rank!r}")
        return index(rank)
    found = find_rank()
    if found.role and name == "run":
        raise InputError(f"{found.source}, and is none of the workers: pass name= for a log of its own, or rank=")
    return found.rank


def _number(step: int) -> int:
    number = index(step)
    if not -(1 << 63) <= number < 1 << 63:  # it would fail the commit of all rows that wait with it
        raise SchemaError(f"column 'step': expected Int64(), got {number}")
    return number


class Log:
    """What hold.log(…) returns. Call it with a step and that step's values; leave its `with` block, or close() it.

    Rows are committed at the end of the `with` block, also after an exception, and when the program exits. Threads may
    share a log. It cannot be used in a forked child.

    Attributes:
        last_step: This worker's last step, committed or not; None: there is none. A training may resume after it.
        rows: Rows that this object has taken.
        dropped: Replayed rows that it has left out.
        lost: Rows that could not be written, with on_error="warn".
        left_out: Values that could not be logged, of rows that were, with on_error="warn".
    """

    __module__ = "holdfast"

    def __init__(
        self,
        target: PartSink | ServerSink,
        worker: int,
        schema: Schema | None,
        every_rows: int,
        every_s: float,
        replay: Replay,
        on_error: OnError,
    ) -> None:
        self.worker = worker
        self.rows = self.dropped = self.lost = self.left_out = 0
        self.last_step: int | None = None
        self._state: Literal["open", "closed", "forked"] = "open"
        self._target = target
        self._every_rows, self._every_s = every_rows, every_s
        self._replay, self._on_error = replay, on_error
        self._waiting_rows = self._waiting_bytes = 0
        self._lock = threading.RLock()
        self._is_begun = schema is not None  # the columns are known, and this worker's first row fits them
        self._not_before_s = 0.0
        self._given = schema
        self._early: list[_EarlyRow] = []
        self._warned: set[tuple[str, str, str]] = set()
        _commit_earlier(target.name, worker)
        try:
            if schema is not None:
                target.open(schema)
            else:
                target.open_if_there()
        except Exception as error:
            if on_error == "raise":
                raise
            self._is_begun, self._not_before_s = False, time.monotonic() + every_s
            self._warn(_LATER, error)
        self.last_step = target.last_step
        self._schedule()
        call_after_fork(self)
        _open_logs.add(self)

    # ---- writing

    def __call__(self, step: int, /, **values: Any) -> None:
        """Logs one row. A value that is missing or None is absent; a float is NaN then. A value that cannot be logged
        raises a SchemaError; with on_error="warn" it is a warning, and the rest of the row is logged."""
        try:
            with self._lock:
                self._take(step, time.time_ns(), values)
        except Exception as error:
            if self._on_error == "raise":
                raise
            self.lost += 1
            self._warn("this row is not logged", error)

    def _take(self, step: int, time_ns: int, values: Mapping[str, Any]) -> None:
        self._check()
        number = _number(step)
        if self._is_begun or self._begin(values):
            self._put(number, time_ns, values)
            if self._is_due():
                self.commit()
        else:
            self._keep(number, time_ns, values)

    def _begin(self, values: Mapping[str, Any]) -> bool:
        """Opens the log with the first row. With on_error="warn", a failure is retried after every_s."""
        if time.monotonic() < self._not_before_s:
            return False
        first = self._early[0].values if self._early else values
        try:
            if self._given is not None:
                self._target.open(self._given)
            else:
                self._target.open_for(first, self._reject if self._on_error == "raise" else _ignore)
        except Exception as error:
            if self._on_error == "raise":
                raise
            self._not_before_s = time.monotonic() + self._every_s
            self._warn(_LATER, error)
            return False
        self.last_step, self._is_begun = self._target.last_step, True
        early, self._early = self._early, []
        self._waiting_rows = self._waiting_bytes = 0
        for one in early:
            self._put(*one)
        return True

    def _keep(self, step: int, time_ns: int, values: Mapping[str, Any]) -> None:
        """Buffers a row until the log can be opened."""
        kept = copied(values, self._reject)
        self._early.append(_EarlyRow(step, time_ns, kept))
        self._waiting_rows += 1
        self._waiting_bytes += bytes_of(kept)
        if self._waiting_bytes >= _MAX_BUFFER_BYTES:
            self._drop_waiting()

    def _put(self, step: int, time_ns: int, values: Mapping[str, Any]) -> None:
        if self._replay == "drop" and self.last_step is not None and step <= self.last_step:
            self.dropped += 1
            return
        schema, row = self._target.fit(values, self._reject)
        row |= {"step": step, "worker": self.worker, "time_ns": time_ns}
        self._target.put(schema, row)
        self.rows += 1
        self.last_step = step if self.last_step is None else max(step, self.last_step)
        self._waiting_rows += 1
        self._waiting_bytes += bytes_of(row)

    def _reject(self, error: SchemaError) -> None:
        """Raises for a value that cannot be logged, or warns that it is left out."""
        if self._on_error == "raise":
            raise error
        self.left_out += 1
        self._warn("this value is left out", error)

    def commit(self) -> None:
        """Commits all rows so far. Call it before you save a checkpoint: a training that resumes from it does not log
        these rows again. With on_error="warn" a failure is only a warning."""
        try:
            with self._lock:
                self._check()
                self._commit()
        except Exception as error:
            if self._on_error == "raise":
                raise
            self._warn(_LATER, error)

    def warn_if_behind(self, step: int, every_steps: int, hint: str) -> None:
        """Warns if a training goes on after `step`, and a row that was due until then was never committed."""
        due = ((self.last_step or 0) // every_steps + 1) * every_steps
        if due > step or self._not_before_s:  # or it could not be opened
            return
        last = "it has no row" if self.last_step is None else f"its last row is of step {self.last_step}"
        text = f"training goes on after step {step}, but {last}: the rows of steps {due} to {step} are missing"
        why = "They were not committed when the checkpoint was saved, or were logged elsewhere"
        warnings.warn(f"{self!r}: {text}. {why}; {hint}", RuntimeWarning, stacklevel=_levels_to_caller())

    def _commit(self) -> None:
        try:
            if self._early:
                self._not_before_s = 0.0
                if not self._begin({}):
                    return
            if self._waiting_rows:
                self._target.commit(self._reject)
                self._waiting_rows = self._waiting_bytes = 0
                self._warned = {key for key in self._warned if key[0] != _LATER}  # warn again when it fails again
        except Exception:
            if self._on_error == "warn" and self._waiting_bytes >= _MAX_BUFFER_BYTES:
                self._drop_waiting()
            raise
        finally:
            self._schedule()

    def _warn(self, what: str, error: Exception) -> None:
        """Warns once for each kind of error: a training has millions of steps."""
        key = (what, type(error).__name__, _VARYING.sub("", str(error)))
        if key in self._warned:
            return
        self._warned.add(key)
        text = str(error) if isinstance(error, (HoldfastError, OSError)) else f"{type(error).__name__}: {error}"
        more = "" if what == _LATER else " (shown once; log.lost and log.left_out count all)"
        warnings.warn(f"worker {self.worker}: {what}: {text}{more}", RuntimeWarning, stacklevel=_levels_to_caller())

    def _drop_waiting(self) -> None:
        self.lost += self._waiting_rows
        self._waiting_rows = self._waiting_bytes = 0
        self._early = []
        self._target.drop()

    def _is_due(self) -> bool:
        return (
            self._waiting_rows >= self._due_rows
            or self._waiting_bytes >= self._due_bytes
            or time.monotonic() >= self._due_s
        )

    def _schedule(self) -> None:
        self._due_rows = self._waiting_rows + self._every_rows
        self._due_bytes = self._waiting_bytes + _PART_BYTES
        self._due_s = time.monotonic() + self._every_s

    def _check(self) -> None:
        if self._state == "forked":
            raise ForkedWriterError(f"worker {self.worker}: this log belongs to the parent process; open one here")
        if self._state == "closed":
            raise ClosedWriterError(f"worker {self.worker}: this log is closed; open it again to append to it")

    # ---- ending

    def close(self) -> None:
        """Commits the waiting rows. Safe to call twice."""
        with self._lock:
            if self._state != "open":
                return
            try:
                self._target.end()
                self.commit()
                if self._waiting_rows:
                    self._drop_waiting()
            finally:
                self._state = "closed"
                _open_logs.discard(self)
                self._end()
        if self.dropped and not self.rows:
            text = f"all {self.dropped:,} rows were of steps up to {self.last_step}, which are in the log already"
            hint = 'use a new logdir or name=, or replay="keep"'
            warnings.warn(f"worker {self.worker}: {text}, and were dropped; {hint}", RuntimeWarning, stacklevel=2)

    def _end(self) -> None:
        try:
            self._target.close()
        except Exception as error:
            if self._on_error == "raise":
                raise
            self._warn("the log cannot be closed", error)

    def __enter__(self) -> Self:
        with self._lock:
            self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except (HoldfastError, OSError, Warning) as other:
            error.add_note(f"and the last rows of the log could not be written: {other}")  # the first error is raised

    def after_fork_in_child(self) -> None:
        """Drops the child's copies of the rows, which the parent commits."""
        self._lock = threading.RLock()
        if self._state == "open":
            self._state = "forked"
            self._early = []
            self._target.drop()

    def __repr__(self) -> str:
        return f"<Log of worker {self.worker} in {self._target.name}, {self.rows:,} rows>"


# Logs that nobody closed are closed when the program ends.
_open_logs: set[Log] = set()


def _commit_earlier(name: str, worker: int) -> None:
    """Commits what another log of this worker has, as after a training that raised and starts over in one process."""
    for one in list(_open_logs):
        if one._target.name == name and one.worker == worker and one._state == "open":
            one.commit()


def _close_all() -> None:
    for one in list(_open_logs):
        if one._state == "open":
            try:
                one.close()
            except (HoldfastError, OSError) as error:
                warnings.warn(f"{one!r}: the last rows could not be written: {error}", RuntimeWarning, 1)


# atexit is too late for a remote store: thread pools accept no more work by then. threading's own exit functions run
# before theirs, which were registered earlier, and in children of multiprocessing too.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
