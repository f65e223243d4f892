"""Copy the intact records of a corrupt file to a new one.

Reads on after every corruption: flipped bits, zeroed pages, truncation,
foreign bytes. Intact data goes to OUT in its order; nothing is invented, and
IN is never modified. OUT appears when it is complete, or not at all. A tar is
rejected: it has no checksums that would tell what is intact.

TFRecord: OUT is compressed if its name ends in .gz or .zlib. A record may
contain TFRecords as its data, so what follows a record with a corrupt length
may be that data. Such records are left out, and their count and bytes are
listed, unless what follows them settles the question. If no record of IN
contains TFRecords, --keep-doubtful keeps them too. If bytes are missing from
such a record, it can look like another file with another corruption, and is
salvaged as that.

HDF5: copies all groups, datasets, attributes and links that can be read. IN
is read as if its writer had closed it, in separate processes: an object that
crashes the HDF5 library is left out, the others are kept. Chunks are decoded
to check them and copied as they are, so no value changes with any filter. A
dataset keeps its shape; an unreadable chunk stays unwritten, and the
attribute holdfast_lost_rows lists the ranges of rows with lost values. Rows
that may have changed undetectably are kept and listed in
holdfast_doubtful_rows. References point to the objects in OUT. Objects whose
group cannot be read are searched for in the bytes of the file and go to the
group lost+found. A file that another process is writing is rejected.

Several INs (also globs and directories) go to a directory: OUT must be an
existing directory or end in /. Files of a directory keep their path below it,
those of a glob the path below its first directory without a wildcard, others
their name. A file that cannot be salvaged does not affect the others. With
--only-corrupt, only files in which verify finds a problem are salvaged.

With --in-place there is no OUT: a corrupt IN is replaced by what could be
kept, with the same mode and compression, and stays beside it as the backup
IN.corrupt (or IN.corrupt.1, …). A kill leaves the old file, or both. Intact
files are not touched. A link, a file with other hard links, one that is being
written, and a part of a dataset directory are rejected.

Examples:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord
  holdfast salvage broken.h5 rescued.h5
  holdfast salvage data/ rescued/ --only-corrupt
  holdfast salvage --in-place data/

With --json:

  {"records_kept": 4710, "records_lost_at_least": 1, "bytes_lost": 1733,
   "records_doubtful": 0,
   "problems": [{"offset": 1234, "record": 17, "reason": "bad data CRC"}]}

The number of records in a corrupt range is not always known, so the loss is a
lower bound. A record of which only the length is corrupt is kept.

For HDF5:

  {"format": "hdf5", "objects_kept": 7, "datasets": [{"dataset": "/x",
   "rows": 1000, "rows_lost": 100, "lost": [[200, 300]], "rows_doubtful": 0,
   "doubtful": []}], "problems": [{"dataset": "/x", "chunk": [200, 0],
   "offset": 71234, "reason": "…"}], "notes": []}

  lost      ranges of rows [from, to) with lost values
  doubtful  ranges of rows that are kept but may be wrong
  notes     what cannot be known: data and metadata without checksums

For a directory: {"files": [{"path": "a.h5", "out": "rescued/a.h5",
"backup": null, "problem": null, …}]}, each with the keys above unless
"problem" says why there are none; "out" is null if nothing was written, and
"backup" the name of the old file with --in-place.

Exit codes: 0 OUT is written, possibly without some data; 1 nothing could be
kept, and OUT is not written; 3 IN cannot be read, or OUT cannot be written or
exists. For several files, 1 takes precedence over 3.
"""

from __future__ import annotations

import click

from .._util.text import counted, printable
from ..data.file_tools.parallel_files import total_bytes
from ..data.file_tools.salvage import SalvagedFile
from ..data.file_tools.salvage import salvage as salvage_files
from ..data.formats.sections import SalvageReport
from ..data.inputs import expand_below
from .app import FINE, FOUND, command, describe, usage_error, usage_errors, worst_code
from .console import Screen, bar_for, show_rest, show_section
from .tables import show_problems

_SHOWN_FILES = 10


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="IN... OUT")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--keep-doubtful", is_flag=True, help="TFRecord: keep records that may be data of a corrupt one.")
@click.option("--only-corrupt", is_flag=True, help="Verify each IN first, and leave out intact files.")
@click.option("--in-place", is_flag=True, help="Replace each corrupt IN, and keep it as IN.corrupt; without OUT.")
@click.option("--live", is_flag=True, help="HDF5: accept a file that another process is writing.")
def salvage(
    screen: Screen,
    files: tuple[str, ...],
    force: bool,
    keep_doubtful: bool,
    only_corrupt: bool,
    in_place: bool,
    live: bool,
) -> int:
    if not in_place and len(files) < 2:
        raise usage_error(f"expected IN and OUT, got {files[0]!r} alone; --in-place needs no OUT")
    given = files if in_place else files[:-1]
    out = None if in_place else files[-1]
    paths = list(expand_below(given))
    with bar_for(screen, f"salvaging {counted(len(paths), 'file')}", total_bytes(paths)) as bar, usage_errors():
        done = salvage_files(
            given,
            out,
            in_place=in_place,
            only_corrupt=only_corrupt,
            keep_doubtful=keep_doubtful,
            live=live,
            overwrite=force,
            progress=bar.advance,
        )
    screen.document(done.as_dict())
    if not done.files:
        screen.print("nothing was corrupt: nothing was written")
    elif done.to_file and (found := done.files[0].found) is not None:
        _show(screen, found, files[-1], keep_doubtful)
    else:
        _show_many(screen, done.files)
    return worst_code(map(_code, done.files))


def _code(file: SalvagedFile) -> int:
    if file.error is not None:
        return describe(file.error)[1]
    return FOUND if file.found is None or file.found.is_empty else FINE


def _show(screen: Screen, found: SalvageReport, out: str, keep_doubtful: bool) -> None:
    if found.problems:
        show_problems(screen, found.problems)
    for section in found.sections():
        show_section(screen, section)
        screen.print()
    for remark in found.remarks(keep_doubtful):
        screen.print(printable(remark))
    screen.print(found.summary(printable(out)))


# ---- several files


def _show_many(screen: Screen, files: list[SalvagedFile]) -> None:
    shown = files
    if len(files) > _SHOWN_FILES:  # those without OUT first, and no intact ones
        shown = sorted((one for one in files if _code(one) or one.problems), key=lambda one: -_code(one))
    for file in shown[:_SHOWN_FILES]:
        screen.print(printable(f"{file.path}: {_outcome(file)}"))
    show_rest(screen, len(files) - len(shown[:_SHOWN_FILES]), "file")
    screen.print(_totals(len(files), [file.found for file in files if file.found is not None]))


def _outcome(file: SalvagedFile) -> str:
    if file.error is not None or file.found is None:
        return describe(file.error)[0].removeprefix(f"{file.path}: ") if file.error else ""
    return f"{file.found.summary(file.target)}{f'; the corrupt file is {file.backup}' if file.backup else ''}"


def _totals(count: int, found: list[SalvageReport]) -> str:
    written = sum(not one.is_empty for one in found)
    kinds = {type(one): one for one in found}.values()
    totals = [kind.total([one for one in found if type(one) is type(kind)]) for kind in kinds]
    return "; ".join([f"{written:,} of {counted(count, 'file')} written", *totals])
