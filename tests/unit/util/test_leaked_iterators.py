"""What is lost, and what only looks so."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

from holdfast._util.finalize import is_leaked


class Thing:
    pass


KEPT: list[BaseException] = []


def fails(thing: Any) -> None:
    raise ValueError


def fail_with(make: Any) -> Any:
    """What make() gave, when the error of the function that had it is kept; only a weak way to it is left."""

    def runs() -> None:
        local = make()
        ways.append(weakref.ref(local))
        fails(None)

    ways: list[Any] = []
    try:
        runs()
    except ValueError as error:
        KEPT.append(error)
    return ways[0]


def lost(way: Any) -> bool:
    thing = way()
    assert thing is not None
    return is_leaked(thing)


def test_a_variable_of_a_function_that_failed() -> None:
    way = fail_with(Thing)
    try:
        assert lost(way)
    finally:
        KEPT.clear()
    assert way() is None


def test_held_elsewhere_too() -> None:
    held: list[Thing] = []

    def make() -> Thing:
        held.append(Thing())
        return held[0]

    way = fail_with(make)
    try:
        assert not lost(way)
        held.clear()
        assert lost(way)
    finally:
        KEPT.clear()


def test_in_use_by_a_function_at_work() -> None:
    def uses() -> bool:
        local = Thing()
        return lost(weakref.ref(local))

    def loops() -> bool:
        for one in iter([Thing()]):
            return lost(weakref.ref(one))
        return True

    assert not uses()
    assert not loops()


def test_in_a_generator_that_can_go_on() -> None:
    def gives() -> Iterator[Any]:
        local = Thing()
        yield weakref.ref(local)
        yield local

    generator = gives()
    way = next(generator)
    assert not lost(way)
    assert next(generator) is way()


def test_in_use_by_another_thread() -> None:
    way: list[Any] = []
    ready, done = threading.Event(), threading.Event()

    def works() -> None:
        local = Thing()
        way.append(weakref.ref(local))
        ready.set()
        done.wait(20)
        del local

    thread = threading.Thread(target=works)
    thread.start()
    try:
        assert ready.wait(20)
        assert not lost(way[0])
    finally:
        done.set()
        thread.join()


def test_one_in_use_whose_frames_another_thread_clears() -> None:
    """Who refers to it and how often is seen in one go: else frames of an error that is gone make up for others."""
    ways: list[Any] = []
    is_over = threading.Event()

    def use() -> None:
        thing = Thing()
        ways.append(weakref.ref(thing))
        while not is_over.is_set():
            try:
                fails(thing)
            except ValueError as error:
                sum(range(2000))
                traceback.clear_frames(error.__traceback__)

    def look() -> bool:
        thing = ways[0]()
        return thing is not None and is_leaked(thing)

    before = sys.getswitchinterval()
    # A look goes through all objects that the collector knows. Of the whole suite's these are millions; with none it is
    # over before the other thread can come between its steps.
    gc.freeze()
    known: list[Any] = [[] for _ in range(50_000)]
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=use)
    thread.start()
    try:
        while not ways:
            pass
        assert not any(look() for _ in range(4000))
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)
        known.clear()
        gc.unfreeze()
