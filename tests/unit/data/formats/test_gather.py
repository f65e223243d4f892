"""Rows taken out of many batches: the same as if each were looked up in its batch."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.formats.columns import Batch, BytesColumn, RaggedColumn, ZeroCopyBytesColumn
from holdfast.data.formats.gather import RowPool, gather_rows, join_bytes
from holdfast.errors import SchemaError

pytestmark = pytest.mark.formats

WAIT_S = 60


def ends_of(sizes: list[int]) -> Any:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def lent(strings: list[bytes]) -> ZeroCopyBytesColumn:
    """As read from a file: something stands between the strings."""
    buffer = np.frombuffer(b"".join(b"--" + text for text in strings) + b"--", np.uint8)
    starts = np.array([2 * (i + 1) + sum(map(len, strings[:i])) for i in range(len(strings))], np.int64)
    return ZeroCopyBytesColumn(buffer, np.stack([starts, starts + list(map(len, strings))], 1).astype(np.int64))


def make(seed: int, rows: int, lend: bool = False) -> Batch:
    """One column of every kind."""
    rng = np.random.default_rng(seed)
    strings = [rng.bytes(int(n)) for n in rng.integers(0, 30, rows)]
    lists = ends_of(rng.integers(0, 4, rows).tolist())
    steps = ends_of(rng.integers(0, 4, int(lists[-1])).tolist())
    words = join_bytes([rng.bytes(int(n)) for n in rng.integers(0, 9, int(steps[-1]) * 2)], 2)
    pairs = join_bytes([rng.bytes(int(n)) for n in rng.integers(0, 9, rows * 2)], 2)
    return {
        "label": rng.integers(-9, 9, rows),
        "weight": rng.random(rows).astype(np.float32),
        "flag": rng.random(rows) < 0.5,
        "half": rng.random((rows, 3)).astype(np.float16),
        "image": rng.integers(0, 255, (rows, 5, 7, 3), dtype=np.uint8),
        "wide": rng.random((rows, 40)),
        "nothing": np.zeros((rows, 0, 4)),
        "when": rng.integers(0, 10**9, rows).astype("datetime64[s]"),
        "name": np.array([text[:5] for text in strings], "S5"),
        "swapped": rng.integers(0, 99, rows).astype(">i4"),
        "key": lent(strings) if lend else join_bytes(strings),
        "pair": pairs,
        "ids": RaggedColumn(rng.integers(0, 99, int(lists[-1])), lists),
        "boxes": RaggedColumn(rng.random((int(lists[-1]), 4), np.float32), lists),
        "empties": RaggedColumn(np.zeros((int(lists[-1]), 0)), lists),
        "tags": RaggedColumn(join_bytes([b"x" * (i % 5) for i in range(int(lists[-1]))]), lists),
        "nested": RaggedColumn(RaggedColumn(rng.integers(0, 99, int(steps[-1])), steps), lists),
        "words": RaggedColumn(RaggedColumn(words, steps), lists),
    }


def plain(row: Any) -> Any:
    return bytes(row) if isinstance(row, memoryview) else row.tolist()


def check(batch: Batch, sources: list[Batch], which: Any, rows: Any) -> None:
    for name, column in batch.items():
        assert len(column) == len(rows)
        wanted = [plain(sources[w][name][int(r)]) for w, r in zip(which, rows, strict=True)]
        assert [plain(item) for item in column] == wanted, name


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 2**31),
    n=st.integers(0, 40),
)
@settings(deadline=None, max_examples=60)
def test_every_kind_of_column(counts: list[int], seed: int, n: int) -> None:
    sources = [make(seed + i, count, lend=i % 2 == 1) for i, count in enumerate(counts)]
    rng = np.random.default_rng(seed)
    which = rng.choice(np.flatnonzero(counts), n)
    rows = rng.integers(0, np.asarray(counts)[which]) if n else np.zeros(0, np.int64)
    batch = gather_rows(sources, which, rows)
    check(batch, sources, which, rows)
    for name, column in sources[0].items():
        assert type(batch[name]) in (type(column), BytesColumn)
        if isinstance(column, np.ndarray):
            assert (batch[name].dtype, batch[name].shape[1:]) == (column.dtype, column.shape[1:])
            assert batch[name].flags.writeable


def test_many_rows_at_once() -> None:
    sources = [make(seed, 50, lend=seed == 1) for seed in range(3)]
    rng = np.random.default_rng(5)
    which, rows = rng.integers(0, 3, 3000), rng.integers(0, 50, 3000)
    check(gather_rows(sources, which, rows), sources, which, rows)


def test_what_was_gathered_can_be_gathered_again() -> None:
    first = gather_rows([make(0, 9), make(1, 9)], [0, 1, 1, 0], [3, 8, 0, 2])
    check(gather_rows([first], [0, 0], [2, 1]), [first], [0, 0], [2, 1])


def test_slices_of_columns() -> None:
    whole = make(3, 20)
    part = {name: column[5:12] for name, column in whole.items()}
    which, rows = [0] * 7, list(range(7))
    check(gather_rows([part], which, rows), [part], which, rows)


def test_arrays_that_are_not_in_one_piece() -> None:
    batch: Batch = {
        "a": np.arange(40).reshape(10, 4)[::2, ::-1],
        "b": RaggedColumn(np.arange(20)[::2], ends_of([1, 2, 3, 4, 0])),
    }
    check(gather_rows([batch], [0, 0], [4, 1]), [batch], [0, 0], [4, 1])


def test_numbers_may_come_in_any_whole_type() -> None:
    source: Batch = {"a": np.arange(5)}
    for which, rows in (
        ([0, 0], [4, 1]),
        (np.zeros(2, np.uint8), np.array([4, 1], np.int32)),
        (np.zeros(4, np.int64)[::2], np.array([4, 0, 1, 0])[::2]),
    ):
        assert gather_rows([source], which, rows)["a"].tolist() == [4, 1]
    assert gather_rows([source], [], [])["a"].tolist() == []
    for wrong in ([0.0], [True], [[0]], ["0"]):
        with pytest.raises(TypeError, match="list of integers"):
            gather_rows([source], [0], wrong)


@pytest.mark.parametrize("row", [-1, 5, 10**12, -(2**63), 2**63 - 1])
def test_a_row_that_is_not_there(row: int) -> None:
    with pytest.raises(IndexError, match=f"expected a row below 5 of slot 1, got {row}"):
        gather_rows([{"a": np.arange(9)}, {"a": np.arange(5)}], [0, 1], [8, row])


@pytest.mark.parametrize("slot", [-1, 1, 2, 10**12, -(2**63)])
def test_a_slot_that_is_not_there(slot: int) -> None:
    pool = RowPool()
    with pytest.raises(IndexError, match="no batch"):
        pool.take([0], [0])
    pool.put(0, {"a": np.arange(9)})
    pool.put(2, {"a": np.arange(9)})
    pool.drop(2)
    with pytest.raises(IndexError, match=f"slot {slot} holds nothing"):
        pool.take([0, slot], [0, 0])
    with pytest.raises(IndexError, match=f"slot {slot} holds nothing"):
        pool.drop(slot)


def test_a_slot_for_every_row() -> None:
    with pytest.raises(ValueError, match="got 1 slots and 2 rows"):
        gather_rows([{"a": np.arange(9)}], [0], [1, 2])
    with pytest.raises(ValueError, match="at least one batch"):
        gather_rows([], [], [])


@pytest.mark.parametrize("slot", [-1, 1 << 24])
def test_slots_are_small_numbers(slot: int) -> None:
    with pytest.raises(ValueError, match="expected a slot below 16777216"):
        RowPool().put(slot, {"a": np.arange(9)})


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"a": np.zeros(3, np.int32)}, "column 'a': expected int64 as in the batches before, got int32"),
        ({"a": np.zeros((3, 2), np.int64)}, r"expected int64 as in the batches before, got int64\(2\)"),
        ({"a": join_bytes([b"x"])}, "expected int64 as in the batches before, got bytes"),
        ({"a": RaggedColumn(np.zeros(0, np.int64), ends_of([0]))}, "got lists of int64"),
        ({"b": np.zeros(3, np.int64)}, "expected the columns of the batches before, a; got b"),
        ({"a": np.zeros(3, np.int64), "b": np.zeros(3)}, "a; got a, b"),
        ({"a": np.array([None])}, "column 'a': expected an array of numbers, .* got object"),
        ({"a": np.array(3)}, "got int64 of shape"),
        ({"a": [1, 2]}, "got list"),
        ({}, "a; got "),
    ],
)
def test_batches_of_other_columns(second: Any, text: str) -> None:
    pool = RowPool()
    pool.put(0, {"a": np.arange(3)})
    with pytest.raises(SchemaError, match=text):
        pool.put(1, second)
    assert len(pool) == 1


def test_a_first_batch_must_make_sense() -> None:
    with pytest.raises(SchemaError, match="no columns"):
        RowPool().put(0, {})
    with pytest.raises(SchemaError, match="different numbers of rows: {'a': 3, 'b': 4}"):
        RowPool().put(0, {"a": np.arange(3), "b": np.arange(4)})


def test_the_order_of_columns_is_the_first_batches() -> None:
    batch = gather_rows([{"a": np.arange(3), "b": np.zeros(3)}, {"b": np.ones(3), "a": np.arange(3)}], [1], [2])
    assert list(batch) == ["a", "b"]
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([2], [1.0])


@pytest.mark.parametrize("ends", [[0, 2, 99], [0, 3, 2], [-1, 2, 3], [5, 6, 7]])
def test_ends_that_make_no_sense(ends: list[int]) -> None:
    column = BytesColumn(np.zeros(4, np.uint8), np.array(ends, np.int64))
    with pytest.raises(ValueError, match="column 0: an end points outside its values"):
        gather_rows([{"a": column}], [0, 0], [0, 1])
    with pytest.raises(ValueError, match="column 0: an end points outside its values"):
        gather_rows([{"a": RaggedColumn(RaggedColumn(np.zeros(4), column._offsets), ends_of([1, 1]))}], [0, 0], [0, 1])


def test_a_slot_can_be_filled_again() -> None:
    pool = RowPool()
    pool.put(7, {"a": np.arange(3)})
    pool.put(7, {"a": np.arange(100, 105)})
    assert (len(pool), 7 in pool, 8 in pool) == (1, True, False)
    assert pool.take([7], [4])["a"].tolist() == [104]


def test_bytes_held() -> None:
    pool = RowPool()
    assert pool.nbytes == 0
    batch = make(1, 10)
    pool.put(0, {"a": batch["image"], "b": batch["key"]})
    size = 10 * 5 * 7 * 3 + 11 * 8 + len(batch["key"].values)
    assert pool.nbytes == size
    pool.put(1, {"a": batch["image"][:0], "b": batch["key"][:0]})
    pool.drop(1)
    assert pool.nbytes == size
    pool.drop(0)
    assert (pool.nbytes, len(pool)) == (0, 0)


def test_one_buffer_behind_two_columns_is_held_once() -> None:
    first = lent([b"abc", b"de"])
    pool = RowPool()
    pool.put(0, {"a": first, "b": ZeroCopyBytesColumn(first._values, first._spans[::-1].copy())})
    assert pool.nbytes == len(first._values) + 2 * 32


class Memory(bytearray):
    """Memory that can be seen to go."""


def test_what_is_taken_keeps_nothing_alive() -> None:
    pool = RowPool()
    memories = [Memory(np.arange(1000).tobytes()) for _ in range(3)]
    refs = [weakref.ref(memory) for memory in memories]
    while memories:
        pool.put(len(memories) - 1, {"a": np.frombuffer(memories.pop(), np.int64)})
    gc.collect()
    assert all(ref() is not None for ref in refs)
    batch = pool.take([0, 1, 2], [1, 2, 3])
    pool.drop(0)
    pool.put(1, {"a": np.arange(3)})
    gc.collect()
    assert [ref() is None for ref in refs] == [True, True, False]
    del pool
    gc.collect()
    assert refs[2]() is None
    assert batch["a"].tolist() == [1, 2, 3]


def test_taken_from_while_batches_come_and_go() -> None:
    """Rows enough that the GIL is given away; what they are taken from is dropped and put again meanwhile."""
    pool, slots, rows, n = RowPool(), 8, 500, 20_000
    text = join_bytes([b"%d" % i for i in range(rows)])

    def fill(slot: int, value: int) -> None:
        pool.put(slot, {"a": np.full((rows, 4), value), "b": text, "c": np.arange(rows)})

    for slot in range(slots):
        fill(slot, slot)
    done, wrong = threading.Event(), []

    def taker(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not done.is_set():
            which, wanted = rng.integers(0, slots, n), rng.integers(0, rows, n)
            batch = pool.take(which, wanted)
            same = (batch["a"] % slots == which[:, None]).all() and (batch["c"] == wanted).all()
            if not same or bytes(batch["b"][7]) != b"%d" % wanted[7]:
                wrong.append(seed)

    threads = [threading.Thread(target=taker, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        fill(turn % slots, turn % slots + slots * turn)
    done.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert wrong == []


def test_joined_bytes_can_be_written_to() -> None:
    column = join_bytes([b"ab", memoryview(b"c"), bytearray()])
    assert column.tolist() == [b"ab", b"c", b""]
    assert column.values.flags.writeable
