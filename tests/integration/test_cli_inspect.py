"""`holdfast inspect`: what is in a file, as far as it can be read."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from cli_process import (
    document,
    flip,
    frame_starts,
    holdfast,
    on_terminal,
    records_of,
    without_styles,
    write_shard,
    write_shards,
)

import holdfast as hold

pytestmark = pytest.mark.formats

KEYS = [
    "path",
    "format",
    "compression",
    "bytes",
    "records",
    "record_bytes",
    "schema",
    "sequence",
    "notes",
    "first",
    "problem",
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_shards(tmp_path, shards=1)[0]


def test_json_has_its_keys_and_the_truth(file: Path) -> None:
    [said] = document("inspect", file)["files"]
    sizes = sorted(len(record) for record in records_of(file))
    assert list(said) == KEYS
    assert said == {
        "path": str(file),
        "format": "tfrecord",
        "compression": "none",
        "bytes": file.stat().st_size,
        "records": 20,
        "record_bytes": {"min": sizes[0], "median": sizes[9], "max": sizes[-1]},
        "schema": {"emb": "Float32(4)", "image": "Bytes()", "label": "Int64()", "tags": "Ragged(Bytes())"},
        "sequence": False,
        "notes": {},
        "first": {
            "emb": [0.1, 2.0, 3.0, 0.0],
            "image": {"length": 56, "hex": "89504e470d0a" + "00" * 50},
            "label": 0,
            "tags": [],
        },
        "problem": None,
    }


def test_text_has_the_facts_the_schema_and_first_values(file: Path) -> None:
    done = holdfast("inspect", file)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == str(file)
    assert lines[1].split() == ["format", "TFRecord,", "uncompressed"]
    assert "records    20, " in done.stdout
    assert "manifest   none beside it" in done.stdout
    assert "        'emb': hold.Float32(4)," in lines
    assert "emb        [0.1, 2, 3, 0]" in done.stdout
    assert r"image      b'\x89PNG\r\n\x00\x00" in done.stdout
    assert "…' (56 bytes)" in done.stdout


def test_on_80_columns_every_line_fits(file: Path) -> None:
    shown, code = on_terminal("inspect", file)
    assert code == 0
    assert max(map(len, without_styles(shown).splitlines()[1:])) <= 80


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zlib", "zlib")])
def test_packed_files_are_reported_by_their_content(tmp_path: Path, suffix: str, kind: str) -> None:
    write_shard(tmp_path / f"x.tfrecord{suffix}", 5)
    os.rename(tmp_path / f"x.tfrecord{suffix}", tmp_path / "x.tfrecord")
    [said] = document("inspect", tmp_path)["files"]
    assert (said["compression"], said["records"], said["problem"]) == (kind, 5, None)


def test_the_schema_alone_is_code_that_reads_the_file(file: Path) -> None:
    done = holdfast("inspect", "--schema", file)
    assert done.stdout.startswith("import holdfast as hold\n\nschema = {\n")
    scope: dict[str, dict[str, hold.Int64]] = {}
    exec(done.stdout, scope)
    with hold.TFRecordReader(file) as reader:
        [batch] = reader.batches(scope["schema"], 100)
    assert list(batch["label"]) == list(range(20))


def test_files_of_one_schema_share_it(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, shards=2)
    with hold.TFRecordWriter(tmp_path / "other.tfrecord", {"x": hold.Int64()}) as writer:
        writer.append(x=1)
    assert holdfast("inspect", "--schema", *paths).stdout.count("schema =") == 1
    both = holdfast("inspect", "--schema", *paths, tmp_path / "other.tfrecord").stdout
    assert both.count("schema =") == 2
    assert f"# {paths[1]}\n" in both


def test_how_many_records_the_schema_is_taken_from_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with hold.TFRecordWriter(path, {"x": hold.Ragged(hold.Int64())}) as writer:
        writer.extend({"x": [[1, 2], [3, 4], [5]]})
    assert document("inspect", "--records", "2", path)["files"][0]["schema"] == {"x": "Int64(2)"}
    assert document("inspect", path)["files"][0]["schema"] == {"x": "Ragged(Int64())"}


def test_a_damaged_file_shows_what_it_can(file: Path) -> None:
    start = frame_starts(file)[7]
    flip(file, start + 20)
    [said] = document("inspect", file, code=1)["files"]
    assert said["problem"] == f"record 7 at byte {start:,}: bad data CRC"
    assert (said["format"], said["records"], said["first"]["label"]) == ("tfrecord", 19, 0)
    text = holdfast("inspect", file)
    assert text.returncode == 1
    assert "records    19 intact, " in text.stdout
    assert f"holdfast salvage {file} OUT" in text.stdout


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "raw.tfrecord"
    with hold.TFRecordWriter(path) as writer:
        writer.write(b"hello world")
        writer.write(bytes(1000))
    done = holdfast("inspect", path)
    assert done.returncode == 0
    assert "records are not tf.train.Example messages" in done.stdout
    assert "68 65 6c 6c 6f 20 77 6f 72 6c 64" in done.stdout
    [said] = document("inspect", path)["files"]
    assert said["schema"] is None
    assert said["first"] == {"length": 11, "hex": b"hello world".hex()}


def test_files_of_another_kind_missing_ones_and_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "text.tfrecord").write_text("only words\n" * 9)
    (tmp_path / "empty.tfrecord").touch()
    said = document("inspect", tmp_path, tmp_path / "nix", code=1)["files"]
    assert [file["format"] for file in said] == ["tfrecord", None, None]
    assert said[0]["record_bytes"] is None
    assert "this looks like a text file" in said[1]["problem"]
    assert said[2]["problem"] == "cannot open: No such file or directory"
    assert holdfast("inspect", tmp_path / "nix", tmp_path / "empty.tfrecord").returncode == 3


def test_the_manifest_is_compared(tmp_path: Path) -> None:
    write_shard(tmp_path / "all.tfrecord", 9)
    assert holdfast("split", tmp_path / "all.tfrecord", "-n", "2", "-o", tmp_path / "parts").returncode == 0
    [first, second] = sorted((tmp_path / "parts").glob("*.tfrecord"))
    assert "listed in holdfast.manifest.json, 5 records" in holdfast("inspect", first).stdout
    os.truncate(first, frame_starts(first)[3])  # cut between records: only a count kept elsewhere shows it
    [said] = document("inspect", first, code=1)["files"]
    assert said["problem"].startswith("the manifest says 5 records in ")
    assert document("inspect", second)["files"][0]["problem"] is None


def test_a_tar_shows_its_samples_and_its_members_by_suffix(tmp_path: Path) -> None:
    source, cut = tmp_path / "a.tar", tmp_path / "cut.tar"
    with tarfile.open(source, "w") as made:
        for number in range(5):
            for suffix, size in (("jpg", 100 + number), ("cls", 1)):
                if (number, suffix) != (3, "cls"):
                    member = tarfile.TarInfo(f"s/{number}.{suffix}")
                    member.size = size
                    made.addfile(member, io.BytesIO(bytes(size)))
        made.addfile(tarfile.TarInfo("README"))
    cut.write_bytes(source.read_bytes()[:5000])
    [said, broken] = document("inspect", source, cut, code=1)["files"]
    assert said == {
        "path": str(source),
        "format": "tar",
        "compression": "none",
        "bytes": source.stat().st_size,
        "samples": 5,
        "members": 9,
        "keys": ["s/0", "s/1", "s/2", "s/4"],
        "suffixes": [
            {"suffix": "cls", "members": 4, "bytes": 4, "min": 1, "median": 1, "max": 1},
            {"suffix": "jpg", "members": 5, "bytes": 510, "min": 100, "median": 102, "max": 104},
        ],
        "schema": {"__key__": "Bytes()", "jpg": "Bytes()", "cls": "Bytes()"},
        "notes": ["1 sample without .cls", "1 member of no sample, such as README"],
        "problem": None,
    }
    assert (broken["format"], broken["samples"]) == (None, 0)
    assert "without a tar's end mark" in broken["problem"]
    text = holdfast("inspect", source).stdout
    assert "samples    5 of 9 members" in text
    assert "keys       s/0, s/1, s/2, … s/4" in text
    assert ["suffix", "members", "size", "smallest", "median", "largest"] in [
        line.split() for line in text.splitlines()
    ]
    assert ".jpg          5  510 B     100 B   102 B    104 B" in text


def test_many_files_are_shown_together(tmp_path: Path) -> None:
    for number in range(30):
        name = "a" if number < 15 else "b"
        with hold.TFRecordWriter(tmp_path / f"{number:02}.tfrecord", {name: hold.Int64()}) as writer:
            writer.extend({name: range(number)})
    flip(tmp_path / "20.tfrecord", 30)
    done = holdfast("inspect", tmp_path)
    assert done.returncode == 1
    shown = done.stdout.splitlines()
    assert [line.split()[1] for line in shown if line.startswith("  files ")] == ["1", "14", "14"]  # the first is empty
    assert [line for line in shown if line.startswith(str(tmp_path / "20"))]
    assert shown[-1].startswith("30 files, 435 rows")
    assert shown[-1].endswith("1 with a problem; --all shows each")
    each = holdfast("inspect", "--all", tmp_path).stdout
    assert all(str(tmp_path / f"{number:02}.tfrecord") in each for number in range(30))
    assert len(document("inspect", tmp_path, code=1)["files"]) == 30
