"""From one format to another: TFRecord, HDF5 and tar.

All samples of all FILEs, in order, go to OUT, whose name says which format:
.tfrecord (.tfrecord.gz, .tfrecord.zlib), .h5 or .tar. The FILEs are verified
first. OUT is read again before it gets its name: the same columns, as many
samples, the same checksum over all values in order. With --shards or
--shard-size there are many, OUT-00000-of-00008.tfrecord and so on, which
appear together.

FILE is a path, a glob or a folder, meaning all such files in and below it, or
a run.hold, meaning its committed parts.

Columns: those of --schema; else those that an HDF5 file, a tar written by
holdfast or a run says it has; else what all records of a TFRecord show, and
of another tar `__key__` and its members by extension: .npy as numbers, all
others as bytes. What would be lost is refused, and named: a feature that some
records lack, or a float64 that a TFRecord holds only rounded. With --cast it
is filled with 0 or b"", or rounded.

HDF5 and tar keep every dtype. A TFRecord has int64, float32 and bytes: other
numbers are stored as one of the first two, and a note says so; a value that
does not fit is refused, with its column and sample. It does not keep shapes
either: on the way back Float32(4, 4) is Float32(16) and uint8 is Int64, unless
--schema says more.

In a tar, Bytes is a member NAME, Int64 NAME.cls, other numbers NAME.npy, and
lists of strings or of lists NAME.npz; samples are called by their numbers, or
as the column `__key__` says.

Examples:

  holdfast convert 'data/train-*.tfrecord' -o train.h5 --codec gzip
  holdfast convert run.hold -o train.tar --shard-size 1GB

With --json:

  {"rows": 4711, "checksum": "e3069283", "schema": {"label": "Int64()"},
   "files": [{"path": "train.h5", "records": 4711, "bytes": 8123456,
   "crc32c": "9ae0daaf"}], "notes": []}

  checksum  over all values in order: the same for them in any format
  notes     what of the FILEs is not in OUT, or other than it was

Exit codes: 0 OUT is written and proven; 1 a FILE is damaged or has not what
--schema says, or OUT came out otherwise; 2 columns differ, or would lose
something; 3 a FILE cannot be read, OUT cannot be written or is there already.
Without 0 nothing is left.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import click

from .._util.text import counted, format_bytes, printable
from ..errors import SchemaError, cannot_open
from ..formats.tfrecord.split_merge import MOST_PARTS
from ..rewrite.convert import Converted
from ..rewrite.convert import convert as convert_files
from ..rewrite.input_files import find
from ..schema import Array, Bytes, Column, Float32, Int64, Ragged, check_schema, schema_from_json
from .app import COMPRESSION, FINE, command, size_of
from .console import Screen, bar_for

_TYPES: dict[str, Any] = {"Array": Array, "Bytes": Bytes, "Float32": Float32, "Int64": Int64, "Ragged": Ragged}
_WANTED = "expected a schema as `holdfast inspect --schema` prints it, or a run's schema.json"


def read_schema_file(path: str) -> dict[str, Column]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise cannot_open(path, error) from error
    except UnicodeDecodeError:
        raise SchemaError(f"{path}: {_WANTED}, got no text") from None
    try:
        return _from_json(text) or parse_schema(text)
    except (SchemaError, ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise SchemaError(f"{path}: {_WANTED}: {error}") from None


def _from_json(text: str) -> dict[str, Column] | None:
    """None: it is no schema.json."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    is_run = isinstance(content, dict) and "holdfast_write" in content
    return schema_from_json(content["schema"]) if is_run else None


