"""Convert between TFRecord, HDF5 and tar.

The samples of all FILEs go in order to OUT, whose suffix selects the format:
.tfrecord (.tfrecord.gz, .tfrecord.zlib), .h5 or .tar. The FILEs are verified
first. OUT is read back before it gets its name: it must have the same
columns, number of samples and checksum over all values. With --shards or
--shard-size there are several files, OUT-00000-of-00008.tfrecord and so on,
which appear together.

FILE is a path, a glob, a directory with such files at any depth, or a dataset
directory such as run.hold, whose committed parts are converted.

Columns: those of --schema; otherwise those stored in an HDF5 file, a dataset
directory or a tar written by holdfast, or those inferred from all records of
a TFRecord. For any other tar they are `__key__` and the members by extension:
.npy as numbers, all others as bytes. A lossy conversion is rejected, with its
reason: a feature that some records lack, or a float64 that TFRecord can only
store rounded. With --cast it is filled with 0 or b"", or rounded.

HDF5 and tar preserve every dtype. TFRecord has int64, float32 and bytes:
other numbers are stored as one of the first two, and a note says so; a value
out of range is rejected with its column and sample. TFRecord does not store
shapes: converted back, Float32(4, 4) is Float32(16) and uint8 is Int64,
unless --schema says more.

In a tar, Bytes is a member NAME, Int64 is NAME.cls, other numbers are
NAME.npy, and lists of strings or of lists are NAME.npz; samples are named by
number, or by the column `__key__`.

Examples:

  holdfast convert 'data/train-*.tfrecord' -o train.h5 --codec gzip
  holdfast convert run.hold -o train.tar --shard-size 1GB

With --json:

  {"rows": 4711, "checksum": "e3069283", "schema": {"label": "Int64()"},
   "files": [{"path": "train.h5", "records": 4711, "bytes": 8123456,
   "crc32c": "9ae0daaf"}], "notes": []}

  checksum  over all values in order; the same in every format
  notes     what is missing in OUT, or differs from the FILEs

Exit codes: 0 OUT is written and verified; 1 a FILE is corrupt or does not
match --schema, or OUT failed its verification; 2 columns differ, or the
conversion is lossy; 3 a FILE cannot be read, or OUT cannot be written or
exists. Unless 0, nothing is written.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import click

from .._util.text import counted, format_bytes, printable
from ..data.formats.targets import MAX_SHARDS
from ..data.rewrite.convert import Converted
from ..data.rewrite.convert import convert as convert_files
from ..data.rewrite.input_files import find
from ..errors import SchemaError, cannot_open
from ..schema import Array, Bytes, Column, Float32, Int64, Ragged, check_schema, schema_from_json
from .app import COMPRESSION, FINE, command, size_of, usage_errors
from .console import Screen, bar_for, show_files

_TYPES: dict[str, Any] = {"Array": Array, "Bytes": Bytes, "Float32": Float32, "Int64": Int64, "Ragged": Ragged}
_EXPECTED = "expected a schema as `holdfast inspect --schema` prints it, or the schema.json of a dataset directory"


def read_schema_file(path: str) -> dict[str, Column]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise cannot_open(path, error) from error
    except UnicodeDecodeError:
        raise SchemaError(f"{path}: {_EXPECTED}, got a file that is not text") from None
    try:
        return _from_json(text) or parse_schema(text)
    except (SchemaError, ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise SchemaError(f"{path}: {_EXPECTED}: {error}") from None


def _from_json(text: str) -> dict[str, Column] | None:
    """Returns None if it is not a schema.json."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    is_schema = isinstance(content, dict) and "holdfast_write" in content
    return schema_from_json(content["schema"]) if is_schema else None


