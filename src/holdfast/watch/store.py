"""Keeps what watch saw: in a SQLite file, or in memory without one.

Every sample is written to three tiers at once: as it is for 720 samples (an hour at 5 s), as one row a minute for two
days, and as one row per quarter of an hour for 30 days. A row has the lowest and the highest count of its span, so that
thinning keeps both the baseline and the peaks. The number of rows of a target is bounded, and so is the number of
targets: a file has at most `TARGET_BYTES` for each of `MOST_TARGETS` targets.

The file is in WAL mode with `synchronous=NORMAL`: a killed watch loses nothing that it has written, a power failure may
lose the last minutes but leaves a consistent file, and others may read while watch writes. When writing fails (the
disk is full, the file was removed), the store goes on in memory, says so in `problem`, and tries again every minute.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from .._util.text import counted
from ..doctor.sampler import Tier
from ..errors import InputError
from ..procfs.processes import Identity, is_same, read_stat
from ..procfs.procfs import REAL, ProcFS, read_or_none, readlink_or_none
from .state import EventState, Point

_APPLICATION = 0x48465741
VERSION = 1
FINE_SAMPLES = 720
MINUTES = Tier(60, 2 * 86400)
QUARTERS = Tier(900, 30 * 86400)
_COARSE = ((1, MINUTES), (2, QUARTERS))
KEEP_S = QUARTERS.keep_s
MOST_TARGETS = 128
MOST_EVENTS = 5000
# Measured over 30 simulated days: 1.0 MB, with a tree of 256 processes whose commands are long.
TARGET_BYTES = 2 << 20

_PRUNE_EVERY_S = 60.0
_RETRY_EVERY_S = 60.0
_BUSY_S = 1.0
_FUTURE_S = 86400.0
_FOREIGN_S = 60.0
_WAL_BYTES = 4 << 20

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE targets (
    id INTEGER PRIMARY KEY,
    label TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    boot TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER,
    process INTEGER NOT NULL,
    seen REAL NOT NULL,
    facts TEXT NOT NULL
);
CREATE TABLE samples (
    target INTEGER NOT NULL,
    tier INTEGER NOT NULL,
    t REAL NOT NULL,
    process INTEGER NOT NULL,
    low INTEGER NOT NULL,
    high INTEGER NOT NULL,
    rss_bytes INTEGER,
    threads INTEGER,
    children INTEGER,
    PRIMARY KEY (target, tier, t)
) WITHOUT ROWID;
CREATE TABLE kinds (
    target INTEGER NOT NULL, tier INTEGER NOT NULL, t REAL NOT NULL, kinds TEXT NOT NULL,
    PRIMARY KEY (target, tier, t)
) WITHOUT ROWID;
CREATE TABLE events (id INTEGER PRIMARY KEY, t REAL NOT NULL, target TEXT NOT NULL, kind TEXT NOT NULL,
    text TEXT NOT NULL);
"""
# What a row of each table is not: any program may have written to the file, and SQLite checks no types.
_DAMAGED_ROWS = {
    "facts": "NOT json_valid(value)",
    "targets": "typeof(id) || typeof(label) || typeof(boot) || typeof(pid) || typeof(process) != "
    "'integertexttextintegerinteger' OR typeof(start_ticks) NOT IN ('integer', 'null') OR NOT abs(seen) < 1e11 "
    "OR iif(json_valid(facts), json_type(facts), '') != 'object' "
    "OR iif(json_valid(key), json_type(key), '') != 'array'",
    "samples": "typeof(process) || typeof(low) || typeof(high) != 'integerintegerinteger' OR NOT abs(t) < 1e11 "
    "OR typeof(rss_bytes) NOT IN ('integer', 'null') OR typeof(threads) NOT IN ('integer', 'null') "
    "OR typeof(children) NOT IN ('integer', 'null')",
    "kinds": "NOT abs(t) < 1e11 OR iif(json_valid(kinds), json_type(kinds), '') != 'object'",
    "events": "typeof(target) || typeof(kind) || typeof(text) != 'texttexttext' OR NOT abs(t) < 1e11",
}
_BAD_FACTS = (ValueError, TypeError, KeyError, AttributeError)
_BUT_OWNER = {"facts": "WHERE name != 'owner'"}
_TABLES = ("facts", "targets", "samples", "kinds", "events")

