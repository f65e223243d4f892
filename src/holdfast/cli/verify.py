"""Whether files are whole, and where they are not.

TFRecord: every CRC of every record is checked, also behind a damage, and so
is what holdfast.manifest.json beside the files says of their counts and
checksums. Plain, GZIP and ZLIB files are told apart by their content.

HDF5: every object is opened and every chunk read and decoded, in a process of
its own: where a damaged file makes the HDF5 library crash or hang, that is a
finding. Also checked: whether its writer closed it, or is still at work, or
died; whether it is cut; files it needs (virtual datasets, external links);
the checksum of each chunk, where FILE.json beside FILE.h5 has them. HDF5 has
no checksums of its own in plain and lzf data: where flips cannot be seen,
verify says so.

All files are gone through before any damage is told of; nothing is written.

FILE is a path, a glob (quote it for very many files; ** goes into folders)
or a folder, meaning all TFRecord and HDF5 files directly in it.

Examples:

  holdfast verify 'data/train-*.tfrecord' && python train.py
  holdfast verify run.h5

With --json:

  {"ok": false, "files": [{"path": "data/train-00000.tfrecord", "ok": false,
   "records": 4711, "bytes": 8123456, "problems": [{"offset": 1234,
   "record": 17, "reason": "bad data CRC"}]},
   {"path": "run.h5", "ok": false, "format": "hdf5", "datasets": 3,
   "chunks": 40, "bytes": 812345, "problems": [{"dataset": "/train/x",
   "chunk": [200, 0], "offset": 71234, "reason": "cannot be read: …"}],
   "notes": []}]}

  records   how many are intact
  offset    in bytes of the file, or of what it unpacks to
  record    its number from 0, null where the problem is the whole file's
  dataset   the path of an object in the file, null: the file as a whole
  chunk     where in the dataset the chunk begins, null: not one chunk's
  notes     what could not be checked

Exit codes: 0 all files are whole; 1 some are damaged, unfinished, not what
the manifest says, or could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from .._base.units import format_bytes
from ..formats.tfrecord.verify import FileReport, verify_file
from ..report.words import counted, printable
from .command import command
from .cores import for_each_file, jobs_option
from .exits import FINE, FOUND
from .flaws import show_flaws
from .kinds import expand_data, is_hdf5
from .screen import Screen
from .wrongs import show_problems

if TYPE_CHECKING:  # h5py takes a while to load: TFRecord files do without
    from ..formats.hdf5.verify import HDF5Report

_SHOWN_FILES = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@jobs_option
def verify(screen: Screen, files: tuple[str, ...], jobs: int) -> int:
    paths = expand_data(files)
    doing = f"verifying {counted(len(paths), 'file')}"
    reports = for_each_file(_verify, paths, jobs, screen, doing)
    screen.document({"ok": all(report.ok for report in reports), "files": [report.as_dict() for report in reports]})
    bad = [report for report in reports if not report.ok]
    for report in bad[:_SHOWN_FILES]:
        _show(screen, report)
    if len(bad) > _SHOWN_FILES:
        screen.print(f"… and {counted(len(bad) - _SHOWN_FILES, 'more file')} (--json lists all)\n")
    for hint in dict.fromkeys(report.hint.replace(report.path, "FILE") for report in bad if report.hint):
        screen.print(f"{hint}.")
    for note in dict.fromkeys(note for report in reports for note in _notes(report)):
        screen.print(f"{printable(note)}.")
    screen.print(_summary(reports, bad))
    return FOUND if bad else FINE


def _verify(file: str, /, *, progress: Callable[[int], None] | None) -> FileReport | HDF5Report:
    if not is_hdf5(file):
        return verify_file(file, progress)
    from ..formats.hdf5.verify import verify_hdf5

    return verify_hdf5(file, progress)


def _show(screen: Screen, report: FileReport | HDF5Report) -> None:
    screen.print(screen.styled(report.path, "bold red"))
    if isinstance(report, FileReport):
        show_problems(screen, report.problems)
    else:
        show_flaws(screen, report.problems)


def _notes(report: FileReport | HDF5Report) -> list[str]:
    return [] if isinstance(report, FileReport) else report.notes


def _summary(reports: list[FileReport | HDF5Report], bad: list[FileReport | HDF5Report]) -> str:
    plain = [report for report in reports if isinstance(report, FileReport)]
    records = counted(sum(report.records for report in plain), "record")
    if not bad:
        size = format_bytes(sum(report.bytes for report in reports))
        datasets = sum(report.datasets for report in reports if not isinstance(report, FileReport))
        held = ([records] if plain else []) + ([counted(datasets, "dataset")] if len(plain) < len(reports) else [])
        return f"{counted(len(reports), 'file')}, {', '.join(held)}, {size}: all whole"
    unread = sum(not report.readable for report in bad)
    parts = [f"{len(bad) - unread:,} of {counted(len(reports), 'file')} damaged"] if len(bad) > unread else []
    parts += [f"{unread:,} of {counted(len(reports), 'file')} could not be read"] if unread else []
    return ", ".join(parts) + (f"; {records} intact" if plain and len(bad) > unread else "")
