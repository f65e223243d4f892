"""Logs from a Keras fit(), as its callback."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from holdfast.log.entry import Log, log

Every = Literal["epoch", "batch"]


class LogCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """For `model.fit(…, callbacks=[LogCallback("logs/exp1")])` in every worker.

    every    "epoch": a row for each, whose step is the epoch's number; "batch": whose step is the optimizer's count of
             its iterations, which a restored checkpoint restores, too
    arrays   called with the model, for more to log with each row: a dict of arrays, by column
    options  as hold.log takes them: schema, every_s, replay, …

    A row holds what Keras says at the end of an epoch or batch. What is logged is committed by rows and seconds, at
    every epoch's end, when fit() ends, and at the program's exit. Let it stand before a callback that saves the model:
    then no row is missing behind a restart. `log` is the log while there is one. The rank is that of TF_CONFIG.
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
        if self.log is None:  # else an earlier fit() was left by an exception
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
