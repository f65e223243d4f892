"""holdfast datasets as tf.data.Dataset, `ds.tf()`, and logging from TensorFlow trainings: LogHook, LogCallback.

    dataset = hold.read("train-*.tfrecord", schema).shuffle(seed=7).batch(64).tf()
    model.fit(dataset.map(lambda batch: (batch["image"], batch["label"])), epochs=3)

Columns of fixed shape become dense tensors, strings tf.string, and lists of any length tf.RaggedTensor.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .data.formats.columns import BytesColumn, RaggedColumn, leaves, map_leaves, tuple_like
from .data.loader.dataset import Dataset, Mixture, state_after
from .data.loader.iterator import Iteration, batch_plan, stop_epoch
from .data.loader.options import Options, as_int
from .data.runlog.logger import Log, log
from .errors import MapError, SchemaError
from .schema import Array, Bytes, Column, Ragged, Value

__all__ = ["LogCallback", "LogHook", "Passes", "as_tf"]


def as_tf(dataset: Dataset, *, epoch: int = 0, spec: Any = None) -> Any:
    """Returns a tf.data.Dataset of dicts. `ds.tf()` does the same; `Passes` can resume as well."""
    return Passes(dataset, epoch=epoch, spec=spec).dataset


class Passes:
    """`dataset` is a tf.data.Dataset; each iteration of it is the next epoch, also after one that was left early.

    So `fit(epochs=3)` sees three orders. Looking at one batch and starting over counts as two; `set_epoch` is exact.

    It has a cardinality where all passes have the same length: not after a resume in the middle of a pass, not for a
    mix, and not where samples, without batch(), may be filtered out or skipped.

    TensorFlow shards nothing: call `.shard("auto")` where several processes share the samples.

    Args:
        epoch: The epoch of the first pass. With `repeat(n)`, every n epochs from here on are a pass.
        state: From `state_after`; the first pass resumes the pass that the state was saved in.
        spec: The element_spec of columns that functions return, where one batch does not show it: of any length, or
            padded. Without it the functions run on the first batch with samples, or if there is none, on samples that
            the filters, take(), skip() or the sharding leave out. Where the functions return tuples, the complete spec.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        epoch: int = 0,
        state: Mapping[str, Any] | None = None,
        spec: Any = None,
    ) -> None:
        if dataset._settings.shard == "auto":
            # Here, because TensorFlow runs the generator in a thread outside of the strategy's scope.
            launch = dataset._launch()
            dataset = dataset.shard((launch.rank, launch.world))
        self._read, self._loaded = dataset, state
        self._first = self._epoch = epoch
        self._resumes = state is not None
        self._lock = threading.Lock()
        self._convert = _batch_to_tf if dataset._settings.batched else _sample_to_tf
        self._begin().close()  # raises if the state does not match
        self._spec = _element_spec(dataset, spec or {})
        self.dataset: Any = self._make_dataset()

    def _make_dataset(self) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        made = tf.data.Dataset.from_generator(self._run, output_signature=self._spec)
        at = self._loaded
        shorter = at is not None and (at["done"] > 0 or at["epoch"] != self._first_of_pass(at["epoch"]))
        known = tf.data.UNKNOWN_CARDINALITY if shorter else _cardinality(self._read)
        if known != tf.data.UNKNOWN_CARDINALITY:
            made = made.apply(tf.data.experimental.assert_cardinality(known))
        return made.with_options(options)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. It begins at the start, or where the state of this object left off.

        With repeat(n), this is the first epoch of the pass; a resumed pass accepts the state's epoch as well.

        Keras' fit() reads a batch first and then starts over: call this when an epoch begins, and batches that were
        prefetched before do not count.
        """
        as_int("epoch", epoch, 0)
        with self._lock:
            self._resumes = self._is_resumed(epoch)
            self._epoch = self._first if self._resumes else epoch

    def state_after(self, batches: int, *, epoch: int) -> dict[str, Any]:
        """Returns the state after so many batches of an epoch, from its start or from where it was resumed.

        With repeat(n), `epoch` is the first one of a pass, as in `set_epoch`, and the batches are those of the pass.
        """
        if self._is_resumed(epoch):
            return state_after(self._read, batches, epoch=self._first, since=self._loaded)
        return state_after(self._read, batches, epoch=epoch)

    def _is_resumed(self, epoch: int) -> bool:
        return self._loaded is not None and epoch in (self._loaded["epoch"], self._first_of_pass(self._loaded["epoch"]))

    def _first_of_pass(self, epoch: int) -> int:
        """Returns the first epoch of the pass that `epoch` is in; of an endless pass, `epoch` itself."""
        settings = self._read._settings
        stop = stop_epoch(settings, self._first, epoch)
        return epoch if stop is None or settings.repeat is None else stop - settings.repeat

    def _begin(self) -> Iteration:
        begun = self._read.iterate(self._epoch)
        if self._resumes and self._loaded is not None:
            begun.load_state_dict(self._loaded)
        return begun

    def _run(self) -> Iterator[Any]:
        with self._lock:
            begun = self._begin()
            self._epoch, self._resumes = begun.next_epoch, False
        # TensorFlow drops this generator with its iterator, which ends the iteration.
        with begun:
            for rows in begun:
                if self._read._settings.batched and not _has_rows(rows):
                    yield map_leaves(_empty_batch, self._spec)
                else:
                    yield map_leaves(self._convert, rows)


# ---- values


def _batch_to_tf(column: Any) -> Any:
    if isinstance(column, RaggedColumn):
        return tf.RaggedTensor.from_row_splits(_batch_to_tf(column.values), column.row_splits, validate=False)
    if isinstance(column, BytesColumn):
        return _strings(column.tolist(), (len(column), column.per_item) if column.per_item else (len(column),))
    return column


def _strings(values: list[Any], shape: tuple[int, ...]) -> Any:
    """Makes an array of objects, because numpy's own strings lose trailing zeros."""
    array = np.empty(shape, object)
    array[...] = np.array(values, object).reshape(shape) if values else None
    return array


