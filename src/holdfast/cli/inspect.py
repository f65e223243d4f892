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
and dataset directories are inspected, at any depth.

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

import math
import os
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import numpy as np

from .._util.text import counted, format_bytes, printable
from ..data.formats.tar.inspect import TarSurvey, inspect_tar
from ..data.formats.tfrecord.inspect import Survey, survey_file
from ..errors import FormatError, HoldfastError
from ..schema import Column, as_code
from .app import FOUND, NO_ACCESS, command, worst_code
from .console import PIPE_WIDTH, Screen, show_facts, show_repeated, show_rest, show_schema
from .parallel_jobs import for_each_file, jobs_option
from .path_arguments import expand_once, format_of

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.formats.hdf5.inspect import HDF5Survey

    AnySurvey: TypeAlias = "Survey | HDF5Survey | TarSurvey | RunSurvey"

_COMPRESSION = {"none": "uncompressed", "gzip": "GZIP", "zlib": "ZLIB", "bzip2": "bzip2", "xz": "xz"}


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
@jobs_option
def inspect(screen: Screen, files: tuple[str, ...], only_schema: bool, sample: int, jobs: int) -> int:
    folders, paths, repeated = expand_once(files)
    work = partial(_survey, sample=sample)
    surveys: list[AnySurvey] = [*map(_inspect_run, folders)]
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
                _show_run(screen, survey)
            elif isinstance(survey, TarSurvey):
                _show_tar(screen, survey)
            else:
                _show_hdf5(screen, survey)
        show_repeated(screen, repeated, "shown")
    return worst_code(FOUND if one.readable else NO_ACCESS for one in surveys if _problem(one) is not None)


def _survey(file: str, /, *, progress: Callable[[int], None] | None, sample: int) -> AnySurvey:
    try:
        kind = format_of(file)
    except FormatError as error:
        return Survey(file, problem=error.reason, hint=error.hint)
    if kind == "tar":
        return inspect_tar(file, sample, progress)
    if kind != "hdf5":
        return survey_file(file, sample=sample, progress=progress)
    from ..data.formats.hdf5.inspect import inspect_hdf5

    return inspect_hdf5(file, progress)


def _problem(survey: AnySurvey) -> str | None:
    if isinstance(survey, (Survey, TarSurvey, RunSurvey)):
        return survey.problem
    return survey.problems[0] if survey.problems else None


def _code(survey: AnySurvey) -> str:
    """Returns the schema as code, or "" if there is none."""
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


# ---- TFRecord


