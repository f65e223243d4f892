"""The child's work: from a job to a file that only wants its name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ...._native import codec
from ...._util.failpoints import failpoint
from ..filters import has_checksum, is_packed
from ..object_walk import reason_of
from .api import being_alive
from .chunk_filters import OpenInputs, Rows
from .compatibility import agree, check_kept
from .copy_chunks import ChunkCopy, States
from .copy_plan import (
    BUILT,
    CRC,
    FILE,
    SIZE,
    CopyPlan,
    give_runs,
    make_plan,
    settle_filters,
    with_lossless_filters,
    with_packed,
)
from .inputs import survey
from .metadata_file import make_skeleton
from .model import NO_CRC, Ints, MergeError, MergeInput, RowRange
from .rechunk import Builder, Ends, Spool, pack_all
from .verify_result import file_crc, find_places, of_unknown_sum, prove

if TYPE_CHECKING:
    from ..sandbox_main import Reporter

DATA, SPOOL_DATA, SPOOL_INDEX, STATES, MADE = "data.h5", "spool", "spool.index", "states", "made"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_THREADS = 4


def merge(job: dict[str, Any], voice: Reporter) -> None:
    """Says how it ended: `result`, `refused` or `failed`."""
    try:
        work = _Merge(job, voice)
        try:
            work.prepare()
            try:
                result = work.run()
            except MergeError as refusal:
                if refusal.kind != "again":
                    raise
                work.begin_anew()
                result = work.run()
        finally:
            work.close()
        voice.say({"result": result})
    except MergeError as refusal:
        kind = "write" if refusal.kind == "again" else refusal.kind
        voice.say({"refused": [kind, refusal.path, refusal.reason, refusal.offset]})
    except OSError as error:
        if error.errno is None:
            raise
        voice.say({"failed": os.strerror(error.errno), "full": error.errno in _NO_ROOM})


class _Merge:
    def __init__(self, job: dict[str, Any], voice: Reporter) -> None:
        self._job, self._voice = job, voice
        self._folder = Path(job["folder"] or ".")
        self._turn = threading.Lock()
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._threads = threads if codec.NATIVE else 1
        self._states: States | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast") if threads > 1 else None
        self._sources: list[MergeInput] = []
        self._files = OpenInputs(self._sources, job["view_from"])
        self._rows = Rows(self._files, self._pool)
        self._ends = Ends(Rows(self._files))

    def prepare(self) -> None:
        """What there is, and what is to be done with it."""
        job = self._job
        self._sources += [survey(number, path, self._voice) for number, path in enumerate(job["files"])]
        self._made = agree(self._sources, job["attributes"])
        if not job["virtual"]:
            for target in self._made.targets.values():
                settle_filters(target, job["codec"], self._made.notes)
        check_kept(self._made, self._rows)
        wanted = None if job["runs"] is None else [RowRange(*run) for run in job["runs"]]
        give_runs(self._made, job["order"], wanted, self._ends.at)
        plans = [make_plan(target) for target in self._made.targets.values()]
        if job["virtual"]:
            self._plans = [_shown(plan) for plan in plans]
        else:
            self._plans = [with_lossless_filters(plan, self._made.notes) for plan in plans]
        failpoint("merge-surveyed", kill_parent=True)

    def _told(self, n: int) -> None:
        with self._turn:
            self._voice.done_piece(n)
        failpoint("merge-filling", kill_parent=True)

    def _alive(self) -> None:
        self._voice.done_piece(0)

    def _told_packed(self, n: int) -> None:
        self._voice.done_piece(n)
        failpoint("merge-packing", kill_parent=True)

    def _builder(self, plan: CopyPlan) -> Builder:
        return Builder(plan.target, self._sources, self._rows, self._ends)

    def run(self) -> dict[str, Any]:
        if self._job["plan"]:
            return self._facts(self._plans, [plan.jobs for plan in self._plans])
        with being_alive(self._folder):
            return self._run()

    def _run(self) -> dict[str, Any]:
        jobs = self._pack()
        failpoint("merge-packed", kill_parent=True)
        with _opened(self._folder / DATA) as fd, _spooled(self._folder / SPOOL_DATA) as spool_fd:
            places = self._make(fd, jobs)
            failpoint("merge-made", kill_parent=True)
            fill = self._fill(fd, spool_fd, jobs, places)
            failpoint("merge-filled", kill_parent=True)
            os.fsync(fd)
            with self._in_place() as path:
                prove(
                    str(path),
                    self._made,
                    self._plans,
                    jobs,
                    places,
                    self._files,
                    self._builder,
                    self._pool,
                    self._alive,
                )
            all_places, all_jobs = np.concatenate([np.zeros(0, np.int64), *places]), fill.jobs
            crc = file_crc(fd, all_places, all_jobs[:, SIZE], fill.crcs)
            failpoint("merge-proven", kill_parent=True)
            return self._facts(self._plans, jobs) | {
                "bytes": os.fstat(fd).st_size,
                "crc32c": crc,
                "chunks": len(all_jobs),
                "checked": int((all_jobs[all_jobs[:, FILE] >= 0, CRC] != NO_CRC).sum()),
                "kept": fill.kept,
                "unrecorded": sum(not source.recorded for source in self._sources),
                **self._proofs(jobs),
            }

    def _proofs(self, jobs: list[Ints]) -> dict[str, Any]:
        """How the chunks were compared with their sources (prove.py), and what nothing has a checksum of."""
        compared = unpacked = 0
        unchecked: list[str] = []
        for plan, listed in zip(self._plans, jobs, strict=True):
            compared += int((listed[:, FILE] < 0).sum())
            unknown = int(of_unknown_sum(listed).sum())
            filters = plan.target.like.filters
            unpacked += unknown if is_packed(filters) else 0
            if unknown and not has_checksum(filters):
                unchecked.append(plan.target.path)
        return {"compared": compared, "unpacked": unpacked, "unchecked": unchecked}

    def _pack(self) -> list[Ints]:
        if not any(plan.packs for plan in self._plans):
            return [plan.jobs for plan in self._plans]
        spool = Spool(self._folder / SPOOL_DATA, self._folder / SPOOL_INDEX)
        try:
            pack_all(self._plans, spool, self._builder, self._pool, self._told_packed)
            return [with_packed(plan, spool.jobs_of(number)) for number, plan in enumerate(self._plans)]
        finally:
            spool.close()

    def _make(self, fd: int, jobs: list[Ints]) -> list[Ints]:
        """The file with room for all chunks; made before, if this merge was killed since."""
        done = self._folder / MADE
        if not done.exists():
            if os.fstat(fd).st_size:  # half made: but room that was taken ahead is kept
                os.ftruncate(fd, 0)
            (self._folder / STATES).unlink(missing_ok=True)
            make_skeleton(fd, self._made, self._plans, jobs, self._files, self._job["virtual"], self._alive)
            os.fsync(fd)
            done.touch(exist_ok=False)
        try:
            with h5py.File(self._folder / DATA, "r") as file:
                return [find_places(file, plan, listed) for plan, listed in zip(self._plans, jobs, strict=True)]
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise MergeError(
                "again", str(self._folder), f"what was begun cannot be opened: {reason_of(error)}"
            ) from error

    def _fill(self, fd: int, spool_fd: int, jobs: list[Ints], places: list[Ints]) -> ChunkCopy:
        all_jobs = np.concatenate([np.zeros((0, 6), np.int64), *jobs])
        all_places = np.concatenate([np.zeros(0, np.int64), *places])
        firsts = np.cumsum([0, *(len(listed) for listed in jobs)]).tolist()
        datasets = [(first, plan.target.path) for first, plan in zip(firsts, self._plans, strict=False)]
        states = States(self._folder / STATES, len(all_jobs))
        self._states = states
        fill = ChunkCopy(fd, self._job["target"], all_jobs, all_places, datasets, states, self._sources)
        fill.copy(spool_fd, self._threads, self._told)
        for plan, first, last in zip(self._plans, firsts, firsts[1:], strict=False):
            if (all_jobs[first:last, FILE] == BUILT).any():
                fill.build(plan, first, last, self._builder(plan), self._told)
        if not fill.complete:
            raise MergeError("write", self._job["target"], "not every chunk was written")
        return fill

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[Path]:
        """A view finds its sources from where it will be, and from nowhere else."""
        data, target = self._folder / DATA, Path(self._job["target"])
        if not self._job["virtual"]:
            yield data
            return
        beside = target.with_name(f".{target.name}.proving")
        beside.unlink(missing_ok=True)
        shutil.copyfile(data, beside)
        try:
            yield beside
        finally:
            beside.unlink()

    def _facts(self, plans: list[CopyPlan], jobs: list[Ints]) -> dict[str, Any]:
        lengths = {sum(column.rows) for column in self._made.columns}
        return {
            "rows": lengths.pop() if len(lengths) == 1 else None,
            "datasets": [_dataset_facts(plan, listed) for plan, listed in zip(plans, jobs, strict=True)],
            "notes": self._made.notes,
            "attributes": self._made.differing,
        }

    def begin_anew(self) -> None:
        for name in (DATA, SPOOL_DATA, SPOOL_INDEX, STATES, MADE):
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._states is not None:
            self._states.close()
        self._files.close()


def _shown(plan: CopyPlan) -> CopyPlan:
    """In a view only ends are made; what is kept from the first source is, too."""
    return plan if plan.target.ends or plan.target.kept else CopyPlan(plan.target, "view")


def _dataset_facts(plan: CopyPlan, jobs: Ints) -> dict[str, Any]:
    copied = jobs[jobs[:, FILE] >= 0, SIZE].sum()
    like, target = plan.target.like, plan.target
    packed = sum(high - low for low, high in plan.packs) * like.across * like.chunk_bytes if plan.packs else 0
    built = jobs[(jobs[:, FILE] == BUILT), SIZE].sum() + packed
    return {
        "dataset": target.path,
        "rows": target.rows - target.ends,
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
def _spooled(path: Path) -> Iterator[int]:
    if not path.exists():
        yield -1
        return
    with _opened(path) as fd:
        yield fd