def _sample_to_tf(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else _batch_to_tf(value)


def _has_rows(batch: Any) -> bool:
    """Returns False if all samples of a batch were filtered out. Such a batch may have no columns."""
    return any(len(column) for _, column in leaves(batch))


def _empty_batch(spec: Any) -> Any:
    """Makes a batch of no samples with the given spec."""
    if isinstance(spec, tf.RaggedTensorSpec):
        values = tf.zeros([0, *_known(spec.shape[spec.ragged_rank + 1 :])], spec.dtype)
        return tf.RaggedTensor.from_nested_row_splits(values, [np.zeros(1, np.int64)] * spec.ragged_rank)
    return tf.zeros([0, *_known(spec.shape[1:])], spec.dtype)


def _known(shape: Any) -> list[int]:
    return [size or 0 for size in shape]


# ---- element_spec from the schema


def _element_spec(dataset: Dataset, given: Any) -> Any:
    settings = dataset._settings
    made_by_functions = any(function.kind == "map" for function in settings.functions)
    padded = settings.batched and settings.collate == "pad"
    # With collate="ragged" and functions, columns of fixed shape become lists too.
    made_ragged = settings.batched and settings.collate == "ragged" and settings.functions
    if not (made_by_functions or padded or made_ragged):
        spec_of = _batch_spec if settings.batched else _sample_spec
        rows = _fixed_rows(dataset)
        found: Any = {name: spec_of(column, rows) for name, column in dataset.schema.items()}
    else:
        found = _seen_spec(dataset, given)
    if not isinstance(found, dict):
        return found
    unknown = sorted(given.keys() - found.keys())
    if unknown:
        raise SchemaError(f"expected a spec of columns there are ({', '.join(found)}), got one of {unknown[0]!r}")
    return {**found, **given}


def _cardinality(dataset: Dataset) -> Any:
    """Returns how many elements a pass has."""
    settings = dataset._settings
    if isinstance(dataset, Mixture) or (_may_lose(settings) and not settings.batched):
        return tf.data.UNKNOWN_CARDINALITY
    each = len(dataset)
    if settings.repeat is None and each:
        return tf.data.INFINITE_CARDINALITY
    return each * (settings.repeat or 1)


def _may_lose(settings: Options) -> bool:
    """Whether samples may be missing, which makes batches shorter, but not fewer."""
    return settings.on_corrupt == "skip" or any(
        function.kind == "filter" or function.on_error == "skip" for function in settings.functions
    )


def _fixed_rows(dataset: Dataset) -> int | None:
    """Returns the size of all batches, if it is the same for all."""
    settings = dataset._settings
    if not settings.batched or settings.remainder == "keep" or _may_lose(settings):
        return None
    return batch_plan(settings, dataset._launch().world).batch


def _batch_spec(column: Column, rows: int | None) -> Any:
    if isinstance(column, Ragged):
        value = column.value
        shape = [rows, *[None] * column.depth, *_shape(value)]
        return tf.RaggedTensorSpec(shape, _dtype(value), ragged_rank=column.depth, row_splits_dtype=tf.int64)
    return tf.TensorSpec([rows, *_shape(column)], _dtype(column))


def _sample_spec(column: Column, _: int | None) -> Any:
    if not isinstance(column, Ragged):
        return tf.TensorSpec(_shape(column), _dtype(column))
    if column.depth == 1:
        return tf.TensorSpec([None, *_shape(column.value)], _dtype(column.value))
    return _batch_spec(column.inner, None)


def _shape(column: Value) -> tuple[int, ...]:
    """Returns the shape of a value; strings are a flat list, whatever their shape."""
    return (column.count,) if isinstance(column, Bytes) and column.shape else column.shape


def _dtype(column: Value) -> Any:
    return tf.as_dtype(column.dtype) if isinstance(column, Array) else tf.string


# ---- element_spec from what functions return


_UNBOUNDED: dict[str, Any] = {"first_sample": 0, "stop_sample": None, "first_batch": 0, "stop_batch": None}


def _seen_spec(dataset: Dataset, given: Any) -> Any:
    """Returns the spec of the first batch with rows. The pass reads that batch again: the order is deterministic."""
    settings = dataset._settings
    rows = _first_rows(dataset)
    if rows is None:
        unfiltered = tuple(function for function in settings.functions if function.kind != "filter")
        with contextlib.suppress(MapError):  # the filters may exist to keep such samples from the functions
            rows = _first_rows(dataset._with(functions=unfiltered, shard=(0, 1), remainder="keep", **_UNBOUNDED))
    if rows is None:
        if given:
            return given
        raise SchemaError("expected a sample to find out what the functions return, got none: pass tf(spec=…)")
    if not isinstance(rows, (Mapping, tuple)):
        raise SchemaError(f"expected dicts or tuples from the functions, got {type(rows).__name__}")
    if isinstance(rows, tuple) and given:
        return _given_tuple(rows, given)
    if not isinstance(given, Mapping):
        raise SchemaError(f"expected a spec that is a dict, as the samples are, got {type(given).__name__}")
    see: Callable[..., Any] = _seen_column if settings.batched else _seen_value
    fixed = _fixed_rows(dataset)

    def seen(path: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: seen(f"{path}.{name}", one) for name, one in value.items()}
        if isinstance(value, tuple):
            return tuple_like(value, [seen(f"{path}[{at}]", one) for at, one in enumerate(value)])
        return see(path, value, fixed, _has_free_shape(dataset.schema.get(path), settings))

    if isinstance(rows, tuple):
        return seen("", rows)
    return {name: given.get(name) or seen(name, value) for name, value in rows.items()}


def _given_tuple(rows: tuple[Any, ...], given: Any) -> Any:
    """Checks the spec that was given for tuples. It must be complete, because its parts have no names."""
    try:
        tf.nest.assert_same_structure(map_leaves(lambda _: 0, rows), map_leaves(lambda _: 0, given))
    except (TypeError, ValueError):
        raise SchemaError(f"expected a spec of the structure that the functions return, got {given!r}") from None
    return given


def _first_rows(dataset: Dataset) -> Any:
    here = tuple(replace(function, where="inline", workers=0) for function in dataset._settings.functions)
    with dataset._with(functions=here, cache=None, prefetch_batches=0, prefetch_bytes=0, repeat=1).iterate() as begun:
        for rows in begun:
            if not dataset._settings.batched or not isinstance(rows, (Mapping, tuple)) or _has_rows(rows):
                return rows
    return None


def _has_free_shape(column: Column | None, settings: Options) -> bool:
    """Whether lengths may differ between batches or samples, according to the schema if it has the column."""
    if settings.collate == "pad":
        return not isinstance(column, Value)
    return not settings.batched and isinstance(column, Ragged)


def _seen_column(name: str, column: Any, rows: int | None, free: bool) -> Any:
    if isinstance(column, RaggedColumn):
        depth, values = 1, column.values
        while isinstance(values, RaggedColumn):
            depth, values = depth + 1, values.values
        inner = _seen_column(name, values, None, free)
        shape = [rows if rows == len(column) else None, *[None] * depth, *inner.shape[1:]]
        return tf.RaggedTensorSpec(shape, inner.dtype, ragged_rank=depth, row_splits_dtype=tf.int64)
    if isinstance(column, BytesColumn):
        first = rows if rows == len(column) else None
        inside = [None if free else column.per_item] if column.per_item else []
        return tf.TensorSpec([first, *inside], tf.string)
    value = _seen_value(name, column, None, free)
    if not value.shape.rank:
        raise SchemaError(f"column {name!r}: expected one value a row, got {column!r}")
    return tf.TensorSpec([rows if rows == value.shape[0] else None, *value.shape[1:]], value.dtype)


def _seen_value(name: str, value: Any, _: int | None, free: bool) -> Any:
    if isinstance(value, (memoryview, bytes, bytearray, str)):
        return tf.TensorSpec([], tf.string)
    if isinstance(value, BytesColumn):
        return tf.TensorSpec([None, value.per_item] if value.per_item else [None], tf.string)
    if isinstance(value, RaggedColumn):
        return _seen_column(name, value, None, free)
    try:
        seen = tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"column {name!r}: TensorFlow has no tensor for {type(value).__name__}: {error}") from None
    return tf.TensorSpec([None] * seen.shape.rank, seen.dtype) if free else seen


