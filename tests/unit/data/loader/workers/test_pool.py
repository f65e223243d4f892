"""A pool of processes at work: order, data of every shape, errors, the bounds on memory and descriptors."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pool_work
import pytest

from holdfast.data.formats.columns import BytesColumn, RaggedColumn, ZeroCopyBytesColumn
from holdfast.data.loader.workers import ProcessPool, Task
from holdfast.errors import WorkerError

NAMES = ["a.tfrecord, record 0", "a.tfrecord, record 1", "a.tfrecord, record 2"]


@pytest.fixture(scope="module")
def echoes() -> Iterator[ProcessPool]:
    with ProcessPool(pool_work.echo, 2, memory_bytes=64 << 20) as pool:
        yield bring_up(pool, Task(0))


@pytest.fixture(scope="module")
def deeds() -> Iterator[ProcessPool]:
    with ProcessPool(pool_work.act, 2) as pool:
        yield bring_up(pool, deed("give"))


def bring_up(pool: ProcessPool, task: Task) -> ProcessPool:
    """Until all workers are there: what comes later is a test's own."""
    while len(pool.pids) < 2:
        list(pool.run([task] * 4))
    return pool


def deed(what: str, value: Any = None) -> Task:
    return Task((what, value), NAMES)


# ---- order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_results_come_in_the_order_of_the_tasks(context: Any) -> None:
    sizes = [200_000, 10, 100_000, 0, 50_000, 1, 300_000, 2, 3, 4]
    with ProcessPool(pool_work.add_up, 2, context=context) as pool:
        assert list(pool.run(Task(size) for size in sizes)) == [sum(range(size)) for size in sizes]
        assert len(set(pool.pids)) == 2


def test_tasks_are_pulled_as_they_are_needed(echoes: ProcessPool) -> None:
    pulled = []

    def tasks() -> Iterator[Task]:
        for number in range(1000):
            pulled.append(number)
            yield Task(number)

    with echoes.run(tasks()) as run:
        for number in range(20):
            assert next(run) == number
            assert len(pulled) <= number + 1 + echoes.ahead


def test_a_pool_runs_again_also_after_a_run_was_abandoned(echoes: ProcessPool) -> None:
    abandoned = echoes.run(Task(number) for number in range(100))
    assert next(abandoned) == 0
    assert list(echoes.run(Task(number) for number in range(50, 60))) == list(range(50, 60))
    with pytest.raises(WorkerError, match=r"a newer run\(\) was started"):
        next(abandoned)
    dropped = echoes.run(Task(number) for number in range(100))
    assert next(dropped) == 0
    del dropped
    assert list(echoes.run([Task("x")])) == ["x"]
    assert list(echoes.run([])) == []


def test_a_run_waits_for_room_that_an_abandoned_one_has() -> None:
    with ProcessPool(pool_work.add_up, 2) as pool:
        for number in range(20):
            assert next(pool.run(Task(100_000) for _ in range(10))) == sum(range(100_000))
            assert list(pool.run([Task(number)])) == [sum(range(number))]


def test_an_error_of_the_tasks_source_comes_in_its_turn(echoes: ProcessPool) -> None:
    def tasks() -> Iterator[Task]:
        yield Task(1)
        yield Task(2)
        raise LookupError("no more")

    run = echoes.run(tasks())
    assert [next(run), next(run)] == [1, 2]
    with pytest.raises(LookupError, match="no more"):
        next(run)
    assert list(run) == []


# ---- data --------------------------------------------------------------------------------------------------


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for key in wanted:
            same(got[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(got, wanted)
    elif isinstance(wanted, BytesColumn | RaggedColumn):
        assert got.tolist() == wanted.tolist()
    else:
        assert got == wanted


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((0, 3), np.float32),
        np.arange(24).reshape(4, 6)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.5),
        np.array(["a", "bcd"]),
        memoryview(b"abc"),
        memoryview(b""),
        memoryview(b"abcdef")[::2],
        memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)),
        BytesColumn(np.frombuffer(b"abcdef", np.uint8), np.array([0, 1, 3, 6])),
        RaggedColumn(np.arange(5), np.array([0, 2, 2, 5])),
        {"a": [np.arange(3), {"b": (np.zeros(0), b"x", None)}], "c": {"d": "e"}},
        None,
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_arrives_and_comes_back_as_it_was(echoes: ProcessPool, data: Any) -> None:
    same(next(echoes.run([Task(data)])), data)