def _show(screen: Screen, survey: Survey) -> None:
    facts = []
    if survey.format:
        facts = [
            ("format", f"TFRecord, {_COMPRESSION[survey.compression]}"),
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
        _show_inferred(screen, survey)
    elif survey.head_of:
        screen.print("\n  records are not tf.train.Example messages; the first one begins with")
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


def _show_inferred(screen: Screen, survey: Survey) -> None:
    found = survey.inferred
    assert found is not None
    kind = "tf.train.SequenceExample" if found.sequence else "tf.train.Example"
    screen.print(f"\n  {kind}, inferred from the first {counted(found.records, 'record')}\n")
    show_schema(screen, as_code(found.schema))
    if found.notes:
        screen.print()
        show_facts(screen, list(found.notes.items()))
    if found.examples:
        screen.print("\n  the first record\n")
        show_facts(screen, [(name, as_text(values)) for name, values in sorted(found.examples.items())])


def _show_schemas(screen: Screen, surveys: list[AnySurvey]) -> None:
    """Prints the schemas as code, each once for all files that have it."""
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
        if not isinstance(survey, (Survey, TarSurvey, RunSurvey)) and survey.no_schema:
            screen.print(f"# {printable(survey.path)}: not as columns: {printable(survey.no_schema)}")
        if (problem := _problem(survey)) is not None:
            screen.print(f"# {printable(survey.path)}: {printable(problem)}")


# ---- HDF5

_SHOWN_OBJECTS = 200
_SHOWN_ATTRIBUTES = 40


def _show_hdf5(screen: Screen, survey: HDF5Survey) -> None:
    if not screen.talks:
        return
    facts = []
    if survey.state is not None and survey.state.is_hdf5:
        kinds = Counter(one["kind"] for one in survey.objects)
        facts = [
            ("format", f"HDF5, {survey.version}"),
            ("size", format_bytes(survey.state.size)),
            ("holds", f"{counted(kinds['dataset'], 'dataset')} in {counted(kinds['group'], 'group')}"),
        ]
    facts += [("problem" if i == 0 else "", problem) for i, problem in enumerate(survey.problems[:8])]
    show_facts(screen, facts)
    if survey.objects:
        _show_tree(screen, survey)
        _show_attributes(screen, survey)
        _show_hdf5_schema(screen, survey)


def _show_tree(screen: Screen, survey: HDF5Survey) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from .._util.terminal import TableColumn, make_table

    heads = ["object", "shape", "type", "chunks", "filters", "size"]
    columns = [TableColumn(head, right=head == "size", cut=head in ("object", "type", "filters")) for head in heads]
    shown = [one for one in survey.objects if one["path"] != "/"][:_SHOWN_OBJECTS]
    rows = [[Text(printable(cell)) for cell in _row(one)] for one in shown]
    if not rows:
        return
    screen.print()
    width = 80 if screen.terminal else PIPE_WIDTH
    screen.print(Padding(make_table(columns, rows, width - 2), (0, 0, 0, 2), expand=False))
    show_rest(screen, len(survey.objects) - 1 - len(shown), indent=2)


def _row(one: dict[str, Any]) -> list[str]:
    path = one["path"]
    indent, name = "  " * (path.count("/") - 1), path.rpartition("/")[2]
    match one["kind"]:
        case "group":
            return [f"{indent}{name}/", "", "", "", "", ""]
        case "dataset" if "type" in one:
            return [f"{indent}{name}", _shape(one), one["type"], _sizes(one["chunks"]), _filters(one), _size(one)]
        case "soft" | "external" | "again":
            return [f"{indent}{name} → {one['target']}", "", "link", "", "", ""]
    return [f"{indent}{name}", "", one["kind"], "", "", ""]


def _shape(one: dict[str, Any]) -> str:
    if one["shape"] is None:
        return "empty"
    most = one["maxshape"] or []
    grows = [n is None for n in most] or [False] * len(one["shape"])
    sizes = [f"{n}{'+' if more else ''}" for n, more in zip(one["shape"], grows, strict=True)]
    return "×".join(sizes) or "scalar"


def _sizes(sizes: list[int] | None) -> str:
    return "" if sizes is None else "×".join(map(str, sizes))


def _filters(one: dict[str, Any]) -> str:
    if one["sources"] is not None:
        return f"virtual, {counted(one['sources'], 'source')}"
    if one["external"]:
        return f"values in {one['external'][0]}"
    return ", ".join(one["filters"])


def _size(one: dict[str, Any]) -> str:
    """`12 kB (3.1:1)`: the size in the file and the compression ratio."""
    stored = one["stored_bytes"]
    compressed = one["filters"] and stored and one["bytes"]
    return format_bytes(stored) + (f" ({one['bytes'] / stored:.1f}:1)" if compressed else "")


def _show_attributes(screen: Screen, survey: HDF5Survey) -> None:
    facts = [
        (f"{one['path'].lstrip('/')}@{name}", _value(value))
        for one in survey.objects
        for name, value in one.get("attributes", {}).items()
    ]
    if facts:
        screen.print("\n  attributes\n")
        show_facts(screen, facts[:_SHOWN_ATTRIBUTES])
        show_rest(screen, len(facts) - _SHOWN_ATTRIBUTES, indent=2)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{as_text(value['values'])[:-1]}, …] ({value['length']:,} values)"
    if isinstance(value, list):
        values = [one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in value]
        return as_text(values) if values else "[]"
    return "empty" if value is None else repr(value) if isinstance(value, str) else str(value)


def _show_hdf5_schema(screen: Screen, survey: HDF5Survey) -> None:
    if survey.code:
        screen.print(f"\n  as columns, {counted(survey.rows, 'row')}\n")
        show_schema(screen, survey.code)
    elif survey.no_schema:
        screen.print(f"\n  not as columns: {printable(survey.no_schema)}")


# ---- tar

_SHOWN_SUFFIXES = 40


def _show_tar(screen: Screen, survey: TarSurvey) -> None:
    facts = []
    if survey.compression is not None:
        keys = ", ".join(survey.keys[:3]) + (f", … {survey.keys[3]}" if len(survey.keys) > 3 else "")
        facts = [
            ("format", f"tar, {_COMPRESSION[survey.compression]}"),
            ("size", format_bytes(survey.bytes)),
            ("samples", f"{survey.samples:,} of {counted(survey.members, 'member')}"),
            ("keys", keys),
        ]
    facts += [("note" if i == 0 else "", note) for i, note in enumerate(survey.notes[:_SHOWN_SUFFIXES])]
    facts += [("problem", survey.problem)] if survey.problem is not None else []
    show_facts(screen, [*facts, ("", survey.hint)] if survey.hint else facts)
    if survey.suffixes:
        screen.print()
        rows = [
            (f".{name}", f"{members:,}", format_bytes(size), *map(format_bytes, sizes))
            for name, members, size, *sizes in survey.suffixes[:_SHOWN_SUFFIXES]
        ]
        screen.table(["suffix", ">members", ">size", ">smallest", ">median", ">largest"], rows, indent=2)
        show_rest(screen, len(survey.suffixes) - _SHOWN_SUFFIXES, indent=2)
    if survey.code:
        screen.print()
        show_schema(screen, survey.code)