# ---- logging from a training

_train: Any = tf.compat.v1.train
_COMMIT_FIRST = "pass hooks=[hook, CheckpointSaverHook(…, listeners=[hook.listener])] to commit before each checkpoint"


class LogHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs from `MonitoredTrainingSession(hooks=[LogHook("logs/exp1", {"loss": loss, "grad": grad})])` in every worker.

    The step of a row is the global step after the run that it was fetched in. Workers that train asynchronously share
    it: it counts the runs of all workers.

    Rows are committed by rows and seconds, after each checkpoint of the session, at its end and when the program exits;
    `log` is the open log. The session saves its own checkpoint of a step before its hooks see that step: a kill between
    the two loses rows, and the next start warns of it. To commit them before the checkpoint, pass
    `hooks=[hook, CheckpointSaverHook(…, listeners=[hook.listener])]`, save_checkpoint_steps=None and
    save_checkpoint_secs=None.

    Args:
        tensors: What to log, by column: tensors, or their names in the graph.
        every_steps: Log at multiples of this global step, or at the first run after one.
        options: As hold.log takes them: rank=task_index where the launcher does not set it, schema, every, …
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None,
        tensors: Mapping[str, Any],
        *,
        every_steps: int = 1,
        **options: Any,
    ) -> None:
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(f"every_steps must be a positive integer, got {every_steps!r}")
        if not isinstance(tensors, Mapping) or not tensors:
            raise ValueError(f"expected tensors by the names of their columns, got {tensors!r}")
        self.log: Log | None = None
        self._logdir, self._options = logdir, options
        self._given, self._every = dict(tensors), every_steps
        self._tensors: dict[str, Any] = {}
        self._global_step: Any = None
        self._guess = self._due = 0
        self._savers: list[Any] = []
        self._saved: list[str] = []
        self.listener = _CommitListener(self)

    def begin(self) -> None:
        self._global_step = _train.get_global_step()
        if self._global_step is None:
            raise RuntimeError("expected a graph with a global step: tf.compat.v1.train.get_or_create_global_step()")
        graph = tf.compat.v1.get_default_graph()
        self._tensors = {
            name: graph.as_graph_element(one, allow_operation=False) if isinstance(one, str) else one
            for name, one in self._given.items()
        }
        self.log = log(self._logdir, **self._options)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Reads the step, also of a session that is recreated from a checkpoint during a training."""
        step = int(session.run(self._global_step))
        assert self.log is not None
        if "/job:" not in self._global_step.device:  # else it counts the runs of other workers too
            self.log.warn_if_behind(step, self._every, _COMMIT_FIRST)
        self._set_step(step)
        self._savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
        self.note_checkpoints()

    def note_checkpoints(self) -> bool:
        """Returns whether a checkpoint was saved since the last call."""
        before, self._saved = self._saved, [path for saver in self._savers for path in saver.last_checkpoints]
        return before != self._saved

    def before_run(self, run_context: Any) -> Any:
        # A step that is fetched with the run may be the one before or after it. So runs are counted, and the step is
        # read when a row may be due.
        self._guess += 1
        return _train.SessionRunArgs(self._tensors) if self._guess >= self._due else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is not None:
            step = int(run_context.session.run(self._global_step))
            if step >= self._due and self.log is not None:
                self.log(step, **run_values.results)
            self._set_step(step)
        if self.note_checkpoints() and self.log is not None:
            self.log.commit()

    def _set_step(self, step: int) -> None:
        self._guess = step
        self._due = (step // self._every + 1) * self._every

    def end(self, session: Any) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None


class _CommitListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Commits the rows before a checkpoint is saved: a training that resumes from it does not log them again."""

    def __init__(self, hook: LogHook) -> None:
        self._hook = hook

    def before_save(self, session: Any, global_step_value: int) -> None:
        if self._hook.log is not None:
            self._hook.log.commit()

    def after_save(self, session: Any, global_step_value: int) -> None:
        self._hook.note_checkpoints()


