"""One worker's rows as parts of a run's folder: piece after piece, each there whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, SchemaError, TargetExistsError
from ..read.entry import read
from ..schema import Column, Int64
from ..write.manifest import read_manifests
from ..write.names import Format
from ..write.out import Out, write
from ..write.record import PartRecord
from ..write.remote.out import RemoteOut
from .columns import Row, check_names, check_own, joined, schema_of

_STEP: dict[str, Column] = {"step": Int64(), "worker": Int64()}


class Pieces:
    """`open` when the columns are known, or nothing when the folder is not there yet; then `put` rows and `commit`.

    last_step  of this worker's last piece, None: there is none
    n_pieces   how many it has committed, before and now
    """

    def __init__(
        self, folder: str, worker: int, format: Format, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = folder
        self.schema: dict[str, Column] | None = None
        self.last_step: int | None = None
        self.n_pieces = 0
        self.rows: list[Row] = []
        self._worker, self._format, self._storage = worker, format, storage_options
        self._out: Out | None = None
        self._tried = False
        self._forgotten = 0  # rows of that try, given up since

    # ---- beginning

    def open(self, schema: dict[str, Column]) -> None:
        """Makes the folder, or checks that it is one of this schema."""
        self._begin(write(self.name, schema, storage_options=self._storage))

    def open_for(self, values: Mapping[str, Any]) -> None:
        """The first row says what the columns are, unless another worker's was there before."""
        try:
            self.open(schema_of(values))
        except SchemaError:
            # What it holds need not be the very same: a whole number is a float too.
            if not self.open_if_there():
                raise
            assert self.schema is not None
            check_names(self.schema, values, self.name)

    def open_if_there(self) -> bool:
        try:
            out = write(self.name, storage_options=self._storage)
        except InputError:
            return False
        self._begin(out)
        return True

    def _begin(self, out: Out) -> None:
        self._out, self.schema = out, out.schema
        check_own(out.schema, self.name)
        self.n_pieces = self._count()
        record = self._part(self.n_pieces - 1).record if self.n_pieces else None
        self.last_step = None if record is None else self._last_step(record)

    def _count(self) -> int:
        """They are numbered without a gap: so many looks as their number has digits, not a look at each."""
        above = 1
        while self._part(above - 1).done:
            above *= 2
        below = above // 2  # so many there are at least
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if self._part(middle - 1).done else (below, middle)
        return below

    def _last_step(self, record: PartRecord) -> int:
        out = self._out
        if isinstance(out, RemoteOut):
            return self._highest(out.url_of(record))
        assert out is not None
        path = out.path_of(record)
        return self._highest(path if path.exists() else self._merged(out.folder, record.task))

    def _merged(self, folder: Path, task: str) -> str:
        """The file that a part went into, before it was taken away."""
        last = [one for one in read_manifests(folder) if any(part.task == task for part in one.parts)][-1]
        if not last.holds:
            text = f"what worker {self._worker} logged went into {last.output}, which is not there any more"
            raise InputError(f"{self.name}: {text}: put it back, or give a new logdir or name=")
        return last.output

    def _highest(self, where: str | Path) -> int:
        """This worker's last step in a file."""
        with read(where, _STEP, storage_options=self._storage).shard(None).batch(10_000).iterate() as batches:
            steps = [batch["step"][batch["worker"] == self._worker] for batch in batches]
        return max(int(one.max()) for one in steps if len(one))

    # ---- writing

    def put(self, row: Row) -> None:
        self.rows.append(row)

    def commit(self) -> None:
        """All rows are there for good when this returns. An error: those that are not are kept, for the next time."""
        while self.rows:
            self._commit()

    def _commit(self) -> None:
        assert self.schema is not None
        part, again = self._part(self.n_pieces), self._tried
        try:
            with part:
                if not part.done:
                    self._tried, self._forgotten = True, 0
                    part.extend(joined(self.schema, self.rows))
        except TargetExistsError as error:
            if not again:
                raise self._not_alone(str(error)) from None
            part = self._part(self.n_pieces)  # of our earlier try, perhaps, that a store was slow with
        if not self._is_ours(part.record):
            raise self._not_alone(f"it has committed {part.record}")
        # An earlier try may have come so far before it failed, with the rows there were then.
        del self.rows[: max(0, part.record.rows - self._forgotten)]
        self.n_pieces += 1
        self._tried, self._forgotten = False, 0

    def _not_alone(self, text: str) -> TargetExistsError:
        hint = "give each worker a rank= of its own, and each kind of log a name="
        return TargetExistsError(f"{self.name}: another process logs as worker {self._worker} too: {text}; {hint}")

    def _is_ours(self, record: PartRecord) -> bool:
        return self._tried and (record.pid, record.host) == (os.getpid(), socket.gethostname())

    def _part(self, number: int) -> Any:
        assert self._out is not None
        return self._out.part(f"log-{self._worker:05d}-{number:06d}", self._format)

    def forget(self) -> None:
        self._forgotten += len(self.rows)
        self.rows = []

    def close(self) -> None:
        """Nothing is open between two commits."""