def test_a_slice_of_a_column_goes_without_the_rest(echoes: ProcessPool) -> None:
    whole = BytesColumn(np.zeros(40 << 20, np.uint8), np.arange(0, (40 << 20) + 1, 1 << 20))
    lent = ZeroCopyBytesColumn(np.frombuffer(b"abcdef" * (8 << 20), np.uint8), np.array([[0, 2], [4, 6]]))
    slices, joined = next(echoes.run([Task((whole[3:5], lent))]))  # a slot takes 16 MB
    assert [len(item) for item in slices] == [1 << 20, 1 << 20]
    assert joined.tolist() == [b"ab", b"ef"]


def test_results_can_be_written_to(echoes: ProcessPool) -> None:
    first, second = echoes.run([Task(np.arange(3)), Task(np.arange(3))])
    first += 1
    assert second.tolist() == [0, 1, 2]


# ---- bounds ------------------------------------------------------------------------------------------------


def test_kept_results_cost_no_descriptor_here_or_there() -> None:
    with ProcessPool(pool_work.count_descriptors, 2) as pool:
        kept = list(pool.run(Task(np.zeros(5000)) for _ in range(10)))
        before = len(os.listdir("/proc/self/fd"))
        kept += list(pool.run(Task(np.zeros(5000)) for _ in range(500)))
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(set(kept)) == 1


def test_the_number_of_descriptors_is_two_a_worker_and_five() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ProcessPool(pool_work.echo, 3) as pool:
        list(pool.run([Task(0)] * 9))
        assert len(os.listdir("/proc/self/fd")) - before == 2 * 3 + 5


def test_messages_may_grow_and_shrink(echoes: ProcessPool) -> None:
    sizes = [0, 1, 4096, 100_000, 15 << 20, 10, 3 << 20]
    for size, array in zip(sizes, echoes.run(Task(np.full(size, 3, np.uint8)) for size in sizes), strict=True):
        assert len(array) == size
        assert (array == 3).all()


def test_data_over_the_bound_is_an_error_with_both_numbers(echoes: ProcessPool) -> None:
    run = echoes.run([Task(np.zeros(20 << 20, np.uint8)), Task("after")])
    with pytest.raises(WorkerError, match=r"data of 21.0 MB does not fit: 4 slots share 67.1 MB, 16.8 MB each"):
        next(run)
    assert next(run) == "after"


def test_a_result_over_the_bound_is_an_error_with_both_numbers() -> None:
    with ProcessPool(pool_work.zeros, 1, memory_bytes=3 << 20) as pool:
        run = pool.run([Task(2 << 20), Task(5)])
        with pytest.raises(WorkerError, match=r"a result of 2.10 MB does not fit: 3 slots share 3.15 MB, 1.05 MB"):
            next(run)
        assert next(run).tolist() == [7] * 5


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        ProcessPool(pool_work.echo, 0)
    with pytest.raises(ValueError, match="forkserver or spawn, got 'fork'"):
        ProcessPool(pool_work.echo, 1, context="fork")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="memory for 3 slots, got 100"):
        ProcessPool(pool_work.echo, 1, memory_bytes=100)
    with pytest.raises(ValueError, match="stall_s above 0"):
        ProcessPool(pool_work.echo, 1, stall_s=0)
    with pytest.raises(ValueError, match="ahead=0"):
        ProcessPool(pool_work.echo, 1, ahead=0)


# ---- errors ------------------------------------------------------------------------------------------------


def test_an_error_keeps_its_type_and_says_where_it_was(deeds: ProcessPool) -> None:
    run = deeds.run([deed("give", 1), deed("raise", pool_work.RichError("bad", 5)), deed("give", 3)])
    assert next(run) == 1
    with pytest.raises(pool_work.RichError) as caught:
        next(run)
    assert caught.value.code == 5
    assert caught.value.__notes__[0].startswith("at a.tfrecord, record 2, in worker ")
    assert "pool_work.py" in str(caught.value.__cause__)
    assert "in _raise" in str(caught.value.__cause__)
    assert next(run) == 3