def parse_schema(text: str) -> dict[str, Column]:
    """`schema = {"label": hold.Int64()}`, or the braces alone.

    >>> parse_schema('{"label": Int64(key="cls"), "boxes": hold.Ragged(hold.Float32(4))}')
    {'label': Int64(key='cls'), 'boxes': Ragged(Float32(4))}
    """
    found = [node for node in ast.parse(text.strip()).body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr))]
    tables = [node.value for node in found if isinstance(node.value, ast.Dict)]
    if len(tables) != 1:
        raise SchemaError(f"got {len(tables)} schemas in it")
    [table] = tables
    return check_schema({_name(key): _column(value) for key, value in zip(table.keys, table.values, strict=True)})


def _name(node: ast.expr | None) -> str:
    name = None if node is None else ast.literal_eval(node)
    if not isinstance(name, str):
        raise SchemaError(f"expected a column's name, got {name!r}")
    return name


def _column(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return _type(node)
    positional = [_argument(one) for one in node.args]
    named = {str(one.arg): _literal(one.value) for one in node.keywords}
    return _type(node.func)(*positional, **named)


def _literal(node: ast.expr) -> Any:
    """A value as Python spells it; NaN and infinity have no spelling of their own."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(one) for one in node.elts]
    odd = {f"float('{name}')": float(name) for name in ("nan", "inf", "-inf")}
    text = ast.unparse(node)
    return odd[text] if text in odd else ast.literal_eval(node)


def _argument(node: ast.expr) -> Any:
    return _column(node) if isinstance(node, (ast.Call, ast.Name, ast.Attribute)) else ast.literal_eval(node)


def _type(node: ast.expr) -> Any:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if name not in _TYPES:
        raise SchemaError(f"expected Array, Int64, Float32, Bytes or Ragged, got {ast.unparse(node)}")
    return _TYPES[name]


CODEC = click.Choice(["none", "gzip", "lzf", "zstd"])
_SHOWN = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write.")
@click.option("--schema", "schema_file", metavar="PATH", help="The columns, as `inspect --schema` prints them.")
@click.option("--shards", type=click.IntRange(1, MOST_PARTS), metavar="N", help="How many files to write.")
@click.option("--shard-size", callback=size_of, metavar="SIZE", help="How large one may be, by its values: 256MB, …")
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="How to pack HDF5 chunks.  [default: none]"
)
@click.option("--compression", type=COMPRESSION, help="How to pack TFRecord.  [default: by OUT's name: .gz, .zlib]")
@click.option("--cast", is_flag=True, help="Round and fill what would be refused else.")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
@click.pass_context
def convert(
    context: click.Context,
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
    with bar_for(screen, f"converting {counted(len(sources), 'file')}", total) as bar:
        try:
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
        except ValueError as error:
            raise click.UsageError(str(error), context) from error
    screen.document(_as_dict(done))
    _show(screen, done, len(sources), many=shards is not None or shard_size is not None)
    return FINE


def _as_dict(done: Converted) -> dict[str, object]:
    return {
        "rows": done.rows,
        "checksum": done.checksum,
        "schema": {name: repr(column) for name, column in done.schema.items()},
        "files": [entry.as_dict() for entry in done.files],
        "notes": done.notes,
    }


def _show(screen: Screen, done: Converted, sources: int, *, many: bool) -> None:
    if many:
        rows = [(entry.path, f"{entry.records:,}", format_bytes(entry.bytes)) for entry in done.files[:_SHOWN]]
        screen.table(["file", ">samples", ">size"], rows)
        if len(done.files) > _SHOWN:
            screen.print(f"… and {counted(len(done.files) - _SHOWN, 'more file')} (--json lists all)")
        screen.print()
    for note in done.notes:
        screen.print(f"Note: {printable(note)}.")
    size = format_bytes(sum(entry.bytes for entry in done.files))
    held = (
        f"{counted(done.rows, 'sample')} of {counted(sources, 'file')}, {counted(len(done.schema), 'column')}, {size}"
    )
    screen.print(f"{held}: {counted(len(done.files), 'file') if many else printable(done.files[0].path)};")
    screen.print(f"read again, the same columns, samples and values: checksum {done.checksum}")
