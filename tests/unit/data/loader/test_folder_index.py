"""The index of a folder: a second read opens no shard, and nothing wrong in it or beside it is believed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from factories_files import SCHEMA, columns_of, ids_of, make_shards

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.folder_index import ROW, Entry, FolderIndex, index_path, load, save
from holdfast.data.formats.tfrecord.index import find_records

_opened: list[str] | None = None  # names of shards, while somebody counts them


def _note(event: str, given: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and str(given[0]).endswith((".tfrecord", ".h5")):
        _opened.append(os.path.basename(str(given[0])))


sys.addaudithook(_note)


@contextmanager
def opened() -> Iterator[list[str]]:
    """Lists the shards that this process opens from Python."""
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


def read(folder: Path, schema: object = SCHEMA) -> list[int]:
    return ids_of(hold.read(folder, schema).batch(7))  # type: ignore[arg-type]


def scanned(folder: Path, schema: object = SCHEMA) -> list[str]:
    """Returns the shards that had to be opened to learn what they are."""
    with opened() as names:
        hold.read(folder, schema)._source.catalogs()  # type: ignore[arg-type]
        return list(names)


def test_a_shard_is_opened_once_and_again_when_it_changes(tmp_path: Path) -> None:
    shards = make_shards(tmp_path, [3, 0, 4, 5])
    assert scanned(tmp_path) == [path.name for path in shards]
    assert scanned(tmp_path) == []
    assert read(tmp_path) == list(range(12))
    assert scanned(tmp_path, None) == ["shard-0000.tfrecord", *(path.name for path in shards[1:])]  # other columns
    assert scanned(tmp_path, None) == ["shard-0000.tfrecord"]  # only to learn the columns
    assert scanned(tmp_path) == []  # both are known now

    with hold.TFRecordWriter(tmp_path / "new.tfrecord", SCHEMA) as writer:
        writer.extend(columns_of(100, 2))
    shards[0].unlink()
    with hold.TFRecordWriter(shards[2], SCHEMA, overwrite=True) as writer:
        writer.extend(columns_of(50, 6))
    os.utime(shards[3])
    assert sorted(scanned(tmp_path)) == ["new.tfrecord", "shard-0002.tfrecord", "shard-0003.tfrecord"]
    assert read(tmp_path) == [100, 101, *range(50, 56), *range(7, 12)]
    [index] = load(tmp_path)
    assert index.names() == [b"new.tfrecord", b"shard-0001.tfrecord", b"shard-0002.tfrecord", b"shard-0003.tfrecord"]


def test_small_shards_are_read_together(tmp_path: Path) -> None:
    """A pass opens none of them from Python, and their samples are those of each by itself."""
    make_shards(tmp_path, [n % 5 for n in range(60)])
    assert read(tmp_path) == list(range(120))
    ds = hold.read(tmp_path, SCHEMA).batch(7)
    with opened() as names:
        assert ids_of(ds) == list(range(120))
        assert sorted(ids_of(ds.shuffle(seed=3))) == list(range(120))
    assert len(names) <= 2  # one for each pass, to make its decoder


def test_small_shards_of_several_folders_are_read_together(tmp_path: Path) -> None:
    """Shards of one size: a wrong one would not be noticed by its length."""
    parts = []
    for part in range(2):
        (tmp_path / str(part)).mkdir()
        for at in range(20):
            with hold.TFRecordWriter(tmp_path / str(part) / f"{at:02}.tfrecord", SCHEMA) as writer:
                writer.extend(columns_of(1000 + part * 80 + at * 4, 4))
        parts.append(hold.read(tmp_path / str(part), SCHEMA))
    ds = hold.concat(parts).shuffle(seed=5).batch(8)
    together = ids_of(ds)
    assert sorted(together) == list(range(1000, 1160))
    assert ids_of(ds.limits(memory=1000)) == together  # there each sample is read by itself


def test_a_small_shard_that_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    shards = make_shards(tmp_path, [4] * 30)
    with hold.read(tmp_path, SCHEMA).batch(4).iterate() as batches:
        data = shards[17].read_bytes()
        shards[17].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        os.utime(shards[17], ns=(1, 1))
        with pytest.raises(hold.errors.CorruptError, match=f"{shards[17].name}.*has changed since"):
            list(batches)
    data = shards[3].read_bytes()
    shards[3].write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(hold.errors.CorruptError, match=f"{shards[3].name}.*bad"):
        list(hold.read(tmp_path, SCHEMA).batch(4))


def test_an_index_that_is_torn_anywhere_is_not_believed(tmp_path: Path) -> None:
    shards = make_shards(tmp_path, [3, 1, 2])
    read(tmp_path)
    good = index_path(tmp_path, "cache").read_bytes()
    want = _facts(FolderIndex(memoryview(good), False))
    for at in range(len(good)):
        flipped = bytearray(good)
        flipped[at] ^= 0x55
        for bad in (good[:at], bytes(flipped)):
            try:
                got = _facts(FolderIndex(memoryview(bad), False))
            except (ValueError, LookupError, TypeError):
                continue
            assert [one[:-1] for one in got] == [one[:-1] for one in want]
            assert all(one[-1] in (b"", other[-1]) for one, other in zip(got, want, strict=True))
    path = index_path(tmp_path, "cache")
    other = tmp_path / "of-another-folder"
    other.mkdir()
    make_shards(other, [9, 9, 9])
    read(other)
    for bad in (good[:-200], b"", b"\0" * 5000, index_path(other, "cache").read_bytes()):
        path.unlink()
        path.write_bytes(bad)
        assert ids_of(hold.read(shards, SCHEMA).batch(7)) == list(range(6))
    assert scanned(other) == []


def _changed(good: bytes, name: str, row: int, to: int, head: tuple[str, str] = ("", "")) -> bytes:
    """Returns an index with another number in it, and the checksum of that."""
    facts = json.loads(good[:256])
    n, n_blocks = facts["shards"], facts["blocks"]
    data = bytearray(good)
    rows = np.frombuffer(data, ROW, n, 256)
    blocks_at = 256 + n * (ROW.itemsize + 8) + -(-facts["names_bytes"] // 8) * 8
    blocks = np.frombuffer(data, "<i8", 3 * n_blocks, blocks_at).reshape(3, -1)
    if name in (ROW.names or ()):
        rows[name][row] = to
    elif name == "end":
        np.frombuffer(data, "<i8", n, 256 + n * ROW.itemsize)[row] = to
    elif name:
        blocks[("first", "samples", "bytes_").index(name), row] = to
    facts["crc32c"] = codec.crc32c(bytes(data[256 : blocks_at + 24 * n_blocks]))
    return json.dumps(facts).replace(*head, 1).encode().ljust(255) + b"\n" + bytes(data[256:])


def test_an_index_whose_numbers_contradict_each_other_is_built_again(tmp_path: Path) -> None:
    make_shards(tmp_path, [3, 1, 2])
    assert read(tmp_path) == list(range(6))
    path = index_path(tmp_path, "cache")
    good = path.read_bytes()
    assert path.read_bytes() == _changed(good, "", 0, 0)
    wrong = [("count", 0, 2), ("count", 2, 1 << 62), ("count", 1, -1), ("blocks", 0, 0), ("blocks", 0, 2)]
    wrong += [("blocks", 1, -1), ("blocks", 2, 1 << 62), ("samples", 0, 2), ("samples", 1, -1), ("samples", 2, 1 << 62)]
    wrong += [("first", 0, 1), ("first", 2, -1), ("bytes_", 0, -5), ("end", 0, 1 << 40), ("end", 1, 1), ("end", 2, -1)]
    heads = [('"shards": 3', f'"shards": {number}') for number in ("Infinity", "1e400", "NaN", "1e30", "-1")]
    for bad in [*(_changed(good, *one) for one in wrong), *(_changed(good, "", 0, 0, head) for head in heads)]:
        assert bad != good
        path.unlink()
        path.write_bytes(bad)
        assert len(scanned(tmp_path)) == 3
        assert scanned(tmp_path) == []
    assert read(tmp_path) == list(range(6))


def test_an_index_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    make_shards(tmp_path, [3, 1])
    for place in ("beside", "cache"):
        path = index_path(tmp_path, place)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        assert len(scanned(tmp_path)) == 2
        path.unlink()
        index_path(tmp_path, "cache").unlink(missing_ok=True)


def _facts(index: FolderIndex) -> list[tuple[object, ...]]:
    found = []
    for row in range(len(index)):
        entry = index.entry(row)
        blocks = entry.blocks.tolist()
        found.append((entry.name, entry.key, entry.samples, entry.flags, entry.columns, blocks, bytes(entry.places)))
    return found


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = make_shards(tmp_path, [3, 4])
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert len(scanned(tmp_path)) == 2
        assert ids_of(hold.read(shards, SCHEMA).batch(7)) == list(range(7))
    for path in shards:  # one beside the data is used all the same
        key, offsets = find_records(path)
        save(tmp_path, [Entry(path.name, key, places=offsets.tobytes())], "beside")
    assert [index.is_beside for index in load(tmp_path)] == [True]
    assert ids_of(hold.read(shards, SCHEMA).batch(7)) == list(range(7))


_CHILD = """
import os, sys
names = []
is_shard = lambda event, given: event == "open" and str(given[0]).endswith(".tfrecord")
sys.addaudithook(lambda event, given: is_shard(event, given) and names.append(given[0]))
sys.path.insert(0, {tests!r})
from factories_files import SCHEMA, ids_of
import holdfast as hold
source = hold.read({folder!r}, SCHEMA)._source
print("ready", flush=True)
sys.stdin.readline()
source.catalogs()
print(len(names), flush=True)
"""


def _child(folder: Path) -> subprocess.Popen[str]:
    text = _CHILD.format(tests=str(Path(__file__).parent), folder=str(folder))
    child = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_processes_that_start_together_open_every_shard_once(tmp_path: Path) -> None:
    make_shards(tmp_path, [2] * 40)
    children = [_child(tmp_path) for _ in range(2)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    counts = [int(child.communicate()[0]) for child in children]
    assert sorted(counts) == [0, 40]


_HOLDER = """
import signal, sys
from holdfast.data.formats.folder_index import building
with building(sys.argv[1]):
    print("holds it", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_builder_that_is_killed_or_stopped_leaves_the_work_to_the_next(tmp_path: Path, end: signal.Signals) -> None:
    make_shards(tmp_path, [2] * 3)
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds it\n"
    child = _child(tmp_path)
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()
    while not _has_open(child.pid, f"{index_path(tmp_path, 'cache')}.lock"):
        assert child.poll() is None
    holder.send_signal(end)
    counted = child.communicate(timeout=60)[0]
    holder.kill()
    holder.communicate()
    assert int(counted) == 3
    assert json.loads(bytes(index_path(tmp_path, "cache").read_bytes()[:256]))["shards"] == 3


def _has_open(pid: int, path: str) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(link) == path:
                return True
    return False
