"""Keeps what watch saw: in a SQLite file, or in memory without one.

Every sample is written to three tiers at once: as it is for 720 samples (an hour at 5 s), as one row a minute for two
days, and as one row per quarter of an hour for 30 days. A row has the lowest and the highest count of its span, so that
thinning keeps both the baseline and the peaks. The number of rows of a target is bounded, and so is the number of
targets: a file has at most `TARGET_BYTES` for each of `MAX_TARGETS` targets.

The file is in WAL mode with `synchronous=NORMAL`: a killed watch loses nothing that it has written, a power failure may
lose the last minutes but leaves a consistent file, and others may read while watch writes. When writing fails (the
disk is full, the file was removed), the store goes on in memory, reports it in `problem`, and tries again every minute.
A damaged file is moved aside, and a new one takes its place: `notices` reports it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...procfs.processes import Identity, is_same, read_stat
from ...procfs.procfs import REAL, ProcFS, read_or_none, readlink_or_none
from ..doctor.sampler import Tier
from .database import (
    BUT_OWNER,
    COARSE,
    QUARTERS,
    TABLES,
    DamagedDatabaseError,
    DatabaseBusyError,
    StoredPoint,
    StoredTarget,
    cannot_open,
    check_application,
    check_file,
    check_rows,
    connect,
    connect_memory,
    copy_table,
    create,
    file_id,
    is_damage,
    move_aside,
    open_recording,
    read_events,
    read_fact,
    read_kinds,
    read_points,
    read_targets,
    reason_of,
    transaction,
)
from .state import EventState, Point

FINE_SAMPLES = 720
KEEP_S = QUARTERS.keep_s
MAX_TARGETS = 128
MAX_EVENTS = 5000
# Measured over 30 simulated days: 1.0 MB, with a tree of 256 processes whose commands are long.
TARGET_BYTES = 2 << 20

_PRUNE_EVERY_S = 60.0
_RETRY_EVERY_S = 60.0
_FUTURE_S = 86400.0
_FOREIGN_S = 60.0
_WAL_BYTES = 4 << 20
_IN_MEMORY = "new samples are kept in memory until it works"

_SAMPLE = """
INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET process = excluded.process, low = min(low, excluded.low), high = max(high, excluded.high),
    rss_bytes = max(ifnull(rss_bytes, excluded.rss_bytes), excluded.rss_bytes),
    threads = max(ifnull(threads, excluded.threads), excluded.threads),
    children = max(ifnull(children, excluded.children), excluded.children)
