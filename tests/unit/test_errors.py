"""Every error crosses processes with all it knows."""

from __future__ import annotations

import pickle

import pytest

from holdfast import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_pickle(name: str) -> None:
    kind = getattr(errors, name)
    if issubclass(kind, errors.DataError):
        error = kind("a.tfrecord", 3, 999, "bad data CRC", "Do this")
    elif kind is errors.MapError:
        error = kind("a.tfrecord", 3, "decode", "ValueError: no", "Traceback …")
    else:
        error = kind("no such file")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))
    assert isinstance(again, errors.HoldfastError)


def test_the_drawn_tree_is_the_real_one() -> None:
    assert errors.__doc__ is not None
    drawn: dict[int, str] = {}
    parents = {}
    for line in errors.__doc__.splitlines():
        name = next((word for word in line.split() if word in errors.__all__), None)
        if name is not None:
            depth = line.index(name) // 4
            drawn[depth] = name
            parents[name] = drawn.get(depth - 1, "Exception")
    assert parents == {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}


def test_a_data_error_reads_as_a_sentence() -> None:
    error = errors.CorruptError("a.tfrecord", 1234, 5678901, "bad data CRC", "Try this")
    assert str(error) == "a.tfrecord, record 1,234 at byte 5,678,901: bad data CRC. Try this"
    assert str(errors.FormatError("a", None, None, "why")) == "a: why"
