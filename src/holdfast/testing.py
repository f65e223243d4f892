"""The tests that every format must pass: subclass FormatContract, say how to write and read, let pytest collect it.

from holdfast.testing import FormatContract

class TestMyFormat(FormatContract):
    suffix = ".mine"
    def write(self, path, schema, columns): ...
    def read(self, path, schema, size): ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError, HoldfastError, InputError, SchemaError, WriteError
from .schema import Bytes, Column, Float32, Int64, Ragged

__all__ = ["FormatContract"]

_ROWS = 137  # no multiple of any batch size below


class FormatContract:
    """What a reader and a writer owe their users, whatever the format."""

    suffix = ""
    schema: Mapping[str, Column] = {
        "name": Bytes(),
        "label": Int64(),
        "emb": Float32(3),
        "grid": Float32(2, 2),
        "boxes": Ragged(Float32(4)),
        "tags": Ragged(Bytes()),
    }

    # ---- to be given

    def write(self, path: Path, schema: Mapping[str, Column], columns: Mapping[str, Any]) -> None:
        """Writes one file with these columns, and finishes it."""
        raise NotImplementedError

    def read(self, path: Path, schema: Mapping[str, Column], size: int) -> Iterable[Mapping[str, Any]]:
        """Batches of `size` rows. Everything it opened is closed when it ends, also by an error."""
        raise NotImplementedError

    # ---- the tests

    def test_every_column_type_comes_back(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        self._same(self._rows(path, 10), columns)

    def test_the_batch_size_changes_nothing_but_the_batches(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        for size in (1, 2, 64, _ROWS, 1000):
            batches = list(self.read(path, self.schema, size))
            assert [len(batch["label"]) for batch in batches[:-1]] == [size] * (len(batches) - 1)
            self._same(self._rows(path, size), columns)

    def test_a_part_of_the_columns(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        got = self._rows(path, 10, {"label": Int64()})
        assert got == {"label": columns["label"].tolist()}

    def test_no_rows_are_no_batches(self, tmp_path: Path) -> None:
        path = tmp_path / f"empty{self.suffix}"
        self.write(path, {"label": Int64()}, {"label": np.zeros(0, np.int64)})
        assert list(self.read(path, {"label": Int64()}, 4)) == []

    def test_a_cut_is_never_silent_unless_it_leaves_a_whole_file(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        whole = path.read_bytes()
        for keep in range(len(whole) - 1, 0, -max(len(whole) // 97, 1)):
            path.write_bytes(whole[:keep])
            try:
                rows = self._rows(path, 10)
            except (DataError, InputError):
                continue
            kept = len(rows["label"])
            self._same(rows, {name: column[:kept] for name, column in columns.items()})
            assert kept < _ROWS

    def test_a_flipped_bit_is_found_or_harmless(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        whole = path.read_bytes()
        for at in range(0, len(whole), max(len(whole) // 97, 1)):
            data = bytearray(whole)
            data[at] ^= 0x10
            path.write_bytes(data)
            try:
                rows = self._rows(path, 10)
            except (DataError, InputError):
                continue
            self._same(rows, columns)

    def test_an_existing_file_is_not_replaced(self, tmp_path: Path) -> None:
        path, columns = self._file(tmp_path)
        before = path.read_bytes()
        _raises(WriteError, lambda: self.write(path, self.schema, columns))
        assert path.read_bytes() == before

    def test_a_failed_write_leaves_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / f"bad{self.suffix}"
        _raises(SchemaError, lambda: self.write(path, {"label": Int64()}, {"label": ["not a number"]}))
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_file_is_said(self, tmp_path: Path) -> None:
        error = _raises(InputError, lambda: list(self.read(tmp_path / "nothing", self.schema, 4)))
        assert "nothing" in str(error)

    def test_a_column_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        path, _ = self._file(tmp_path)
        error = _raises(HoldfastError, lambda: list(self.read(path, {"other": Int64()}, 4)))
        assert "other" in str(error)

    def test_nothing_stays_open(self, tmp_path: Path) -> None:
        path, _ = self._file(tmp_path)
        before = _descriptors()
        for _ in range(20):
            list(self.read(path, self.schema, 10))
        assert _descriptors() == before

    # ---- how

    def _file(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        path = folder / f"data{self.suffix}"
        columns = _columns()
        self.write(path, self.schema, columns)
        return path, columns

    def _rows(self, path: Path, size: int, schema: Mapping[str, Column] | None = None) -> dict[str, list[Any]]:
        schema = self.schema if schema is None else schema
        rows: dict[str, list[Any]] = {name: [] for name in schema}
        for batch in self.read(path, schema, size):
            assert set(batch) == set(schema)
            for name, column in batch.items():
                rows[name] += column.tolist()
        return rows

    def _same(self, rows: Mapping[str, list[Any]], columns: Mapping[str, Any]) -> None:
        for name, column in columns.items():
            want = column.tolist() if isinstance(column, np.ndarray) else list(column)
            assert rows[name] == want, f"column {name!r}"


def _columns() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "name": [b"name %d" % i for i in range(_ROWS)],
        "label": rng.integers(-(2**63), 2**63 - 1, _ROWS),
        "emb": rng.random((_ROWS, 3), np.float32),
        "grid": rng.random((_ROWS, 2, 2), np.float32),
        "boxes": [[[float(k)] * 4 for k in range(i % 5)] for i in range(_ROWS)],
        "tags": [[b"tag"] * (i % 3) for i in range(_ROWS)],
    }


def _raises(kind: type[Exception], call: Any) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
