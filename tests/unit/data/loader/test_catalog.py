from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.inputs import SourceSpec, find_sources
from holdfast.data.loader.sources.catalog import SEEKABLE, Catalog
from holdfast.errors import CorruptError, DecodeError, InputError, SchemaError
from holdfast.schema import Column

LABELLED: dict[str, Column] = {"label": hold.Int64(), "name": hold.Bytes()}
BOUND_S = 120


def write_shard(path: Path, labels: list[int]) -> Path:
    with hold.TFRecordWriter(path, LABELLED, overwrite=True) as writer:
        for label in labels:
            writer.append(label=label, name=f"sample {label}".encode())
    return path


def write_floats(path: Path) -> Path:
    with hold.TFRecordWriter(path, {"label": hold.Float32(), "name": hold.Bytes()}) as writer:
        writer.append(label=0.5, name=b"half")
    return path


def three(folder: Path) -> list[SourceSpec]:
    counts = [5, 0, 7]
    return [
        SourceSpec(str(write_shard(folder / f"{i}.tfrecord", list(range(10 * i, 10 * i + n)))))
        for i, n in enumerate(counts)
    ]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_counts_sizes_columns_and_blocks(tmp_path: Path) -> None:
    specs = three(tmp_path)
    before = open_descriptors()
    catalog = Catalog(specs)
    assert open_descriptors() == before
    assert catalog.paths == [spec.path for spec in specs]
    assert (catalog.counts, catalog.samples, len(catalog)) == ([5, 0, 7], 12, 3)
    assert catalog.sizes_bytes == [os.path.getsize(spec.path) for spec in specs]
    assert catalog.schema == LABELLED
    assert catalog.table["count"].tolist() == catalog.counts
    blocks = catalog.blocks
    assert blocks.samples == 12
    assert [int(n) for n in blocks.shard] == [0, 2]
    assert int(blocks.size_bytes.sum()) == sum(catalog.sizes_bytes)


def test_shards_are_read_through_a_pool(tmp_path: Path) -> None:
    catalog = Catalog(three(tmp_path))
    with catalog.pool(1) as pool:
        for number in (0, 2, 0, 2):
            with catalog.use(number, pool) as shard:
                assert shard.read_rows([3, 0])["label"].tolist() == [10 * number + 3, 10 * number]
        assert (pool.stats().maximum, pool.stats().opened) == (1, 4)


def test_a_catalog_goes_to_another_process(tmp_path: Path) -> None:
    catalog = pickle.loads(pickle.dumps(Catalog(three(tmp_path), {"label": hold.Int64()})))
    with catalog.pool(2) as pool, catalog.use(2, pool) as shard:
        assert shard.read(0, 2, catalog.schema)["label"].tolist() == [20, 21]


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    Catalog(three(tmp_path), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nothing_at_all() -> None:
    with pytest.raises(InputError, match="at least one shard, got none"):
        Catalog([])


def test_all_empty(tmp_path: Path) -> None:
    paths = [write_shard(tmp_path / f"{i}.tfrecord", []) for i in range(6)]
    with pytest.raises(InputError, match=r"got none in all 6 shards: .*0\.tfrecord.*, …"):
        Catalog([SourceSpec(str(path)) for path in paths])


# ---- columns


def test_shards_with_another_type_are_refused(tmp_path: Path) -> None:
    specs = [*three(tmp_path), SourceSpec(str(write_floats(tmp_path / "f.tfrecord")))]
    with pytest.raises(SchemaError) as caught:
        Catalog(specs)
    assert "f.tfrecord: column 'label' is Float32(), but Int64() in " in str(caught.value)
    assert "0.tfrecord" in str(caught.value)


def test_a_missing_and_an_additional_column(tmp_path: Path) -> None:
    few, many = tmp_path / "few.tfrecord", write_shard(tmp_path / "many.tfrecord", [1])
    with hold.TFRecordWriter(few, {"label": hold.Int64()}) as writer:
        writer.append(label=1)
    with pytest.raises(SchemaError, match=r"few.tfrecord: column 'name' is missing, but Bytes\(\) in .*many"):
        Catalog([SourceSpec(str(many)), SourceSpec(str(few))])
    with pytest.raises(SchemaError, match=r"many.tfrecord: column 'name' is Bytes\(\), but missing in .*few"):
        Catalog([SourceSpec(str(few)), SourceSpec(str(many))])
    assert Catalog([SourceSpec(str(few)), SourceSpec(str(many))], {"label": hold.Int64}).counts == [1, 1]


def test_every_shard_is_tried_with_the_schema_given(tmp_path: Path) -> None:
    specs = [*three(tmp_path), SourceSpec(str(write_floats(tmp_path / "f.tfrecord")))]
    with pytest.raises(DecodeError, match=r"f\.tfrecord, record 0.*label"):
        Catalog(specs, {"label": hold.Int64()})
    assert Catalog(specs, {"name": hold.Bytes()}).schema == {"name": hold.Bytes()}


def test_hdf5_blocks_end_where_chunks_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((100_003, 32), "f4"), chunks=(1000, 32))
    catalog = Catalog([SourceSpec(str(tmp_path / "a.h5"))])
    blocks = catalog.blocks
    assert len(blocks) > 1
    assert (blocks.samples, catalog.counts) == (100_003, [100_003])
    assert not (blocks.first % 1000).any()
    with catalog.pool() as pool, catalog.use(0, pool) as shard:
        assert len(shard.read(100_000, 100_003)["x"]) == 3


