"""Runs in the sandbox: does the steps of a merge, up to a file that only needs its name."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ....._native import codec
from ....._util.failpoints import failpoint
from ....._util.text import format_bytes
from ..filters import has_checksum, is_compressed
from ..object_walk import reason_of
from .compatibility import check_compatibility, check_shared_datasets
from .copy_chunks import ChunkCopy, States
from .copy_plan import (
    BUILT,
    CRC,
    FILE,
    SIZE,
    CopyPlan,
    assign_rows,
    choose_filters,
    make_plan,
    with_lossless_filters,
    with_packed,
)
from .input_rows import OpenInputs, Rows
from .inputs import read_input
from .merge_files import DATA, exclusive
from .merge_model import NO_CRC, Ints, MergeError, MergeInput, RowRange
from .metadata_file import write_metadata
from .rechunk import Builder, SplitReader, Spool, pack_all
from .verify_result import file_crc, find_places, verify_result, without_crc

if TYPE_CHECKING:
    from ..sandbox_main import Reporter

SPOOL_DATA, SPOOL_INDEX, STATES, MADE = "spool", "spool.index", "states", "made"
_MAX_THREADS = 4


def merge(job: dict[str, Any], reporter: Reporter) -> None:
    """Reports how it ended: `result`, `refused` or `failed`."""
    work = _Merge(job, reporter)
    try:
        try:
            work.prepare()
            try:
                result = work.run()
            except MergeError as error:
                if error.kind != "again":
                    raise
                work.start_over()
                result = work.run()
        finally:
            work.close()
        reporter.send({"result": result})
    except MergeError as error:
        kind = "write" if error.kind == "again" else error.kind
        reporter.send({"refused": [kind, error.path, error.reason, error.offset]})
    except MemoryError as error:
        reporter.send({"refused": ["input", job["files"][0], work.widest_rows() or str(error), None]})
    except OSError as error:
        if error.errno is None:
            raise
        reporter.send({"failed": os.strerror(error.errno)})


class _Merge:
    def __init__(self, job: dict[str, Any], reporter: Reporter) -> None:
        self._job, self._reporter = job, reporter
        self._folder = Path(job["folder"] or ".")
        self._lock = threading.Lock()
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._threads = threads if codec.NATIVE else 1
        self._states: States | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast") if threads > 1 else None
        self._sources: list[MergeInput] = []
        self._plans: list[CopyPlan] = []
        self._files = OpenInputs(self._sources, job["view_from"])
        self._rows = Rows(self._files, self._pool)
        self._splits = SplitReader(Rows(self._files))

    def prepare(self) -> None:
        """Reads the sources and plans the merge."""
        job = self._job
        self._sources += [read_input(number, path, self._reporter) for number, path in enumerate(job["files"])]
        self._schema = check_compatibility(self._sources, job["attributes"])
        if not job["virtual"]:
            for target in self._schema.targets.values():
                choose_filters(target, job["codec"], self._schema.notes)
        check_shared_datasets(self._schema, self._rows)
        wanted = None if job["runs"] is None else [RowRange(*run) for run in job["runs"]]
        assign_rows(self._schema, job["order"], wanted, self._splits.at)
        plans = [make_plan(target) for target in self._schema.targets.values()]
        if job["virtual"]:
            self._plans = [_view_plan(plan) for plan in plans]
        else:
            self._plans = [with_lossless_filters(plan, self._schema.notes) for plan in plans]
        failpoint("merge-surveyed", kill_parent=True)

    def widest_rows(self) -> str:
        """Says which dataset needs the most memory for a row; rows are read to check the result."""
        if not self._plans:
            return ""
        widest = max((plan.target for plan in self._plans), key=lambda target: target.like.row_bytes)
        return (
            f"dataset {widest.path!r} has rows of {format_bytes(widest.like.row_bytes)}, and a row must fit into memory"
            " to be checked: store it with more and smaller rows"
        )

    def _progress(self, n: int) -> None:
        with self._lock:
            self._reporter.done_piece(n)
        failpoint("merge-filling", kill_parent=True)

    def _heartbeat(self) -> None:
        self._reporter.done_piece(0)

    def _progress_packed(self, n: int) -> None:
        self._reporter.done_piece(n)
        failpoint("merge-packing", kill_parent=True)

    def _builder(self, plan: CopyPlan) -> Builder:
        return Builder(plan.target, self._sources, self._rows, self._splits)

    def run(self) -> dict[str, Any]:
        if self._job["plan"]:
            return self._facts([plan.jobs for plan in self._plans])
        with exclusive(self._folder):
            return self._run()

    def _run(self) -> dict[str, Any]:
        jobs = self._pack()
        failpoint("merge-packed", kill_parent=True)
        with _opened(self._folder / DATA) as fd, _opened_spool(self._folder / SPOOL_DATA) as spool_fd:
            places = self._make(fd, jobs)
            failpoint("merge-made", kill_parent=True)
            fill = self._fill(fd, spool_fd, jobs, places)
            failpoint("merge-filled", kill_parent=True)
            os.fsync(fd)
            with self._readable_path() as path:
                verify_result(
                    str(path),
                    self._schema,
                    self._plans,
                    jobs,
                    places,
                    self._files,
                    self._builder,
                    self._pool,
                    self._heartbeat,
                )
            all_places, all_jobs = np.concatenate([np.zeros(0, np.int64), *places]), fill.jobs
            crc = file_crc(fd, all_places, all_jobs[:, SIZE], fill.crcs)
            failpoint("merge-proven", kill_parent=True)
            return self._facts(jobs) | {
                "bytes": os.fstat(fd).st_size,
                "crc32c": crc,
                "chunks": len(all_jobs),
                "checked": int((all_jobs[all_jobs[:, FILE] >= 0, CRC] != NO_CRC).sum()),
                "kept": fill.kept,
                "unrecorded": sum(not source.recorded for source in self._sources),
                **self._check_counts(jobs),
            }

    def _check_counts(self, jobs: list[Ints]) -> dict[str, Any]:
        """Counts how chunks were compared with their sources (verify_result.py), and lists datasets without any
        checksum."""
        compared = unpacked = 0
        unchecked: list[str] = []
        for plan, listed in zip(self._plans, jobs, strict=True):
            compared += int((listed[:, FILE] < 0).sum())
            unknown = int(without_crc(listed).sum())
            filters = plan.target.like.filters
            unpacked += unknown if is_compressed(filters) else 0
            if unknown and not has_checksum(filters):
                unchecked.append(plan.target.path)
        return {"compared": compared, "unpacked": unpacked, "unchecked": unchecked}

    def _pack(self) -> list[Ints]:
        if not any(plan.packs for plan in self._plans):
            return [plan.jobs for plan in self._plans]
        spool = Spool(self._folder / SPOOL_DATA, self._folder / SPOOL_INDEX)
        try:
            pack_all(self._plans, spool, self._builder, self._pool, self._progress_packed)
            return [with_packed(plan, spool.jobs_of(number)) for number, plan in enumerate(self._plans)]
        finally:
            spool.close()

    def _make(self, fd: int, jobs: list[Ints]) -> list[Ints]:
        """Creates the file with all chunks allocated, unless a killed merge did so."""
        done = self._folder / MADE
        if not done.exists():
            if os.fstat(fd).st_size:  # unfinished; preallocated blocks stay
                os.ftruncate(fd, 0)
            (self._folder / STATES).unlink(missing_ok=True)
            write_metadata(fd, self._schema, self._plans, jobs, self._files, self._heartbeat)
            os.fsync(fd)
            done.touch(exist_ok=False)
        try:
            with h5py.File(self._folder / DATA, "r") as file:
                return [find_places(file, plan, listed) for plan, listed in zip(self._plans, jobs, strict=True)]
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise MergeError(
                "again", str(self._folder), f"the unfinished file cannot be opened: {reason_of(error)}"
            ) from error

    def _fill(self, fd: int, spool_fd: int, jobs: list[Ints], places: list[Ints]) -> ChunkCopy:
        all_jobs = np.concatenate([np.zeros((0, 6), np.int64), *jobs])
        all_places = np.concatenate([np.zeros(0, np.int64), *places])
        firsts = np.cumsum([0, *(len(listed) for listed in jobs)]).tolist()
        datasets = [(first, plan.target.path) for first, plan in zip(firsts, self._plans, strict=False)]
        states = States(self._folder / STATES, len(all_jobs))
        self._states = states
        fill = ChunkCopy(fd, self._job["target"], all_jobs, all_places, datasets, states, self._sources)
        fill.copy(spool_fd, self._threads, self._progress)
        for plan, first, last in zip(self._plans, firsts, firsts[1:], strict=False):
            if (all_jobs[first:last, FILE] == BUILT).any():
                fill.build(plan, first, last, self._builder(plan), self._progress)
        if not fill.complete:
            raise MergeError("write", self._job["target"], "not every chunk was written")
        return fill

    @contextlib.contextmanager
    def _readable_path(self) -> Iterator[Path]:
        """A view finds its sources only from the directory it will be in."""
        data, target = self._folder / DATA, Path(self._job["target"])
        if not self._job["virtual"]:
            yield data
            return
        copy = target.with_name(f".{target.name}.proving")
        copy.unlink(missing_ok=True)
        shutil.copyfile(data, copy)
        try:
            yield copy
        finally:
            copy.unlink()

    def _facts(self, jobs: list[Ints]) -> dict[str, Any]:
        lengths = {sum(column.rows) for column in self._schema.columns}
        return {
            "rows": lengths.pop() if len(lengths) == 1 else None,
            "datasets": [_dataset_facts(plan, listed) for plan, listed in zip(self._plans, jobs, strict=True)],
            "notes": self._schema.notes,
            "attributes": self._schema.differing,
        }

    def start_over(self) -> None:
        for name in (DATA, SPOOL_DATA, SPOOL_INDEX, STATES, MADE):
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._states is not None:
            self._states.close()
        self._files.close()


def _view_plan(plan: CopyPlan) -> CopyPlan:
    """In a view only offsets and shared datasets are stored."""
    return plan if plan.target.splits or plan.target.shared else CopyPlan(plan.target, "view")


def _dataset_facts(plan: CopyPlan, jobs: Ints) -> dict[str, Any]:
    copied = jobs[jobs[:, FILE] >= 0, SIZE].sum()
    like, target = plan.target.like, plan.target
    packed = sum(high - low for low, high in plan.packs) * like.across * like.chunk_bytes if plan.packs else 0
    built = jobs[(jobs[:, FILE] == BUILT), SIZE].sum() + packed
    return {
        "dataset": target.path,
        "rows": target.rows - target.splits,
        "method": plan.method,
        "copied_bytes": int(copied),
        "built_bytes": int(built),
    }


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened_spool(path: Path) -> Iterator[int]:
    if not path.exists():
        yield -1
        return
    with _opened(path) as fd:
        yield fd
