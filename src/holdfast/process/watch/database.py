"""The SQLite file of a watch: its schema, how it is opened and checked, and how it is read.

A damaged file is distinguished from one that is not a watch's: the first is moved aside, the second is left alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ..._util.text import counted
from ...errors import InputError
from ...procfs.processes import Identity
from ..doctor.sampler import Tier
from .state import EventState, Point

_APPLICATION = 0x48465741
VERSION = 1
MINUTES = Tier(60, 2 * 86400)
QUARTERS = Tier(900, 30 * 86400)
COARSE = ((1, MINUTES), (2, QUARTERS))
_BUSY_S = 1.0
_MAGIC = b"SQLite format 3\0"
_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
_BESIDE = ("", "-wal", "-shm", "-journal")

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
BUT_OWNER = {"facts": "WHERE name != 'owner'"}
TABLES = ("facts", "targets", "samples", "kinds", "events")


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
    """A point of the series of a target; `process` is the one of its processes that it is of."""

    point: Point
    process: int


# ---- connections


def connect(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    name = f"file:{quote(os.path.abspath(path))}?mode={mode}" + ("&immutable=1" if immutable else "")
    try:
        return sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
    except sqlite3.Error as error:
        raise cannot_open(path, error) from error


def connect_memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with transaction(db):
        create(db)
    return db


def create(db: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {_APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has rolled it back already
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    rows = source.execute(f"SELECT * FROM {table} {BUT_OWNER.get(table, '')}")
    marks = ", ".join("?" * len(rows.description))
    target.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)


def check_application(db: sqlite3.Connection, path: Path) -> bool:
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


def check_rows(db: sqlite3.Connection, path: Path) -> None:
    """InputError: a row is not as `watch` writes it."""
    for table, damage in _DAMAGED_ROWS.items():
        if rows := db.execute(f"SELECT count(*) FROM {table} WHERE {damage}").fetchone()[0]:
            raise damaged(path, f"{counted(rows, 'row')} of {table} cannot be read")


class DamagedDatabaseError(InputError):
    """The file was made by a watch, and cannot be used any more."""


class DatabaseBusyError(InputError):
    """The file cannot be used now, and may be later: it is locked, or the disk is full."""


def damaged(path: Path | None, why: object) -> DamagedDatabaseError:
    return DamagedDatabaseError(f"{path}: the database is damaged: {why}")


@contextmanager
def reading_facts(path: Path | None) -> Iterator[None]:
    """Turns what goes wrong with the facts of a target into an InputError: anyone may have edited their JSON."""
    try:
        yield
    except _BAD_FACTS as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    return isinstance(error, UnicodeDecodeError) or _code_of(error) in _DAMAGE


def cannot_open(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> InputError:
    code = _code_of(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _not_sqlite(path)
    if is_damage(error):
        return damaged(path, error)
    if code == sqlite3.SQLITE_CANTOPEN:
        return InputError(f"{path}: cannot open the database: {_why_not(path)}")
    kind = DatabaseBusyError if code in _BUSY else InputError
    return kind(f"{path}: cannot open the database: {_REASONS.get(code, str(error))}")


def _code_of(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _not_sqlite(path: Path) -> InputError:
    """Says that a file is damaged if it was meant to be a watch's, and not the user's script or notes."""
    begin = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        begin = file.read(1 << 16)
    if path.suffix in _SUFFIXES or b"CREATE TABLE facts (name TEXT" in begin or not begin.strip(b"\0"):
        return damaged(path, "it is not SQLite")
    return InputError(f"{path}: expected a database of holdfast watch, got a file that is not SQLite")


def move_aside(path: Path, error: InputError, now: float) -> Path:
    """Renames a damaged file and its journals; nothing is deleted. Returns its new name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    number = 1
    while os.path.lexists(moved := path.with_name(f"{path.name}.damaged-{stamp}{f'-{number}' if number > 1 else ''}")):
        number += 1
    try:
        for end in _BESIDE:
            if os.path.lexists(f"{path}{end}"):
                os.rename(f"{path}{end}", f"{moved}{end}")
    except OSError as reason:
        raise InputError(f"{error}, and it cannot be moved aside: {reason.strerror}") from error
    return moved


def check_file(path: Path) -> None:
    """InputError: it is no regular file, or not SQLite; SQLite, which would report that, removes the journals first."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: cannot open the database: {_why_not(path)}")
    with contextlib.suppress(OSError), open(path, "rb") as file:
        begin = file.read(len(_MAGIC))
        if begin and begin != _MAGIC:
            raise _not_sqlite(path)


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


# Within the checks of the schema, an SQLITE_ERROR is a table or a column that is not there.
_DAMAGE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
}


def reason_of(error: sqlite3.Error) -> str:
    return _REASONS.get(_code_of(error), str(error))


def file_id(path: Path) -> tuple[int, int] | None:
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
    check_file(path)  # a pipe would block
    try:
        db = connect(path, "ro")
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if _code_of(error) == sqlite3.SQLITE_BUSY:
                raise
            # A read-only folder has no room for the index of the journal: what was moved to the file is readable.
            db.close()
            db = connect(path, "ro", immutable=True)
        try:
            if check_application(db, path):
                raise InputError(f"{path}: expected a database of holdfast watch, got an empty file")
            db.execute("BEGIN")  # one consistent view over all tables
            check_rows(db, path)
            with reading_facts(path):
                yield db
        finally:
            db.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise cannot_open(path, error) from error


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
    for number, tier in COARSE:
        sql = "SELECT t, kinds FROM kinds WHERE target = ? AND tier = ? AND t < ? ORDER BY t"
        rows = db.execute(sql, (target, number, until if number == 1 else until - tier.every_s))
        found[:0] = [(t, json.loads(text)) for t, text in rows]
        until = found[0][0] if found else until
    return found


def read_events(db: sqlite3.Connection, maximum: int) -> list[EventState]:
    """Returns the last events, oldest first."""
    rows = db.execute("SELECT t, target, kind, text FROM events ORDER BY id DESC LIMIT ?", (maximum,)).fetchall()
    return [EventState(t=t, target=target, kind=kind, text=text) for t, target, kind, text in reversed(rows)]


def read_fact(db: sqlite3.Connection, name: str) -> Any:
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else json.loads(row[0])
