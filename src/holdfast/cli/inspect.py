"""What is in files: records, sizes, the schema, first values.

The schema is taken from the first records: the code to read the file with.
A feature whose number of values differs is Ragged, one that some records lack
has a default. With a fresh index (see `holdfast index`) only those records
are read; else the whole file is, and its CRCs are checked on the way.

FILE is a path, a glob or a folder, meaning all TFRecord files directly in it.

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

Exit codes: 0 fine; 1 a file is damaged, or not a TFRecord; 3 none of that,
but one could not be read.
"""

from __future__ import annotations

from functools import partial

import click

from .._base.units import format_bytes
from ..formats.tfrecord.survey import Survey, survey_file
from ..report.values import as_json, as_text
from ..report.words import counted, printable
from ..schema import as_code
from .command import command
from .cores import for_each_file, jobs_option
from .exits import FINE, FOUND, NO_ACCESS
from .inputs import expand_once
from .screen import Screen

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
    paths = expand_once(files)
    work = partial(survey_file, sample=sample)
    surveys = for_each_file(work, paths, jobs, screen, f"inspecting {counted(len(paths), 'file')}")
    screen.document({"files": [_as_dict(survey) for survey in surveys]})
    if only_schema:
        _show_schemas(screen, surveys)
    else:
        for i, survey in enumerate(surveys):
            screen.print(*["\n"] if i else [], screen.styled(survey.path, "bold"))
            _show(screen, survey)
    wrong = [survey for survey in surveys if survey.problem is not None]
    return FOUND if any(survey.readable for survey in wrong) else NO_ACCESS if wrong else FINE


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
    _show_facts(screen, facts)
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


def _show_facts(screen: Screen, facts: list[tuple[str, str]], width: int = 9) -> None:
    """Name and value; a long value goes on under itself."""
    if screen.talks and facts:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=width, overflow="fold", max_width=30)
        grid.add_column(overflow="fold")
        for name, value in facts:
            grid.add_row(Text(printable(name), style="dim"), Text(printable(value)))
        screen.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _show_schema(screen: Screen, survey: Survey) -> None:
    found = survey.inferred
    assert found is not None
    kind = "tf.train.SequenceExample" if found.sequence else "tf.train.Example"
    screen.print(f"\n  {kind}, as the first {counted(found.records, 'record')} show it\n")
    for line in f"schema = {as_code(found.schema)}".splitlines():
        screen.print(f"    {line}")
    if found.notes:
        screen.print()
        _show_facts(screen, list(found.notes.items()))
    if found.examples:
        screen.print("\n  the first record\n")
        _show_facts(screen, [(name, as_text(values)) for name, values in sorted(found.examples.items())])


def _show_schemas(screen: Screen, surveys: list[Survey]) -> None:
    """Code to paste. Files of one schema share it."""
    by_code: dict[str, list[str]] = {}
    for survey in surveys:
        if survey.inferred:
            by_code.setdefault(as_code(survey.inferred.schema), []).append(survey.path)
        elif survey.problem is None:
            by_code.setdefault("", []).append(survey.path)
    if any(by_code):
        screen.print("import holdfast as hold")
    for code, paths in by_code.items():
        if len(by_code) > 1:
            screen.print(*(f"\n# {printable(path)}" for path in paths))
        screen.print(f"\nschema = {code}" if code else "# no tf.train.Example messages")
    for survey in surveys:
        if survey.problem is not None:
            screen.print(f"# {printable(survey.path)}: {printable(survey.problem)}")
