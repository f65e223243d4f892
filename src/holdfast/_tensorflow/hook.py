"""Logs from a TF1-style session, as its hook."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from holdfast.log.entry import Log, log

_train: Any = tf.compat.v1.train


class LogHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """For `MonitoredTrainingSession(hooks=[LogHook("logs/exp1", {"loss": loss, "grad": grad})])` in every worker.

    tensors      what to log, by column: tensors, or their names in the graph
    every_steps  at which steps of the graph's global step: those that this divides, or the first run behind one
    options      as hold.log takes them: rank=task_index where no launcher says it, schema, every_s, …

    A row's step is the global step after the run it was fetched in. Workers that train asynchronously share it: of
    theirs it is the count of all workers' runs by then.

    What is logged is committed by rows and seconds, at the session's end, and at the program's exit; `log` is the log
    while there is one. MonitoredTrainingSession's own checkpoint of a step is saved before its hooks see that step. So
    that no row is missing behind a restart, give it `hooks=[hook, CheckpointSaverHook(…, listeners=[hook.listener])]`
    with save_checkpoint_steps=None and save_checkpoint_secs=None.
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
            raise ValueError(f"expected every_steps to be a number from 1 up, got {every_steps!r}")
        if not isinstance(tensors, Mapping) or not tensors:
            raise ValueError(f"expected tensors by the names of their columns, got {tensors!r}")
        self.log: Log | None = None
        self._logdir, self._options = logdir, options
        self._given, self._every = dict(tensors), every_steps
        self._tensors: dict[str, Any] = {}
        self._global_step: Any = None
        self._guess = self._due = 0
        self.listener = _Commits(self)

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
        """Also when a session is made anew within a training: its step is that of the checkpoint then."""
        self._known(int(session.run(self._global_step)))

    def before_run(self, run_context: Any) -> Any:
        # A step fetched with the run is the one before or behind it, as it happens. So runs are counted, and the step
        # is asked for when one may be due.
        self._guess += 1
        return _train.SessionRunArgs(self._tensors) if self._guess >= self._due else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is None:
            return
        step = int(run_context.session.run(self._global_step))
        if step >= self._due and self.log is not None:
            self.log(step, **run_values.results)
        self._known(step)

    def _known(self, step: int) -> None:
        self._guess = step
        self._due = (step // self._every + 1) * self._every

    def end(self, session: Any) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None


class _Commits(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Commits what was logged before a checkpoint is saved: a training that goes on from it does not log it again."""

    def __init__(self, hook: LogHook) -> None:
        self._hook = hook

    def before_save(self, session: Any, global_step_value: int) -> None:
        if self._hook.log is not None:
            self._hook.log.commit()
