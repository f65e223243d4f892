"""Contains the tests that every format must pass. Subclass a contract, implement its methods, and run pytest.

from holdfast.testing import FormatContract

class TestMyFormat(FormatContract):
    suffix = ".mine"
    def write(self, path, schema, columns): ...
    def read(self, path, schema, size): ...

A format whose samples can be read by number must also pass the ShardContract:

from holdfast.testing import ShardContract

class TestMyShard(ShardContract):
    def make(self, folder, rows): ...
    def open(self, path): ...
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .data.formats.base import Shard
from .data.formats.registry import open_shard
from .errors import DataError, HoldfastError, InputError, SchemaError, WriteError
from .procfs.descriptors import count_own
from .schema import Bytes, Column, Float32, Int64, Ragged

__all__ = ["FormatContract", "ShardContract"]

_ROWS = 137  # not a multiple of any batch size below


class FormatContract:
    """Tests a reader and a writer of any format."""

    suffix = ""
    schema: Mapping[str, Column] = {
        "name": Bytes(),
        "label": Int64(),
        "emb": Float32(3),
        "grid": Float32(2, 2),
        "boxes": Ragged(Float32(4)),
        "tags": Ragged(Bytes()),
    }

    # ---- to implement

    def write(self, path: Path, schema: Mapping[str, Column], columns: Mapping[str, Any]) -> None:
        """Writes one complete file with these columns."""
        raise NotImplementedError

    def read(self, path: Path, schema: Mapping[str, Column], size: int) -> Iterable[Mapping[str, Any]]:
        """Yields batches of `size` rows. Closes everything at the end, also after an error."""
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

    def test_a_missing_file_is_reported(self, tmp_path: Path) -> None:
        error = _raises(InputError, lambda: list(self.read(tmp_path / "nothing", self.schema, 4)))
        assert "nothing" in str(error)

    def test_a_column_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        path, _ = self._file(tmp_path)
        error = _raises(HoldfastError, lambda: list(self.read(path, {"other": Int64()}, 4)))
        assert "other" in str(error)

    def test_nothing_stays_open(self, tmp_path: Path) -> None:
        path, _ = self._file(tmp_path)
        before = count_own()
        for _ in range(20):
            list(self.read(path, self.schema, 10))
        assert count_own() == before

    # ---- helpers

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


class ShardContract:
    """Tests a shard: samples are read by number, from any thread and any forked child."""

    schema: Mapping[str, Column] = {"name": Bytes(), "label": Int64(), "emb": Float32(3)}
    one_file = True  # False: a shard is a folder, and cannot be cut
    knows_types = True  # False: without a schema every column is Bytes

    # ---- to implement

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        """Writes a shard of `rows` samples below the folder; returns its path and the columns of `schema` as lists."""
        raise NotImplementedError

    def open(self, path: Path) -> Shard:
        return open_shard(path)

    # ---- the tests

    def test_all_samples_come_back(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, _ROWS)
        with self.open(path) as shard:
            assert len(shard) == _ROWS
            assert _lists(shard.read(0, _ROWS, self.schema)) == columns

    def test_runs_are_parts_of_the_whole(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, _ROWS)
        with self.open(path) as shard:
            for start, stop in ((0, 1), (5, 70), (_ROWS - 1, _ROWS), (0, 0), (_ROWS, _ROWS)):
                got = _lists(shard.read(start, stop, self.schema))
                assert got == {name: column[start:stop] for name, column in columns.items()}

    def test_rows_come_in_the_order_asked_for(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, _ROWS)
        rows = [9, 3, 4, 5, _ROWS - 1, 3, 0, 64]
        with self.open(path) as shard:
            got = _lists(shard.read_rows(rows, self.schema))
            assert got == {name: [column[i] for i in rows] for name, column in columns.items()}
            assert _lists(shard.read_rows(np.array([2, 1]), self.schema)) == _lists(
                shard.read_rows([2, 1], self.schema)
            )
            assert _lists(shard.read_rows([], self.schema)) == {name: [] for name in columns}

    def test_a_part_of_the_columns_of_a_shard(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, 12)
        with self.open(path) as shard:
            for name, column in self.schema.items():
                assert _lists(shard.read(2, 9, {name: column})) == {name: columns[name][2:9]}

    def test_its_own_schema_reads_it(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, 12)
        with self.open(path) as shard:
            own = {name: column if self.knows_types else Bytes() for name, column in self.schema.items()}
            assert {name: shard.schema[name] for name in own} == own
            columns = {name: column for name, column in columns.items() if own[name] == self.schema[name]}
            got = _lists(shard.read(0, 12))
            assert {name: got[name] for name in columns} == columns
            got = _lists(shard.read_rows([3]))
            assert {name: got[name] for name in columns} == {name: [columns[name][3]] for name in columns}

    def test_no_samples(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, 0)
        with self.open(path) as shard:
            assert len(shard) == 0
            assert shard.bytes_of(0, 0) == 0
            assert _lists(shard.read(0, 0, self.schema)) == columns

    def test_a_sample_that_is_not_there(self, tmp_path: Path) -> None:
        path, _ = self.make(tmp_path, 5)
        with self.open(path) as shard:
            for start, stop in ((0, 6), (-1, 2), (3, 2)):
                _raises(IndexError, lambda a=start, b=stop: shard.read(a, b, self.schema))
                _raises(IndexError, lambda a=start, b=stop: shard.bytes_of(a, b))
            _raises(IndexError, lambda: shard.read_rows([1, 5], self.schema))
            _raises(IndexError, lambda: shard.read_rows([-1], self.schema))

    def test_a_column_that_no_sample_has_is_named(self, tmp_path: Path) -> None:
        path, _ = self.make(tmp_path, 5)
        with self.open(path) as shard:
            error = _raises(HoldfastError, lambda: shard.read(0, 5, {"other": Int64()}))
            assert "other" in str(error)
            assert path.name in str(error)

    def test_the_bytes_of_runs_add_up(self, tmp_path: Path) -> None:
        path, _ = self.make(tmp_path, 20)
        with self.open(path) as shard:
            assert shard.bytes_of(0, 20) == sum(shard.bytes_of(i, i + 1) for i in range(20)) > 0

    def test_a_missing_shard_is_reported(self, tmp_path: Path) -> None:
        path, _ = self.make(tmp_path, 5)
        error = _raises(InputError, lambda: self.open(path.with_name("nothing" + path.suffix)))
        assert "nothing" in str(error)

    def test_a_cut_shard_is_never_silent_unless_whole(self, tmp_path: Path) -> None:
        if not self.one_file:
            return
        path, columns = self.make(tmp_path, _ROWS)
        whole = path.read_bytes()
        for keep in range(len(whole) - 1, 0, -max(len(whole) // 61, 1)):
            path.write_bytes(whole[:keep])
            rows, said = self._read_or_error(path)
            assert path.name in said or rows == {name: columns[name][: len(rows[name])] for name in columns}

    def test_a_forked_child_reads_the_same(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, _ROWS)
        with self.open(path) as shard:
            shard.read(0, 3, self.schema)
            for _ in range(3):
                assert _in_child(lambda: _lists(shard.read(0, _ROWS, self.schema)) == columns) is True
            assert _lists(shard.read(0, _ROWS, self.schema)) == columns

    def test_threads_read_at_once(self, tmp_path: Path) -> None:
        path, columns = self.make(tmp_path, _ROWS)
        wrong: list[object] = []

        def work(first: int) -> None:
            try:
                for start in range(first, _ROWS - 8, 7):
                    got = _lists(shard.read(start, start + 8, self.schema))
                    wrong.extend(name for name in columns if got[name] != columns[name][start : start + 8])
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                wrong.append(error)

        with self.open(path) as shard:
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []

    def test_one_descriptor_at_the_most_and_none_after(self, tmp_path: Path) -> None:
        path, _ = self.make(tmp_path, 20)
        with self.open(path) as shard:  # the first use may open something that stays open
            shard.read(0, 2, self.schema)
        before = count_own()
        for _ in range(5):
            with self.open(path) as shard:
                shard.read(0, 20, self.schema)
                shard.read_rows([4, 2], self.schema)
                assert count_own() <= before + 1
            assert count_own() == before
            shard.close()
            _raises(ValueError, lambda shard=shard: shard.read(0, 2, self.schema))

    # ---- helpers

    def _read_or_error(self, path: Path) -> tuple[dict[str, list[Any]], str]:
        """Returns all samples, or the error's message."""
        try:
            with self.open(path) as shard:
                return _lists(shard.read(0, len(shard), self.schema)), ""
        except (DataError, InputError) as error:
            return {}, str(error)


def _lists(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in batch.items()}


def _in_child(call: Callable[[], Any]) -> Any:
    """Returns the result of `call` in a forked child, through JSON; an error in it fails the test."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, which is what is tested
        pid = os.fork()
    if not pid:
        try:
            answer = json.dumps({"got": call()})
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            answer = json.dumps({"error": repr(error)})
        with open(writer, "w", encoding="utf-8") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    result = json.loads(answer)
    assert "error" not in result, result["error"]
    return result["got"]


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
