"""Show records, sizes, the schema and the first values of files.

TFRecord: the schema is inferred from the first records and printed as code.
A feature with a varying number of values is Ragged, and one that some records
lack has a default. With an up-to-date index (see `holdfast index`) only those
records are read; otherwise the whole file is read and its CRCs are checked.

HDF5: shows the tree of groups and datasets with shape (+ means resizable),
type, chunks, filters, size in the file and compression ratio; the attributes;
and the schema that holdfast reads the file with. No values are read.

Tar: shows samples, the first and the last keys, and for each suffix how many
members there are and their sizes. The headers and .npy members' types are
read.

Dataset directory, as hold.write creates it: shows its schema and how many
parts and rows are committed.

FILE is a path, a glob, a dataset directory, or a directory whose data files
and dataset directories are inspected, at any depth. More than 20 are shown
together: files with one schema as one, and those with a problem one by one.

Examples:

  holdfast inspect train-00000.tfrecord
  holdfast inspect --schema train-00000.tfrecord > schema.py

With --json:

  {"files": [{"path": "train-00000.tfrecord", "format": "tfrecord",
   "compression": "none", "bytes": 8123456, "records": 4711,
   "record_bytes": {"min": 310, "median": 1702, "max": 9981},
   "schema": {"image": "Bytes()", "emb": "Float32(128)"}, "sequence": false,
   "notes": {}, "first": {"image": {"length": 1650, "hex": "89504e47"},
   "emb": {"length": 128, "values": [0.5, 1.25]}}, "problem": null}]}

  format     null if it is not of this format or cannot be read
  records    the number of intact records
  schema     null if there are no records or no tf.train.Example messages
  sequence   whether they are tf.train.SequenceExample messages
  notes      what the records leave open, by feature
  first      the first record: one value as it is, up to 16 as a list, more as
             their length and the first 16; bytes as their length and the
             first 64, in text or hex. If it is not an Example: the length of
             the record and its first bytes in hex
  problem    what is wrong with the file, or null

For HDF5:

  {"path": "run.h5", "format": "hdf5", "bytes": 81234, "superblock": 3,
   "open_for_write": false, "objects": [{"path": "/x", "kind": "dataset",
   "shape": [1000, 16], "maxshape": [null, 16], "type": "float32",
   "bytes": 64000, "stored_bytes": 9000, "chunks": [100, 16],
   "filters": ["gzip 4"], "sources": null, "attributes": {"unit": "m"}}],
   "rows": 1000, "schema": {"x": "Float32(16)"}, "no_schema": null,
   "problems": []}

  kind       group, dataset, datatype, or a link: soft, external, again
  sources    the number of sources of a virtual dataset
  external   the other files that hold a dataset's values
  no_schema  why the file cannot be read as columns without --schema

For a tar:

  {"path": "a.tar", "format": "tar", "compression": "none", "bytes": 81920,
   "samples": 20, "members": 40, "keys": ["000", "001", "002", "019"],
   "suffixes": [{"suffix": "jpg", "members": 20, "bytes": 34040, "min": 310,
   "median": 1702, "max": 9981}], "schema": {"__key__": "Bytes()",
   "jpg": "Bytes()"}, "notes": [], "problem": null}

  keys       of the first three samples and of the last
  notes      samples that lack a suffix, and members of no sample

For a dataset directory:

  {"path": "run.hold", "format": "run", "bytes": 81234, "parts": 4,
   "formats": {"hdf5": 4}, "rows": 4711, "schema": {"label": "Int64()"},
   "at_work": 1, "problem": null}

Exit codes: 0 success; 1 a file is corrupt or of another format; 3 a file
cannot be read (and none is corrupt).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from .._util.text import counted, format_bytes, printable
from ..data.file_tools.inspect import InspectedFile
from ..data.file_tools.inspect import inspect as inspect_files
from ..data.file_tools.parallel_files import total_bytes
from ..data.formats.registry import FORMATS
from ..data.formats.sections import Section
from ..data.inputs import expand_once
from .app import FOUND, NO_ACCESS, command, jobs_option, worst_code
from .console import Screen, bar_for, show_repeated, show_rest, show_section

_MAX_SHOWN = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--schema", "only_schema", is_flag=True, help="Print only the schema, as Python code.")
@click.option(
    "--records",
    "sample",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="Infer the schema from N records.  [default: 100]",
)
@click.option("--all", "show_all", is_flag=True, help="Show each file, also of more than 20.")
@jobs_option
def inspect(screen: Screen, files: tuple[str, ...], only_schema: bool, sample: int, show_all: bool, jobs: int) -> int:
    paths = expand_once(files)
    with bar_for(screen, f"inspecting {counted(len(paths.files), 'file')}", total_bytes(paths.files)) as bar:
        found = inspect_files(paths, records=sample, jobs=jobs, progress=bar.advance)
    screen.document(found.as_dict())
    if only_schema:
        _show_schemas(screen, found.files)
    else:
        if screen.talks and len(found.files) > _MAX_SHOWN and not show_all:
            _show_together(screen, found.files)
        else:
            _show_each(screen, found.files)
        show_repeated(screen, found.repeated, "shown")
    return worst_code(FOUND if one.readable else NO_ACCESS for one in found.files if one.problem is not None)


def _show_each(screen: Screen, files: Sequence[InspectedFile]) -> None:
    for i, file in enumerate(files):
        screen.print(*["\n"] if i else [], screen.styled(file.path, "bold"))
        _show_sections(screen, _sections(file) if screen.talks else ())


def _show_together(screen: Screen, files: Sequence[InspectedFile]) -> None:
    """Shows what files of one format and schema have together, and each of those that have a problem."""
    groups: dict[tuple[str | None, str], list[InspectedFile]] = {}
    for file in files:
        if file.problem is None:
            groups.setdefault((file.format, file.code), []).append(file)
    for (kind, code), alike in list(groups.items())[:_MAX_SHOWN]:
        first, last = alike[0].path, alike[-1].path
        screen.print(screen.styled(f"{first} … {last}" if len(alike) > 1 else first, "bold"))
        facts = [
            ("files", f"{len(alike):,}"),
            ("format", FORMATS[kind].title if kind in FORMATS else "dataset directory of hold.write"),
            ("size", format_bytes(sum(file.bytes for file in alike))),
            ("rows", f"{sum(file.rows for file in alike):,}"),
        ]
        _show_sections(screen, [Section(facts=facts), *([Section(code=code)] if code else [])])
        screen.print()
    show_rest(screen, len(groups) - _MAX_SHOWN, "schemas")
    bad = [file for file in files if file.problem is not None]
    _show_each(screen, bad[:_MAX_SHOWN])
    if bad:
        show_rest(screen, len(bad) - _MAX_SHOWN)
        screen.print()
    total = f"{counted(len(files), 'file')}, {sum(file.rows for file in files):,} rows"
    problems = f", {len(bad):,} with a problem" if bad else ""
    screen.print(f"{total}, {format_bytes(sum(file.bytes for file in files))}{problems}; --all shows each")


def _show_sections(screen: Screen, sections: Iterable[Section]) -> None:
    for number, section in enumerate(sections):
        if number:
            screen.print()
        show_section(screen, section)


def _sections(file: InspectedFile) -> Iterable[Section]:
    if hasattr(file.survey, "sections"):
        yield from file.survey.sections()
        return
    facts = []
    if file.format is not None:
        facts = [("format", FORMATS[file.format].title), ("size", format_bytes(file.bytes)), ("rows", f"{file.rows:,}")]
    yield Section(facts=[*facts, ("problem", file.problem)] if file.problem is not None else facts)
    if file.code:
        yield Section(code=file.code)


def _show_schemas(screen: Screen, files: list[InspectedFile]) -> None:
    """Prints the schemas as code, each once for all files that have it."""
    by_code: dict[str, list[str]] = {}
    for file in files:
        if file.code or file.problem is None:
            by_code.setdefault(file.code, []).append(file.path)
    if any(by_code):
        screen.print("import holdfast as hold")
    for code, paths in by_code.items():
        if len(by_code) > 1:
            screen.print(*(f"\n# {printable(path)}" for path in paths))
        screen.print(f"\nschema = {code}" if code else "# no tf.train.Example messages")
    for file in files:
        no_schema = file.as_dict().get("no_schema")
        if no_schema:
            screen.print(f"# {printable(file.path)}: not as columns: {printable(str(no_schema))}")
        if file.problem is not None:
            screen.print(f"# {printable(file.path)}: {printable(file.problem)}")
