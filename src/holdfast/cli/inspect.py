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

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .._util.text import counted, format_bytes, printable
from ..data.file_tools.inspect import InspectedFile, RunSurvey
from ..data.file_tools.inspect import inspect as inspect_files
from ..data.file_tools.parallel_files import total_bytes
from ..data.formats.registry import FORMATS
from ..data.formats.tfrecord.inspect import TFRecordSurvey, text_of
from ..data.inputs import expand_once
from ..schema import as_code
from .app import FOUND, NO_ACCESS, command, jobs_option, worst_code
from .console import PIPE_WIDTH, Screen, bar_for, show_facts, show_repeated, show_rest, show_schema

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.formats.hdf5.inspect import HDF5Survey
    from ..data.formats.tar.inspect import TarSurvey

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
    paths = expand_once(files)
    with bar_for(screen, f"inspecting {counted(len(paths.files), 'file')}", total_bytes(paths.files)) as bar:
        found = inspect_files(paths, records=sample, jobs=jobs, progress=bar.advance)
    screen.document(found.as_dict())
    if only_schema:
        _show_schemas(screen, found.files)
    else:
        for i, file in enumerate(found.files):
            screen.print(*["\n"] if i else [], screen.styled(file.path, "bold"))
            show = _SHOW.get(type(file.survey).__name__)
            _show_any(screen, file) if show is None else show(screen, file.survey)
        show_repeated(screen, found.repeated, "shown")
    return worst_code(FOUND if one.readable else NO_ACCESS for one in found.files if one.problem is not None)


def _show_any(screen: Screen, file: InspectedFile) -> None:
    """Shows what every format has."""
    facts = []
    if file.format is not None:
        facts = [("format", FORMATS[file.format].title), ("size", format_bytes(file.bytes)), ("rows", f"{file.rows:,}")]
    show_facts(screen, [*facts, *([("problem", file.problem)] if file.problem is not None else [])])
    if file.code:
        screen.print()
        show_schema(screen, file.code)


# ---- TFRecord


def _show(screen: Screen, survey: TFRecordSurvey) -> None:
    facts = []
    if survey.format:
        facts = [
            ("format", f"TFRecord, {_COMPRESSION[survey.compression]}"),
            ("size", format_bytes(survey.bytes)),
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


def _records(survey: TFRecordSurvey) -> str:
    intact = " intact" if survey.problem is not None else ""
    if survey.sizes is None:
        return f"none{intact}"
    low, middle, high = survey.sizes
    sizes = f"{low:,} bytes each" if low == high else f"{low:,} to {high:,} bytes, median {middle:,}"
    return f"{survey.records:,}{intact}, {sizes}"


def _show_inferred(screen: Screen, survey: TFRecordSurvey) -> None:
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
    maximum = one["maxshape"] or []
    grows = [n is None for n in maximum] or [False] * len(one["shape"])
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


def _show_run(screen: Screen, survey: RunSurvey) -> None:
    count = sum(survey.formats.values())
    which = ", ".join(f"{n:,} {FORMATS[kind].title}" for kind, n in survey.formats.items())
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


_SHOW: dict[str, Callable[[Screen, Any], None]] = {
    "TFRecordSurvey": _show,
    "HDF5Survey": _show_hdf5,
    "TarSurvey": _show_tar,
    "RunSurvey": _show_run,
}


# ---- values of the first record

_TEXT_WIDTH = 40
_TEXT_VALUES = 6


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
        text = text_of(value[:taken])
        shown = repr(value[:taken]) if text is None else repr(text)
        if len(shown) <= _TEXT_WIDTH + 2:
            return shown, taken
    return repr(value), len(value)