Every = Literal["epoch", "batch"]


class LogCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Logs from `model.fit(…, callbacks=[LogCallback("logs/exp1")])` in every worker.

    A row holds the metrics that Keras reports at the end of an epoch or batch. Rows are committed by rows and seconds,
    at the end of every epoch and of fit(), and when the program exits. Put it before a callback that saves the model:
    then no row is missing after a restart. `log` is the open log. The rank is that of TF_CONFIG.

    Args:
        every: "epoch": a row an epoch, with its number as the step; "batch": a row a batch, with the optimizer's
            iteration count as the step, which a restored checkpoint restores too.
        arrays: Called with the model; returns a dict of arrays to log with each row.
        options: As hold.log takes them: schema, every, replay, …
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        every: Every = "epoch",
        arrays: Callable[[Any], Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if every not in ("epoch", "batch"):
            raise ValueError(f'expected every to be "epoch" or "batch", got {every!r}')
        self.log: Log | None = None
        self._logdir, self._options = logdir, options
        self._every, self._arrays = every, arrays

    def on_train_begin(self, logs: Any = None) -> None:
        if self.log is None:  # it is open if an earlier fit() raised
            self.log = log(self._logdir, **self._options)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._every == "batch":
            self._write(int(self.model.optimizer.iterations.numpy()), logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._every == "epoch":
            self._write(epoch, logs)
        if self.log is not None:
            self.log.commit()

    def _write(self, step: int, logs: Mapping[str, Any] | None) -> None:
        assert self.log is not None
        more = {} if self._arrays is None else self._arrays(self.model)
        self.log(step, **dict(logs or {}), **more)

    def on_train_end(self, logs: Any = None) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
