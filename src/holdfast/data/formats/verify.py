"""Defines the result of verifying a file, for every format: a report with a list of problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Problem(NamedTuple):
    """One problem of a file.

    offset:  in the file, or in its decompressed data; None: unknown
    record:  the number of the record or sample; None: the problem concerns the whole file, or an HDF5 object
    dataset: the path of the HDF5 object
    chunk:   where the chunk starts in the dataset
    """

    offset: int | None
    record: int | None
    reason: str
    records_lost: int = 0  # at least
    bytes_lost: int = 0
    records_doubtful: int = 0  # valid frames that might be data of the corrupt record
    dataset: str | None = None
    chunk: tuple[int, ...] | None = None

    def as_dict(self, *names: str) -> dict[str, object]:
        """Returns these fields for JSON. `sample` is another name of `record`."""
        chunk = None if self.chunk is None else list(self.chunk)
        fields = self._asdict() | {"sample": self.record, "chunk": chunk}
        return {name: fields[name] for name in names}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verifying a file; a subclass for each format adds what it counts.

    notes:     what is not a problem but should be known, such as what could not be checked
    hint:      the next step
    readable:  False: the file could not be read, so nothing is known of it
    unchecked: the notes that say what could not be checked
    """

    path: str
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hint: str = ""
    readable: bool = True
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems
