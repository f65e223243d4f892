"""The store: tiers of bounded size, reopening, and files that cannot be used or stop working."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import InputError
from holdfast.process.watch.collector import WatchCollector
from holdfast.process.watch.documents import load_state
from holdfast.process.watch.finder import Selection
from holdfast.process.watch.state import EventState, Point
from holdfast.process.watch.store import MAX_EVENTS, TARGET_BYTES, Batch, Store, StoredTarget
from holdfast.procfs.processes import Identity
from python_child import python

START = 1_790_000_000.0
HOUR, DAY = 3600, 86400


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def stored(number: int = 1, label: str = "worker", **facts: object) -> StoredTarget:
    return StoredTarget(
        id=number,
        label=label,
        key='["pid", "python worker.py", "worker.py"]',
        boot="b",
        identity=Identity(4711, 88),
        process=1,
        seen=START,
        facts={"target": label, "verdict": "OK", "alive": True, **facts},
    )


def write(store: Store, *fill: Callable[[Batch], None]) -> None:
    batch = Batch()
    for one in fill:
        one(batch)
    store.write(batch)


def add(store: Store, t: float, fds: int, target: int = 1) -> None:
    write(store, lambda batch: batch.add_sample(target, 1, Point(t, fds, fds, 1000, 2, 0)))


def test_tiers_over_thirty_days_are_bounded_and_keep_the_extremes(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, 5.0, clock=clock)
    large_tree = [{"pid": at, "command": "x" * 500, "kinds": {"pipe": 12345, "file": 1}} for at in range(256)]
    write(store, lambda batch: batch.update_target(stored(tree=large_tree)))
    at = START
    end = START + 31 * DAY
    while at < end:
        batch = Batch()
        for _ in range(400):
            # Every minute for a month, every 5 s in the last three hours, with a spike and a dip now and then.
            at += 5 if at > end - 3 * HOUR else 60
            minute = int(at - START) // 60
            fds = 500 if minute % 1440 == 700 else 3 if minute % 1440 == 900 else 100
            batch.add_sample(1, 1, Point(at, fds, fds, 10**9 + minute, 12, 3))
            batch.add_kinds(1, at, {"pipe": 50000 + minute, "file": 20, "TCP socket": 17, "device": 3, "eventpoll": 1})
        clock.now = at
        store.write(batch)
    rows = store.count_rows()
    assert rows["samples"] <= 720 + 2881 + 2881 + 400
    assert rows["kinds"] <= 2881 + 2881 + 400
    points = [one.point for one in store.points(1)]
    times = [one.t for one in points]
    assert times == sorted(set(times))
    assert times[0] >= at - 30 * DAY - 900
    fine = [one for one in points if one.t > at - HOUR]
    assert len(fine) == 720
    old = [one for one in points if one.t < at - 3 * DAY]
    assert {one.fds for one in old} == {100, 500}  # the highest of each quarter of an hour
    assert {one.low for one in old} == {100, 3}
    assert store.size_bytes < TARGET_BYTES
    kinds = store.kinds(1)
    assert kinds[-1][1]["pipe"] > kinds[0][1]["pipe"]
    store.close()
    assert os.path.getsize(path) < TARGET_BYTES
    assert sorted(os.listdir(tmp_path)) == ["watch.db"]  # no journal is left beside it


def test_reopened_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    clock = Clock()
    for round_ in range(3):
        store = Store(path, 5.0, clock=clock)
        write(store, lambda batch: batch.update_target(stored()))
        add(store, clock.now, 10 + round_)
        clock.now += 5
        store.close()
    store = Store(path, 5.0, clock=clock)
    assert [one.point.fds for one in store.points(1)] == [10, 11, 12]
    assert store.targets() == [stored()]
    store.close()
    store.close()


def test_time_that_goes_backwards_does_no_harm() -> None:
    clock = Clock()
    store = Store(None, 5.0, clock=clock)
    write(store, lambda batch: batch.update_target(stored()))
    for t in (START, START + 400 * DAY, START + 5):
        clock.now = t
        add(store, t, 10)
    clock.now += 120
    add(store, clock.now, 11)
    times = [one.point.t for one in store.points(1)]
    assert max(times) == clock.now
    store.close()


def test_events_are_bounded() -> None:
    clock = Clock()
    store = Store(None, 5.0, clock=clock)
    for _ in range(3):
        batch = Batch()
        for _ in range(MAX_EVENTS):
            batch.add_event(EventState(t=clock.now, target="worker", kind="verdict", text="x"))
        clock.now += 61
        store.write(batch)
    assert store.count_rows()["events"] <= 2 * MAX_EVENTS
    assert len(store.events(10)) == 10
    store.close()


def test_dropped_target_leaves_nothing() -> None:
    store = Store(None, 5.0, clock=Clock())
    write(store, lambda batch: batch.update_target(stored()))
    add(store, START, 10)
    write(store, lambda batch: batch.drop_target(1))
    assert set(store.count_rows().values()) == {0}
    store.close()


# ---- files that cannot be used


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        Store(path).close()
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(f"{path}: ")


def test_file_that_is_not_sqlite_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    before = path.read_bytes()
    assert refusal(path) == "expected a database of holdfast watch, got a file that is not SQLite"
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="not SQLite"):
        load_state(path)


def test_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    assert refusal(path) == "expected a database of holdfast watch, got one of another program"
    assert path.read_bytes() == before


def test_other_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert refusal(path).startswith("expected version 1 of the database, got 99: another version of holdfast wrote it")


def check_moved_aside(path: Path) -> Path:
    """A watch goes on with a new file, and says where what was there is kept."""
    collector = WatchCollector(Selection(), Store(path, clock=Clock()))
    [notice] = collector.store.notices
    collector.round()
    assert collector.all_problems == []
    collector.close()
    [moved] = path.parent.glob(f"{path.name}.damaged-*")
    assert notice.startswith(f"{path}: the database is damaged: ")
    assert notice.endswith(f": it is {moved} now, and a new one begins")
    assert load_state(path)["targets"] == []
    return moved


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:100] + os.urandom(len(data) - 100),
        lambda data: os.urandom(len(data)),
        lambda data: data[: len(data) // 2],
        lambda data: data[:60],
        lambda _: b"not a database",
        zeros,
        # SQLite puts the bytes of the schema into its message, which Python cannot decode then.
        lambda data: data.replace(b"CREATE TABLE facts (name", b"CREATE TABLE \xff\xfe( (name "),
    ],
)
def test_damaged_file_is_moved_aside(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "watch.db"
    filled(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="damaged"):
        load_state(path)
    before = path.read_bytes()
    assert check_moved_aside(path).read_bytes() == before


def filled(path: Path) -> None:
    store = Store(path)
    write(store, lambda batch: batch.update_target(stored()), lambda batch: batch.set_fact("since", START))
    write(store, lambda batch: batch.add_event(EventState(t=START, target="worker", kind="start", text="pid 1")))
    write(store, lambda batch: batch.add_kinds(1, START, {"pipe": 1}))
    add(store, START, 10)
    store.close()


def test_every_damaged_file_is_kept_with_its_journals(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    for number in range(3):
        path.write_text(f"garbage {number}")
        Path(f"{path}-wal").write_text(f"journal {number}")
        Store(path, clock=Clock()).close()
    kept = sorted(tmp_path.glob("*.damaged-*"))
    assert [one.read_text() for one in kept if not one.name.endswith("-wal")] == [f"garbage {n}" for n in range(3)]
    assert sorted(one.read_text() for one in kept if one.name.endswith("-wal")) == [f"journal {n}" for n in range(3)]


def test_damage_while_it_is_written_to(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, clock=clock)
    write(store, lambda batch: batch.update_target(stored()))
    add(store, clock.now, 1)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as file:  # all but the header, as a failing disk does
        size = os.fstat(file.fileno()).st_size
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    store._db.execute("PRAGMA cache_size = 0")
    for fds in range(2, 6):
        clock.now += 61
        write(store, lambda batch: batch.update_target(stored()))
        add(store, clock.now, fds)
    assert store.problem == ""
    assert store.notices
    assert list(tmp_path.glob("*.damaged-*"))
    store.close()
    assert load_state(path)["targets"][0]["series"]["fds"][-1] == 5


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE targets SET facts = '{'",
        "UPDATE targets SET facts = '[1]'",
        "UPDATE targets SET facts = json_set(facts, '$.verdict', 'WRONG')",
        "UPDATE targets SET key = 'x'",
        "UPDATE targets SET key = '[]'",
        "UPDATE targets SET facts = json_set(facts, '$._about', 'x')",
        "UPDATE targets SET seen = 9e999",
        "UPDATE samples SET low = 'x', high = x'ff00'",
        "UPDATE samples SET t = 9e999 WHERE tier = 2",
        "UPDATE kinds SET kinds = 'x'",
        "UPDATE events SET t = 9e999",
        "UPDATE events SET text = x'ff'",
        "UPDATE facts SET value = 'x'",
        "UPDATE facts SET value = '[]'",
        "UPDATE targets SET facts = json_set(facts, '$._first', json('{\"kinds\": 1}'))",
        "ALTER TABLE samples RENAME COLUMN low TO lowest",
        "DROP TABLE events",
    ],
)
def test_file_with_wrong_contents_is_moved_aside(tmp_path: Path, change: str) -> None:
    """Any program may have written to the file: that is no bug of holdfast."""
    path = tmp_path / "watch.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(change)
        db.commit()
    if not any(one in change for one in ("_about", "_first", "'[]'")):  # which a report does not need
        with pytest.raises(InputError, match="damaged"):
            load_state(path)
    with closing(sqlite3.connect(check_moved_aside(path))) as db:
        assert db.execute("SELECT count(*) FROM targets").fetchone() == (1,)


def test_mark_of_an_owner_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    Store(path).close()
    for owner in ("{}", "7", '{"pid": 1}'):
        with closing(sqlite3.connect(path)) as db:
            db.execute("INSERT OR REPLACE INTO facts VALUES ('owner', ?)", (owner,))
            db.commit()
        Store(path).close()


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(InputError, match="it is a device or a pipe"):
            Store(path)
        with pytest.raises(InputError, match="it is a device or a pipe"):
            load_state(path)


def test_clock_that_is_set_back_delays_no_retry(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, clock=clock)
    path.unlink()
    clock.now += 100
    add(store, clock.now, 10)
    assert store.problem
    clock.now -= 30 * DAY
    add(store, clock.now, 11)
    assert store.problem == ""
    store.close()


def test_folders_are_refused_with_the_reason(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "cannot open the database: it is a folder"
    missing = tmp_path / "no" / "watch.db"
    assert refusal(missing) == f"cannot open the database: there is no folder {missing.parent}"
    with pytest.raises(InputError, match="there is no such file"):
        load_state(tmp_path / "missing.db")
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(InputError, match="got an empty file"):
        load_state(empty)


def test_folder_without_write_permission_is_refused() -> None:
    # The superuser may write everywhere else.
    assert "cannot open the database" in refusal(Path("/proc/watch.db"))


_HOLDS = """
import sys
from pathlib import Path
from holdfast.process.watch.store import Batch, Store
store = Store(Path(sys.argv[1]))
batch = Batch()
batch.set_fact("since", 5.0)
store.write(batch)
print("ready", flush=True)
sys.stdin.read()
store.close()
"""


def test_file_of_a_running_watch_is_refused_and_that_of_a_killed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with python(_HOLDS, path) as child:
        assert refusal(path) == f"in use by another holdfast watch, process {child.pid}; choose another file"
        assert load_state(path)["since"] == 5.0  # but it can be read
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE facts SET value = 'x' WHERE name = 'since'")
            db.commit()
        assert refusal(path).startswith("in use by another")  # also if it is damaged
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE facts SET value = '5.0' WHERE name = 'since'")
            db.commit()
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert load_state(path)["since"] == 5.0
        store = Store(path)
        assert store.fact("since") == 5.0
        store.close()


# ---- files that stop working


def test_full_disk_moves_the_store_to_memory_and_back(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, 5.0, clock=clock)
    write(store, lambda batch: batch.update_target(stored()))
    add(store, clock.now, 1)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    for step in range(1, 400):
        clock.now += 5
        add(store, clock.now, 1 + step)
        if store.problem:
            break
    assert store.problem == (f"{path}: cannot write: the disk is full; new samples are kept in memory until it works")
    failed = step
    for step in range(failed + 1, failed + 5):
        clock.now += 5
        add(store, clock.now, 1 + step)
    assert [one.point.fds for one in store.points(1)] == list(range(1, failed + 6))
    assert len(load_state(path)["targets"][0]["series"]["t"]) == failed  # as far as the disk had room
    clock.now += 61
    add(store, clock.now, 1000)
    assert store.problem == ""
    store.close()
    fds = load_state(path)["targets"][0]["series"]["fds"]
    assert fds == [*range(1, failed + 6), 1000]


def test_lock_of_another_program_is_waited_for_until_the_end(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, 5.0, clock=clock)
    write(store, lambda batch: batch.update_target(stored()))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    add(store, clock.now, 1)
    assert "another program has locked it" in store.problem
    other.execute("ROLLBACK")
    other.close()
    store.close()  # without a minute's wait
    assert load_state(path)["targets"][0]["series"]["fds"] == [1]


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
def test_file_that_another_program_has_locked_at_the_start_is_not_moved(tmp_path: Path, mode: str) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"BEGIN {mode}")
        store = Store(path, clock=clock)
        assert "another program has locked it" in store.problem
        write(store, lambda batch: batch.update_target(stored()))
        add(store, START + 5, 11)
        other.execute("ROLLBACK")
    clock.now += 61
    add(store, START + 10, 12)
    store.close()
    assert [one.name for one in tmp_path.iterdir()] == ["watch.db"]
    # What an exclusive lock hides is not mixed with what came after it.
    kept = [10, 11, 12] if mode == "IMMEDIATE" else [10]
    assert load_state(path)["targets"][0]["series"]["fds"] == kept


def test_removed_file_is_noticed_and_written_again(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, 5.0, clock=clock)
    write(store, lambda batch: batch.update_target(stored()))
    add(store, clock.now, 1)
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    clock.now += 61
    add(store, clock.now, 2)
    assert "the file was removed or replaced" in store.problem
    clock.now += 61
    add(store, clock.now, 3)
    assert store.problem == ""
    store.close()
    assert load_state(path)["targets"][0]["series"]["fds"] == [1, 2, 3]


def test_file_replaced_by_another_is_not_written_to(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "watch.db"
    store = Store(path, 5.0, clock=clock)
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    path.write_text("something else " * 50)
    for fds in (1, 2, 3):
        clock.now += 61
        add(store, clock.now, fds)
    assert store.problem == ""
    store.close()
    [moved] = tmp_path.glob("watch.db.damaged-*")
    assert moved.read_text() == "something else " * 50


def test_recording_is_read_from_a_read_only_folder_without_its_journal(tmp_path: Path) -> None:
    store = Store(tmp_path / "watch.db", clock=Clock())
    write(store, lambda batch: batch.update_target(stored()))
    store.close()
    for mode in (0o500, 0o700):
        os.chmod(tmp_path, mode)
        assert load_state(tmp_path / "watch.db")["targets"][0]["target"] == "worker"
