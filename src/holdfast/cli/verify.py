"""Whether files are whole, and where they are not.

Every CRC of every record is checked, also behind a damage, and so is what
holdfast.manifest.json beside the files says of their counts and checksums.
Plain, GZIP and ZLIB files are told apart by their content. All files are
gone through before any damage is told of; nothing is written.

FILE is a path, a glob (quote it for very many files; ** goes into folders)
or a folder, meaning all TFRecord files directly in it.

Example:

  holdfast verify 'data/train-*.tfrecord' && python train.py

With --json:

  {"ok": false, "files": [{"path": "data/train-00000.tfrecord", "ok": false,
   "records": 4711, "bytes": 8123456, "problems": [{"offset": 1234,
   "record": 17, "reason": "bad data CRC"}]}]}

  records   how many are intact
  offset    in bytes of the file, or of what it unpacks to
  record    its number from 0, null where the problem is the whole file's

Exit codes: 0 all files are whole; 1 some are damaged, unfinished, not what
the manifest says, or could not be read.
"""

from __future__ import annotations

import click

from .._base.units import format_bytes
from ..formats.tfrecord.verify import FileReport, verify_file
from ..report.words import counted
from .command import command
from .cores import for_each_file, jobs_option
from .exits import FINE, FOUND
from .inputs import expand_once
from .screen import Screen
from .wrongs import show_problems

_SHOWN_FILES = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@jobs_option
def verify(screen: Screen, files: tuple[str, ...], jobs: int) -> int:
    paths = expand_once(files)
    doing = f"verifying {counted(len(paths), 'file')}"
    reports = for_each_file(verify_file, paths, jobs, screen, doing)
    screen.document({"ok": all(report.ok for report in reports), "files": [report.as_dict() for report in reports]})
    bad = [report for report in reports if not report.ok]
    for report in bad[:_SHOWN_FILES]:
        _show(screen, report)
    if len(bad) > _SHOWN_FILES:
        screen.print(f"… and {counted(len(bad) - _SHOWN_FILES, 'more file')} (--json lists all)\n")
    for hint in dict.fromkeys(report.hint.replace(report.path, "FILE") for report in bad if report.hint):
        screen.print(f"{hint}.")
    screen.print(_summary(reports, bad))
    return FOUND if bad else FINE


def _show(screen: Screen, report: FileReport) -> None:
    screen.print(screen.styled(report.path, "bold red"))
    show_problems(screen, report.problems)


def _summary(reports: list[FileReport], bad: list[FileReport]) -> str:
    records = counted(sum(report.records for report in reports), "record")
    if not bad:
        size = format_bytes(sum(report.bytes for report in reports))
        return f"{counted(len(reports), 'file')}, {records}, {size}: all whole"
    unread = sum(not report.readable for report in bad)
    parts = [f"{len(bad) - unread:,} of {counted(len(reports), 'file')} damaged"] if len(bad) > unread else []
    parts += [f"{unread:,} of {counted(len(reports), 'file')} could not be read"] if unread else []
    return ", ".join(parts) + (f"; {records} intact" if len(bad) > unread else "")