_SAMPLE = """
INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET process = excluded.process, low = min(low, excluded.low), high = max(high, excluded.high),
    rss_bytes = max(ifnull(rss_bytes, excluded.rss_bytes), excluded.rss_bytes),
    threads = max(ifnull(threads, excluded.threads), excluded.threads),
    children = max(ifnull(children, excluded.children), excluded.children)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTarget:
    """A target as the store knows it. `process` counts the processes that it has had."""

    id: int
    label: str
    key: str
    boot: str
    identity: Identity
    process: int
    seen: float
    facts: dict[str, Any]


class StoredPoint(NamedTuple):
    """A point of the series of a target; `process` says which of its processes it is of."""

    point: Point
    process: int


class Batch:
    """What one round writes, in one transaction."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, tuple[Any, ...]]] = []

    def add_sample(self, target: int, process: int, point: Point) -> None:
        facts = (point.low, point.fds, point.rss_bytes, point.threads, point.children)
        for tier, t in ((0, round(point.t, 2)), *((number, _bin(point.t, tier)) for number, tier in _COARSE)):
            self.operations.append((_SAMPLE, (target, tier, t, process, *facts)))

    def add_kinds(self, target: int, t: float, kinds: dict[str, int]) -> None:
        text = json.dumps(kinds)
        for number, tier in _COARSE:
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
        for number, tier in ((0, None), *_COARSE):
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
    """Any thread may read; one writes. InputError: the file cannot be used."""

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
        self._every_s = every_s
        self._clock = clock
        self._procfs = procfs
        self._lock = threading.RLock()
        self._pruned_at = -math.inf
        self._retry_at = math.inf
        self._file_id: tuple[int, int] | None = None
        self._is_closed = False
        self._is_complete = True
        self._db = _connect_memory() if path is None else self._open_file(path)

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
        with _transaction(self._db):
            for sql, row in batch.operations:
                self._db.execute(sql, row)
            if now >= self._pruned_at + _PRUNE_EVERY_S or now < self._pruned_at:
                self._prune(now)
                self._pruned_at = now

    def _prune(self, now: float) -> None:
        targets = [row[0] for row in self._db.execute("SELECT id FROM targets")]
        tiers = ((0, Tier(self._every_s, FINE_SAMPLES * self._every_s)), *_COARSE)
        for target in targets:
            for number, tier in tiers:
                row = (target, number, now - tier.keep_s, now + _FUTURE_S)
                for table in ("samples", "kinds") if number else ("samples",):
                    self._db.execute(f"DELETE FROM {table} WHERE target = ? AND tier = ? AND (t < ? OR t > ?)", row)
        self._db.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (MOST_EVENTS,))
        self._db.execute("DELETE FROM events WHERE t < ?", (now - KEEP_S,))
        self._db.execute("PRAGMA incremental_vacuum(64)")

    # ---- when the file fails

    def _check_file(self) -> None:
        """Notices a file that was removed or replaced: SQLite would go on writing to the one that nobody can open."""
        assert self.path is not None
        if _file_id(self.path) != self._file_id:
            self._go_on_in_memory(sqlite3.OperationalError("the file was removed or replaced"), self._clock())

    def _go_on_in_memory(self, error: sqlite3.Error, now: float) -> None:
        memory = _connect_memory()
        try:
            memory.execute("BEGIN")
            for table in _TABLES:
                _copy_table(self._db, memory, table)
            memory.execute("COMMIT")
        except sqlite3.Error:
            memory.close()
            memory = _connect_memory()
            self._is_complete = False  # what the file has must not be removed later
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = memory
        self._retry_at = now + _RETRY_EVERY_S
        self.problem = f"{self.path}: cannot write: {_reason(error)}; new samples are kept in memory until it works"

    def _return_to_file(self, now: float) -> None:
        assert self.path is not None
        try:
            file = self._open_file(self.path)
        except InputError as error:
            self._retry_at = now + _RETRY_EVERY_S
            self.problem = f"{error}; new samples are kept in memory until it works"
            return
        try:
            with _transaction(file):
                for table in _TABLES:
                    if self._is_complete:
                        file.execute(f"DELETE FROM {table} {_BUT_OWNER.get(table, '')}")
                    _copy_table(self._db, file, table)
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                file.close()
            self._retry_at = now + _RETRY_EVERY_S
            self.problem = f"{self.path}: cannot write: {_reason(error)}; new samples are kept in memory until it works"
            return
        self._db.close()
        self._db = file
        self._is_complete = True
        self._retry_at = math.inf
        self.problem = ""

    # ---- opening and closing

    def _open_file(self, path: Path) -> sqlite3.Connection:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: cannot open the database: {_why_not(path)}")
        db = _connect(path, "rwc")
        try:
            is_new = _check_application(db, path)
            if is_new:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            with _transaction(db):
                if is_new and _check_application(db, path):  # another watch may have been quicker
                    _create(db)
                _check_rows(db, path)
                self._become_owner(db, path)
        except (
            sqlite3.Error,
            UnicodeDecodeError,
        ) as error:  # a damaged schema is in the message, which is no text then
            db.close()
            raise _cannot_open(path, error) from error
        except BaseException:
            db.close()
            raise
        self._file_id = _file_id(path)
        return db

    def _become_owner(self, db: sqlite3.Connection, path: Path) -> None:
        """Refuses a file that another watch writes to. A killed one leaves its mark, but is not there any more."""
        row = db.execute("SELECT value FROM facts WHERE name = 'owner'").fetchone()
        owner = json.loads(row[0]) if row else None
        if not isinstance(owner, dict) or not self._mark().keys() <= owner.keys():
            owner = None
        if owner is not None and owner != self._mark() and self._is_writing(db, owner):
            raise InputError(f"{path}: in use by another holdfast watch, process {owner['pid']}; choose another file")
        db.execute("INSERT OR REPLACE INTO facts VALUES ('owner', ?)", (json.dumps(self._mark()),))

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
            if self.problem:
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

    def events(self, most: int) -> list[EventState]:
        with self._lock:
            return read_events(self._db, most)

    def fact(self, name: str) -> Any:
        with self._lock:
            return read_fact(self._db, name)

    def count_rows(self) -> dict[str, int]:
        with self._lock:
            return {table: int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in _TABLES}

    @property
    def size_bytes(self) -> int:
        with self._lock:
            (pages,), (size,) = (self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
            return int(pages) * int(size)


def boot_id(procfs: ProcFS = REAL) -> str:
    """Returns the id of this boot of the machine: start times of processes count from it."""
    return (read_or_none(procfs, "/proc/sys/kernel/random/boot_id") or "").strip()


# ---- connections


def _connect(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    name = f"file:{quote(os.path.abspath(path))}?mode={mode}" + ("&immutable=1" if immutable else "")
    try:
        return sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
    except sqlite3.Error as error:
        raise _cannot_open(path, error) from error


def _connect_memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with _transaction(db):
        _create(db)
    return db


def _create(db: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {_APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has rolled it back already
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    rows = source.execute(f"SELECT * FROM {table} {_BUT_OWNER.get(table, '')}")
    marks = ", ".join("?" * len(rows.description))
    target.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)


def _check_application(db: sqlite3.Connection, path: Path) -> bool:
    """Returns whether the file is new; InputError if it is of another program or version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and application in (0, _APPLICATION):
        return True
    if application != _APPLICATION:
        raise InputError(f"{path}: expected a database of holdfast watch, got one of another program")
    if version != VERSION:
        raise InputError(
            f"{path}: expected version {VERSION} of the database, got {version}: "
            "another version of holdfast wrote it; choose another file"
        )
    return False


def _check_rows(db: sqlite3.Connection, path: Path) -> None:
    """InputError: a row is not as `watch` writes it."""
    for table, damage in _DAMAGED_ROWS.items():
        if rows := db.execute(f"SELECT count(*) FROM {table} WHERE {damage}").fetchone()[0]:
            raise damaged(path, f"{counted(rows, 'row')} of {table} cannot be read")


def damaged(path: Path | None, why: object) -> InputError:
    return InputError(f"{path}: the database is damaged: {why}")


@contextmanager
def reading_facts(path: Path | None) -> Iterator[None]:
    """Turns what goes wrong with the facts of a target into an InputError: anyone may have edited their JSON."""
    try:
        yield
    except _BAD_FACTS as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _cannot_open(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return damaged(path, error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return InputError(f"{path}: expected a database of holdfast watch, got a file that is not SQLite")
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(path, error)
    if code == sqlite3.SQLITE_CANTOPEN:
        return InputError(f"{path}: cannot open the database: {_why_not(path)}")
    return InputError(f"{path}: cannot open the database: {_reason(error)}")


def _why_not(path: Path) -> str:
    """Says what SQLite does not: why a file cannot be opened or created."""
    if path.is_dir():
        return "it is a folder"
    if path.exists() and not path.is_file():
        return "it is a device or a pipe"
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if path.exists():
        return "permission denied" if not os.access(path, os.R_OK) else f"the folder {folder} is not writable"
    return f"permission denied to create a file in {folder}" if not os.access(folder, os.W_OK) else "unknown reason"


_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
}


def _reason(error: sqlite3.Error) -> str:
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, str(error))


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ---- reading, also from a file that another process writes


@contextmanager
def open_recording(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a file for reading, also one that a watch writes to or left behind when it was killed."""
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    if not path.is_file():  # a pipe would block
        raise InputError(f"{path}: cannot open the database: {_why_not(path)}")
    try:
        db = _connect(path, "ro")
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # A read-only folder has no room for the index of the journal: what was moved to the file is readable.
            db.close()
            db = _connect(path, "ro", immutable=True)
        try:
            if _check_application(db, path):
                raise InputError(f"{path}: expected a database of holdfast watch, got an empty file")
            db.execute("BEGIN")  # one consistent view over all tables
            _check_rows(db, path)
            with reading_facts(path):
                yield db
        finally:
            db.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _cannot_open(path, error) from error


def read_targets(db: sqlite3.Connection) -> list[StoredTarget]:
    """Returns all targets, the oldest first."""
    return [
        StoredTarget(
            id=row[0],
            label=row[1],
            key=row[2],
            boot=row[3],
            identity=Identity(row[4], row[5]),
            process=row[6],
            seen=row[7],
            facts=json.loads(row[8]),
        )
        for row in db.execute("SELECT * FROM targets ORDER BY id")
    ]


def read_points(db: sqlite3.Connection, target: int) -> list[StoredPoint]:
    """Returns the series of a target, oldest first, each span from the finest tier that has it."""
    sql = "SELECT t, high, low, rss_bytes, threads, children, process FROM samples WHERE target = ? AND tier = ?"
    found: list[StoredPoint] = []
    until = math.inf
    for number, width in ((0, 0.0), (1, MINUTES.every_s), (2, QUARTERS.every_s)):
        rows = db.execute(f"{sql} AND t < ? ORDER BY t", (target, number, until - width)).fetchall()
        found[:0] = [StoredPoint(Point(*row[:6]), row[6]) for row in rows]
        until = found[0].point.t if found else until
    return found


def read_kinds(db: sqlite3.Connection, target: int) -> list[tuple[float, dict[str, int]]]:
    found: list[tuple[float, dict[str, int]]] = []
    until = math.inf
    for number, tier in _COARSE:
        sql = "SELECT t, kinds FROM kinds WHERE target = ? AND tier = ? AND t < ? ORDER BY t"
        rows = db.execute(sql, (target, number, until if number == 1 else until - tier.every_s))
        found[:0] = [(t, json.loads(text)) for t, text in rows]
        until = found[0][0] if found else until
    return found


def read_events(db: sqlite3.Connection, most: int) -> list[EventState]:
    """Returns the last events, oldest first."""
    rows = db.execute("SELECT t, target, kind, text FROM events ORDER BY id DESC LIMIT ?", (most,)).fetchall()
    return [EventState(t=t, target=target, kind=kind, text=text) for t, target, kind, text in reversed(rows)]


def read_fact(db: sqlite3.Connection, name: str) -> Any:
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else json.loads(row[0])