@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        ("raise odd", 9, "raised pool_work.OddError: code 9; at a.tfrecord, record 2"),
        ("sys.exit", 3, "raised SystemExit: 3"),
        ("raise", KeyboardInterrupt("x"), "raised KeyboardInterrupt: x"),
        ("raise", StopIteration(), "raised StopIteration"),
    ],
)
def test_an_error_that_cannot_travel_has_a_stand_in(deeds: ProcessPool, what: str, value: Any, told: str) -> None:
    run = deeds.run([deed(what, value), deed("give", 1)])
    with pytest.raises(WorkerError, match=told):
        next(run)
    assert next(run) == 1


def test_a_result_that_does_not_pickle_is_an_error_of_its_task(deeds: ProcessPool) -> None:
    run = deeds.run([deed("lambda"), deed("give", 1)])
    with pytest.raises(Exception, match=r"(?i)pickle"):
        next(run)
    assert next(run) == 1


def test_data_that_does_not_pickle_is_an_error_of_its_task(echoes: ProcessPool) -> None:
    run = echoes.run([Task(threading.Lock()), Task(1)])
    with pytest.raises(TypeError, match="pickle"):
        next(run)
    assert next(run) == 1


def test_work_that_does_not_pickle_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r'at the top level of a module, or where="threads"'):
        ProcessPool(lambda data, tell: data, 2)


def test_a_label_may_be_a_function_or_fail(deeds: ProcessPool) -> None:
    for label, told in [
        (lambda i: f"file {i}", "file 2"),
        (lambda i: 1 // 0, "sample 2 of task"),
        (["only one"], "sample 2 of task"),
        (None, "sample 2 of task"),
    ]:
        with pytest.raises(ValueError) as caught:
            next(deeds.run([Task(("raise", ValueError("x")), label)]))
        assert caught.value.__notes__[0].startswith(f"at {told}")


# ---- workers -----------------------------------------------------------------------------------------------


def test_workers_load_no_framework_and_draw_their_own_numbers() -> None:
    with ProcessPool(pool_work.loaded, 1) as pool:
        assert next(pool.run([Task(["torch", "tensorflow", "rich", "click", "pytest"])])) == []
    with ProcessPool(pool_work.draw, 2) as pool:
        drawn = list(pool.run([Task(None)] * 8))
    assert len({number for _, number in drawn}) == 8


# ---- the end -----------------------------------------------------------------------------------------------


def test_a_closed_pool_says_so_and_closes_again() -> None:
    pool = ProcessPool(pool_work.echo, 1)
    run = pool.run([Task(1), Task(2)])
    assert next(run) == 1
    pool.close()
    pool.close()
    with pytest.raises(WorkerError, match="got one that was closed"):
        next(run)
    with pytest.raises(WorkerError, match="got one that was closed"):
        pool.run([])


def test_fifty_pools_leave_nothing() -> None:
    for _ in range(50):  # not waited for: they are closed while they come up
        ProcessPool(pool_work.echo, 2).close()


def test_a_dropped_pool_leaves_nothing() -> None:
    pool = ProcessPool(pool_work.echo, 2)
    assert list(pool.run([Task(1)])) == [1]
    del pool
    cycle: list[Any] = [ProcessPool(pool_work.echo, 2)]
    cycle.append(cycle)
    del cycle
    gc.collect()


def test_a_pool_can_be_closed_while_another_thread_waits() -> None:
    pool = ProcessPool(pool_work.act, 1)
    assert next(pool.run([deed("give", 1)])) == 1
    errors = []
    waits = threading.Event()

    def wait() -> None:
        def tasks() -> Iterator[Task]:
            yield deed("hang")
            waits.set()

        try:
            next(pool.run(tasks()))
        except WorkerError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(30)
    pool.close(grace_s=0.1)
    thread.join(30)
    assert not thread.is_alive()
    assert "closed" in errors[0]


def test_a_forked_childs_copy_is_dead_and_harmless(echoes: ProcessPool) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            echoes.run([Task(1)])
        except WorkerError as error:
            os.write(write, str(error).encode())
        echoes.close()
        os._exit(0)
    os.close(write)
    with open(read) as told:
        assert "got a forked child of it" in told.read()
    os.waitpid(pid, 0)
    assert list(echoes.run([Task(1)])) == [1]
