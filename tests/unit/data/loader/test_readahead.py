"""Blocks that are read before they are expected: the same rows, within the same bounds, and nothing left."""

from __future__ import annotations

import os
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_files import SCHEMA, check_rows, ids_of, make_shards

import holdfast as hold
import readahead_threads
from holdfast._native.c_modules import readahead
from holdfast.data.formats.tfrecord.source import front_of, new_buffer
from holdfast.data.loader.pipeline.block_cache import Readahead, read_whole_files
from holdfast.data.loader.pipeline.fetch import Fetcher

PAD = 2000
SAMPLES = 12_000  # of 2 kB: about sixteen blocks


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_shards(tmp_path_factory.mktemp("shards"), [SAMPLES // 6] * 6, PAD)


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The blocks that were read beforehand."""
    made: list[int] = []
    request = Readahead.request

    def noted(self: Readahead, block: int, memory: Any) -> bool:
        taken_on = request(self, block, memory)
        if taken_on:
            made.append(block)
        return taken_on

    monkeypatch.setattr(Readahead, "request", noted)
    yield made
    assert readahead or not made


def _shuffled(shards: list[Path]) -> hold.Dataset:
    return hold.read(shards, SCHEMA).shuffle(seed=5, window="4MB").batch(64)


def test_rows_and_order(shards: list[Path], wishes: list[int]) -> None:
    in_order = hold.read(shards, SCHEMA).batch(100)
    seen = []
    for batch in in_order:
        check_rows(batch, PAD)
        seen += batch["id"].tolist()
    assert seen == list(range(SAMPLES))
    assert sorted(ids_of(_shuffled(shards))) == list(range(SAMPLES))
    if readahead:
        assert len(wishes) > 8


def test_without_room_it_is_not_done(shards: list[Path], wishes: list[int]) -> None:
    wanted = ids_of(_shuffled(shards))
    wishes.clear()
    with _shuffled(shards).limits(memory=200_000).iterate() as it:  # less than a block
        assert ids_of(it) == wanted
        assert it.stats().memory_max_bytes <= 200_000
    assert not wishes


@pytest.mark.parametrize("memory", [5_000_000, 9_000_000, 14_000_000, 25_000_000])
def test_the_bound_of_memory_holds(shards: list[Path], memory: int) -> None:
    wanted = ids_of(_shuffled(shards))
    with _shuffled(shards).limits(memory=memory).iterate() as it:
        assert ids_of(it) == wanted
        stats = it.stats()
    assert stats.memory_max_bytes <= memory
    assert stats.memory_bytes == 0


def test_memory_of_passed_blocks_does_not_stand_beside_larger_ones(tmp_path: Path) -> None:
    """Blocks of 1.6 MB, then of 2.3 MB, which cannot use their memory again."""
    bound = 60_000_000
    ds = hold.read(make_shards(tmp_path, [760] * 40 + [1120] * 40, PAD), SCHEMA).batch(64).limits(memory=bound)
    tracemalloc.start()
    try:
        assert ids_of(ds) == list(range(40 * (760 + 1120)))
        maximum = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert maximum < 1.7 * bound


@pytest.mark.parametrize("open_files", [1, 2, 3, 5])
def test_the_bound_of_files_holds(shards: list[Path], open_files: int) -> None:
    wanted = ids_of(_shuffled(shards))
    with _shuffled(shards).limits(open_files=open_files).iterate() as it:
        assert ids_of(it) == wanted
        assert it.stats().open_files_max <= open_files


def test_the_last_descriptors_are_given_back(shards: list[Path]) -> None:
    """Others take all that are free: files that are kept open for what is read beforehand give way."""
    wanted = ids_of(_shuffled(shards))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    with _shuffled(shards).iterate() as it:
        seen = next(it)["id"].tolist()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            os.close(taken.pop())
            seen += ids_of(it)
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == wanted


def test_no_thread_outlives_its_iteration(shards: list[Path]) -> None:
    for n in range(6):
        with _shuffled(shards).iterate() as it:
            for _ in range(n * 9):
                next(it)
        assert readahead_threads.have_ended()
    dropped = iter(_shuffled(shards))
    next(dropped)
    assert not readahead or readahead_threads.count()
    del dropped
    assert readahead_threads.have_ended()


def test_closing_that_was_interrupted_is_finished(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second Ctrl-C, while the error of it is kept, and with it all that was going on."""
    list(_shuffled(shards).take(2))
    close, calls = Fetcher.close, []

    def interrupted(self: Fetcher) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        close(self)

    monkeypatch.setattr(Fetcher, "close", interrupted)
    it = _shuffled(shards).limits(open_files=4).iterate()
    next(it)
    with pytest.raises(KeyboardInterrupt) as kept:
        it.close()
    it.close()
    assert readahead_threads.have_ended()
    assert not {path for path in map(_target, os.listdir("/proc/self/fd")) if path.endswith(".tfrecord")}
    assert kept.value.__traceback__
    stats = it.stats()
    assert (stats.open_files, stats.memory_bytes) == (0, 0)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the one that listed them
        return ""


def test_a_file_that_is_cut_meanwhile(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, [SAMPLES // 4] * 4, PAD)
    ds = hold.read(paths, SCHEMA).batch(64)
    with ds.iterate() as it:
        os.truncate(paths[-1], 1000)  # it was looked at by now, and is not read yet
        with pytest.raises(hold.errors.DataError, match=paths[-1].name):
            list(it)
        assert it.step > 60  # what is good comes first


def test_ranks_and_epochs(shards: list[Path], wishes: list[int]) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=3, window="4MB").batch(64).repeat(2)
    alone = ids_of(ds)
    ranks = [ids_of(ds.shard((rank, 2))) for rank in range(2)]
    assert len(alone) == 2 * SAMPLES
    assert sorted(ranks[0] + ranks[1]) == sorted(alone)
    assert sorted(alone[:SAMPLES]) == list(range(SAMPLES))
    if readahead:
        assert wishes


def test_whole_files_are_read_as_long_as_they_are_as_expected(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "empty", "c")]
    for path, data in zip(paths, (b"first", b"", b"the last"), strict=True):
        path.write_bytes(data)
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    expected = np.array([(path.stat().st_size, path.stat().st_mtime_ns) for path in paths])
    memory = new_buffer(13)
    assert read_whole_files(names, expected, memory) == 13
    start = front_of(memory, 0)
    assert memory[start : start + 13].tobytes() == b"firstthe last"
    for change in ((0, 1), (1, 0)):
        wrong = expected + np.array([(0, 0), (0, 0), change])
        assert read_whole_files(names, wrong, new_buffer(14)) != int(wrong[:, 0].sum())
    paths[1].unlink()
    assert read_whole_files(names, expected, memory) != 13
    paths[1].mkdir()
    assert read_whole_files(names, expected, memory) != 13
    if readahead:
        for given in ((names[:-1], expected), (names, expected[:2]), (names, -expected)):
            with pytest.raises(ValueError, match="expected"):
                readahead.read_files(*given, memory, 0)
        with pytest.raises(ValueError, match="expected a place"):
            readahead.read_files(names, expected, memory[:12], 0)