def parse_schema(text: str) -> dict[str, Column]:
    """Parses `schema = {"label": hold.Int64()}`, or only the braces, without executing it.

    >>> parse_schema('{"label": Int64(key="cls"), "boxes": hold.Ragged(hold.Float32(4))}')
    {'label': Int64(key='cls'), 'boxes': Ragged(Float32(4))}
    """
    found = [node for node in ast.parse(text.strip()).body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr))]
    tables = [node.value for node in found if isinstance(node.value, ast.Dict)]
    if len(tables) != 1:
        raise SchemaError(f"expected one schema, got {len(tables)}")
    [table] = tables
    return check_schema({_name(key): _column(value) for key, value in zip(table.keys, table.values, strict=True)})


def _name(node: ast.expr | None) -> str:
    name = None if node is None else ast.literal_eval(node)
    if not isinstance(name, str):
        raise SchemaError(f"expected a column name, got {name!r}")
    return name


def _column(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return _type(node)
    positional = [_argument(one) for one in node.args]
    named = {str(one.arg): _literal(one.value) for one in node.keywords}
    return _type(node.func)(*positional, **named)


def _literal(node: ast.expr) -> Any:
    """Evaluates a literal, and `float('nan')` and `float('inf')`, which have no literal."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(one) for one in node.elts]
    not_finite = {f"float('{name}')": float(name) for name in ("nan", "inf", "-inf")}
    text = ast.unparse(node)
    return not_finite[text] if text in not_finite else ast.literal_eval(node)


def _argument(node: ast.expr) -> Any:
    return _column(node) if isinstance(node, (ast.Call, ast.Name, ast.Attribute)) else ast.literal_eval(node)


def _type(node: ast.expr) -> Any:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if name not in _TYPES:
        raise SchemaError(f"expected Array, Int64, Float32, Bytes or Ragged, got {ast.unparse(node)}")
    return _TYPES[name]


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write.")
@click.option(
    "--schema", "schema_file", metavar="PATH", help="Read the columns from PATH, as `inspect --schema` prints them."
)
@click.option("--shards", type=click.IntRange(1, MAX_SHARDS), metavar="N", help="Write N files.")
@click.option(
    "--shard-size", callback=size_of, metavar="SIZE", help="Write files with at most SIZE of values: 256MB, …"
)
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="Compress HDF5 chunks.  [default: none]"
)
@click.option("--compression", type=COMPRESSION, help="Compress TFRecord.  [default: by suffix: .gz, .zlib]")
@click.option("--cast", is_flag=True, help="Round and fill instead of rejecting a lossy conversion.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
def convert(
    screen: Screen,
    files: tuple[str, ...],
    out: str,
    schema_file: str | None,
    shards: int | None,
    shard_size: int | None,
    codec: Any,
    compression: Any,
    cast: bool,
    force: bool,
) -> int:
    schema = None if schema_file is None else read_schema_file(schema_file)
    sources = find(files)
    total = sum(source.size_bytes for source in sources)
    with bar_for(screen, f"converting {counted(len(sources), 'file')}", total) as bar, usage_errors():
        done = convert_files(
            files,
            out,
            schema,
            shards=shards,
            shard_bytes=shard_size,
            codec=codec,
            compression=compression or "auto",
            cast=cast,
            overwrite=force,
            progress=bar.advance,
        )
    screen.document(done.as_dict())
    _show(screen, done, len(sources), many=shards is not None or shard_size is not None)
    return FINE


def _show(screen: Screen, done: Converted, sources: int, *, many: bool) -> None:
    if many:
        show_files(screen, done.files, "samples")
    for note in done.notes:
        screen.print(f"Note: {printable(note)}.")
    size = format_bytes(sum(entry.bytes for entry in done.files))
    what = f"{counted(done.rows, 'sample')} of {counted(sources, 'file')}, {counted(len(done.schema), 'column')}"
    screen.print(f"{what}, {size}: {counted(len(done.files), 'file') if many else printable(done.files[0].path)};")
    screen.print(f"read back with the same columns, samples and values: checksum {done.checksum}")
