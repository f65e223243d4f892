"""Runs in the sandbox: does the steps of a merge, up to a file that only needs its name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ....._util.failpoints import failpoint
from ....._util.text import format_bytes
from ..filters import has_checksum, is_compressed
from .compatibility import MergeSchema, check_compatibility
from .copy_chunks import copy_chunks
from .copy_plan import CRC, SIZE, CopyPlan, assign_rows, choose_filters, make_plan
from .inputs import plain, read_input
from .merge_model import NO_CRC, Ints, MergeError, RowRange
from .source_rows import OpenInputs, pieces
from .verify_result import file_crc, verify_result
from .write_result import write_result

if TYPE_CHECKING:
    from ..sandbox_main import Reporter


def merge(job: dict[str, Any], reporter: Reporter) -> None:
    """Reports how it ended: `result`, `refused` or `failed`."""
    files, plans = OpenInputs([]), list[CopyPlan]()
    try:
        reporter.send({"result": _merge(job, reporter, files, plans)})
    except MemoryError as error:
        reporter.send({"refused": ["input", job["files"][0], _widest_rows(plans) or str(error), None]})
    except MergeError as error:
        reporter.send({"refused": [error.kind, error.path, error.reason, error.offset]})
    except OSError as error:
        if error.errno is None:
            raise
        reporter.send({"failed": os.strerror(error.errno)})
    finally:
        files.close()


def _widest_rows(plans: list[CopyPlan]) -> str:
    """Says which dataset needs the most memory for a row; rows are read to check the result."""
    if not plans:
        return ""
    widest = max((plan.target for plan in plans), key=lambda target: target.like.row_bytes)
    return (
        f"dataset {widest.path!r} has rows of {format_bytes(widest.like.row_bytes)}, and a row must fit into memory"
        " to be checked: store it with more and smaller rows"
    )


def _merge(job: dict[str, Any], reporter: Reporter, files: OpenInputs, plans: list[CopyPlan]) -> dict[str, Any]:
    files.sources += [read_input(number, path, reporter) for number, path in enumerate(job["files"])]
    schema = check_compatibility(files.sources, job["attributes"])
    for target in schema.targets.values():
        if not job["virtual"]:
            choose_filters(target, job["codec"], schema.notes)
    _check_shared(schema, files)
    given = None if job["runs"] is None else [RowRange(*run) for run in job["runs"]]
    assign_rows(schema, job["order"], given, files.split_at)
    plans += [make_plan(target, schema.notes, view=job["virtual"]) for target in schema.targets.values()]
    failpoint("merge-surveyed", kill_parent=True)
    facts = _facts(schema, plans)
    if job["fd"] is None:
        return facts
    fd, progress = job["fd"], reporter.done_piece
    placed = write_result(fd, schema, plans, files, job["view_from"], progress)
    failpoint("merge-made", kill_parent=True)
    copies, places = _joined([plan.copies for plan in plans], (0, 6)), _joined(placed, (0,))
    datasets = [plan.target.path for plan in plans for _ in plan.copies]
    inflated = _joined([plan.inflated(decode=job["verify_sources"]) for plan in plans], (0,))
    crcs, is_decoded = copy_chunks(fd, copies, places, datasets, inflated, files.sources, progress)
    failpoint("merge-filled", kill_parent=True)
    ends = np.cumsum([len(plan.copies) for plan in plans])[:-1]
    verify_result(job["data"], plans, placed, files, progress, job["verify_sources"], np.split(is_decoded, ends))
    crc = file_crc(fd, places, copies[:, SIZE], crcs.astype(np.int64))
    failpoint("merge-proven", kill_parent=True)
    return facts | {
        "bytes": os.fstat(fd).st_size,
        "crc32c": crc,
        "chunks": len(copies) + facts["compared"],
        "checked": int((copies[:, CRC] != NO_CRC).sum()),
        "unrecorded": sum(not source.recorded for source in files.sources),
        **_source_checks(plans, job["verify_sources"]),
    }


def _joined(parts: list[Ints], empty: tuple[int, ...]) -> Ints:
    return np.concatenate([np.zeros(empty, np.int64), *parts])


def _check_shared(schema: MergeSchema, files: OpenInputs) -> None:
    """Raises if a dimension scale of another axis than the rows differs between sources."""
    for target in schema.targets.values():
        first = target.sources[0]
        for other in target.sources[1:] if target.shared else []:
            if other.shape != first.shape or any(
                plain(files.read(target, 0, low, high)) != plain(files.read(target, other.file, low, high))
                for low, high in pieces(target, 0, first.rows)
            ):
                text = f"dataset {target.path!r}, a dimension scale, differs from that in {files.path(0)}"
                raise MergeError("schema", files.path(other.file), text)


def _facts(schema: MergeSchema, plans: list[CopyPlan]) -> dict[str, Any]:
    lengths = {sum(column.rows) for column in schema.columns}
    return {
        "rows": lengths.pop() if len(lengths) == 1 else None,
        "datasets": [
            {
                "dataset": plan.target.path,
                "rows": plan.target.rows - plan.target.splits,
                "method": plan.method,
                "copied_bytes": int(plan.copies[:, SIZE].sum()),
                "built_bytes": 0 if plan.method == "objects" else plan.built_rows * plan.target.like.row_bytes,
            }
            for plan in plans
        ],
        "notes": schema.notes,
        "attributes": schema.differing,
        "compared": sum(plan.built_chunks for plan in plans),
    }


def _source_checks(plans: list[CopyPlan], decoded: bool) -> dict[str, Any]:
    """Counts the chunks that were decoded, and lists datasets with chunks in which a flipped bit may go unnoticed."""
    unpacked, unchecked = 0, []
    for plan in plans:
        unknown, filters = int((plan.copies[:, CRC] == NO_CRC).sum()), plan.target.like.filters
        is_decoded = decoded and is_compressed(filters)
        unpacked += unknown if is_decoded else 0
        if unknown and not (is_decoded and has_checksum(filters)):
            unchecked.append(plan.target.path)
    return {"unpacked": unpacked, "unchecked": unchecked}