# ---- dataset directories

_FORMATS = {"hdf5": "HDF5", "tfrecord": "TFRecord"}


@dataclass(slots=True)
class RunSurvey:
    """What a dataset directory contains."""

    path: str
    schema: dict[str, Column] | None = None
    formats: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    at_work: int = 0
    problem: str | None = None
    readable: bool = True

    @property
    def code(self) -> str:
        return as_code(self.schema) if self.schema else ""

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "format": "run",
            "bytes": self.bytes,
            "parts": sum(self.formats.values()),
            "formats": self.formats,
            "rows": self.rows,
            "schema": {name: repr(column) for name, column in self.schema.items()} if self.schema else None,
            "at_work": self.at_work,
            "problem": self.problem,
        }


def _inspect_run(path: str) -> RunSurvey:
    from ..data.writer.dataset_writer import DatasetWriter
    from ..data.writer.directory import read_schema
    from ..data.writer.workspace import dead_workspace, workspaces

    survey = RunSurvey(path)
    try:
        survey.schema = read_schema(Path(path))
        parts = DatasetWriter(Path(os.path.abspath(path)), survey.schema).parts()
        survey.formats = dict(sorted(Counter(part.format for part in parts).items()))
        survey.rows, survey.bytes = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        for workspace in workspaces(Path(path) / "tmp"):
            with dead_workspace(workspace) as note:
                survey.at_work += note is None
    except HoldfastError as error:
        survey.problem = str(error)
    return survey


def _show_run(screen: Screen, survey: RunSurvey) -> None:
    count = sum(survey.formats.values())
    which = ", ".join(f"{n:,} {_FORMATS.get(kind, kind)}" for kind, n in survey.formats.items())
    facts = [
        ("format", "dataset directory of hold.write"),
        ("size", format_bytes(survey.bytes)),
        ("parts", f"{count:,} committed" + (f" ({which})" if which else "")),
        ("rows", f"{survey.rows:,}"),
    ]
    facts += [("at work", counted(survey.at_work, "writer"))] if survey.at_work else []
    facts += [("problem", survey.problem)] if survey.problem is not None else []
    show_facts(screen, facts)
    if survey.code:
        screen.print()
        show_schema(screen, survey.code)


# ---- values of the first record

_LISTED = 16
_BYTES = 64
_TEXT_WIDTH = 40
_TEXT_VALUES = 6


def as_json(values: Sequence[Any]) -> Any:
    """Returns one value, a list, or `{"length": …, "values": […]}`; nested for a list of lists."""
    if len(values) == 1 and not isinstance(values[0], list):
        return _value_as_json(values[0])
    shown = [as_json(value) if isinstance(value, list) else _value_as_json(value) for value in values[:_LISTED]]
    return shown if len(values) <= _LISTED else {"length": len(values), "values": shown}


def _value_as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        text = _text_of(value[:_BYTES])
        return {"length": len(value)} | ({"hex": value[:_BYTES].hex()} if text is None else {"text": text})
    if isinstance(value, float):
        return float(_shortest(value)) if math.isfinite(value) else _shortest(value)
    return value


def as_text(values: Sequence[Any]) -> str:
    """Formats values: `7`, `[0.5, 1.25, …] (128 values)`, `b'\\x89PNG…' (1,650 bytes)`."""
    if len(values) == 1 and not isinstance(values[0], list):
        return _value_as_text(values[0])
    steps = any(isinstance(value, list) for value in values)
    shown = [as_text(value) if isinstance(value, list) else _value_as_text(value) for value in values[:_TEXT_VALUES]]
    if len(values) <= _TEXT_VALUES:
        return f"[{', '.join(shown)}]"
    return f"[{', '.join(shown)}, …] ({len(values):,} {'steps' if steps else 'values'})"


def _value_as_text(value: Any) -> str:
    if isinstance(value, bytes):
        shown, taken = _bytes_as_text(value)
        return shown if taken == len(value) else f"{shown[:-1]}…{shown[-1]} ({len(value):,} bytes)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bytes_as_text(value: bytes) -> tuple[str, int]:
    """Returns as much as fits in a line, and how many bytes that is."""
    for taken in range(min(len(value), _TEXT_WIDTH), 0, -1):
        text = _text_of(value[:taken])
        shown = repr(value[:taken]) if text is None else repr(text)
        if len(shown) <= _TEXT_WIDTH + 2:
            return shown, taken
    return repr(value), len(value)


def _shortest(value: float) -> str:
    """Formats a 32-bit float with as few digits as identify it."""
    return str(np.float32(value))


def _text_of(data: bytes) -> str | None:
    try:
        text = getincrementaldecoder("utf-8")().decode(data)  # the cut may go through a character
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