def test_a_packed_shard_is_one_block(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tfrecord.gz", list(range(50)))
    catalog = Catalog([SourceSpec(str(path))])
    assert (len(catalog.blocks), bool(catalog.table["flags"][0] & SEEKABLE), catalog.samples) == (1, False, 50)


def write_files(folder: Path, **content: bytes) -> None:
    for name, data in content.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_all(catalog: Catalog) -> list[tuple[bytes, bytes]]:
    with catalog.pool(1) as pool, catalog.use(0, pool) as shard:
        batch = shard.read(0, len(shard))
        assert pool.stats().opened == 0
    return [(bytes(path), bytes(data)) for path, data in zip(batch["path"], batch["data"], strict=True)]


def test_single_files_are_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, cat__1_png=b"meow", dog__2_png=b"woof", note_txt=b"about")
    expected = [(b"cat/1.png", b"meow"), (b"dog/2.png", b"woof")]
    assert read_all(Catalog(find_sources(tmp_path))) == expected
    assert read_all(Catalog(find_sources(f"{tmp_path}/*/*.png"))) == expected
    monkeypatch.chdir(tmp_path)
    for what in ("*/*.png", "./*/*.png", ["cat/1.png", "./dog/2.png"], "."):
        assert read_all(Catalog(find_sources(what))) == expected, what
    assert read_all(Catalog(find_sources("*.txt"))) == [(b"note.txt", b"about")]
    catalog = Catalog(find_sources(tmp_path))
    assert (catalog.samples, catalog.blocks.samples, catalog.sizes_bytes) == (2, 2, [8])


def test_text_files_where_there_are_no_images(tmp_path: Path) -> None:
    write_files(tmp_path, a_md=b"one", b_md=b"two")
    assert read_all(Catalog(find_sources(tmp_path))) == [(b"a.md", b"one"), (b"b.md", b"two")]


@pytest.mark.parametrize("what", ["", "*/*.png"])
def test_classes_from_folders(tmp_path: Path, what: str) -> None:
    write_files(tmp_path, cat__1_png=b"meow", dog__2_png=b"woof")
    catalog = Catalog(find_sources(tmp_path / what), labels_from_folders=True)
    with catalog.pool() as pool, catalog.use(0, pool) as shard:
        assert shard.read(0, 2)["label"].tolist() == [0, 1]


def test_mixed_kinds_with_other_columns(tmp_path: Path) -> None:
    write_files(tmp_path, cat__1_png=b"meow")
    shard = write_shard(tmp_path / "a.tfrecord", [1])
    with pytest.raises(SchemaError, match=r"column 'label' is missing, but Int64\(\) in .*a\.tfrecord"):
        Catalog(find_sources([shard, tmp_path / "cat"]))


# ---- damage and change


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    specs = three(tmp_path)
    content = bytearray(Path(specs[2].path).read_bytes())
    content[3] ^= 0xFF
    Path(specs[2].path).write_bytes(content)
    with pytest.raises(CorruptError, match=r"2\.tfrecord"):
        Catalog(specs)


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not-there\.tfrecord: cannot open: No such file"):
        Catalog([*three(tmp_path), SourceSpec(str(tmp_path / "not-there.tfrecord"))])


def test_a_shard_that_changed_is_refused(tmp_path: Path) -> None:
    specs = three(tmp_path)
    catalog = Catalog(specs)
    write_shard(Path(specs[0].path), [1, 2, 3])
    info = os.stat(specs[2].path)
    os.utime(specs[2].path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    with catalog.pool() as pool:
        with pytest.raises(
            CorruptError, match=r"0\.tfrecord: the file has changed since .* opened: \d+ bytes then, \d+ now"
        ):
            with catalog.use(0, pool):
                pass
        with pytest.raises(CorruptError, match=r"2\.tfrecord: the file has changed .*: the same size"):
            with catalog.use(2, pool):
                pass


# ---- many


_MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from holdfast.data.loader.sources.catalog import Catalog
from holdfast.data.inputs import SourceSpec, find_sources
catalog = Catalog([SourceSpec(f"{sys.argv[1]}/{i}.tfrecord") for i in range(int(sys.argv[2]))])
with catalog.pool() as pool:
    for number in range(len(catalog)):
        with catalog.use(number, pool) as shard:
            assert shard.read(0, 1)["label"].tolist() == [4]
    print(catalog.samples, pool.stats().maximum < 64)
"""


def test_many_more_shards_than_descriptors(tmp_path: Path) -> None:
    one = write_shard(tmp_path / "0.tfrecord", [4, 5])
    for i in range(1, 500):
        shutil.copyfile(one, tmp_path / f"{i}.tfrecord")
    done = subprocess.run(
        [sys.executable, "-c", _MANY, tmp_path, "500"], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert (done.stdout, done.stderr) == ("1000 True\n", "")
