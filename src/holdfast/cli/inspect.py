"""What is in files: records, sizes, the schema, first values.

TFRecord: the schema is taken from the first records: the code to read the
file with. A feature whose number of values differs is Ragged, one that some
records lack has a default. With a fresh index (see `holdfast index`) only
those records are read; else the whole file is, and its CRCs are checked on
the way.

HDF5: the tree of groups and datasets with shape (+: it can grow), type,
chunks, filters, size in the file and how much smaller that is than the
values; attributes; the schema that holdfast reads it with. No values are
read.

A run, the folder that hold.write makes: its schema, and how many parts and
rows are committed.

FILE is a path, a glob, a run, or a folder, meaning all TFRecord and HDF5
files and runs directly in it.

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

  format     null: it is not a TFRecord, or cannot be read
  records    how many are intact
  schema     null: there are no records, or no tf.train.Example messages
  sequence   they are tf.train.SequenceExample messages
  notes      what could not be settled, by feature
  first      the first record: a feature of one value is that value, of up to
             16 a list, of more its length and first 16; bytes are their
             length and first 64, as text or hex. Not Examples: the record's
             length and first bytes as hex
  problem    what is wrong with the file, if anything

Of HDF5:

  {"path": "run.h5", "format": "hdf5", "bytes": 81234, "superblock": 3,
   "open_for_write": false, "objects": [{"path": "/x", "kind": "dataset",
   "shape": [1000, 16], "maxshape": [null, 16], "type": "float32",
   "bytes": 64000, "stored_bytes": 9000, "chunks": [100, 16],
   "filters": ["gzip 4"], "sources": null, "attributes": {"unit": "m"}}],
   "rows": 1000, "schema": {"x": "Float32(16)"}, "no_schema": null,
   "problems": []}

  kind       group, dataset, datatype, or a link: soft, external, again
  sources    of a virtual dataset: how many
  no_schema  why it cannot be read as columns without a schema of yours

Of a run:

  {"path": "run.hold", "format": "run", "bytes": 81234, "parts": 4,
   "formats": {"hdf5": 4}, "rows": 4711, "schema": {"label": "Int64()"},
   "at_work": 1, "problem": null}

Exit codes: 0 fine; 1 a file is damaged, or of another kind; 3 none of that,
but one could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from .._base.units import format_bytes
from ..formats.tfrecord.survey import Survey, survey_file
from ..report.values import as_json, as_text
from ..report.words import counted, printable
from ..schema import as_code
from .command import command
from .cores import for_each_file, jobs_option
from .exits import FINE, FOUND, NO_ACCESS
from .facts import show_facts
from .inspect_hdf5 import show_hdf5
from .kinds import is_hdf5
from .runs import RunSurvey, apart, inspect_run, show_survey
from .screen import Screen

if TYPE_CHECKING:  # h5py takes a while to load: TFRecord files do without
    from ..formats.hdf5.inspect import HDF5Survey

    AnySurvey = Survey | HDF5Survey | RunSurvey

_PACKED = {"none": "not packed", "gzip": "packed with GZIP", "zlib": "packed with ZLIB"}


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--schema", "only_schema", is_flag=True, help="Only the schema, as Python code.")
@click.option(
    "--records",
    "sample",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="How many records to take the schema from.  [default: 100]",
)
@jobs_option
def inspect(screen: Screen, files: tuple[str, ...], only_schema: bool, sample: int, jobs: int) -> int:
    folders, paths = apart(files)
    work = partial(_survey, sample=sample)
    surveys: list[AnySurvey] = [*map(inspect_run, folders)]
    if paths:
        surveys += for_each_file(work, paths, jobs, screen, f"inspecting {counted(len(paths), 'file')}")
    screen.document({"files": [_as_dict(one) if isinstance(one, Survey) else one.as_dict() for one in surveys]})
    if only_schema:
        _show_schemas(screen, surveys)
    else:
        for i, survey in enumerate(surveys):
            screen.print(*["\n"] if i else [], screen.styled(survey.path, "bold"))
            if isinstance(survey, Survey):
                _show(screen, survey)
            elif isinstance(survey, RunSurvey):
                show_survey(screen, survey)
            else:
                show_hdf5(screen, survey)
    wrong = [survey for survey in surveys if _problem(survey) is not None]
    return FOUND if any(survey.readable for survey in wrong) else NO_ACCESS if wrong else FINE


def _survey(file: str, /, *, progress: Callable[[int], None] | None, sample: int) -> Survey | HDF5Survey:
    if not is_hdf5(file):
        return survey_file(file, sample=sample, progress=progress)
    from ..formats.hdf5.inspect import inspect_hdf5

    return inspect_hdf5(file, progress)


def _problem(survey: AnySurvey) -> str | None:
    if isinstance(survey, (Survey, RunSurvey)):
        return survey.problem
    return survey.problems[0] if survey.problems else None


def _code(survey: AnySurvey) -> str:
    """ "" where there is no schema."""
    if isinstance(survey, Survey):
        return as_code(survey.inferred.schema) if survey.inferred else ""
    return survey.code


def _as_dict(survey: Survey) -> dict[str, object]:
    found = survey.inferred
    head = {"length": survey.head_of, "hex": survey.head.hex()} if survey.head_of else None
    return {
        "path": survey.path,
        "format": survey.format,
        "compression": survey.compression,
        "bytes": survey.file_bytes,
        "records": survey.records,
        "record_bytes": survey.sizes._asdict() if survey.sizes else None,
        "schema": {name: repr(column) for name, column in found.schema.items()} if found else None,
        "sequence": found.sequence if found else False,
        "notes": found.notes if found else {},
        "first": {name: as_json(values) for name, values in found.examples.items()} if found else head,
        "problem": survey.problem,
    }


# ---- for people


def _show(screen: Screen, survey: Survey) -> None:
    facts = []
    if survey.format:
        facts = [
            ("format", f"TFRecord, {_PACKED[survey.compression]}"),
            ("size", format_bytes(survey.file_bytes)),
            ("records", _records(survey)),
            ("manifest", survey.manifest),
        ]
    if survey.problem is not None:
        facts.append(("problem", survey.problem))
    if survey.hint:
        facts.append(("", survey.hint))
    show_facts(screen, facts)
    if survey.inferred:
        _show_schema(screen, survey)
    elif survey.head_of:
        screen.print("\n  records are not tf.train.Example messages; the first one begins")
        for at in range(0, len(survey.head), 16):
            row = survey.head[at : at + 16]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            screen.print(f"    {row.hex(' '):<47}  {text}")


def _records(survey: Survey) -> str:
    intact = " intact" if survey.problem is not None else ""
    if survey.sizes is None:
        return f"none{intact}"
    low, middle, high = survey.sizes
    sizes = f"{low:,} bytes each" if low == high else f"{low:,} to {high:,} bytes, median {middle:,}"
    return f"{survey.records:,}{intact}, {sizes}"


def _show_schema(screen: Screen, survey: Survey) -> None:
    found = survey.inferred
    assert found is not None
    kind = "tf.train.SequenceExample" if found.sequence else "tf.train.Example"
    screen.print(f"\n  {kind}, as the first {counted(found.records, 'record')} show it\n")
    for line in f"schema = {as_code(found.schema)}".splitlines():
        screen.print(f"    {line}")
    if found.notes:
        screen.print()
        show_facts(screen, list(found.notes.items()))
    if found.examples:
        screen.print("\n  the first record\n")
        show_facts(screen, [(name, as_text(values)) for name, values in sorted(found.examples.items())])


def _show_schemas(screen: Screen, surveys: list[AnySurvey]) -> None:
    """Code to paste. Files of one schema share it."""
    by_code: dict[str, list[str]] = {}
    for survey in surveys:
        if _code(survey) or _problem(survey) is None:
            by_code.setdefault(_code(survey), []).append(survey.path)
    if any(by_code):
        screen.print("import holdfast as hold")
    for code, paths in by_code.items():
        if len(by_code) > 1:
            screen.print(*(f"\n# {printable(path)}" for path in paths))
        screen.print(f"\nschema = {code}" if code else "# no tf.train.Example messages")
    for survey in surveys:
        if not isinstance(survey, (Survey, RunSurvey)) and survey.no_schema:
            screen.print(f"# {printable(survey.path)}: not as columns: {printable(survey.no_schema)}")
        if (problem := _problem(survey)) is not None:
            screen.print(f"# {printable(survey.path)}: {printable(problem)}")