"""


class Batch:
    """What one round writes, in one transaction."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, tuple[Any, ...]]] = []

    def add_sample(self, target: int, process: int, point: Point) -> None:
        facts = (point.low, point.fds, point.rss_bytes, point.threads, point.children)
        for tier, t in ((0, round(point.t, 2)), *((number, _bin(point.t, tier)) for number, tier in COARSE)):
            self.operations.append((_SAMPLE, (target, tier, t, process, *facts)))

    def add_kinds(self, target: int, t: float, kinds: dict[str, int]) -> None:
        text = json.dumps(kinds)
        for number, tier in COARSE:
            self.operations.append(
                ("INSERT OR REPLACE INTO kinds VALUES (?, ?, ?, ?)", (target, number, _bin(t, tier), text))
            )

    def add_event(self, event: EventState) -> None:
        row = (event["t"], event["target"], event["kind"], event["text"])
        self.operations.append(("INSERT INTO events (t, target, kind, text) VALUES (?, ?, ?, ?)", row))

    def rename(self, old: str, new: str) -> None:
        """Lets the events of a target follow its new label."""
        self.operations.append(("UPDATE events SET target = ? WHERE target = ?", (new, old)))

    def update_target(self, one: StoredTarget) -> None:
        """Adds the target, or replaces what is known of it."""
        row = (one.id, one.label, one.key, one.boot, *one.identity, one.process, one.seen, json.dumps(one.facts))
        self.operations.append(("INSERT OR REPLACE INTO targets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row))

    def drop_samples(self, target: int, since: float) -> None:
        """Removes the samples of a time for which those of another process are written instead."""
        for number, tier in ((0, None), *COARSE):
            t = since if tier is None else _bin(since, tier)
            self.operations.append(
                ("DELETE FROM samples WHERE target = ? AND tier = ? AND t >= ?", (target, number, t))
            )

    def drop_target(self, target: int) -> None:
        self.operations.append(("DELETE FROM targets WHERE id = ?", (target,)))
        for table in ("samples", "kinds"):
            self.operations.append((f"DELETE FROM {table} WHERE target = ?", (target,)))

    def set_fact(self, name: str, value: object) -> None:
        self.operations.append(("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value))))


def _bin(t: float, tier: Tier) -> float:
    return math.floor(t / tier.every_s) * tier.every_s


class Store:
    """Any thread may read; one writes. InputError: the file cannot be used.

    problem  what does not work at the moment, "" if everything does
    notices  what has happened to the file; the reader removes them
    """

    def __init__(
        self,
        path: Path | None,
        every_s: float = 5.0,
        *,
        clock: Callable[[], float] = time.time,
        procfs: ProcFS = REAL,
    ) -> None:
        self.path = path
        self.problem = ""
        self.notices: list[str] = []
        self._every_s = every_s
        self._clock = clock
        self._procfs = procfs
        self._lock = threading.RLock()
        self._pruned_at = -math.inf
        self._retry_at = math.inf
        self._file_id: tuple[int, int] | None = None
        self._is_closed = False
        self._is_complete = True
        self._db = connect_memory() if path is None else self._open_first(path)

    # ---- writing

    def write(self, batch: Batch) -> None:
        """Writes all of the batch or nothing; after a failure the batch, and everything after it, is in memory."""
        with self._lock:
            if self._is_closed:
                return
            now = self._clock()
            if now >= self._retry_at or now < self._retry_at - _RETRY_EVERY_S < math.inf:  # the clock was set back
                self._return_to_file(now)
            if self.path is not None and not self.problem and now >= self._pruned_at + _PRUNE_EVERY_S:
                self._check_file()
            try:
                self._apply(batch, now)
            except sqlite3.Error as error:
                if self.path is None or self.problem:
                    raise
                self._go_on_in_memory(error, now)
                self._apply(batch, now)

    def _apply(self, batch: Batch, now: float) -> None:
        with transaction(self._db):
            for sql, row in batch.operations:
                self._db.execute(sql, row)
            if now >= self._pruned_at + _PRUNE_EVERY_S or now < self._pruned_at:
                self._prune(now)
                self._pruned_at = now

    def _prune(self, now: float) -> None:
        targets = [row[0] for row in self._db.execute("SELECT id FROM targets")]
        tiers = ((0, Tier(self._every_s, FINE_SAMPLES * self._every_s)), *COARSE)
        for target in targets:
            for number, tier in tiers:
                row = (target, number, now - tier.keep_s, now + _FUTURE_S)
                for table in ("samples", "kinds") if number else ("samples",):
                    self._db.execute(f"DELETE FROM {table} WHERE target = ? AND tier = ? AND (t < ? OR t > ?)", row)
        self._db.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (MAX_EVENTS,))
        self._db.execute("DELETE FROM events WHERE t < ?", (now - KEEP_S,))
        self._db.execute("PRAGMA incremental_vacuum(64)")

    # ---- when the file fails

    def _check_file(self) -> None:
        """Notices a file that was removed or replaced: SQLite would go on writing to the one that nobody can open."""
        assert self.path is not None
        if file_id(self.path) != self._file_id:
            self._go_on_in_memory(sqlite3.OperationalError("the file was removed or replaced"), self._clock())

    def _go_on_in_memory(self, error: sqlite3.Error, now: float) -> None:
        memory = connect_memory()
        try:
            memory.execute("BEGIN")
            for table in TABLES:
                copy_table(self._db, memory, table)
            memory.execute("COMMIT")
        except sqlite3.Error:
            memory.close()
            memory = connect_memory()
            self._is_complete = False  # what the file has must not be removed later
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = memory
        self._retry_at = now + _RETRY_EVERY_S
        self.problem = f"{self.path}: cannot write: {reason_of(error)}; {_IN_MEMORY}"

    def _return_to_file(self, now: float) -> None:
        assert self.path is not None
        self._retry_at = now + _RETRY_EVERY_S
        try:
            file = self._open_or_move_aside(self.path)
        except InputError as error:
            self.problem = f"{error}; {_IN_MEMORY}"
            return
        try:
            with transaction(file):
                for table in TABLES:
                    if self._is_complete:
                        file.execute(f"DELETE FROM {table} {BUT_OWNER.get(table, '')}")
                    copy_table(self._db, file, table)
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                file.close()
            self.problem = f"{self.path}: cannot write: {reason_of(error)}; {_IN_MEMORY}"
            if is_damage(error):  # which reading did not show
                with contextlib.suppress(InputError):
                    self._move_aside(cannot_open(self.path, error))
                    self._retry_at = now
            return
        self._db.close()
        self._db = file
        self._is_complete = True
        self._retry_at = math.inf
        self.problem = ""

    def start_over(self, error: DamagedDatabaseError) -> None:
        """Moves the file aside because of what is in it, and begins a new one."""
        with self._lock:
            assert self.path is not None
            self._db.close()
            self._move_aside(error)
            self._db = self._open_file(self.path)

    def _move_aside(self, error: InputError) -> None:
        assert self.path is not None
        moved = move_aside(self.path, error, self._clock())
        self.notices.append(f"{error}: it is {moved} now, and a new one begins")

    # ---- opening and closing

    def _open_first(self, path: Path) -> sqlite3.Connection:
        """Opens the file at the start. What cannot be written to now is copied into memory, for the next attempt."""
        try:
            return self._open_or_move_aside(path)
        except DatabaseBusyError as error:
            memory = connect_memory()
            try:
                with open_recording(path) as file:
                    self._check_owner(file, path)
                    for table in TABLES:
                        copy_table(file, memory, table)
                self._retry_at = self._clock() + _RETRY_EVERY_S
                self.problem = f"{error}; {_IN_MEMORY}"
            except DatabaseBusyError:
                # What is in the file is not known: what is seen from now on must not be mixed with it.
                self.problem = f"{error}; samples are kept in memory until holdfast watch is started again"
            except BaseException:
                memory.close()
                raise
            return memory

    def _open_or_move_aside(self, path: Path) -> sqlite3.Connection:
        try:
            return self._open_file(path)
        except DamagedDatabaseError as error:
            self._move_aside(error)
            return self._open_file(path)

    def _open_file(self, path: Path) -> sqlite3.Connection:
        check_file(path)
        db = connect(path, "rwc")
        try:
            is_new = check_application(db, path)
            if is_new:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            with transaction(db):
                if is_new and check_application(db, path):  # another watch may have been quicker
                    create(db)
                self._check_owner(db, path)  # first: a file that is in use is nobody's to move
                check_rows(db, path)
                db.execute("INSERT OR REPLACE INTO facts VALUES ('owner', ?)", (json.dumps(self._mark()),))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # Where the schema is damaged, its bytes are in the message, which is no text then.
            db.close()
            raise cannot_open(path, error) from error
        except BaseException:
            db.close()
            raise
        self._file_id = file_id(path)
        return db

    def _check_owner(self, db: sqlite3.Connection, path: Path) -> None:
        """Refuses a file that another watch writes to. A killed one leaves its mark, but is not there any more."""
        row = db.execute("SELECT value FROM facts WHERE name = 'owner'").fetchone()
        try:
            owner = json.loads(row[0]) if row else None
        except (ValueError, TypeError):
            owner = None
        if not isinstance(owner, dict) or not self._mark().keys() <= owner.keys():
            return
        if owner != self._mark() and self._is_writing(db, owner):
            raise InputError(f"{path}: in use by another holdfast watch, process {owner['pid']}; choose another file")

    def _mark(self) -> dict[str, Any]:
        pid = self._procfs.own_pid() or os.getpid()
        seen = read_stat(self._procfs, pid)
        return {
            "pid": pid,
            "start_ticks": None if seen is None else seen.start_ticks,
            "host": socket.gethostname(),
            "boot": boot_id(self._procfs),
            "namespace": readlink_or_none(self._procfs, "/proc/self/ns/pid"),
        }

    def _is_writing(self, db: sqlite3.Connection, owner: dict[str, Any]) -> bool:
        mark = self._mark()
        if owner["host"] == mark["host"] and owner["boot"] != mark["boot"]:
            return False  # the machine was restarted
        if (owner["boot"], owner["namespace"]) == (mark["boot"], mark["namespace"]):
            return is_same(self._procfs, Identity(owner["pid"], owner["start_ticks"])) is not False
        # A process of another machine or container is not in this /proc: it is there while it writes.
        row = db.execute("SELECT max(seen) FROM targets").fetchone()
        return row[0] is not None and abs(self._clock() - row[0]) < _FOREIGN_S

    def close(self) -> None:
        """Leaves one file without a journal beside it, so that a copy of it is complete. It may be called twice."""
        with self._lock:
            if self._is_closed:
                return
            if self._retry_at < math.inf:
                self._return_to_file(self._clock())  # a last attempt
            self._is_closed = True
            with contextlib.suppress(sqlite3.Error):
                if self.path is not None and not self.problem:
                    self._db.execute("DELETE FROM facts WHERE name = 'owner'")
                    self._db.execute("PRAGMA journal_mode = DELETE")  # fails while another process reads: then it stays
            self._db.close()

    # ---- reading

    def targets(self) -> list[StoredTarget]:
        with self._lock:
            return read_targets(self._db)

    def points(self, target: int) -> list[StoredPoint]:
        with self._lock:
            return read_points(self._db, target)

    def kinds(self, target: int) -> list[tuple[float, dict[str, int]]]:
        with self._lock:
            return read_kinds(self._db, target)

    def events(self, maximum: int) -> list[EventState]:
        with self._lock:
            return read_events(self._db, maximum)

    def fact(self, name: str) -> Any:
        with self._lock:
            return read_fact(self._db, name)

    def count_rows(self) -> dict[str, int]:
        with self._lock:
            return {table: int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES}

    @property
    def size_bytes(self) -> int:
        with self._lock:
            (pages,), (size,) = (self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
            return int(pages) * int(size)


def boot_id(procfs: ProcFS = REAL) -> str:
    """Returns the id of this boot of the machine: start times of processes count from it."""
    return (read_or_none(procfs, "/proc/sys/kernel/random/boot_id") or "").strip()
