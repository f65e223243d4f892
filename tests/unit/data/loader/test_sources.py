from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

import holdfast as hold
from holdfast.data.formats.registry import FORMATS, is_shard_name
from holdfast.data.inputs import SourceSpec, expand, expand_braces, find_sources, is_beside
from holdfast.errors import InputError


def touch(folder: Path, *names: str) -> list[str]:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return [str(folder / name) for name in names]


def paths(what: object) -> list[str]:
    return [spec.path for spec in find_sources(what)]  # type: ignore[arg-type]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


# ---- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("x-{000..003}.tar", ["x-000.tar", "x-001.tar", "x-002.tar", "x-003.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("{a,{0..1}}", ["a", "0", "1"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{x{0..1}}", ["{x0}", "{x1}"]),
        ("a{", ["a{"]),
        ("a{{0..1}", ["a{{0..1}"]),
        ("{a,}", ["a", ""]),
    ],
)
def test_braces(text: str, expected: list[str]) -> None:
    assert list(expand_braces(text)) == expected


def test_braces_with_many_names_and_without_end() -> None:
    assert sum(1 for _ in expand_braces("{a,b{0..1}}-{000000..099999}.tar")) == 300_000
    with pytest.raises(InputError, match="up to 10,000,000 names, got 10,000,000,000"):
        find_sources("memory://x/{0..99999}{0..99999}.tar")


@pytest.mark.parametrize(
    "name",
    [
        "a.tfrecord",
        "a.tfrecords.gz",
        "a.TFREC",
        "a.tfrecord.zlib",
        "mnist-train.tfrecord-00000-of-00001",
        "train-00003-of-00128",
        "a.h5",
        "a.hdf5",
        "a.tar",
        "a.tar.gz",
        "a.tgz",
        "a.tbz",
        "a.tar.zst",
    ],
)
def test_names_of_shards(name: str) -> None:
    assert is_shard_name(name)
    assert not is_beside(name)


@pytest.mark.parametrize("name", [".a.tfrecord.index", "a.json", ".a.tfrecord.partial", "a.tmp", "a.h5~", ".git"])
def test_names_beside_shards(name: str) -> None:
    assert is_beside(name)


# ---- what there is


def test_one_file(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "a.tfrecord")
    assert find_sources(path) == find_sources(Path(path)) == find_sources([path]) == [SourceSpec(path)]
    assert find_sources(f"file://{path}") == [SourceSpec(path)]


@pytest.mark.parametrize("suffix", [suffix for kind in FORMATS.values() for suffix in kind.suffixes])
def test_a_folder_is_searched_for_every_suffix(tmp_path: Path, suffix: str) -> None:
    (path,) = touch(tmp_path, f"a{suffix}")
    assert find_sources(tmp_path) == [SourceSpec(path)]
    assert expand([str(tmp_path)]) == [path]


def test_a_list_keeps_its_order_and_a_glob_is_sorted_by_bytes(tmp_path: Path) -> None:
    b, a, upper, ten, two = touch(tmp_path, "b.h5", "a.h5", "Z.h5", "10.h5", "2.h5")
    assert paths([b, a]) == [b, a]
    assert paths(one for one in (b, a)) == [b, a]
    assert paths(f"{tmp_path}/*.h5") == [ten, two, upper, a, b]
    assert paths([f"{tmp_path}/[0-9]*.h5", b]) == [ten, two, b]
    assert paths(f"{tmp_path}/?.h5") == [two, upper, a, b]


def test_braces_are_taken_in_their_order(tmp_path: Path) -> None:
    files = touch(tmp_path, "b-01.tar", "b-02.tar", "a-01.tar", "a-02.tar")
    assert paths(f"{tmp_path}/{{b,a}}-{{01..02}}.tar") == files
    with pytest.raises(InputError, match=r"a-03\.tar: cannot open.* has 'a-0\d\.tar'"):
        find_sources(f"{tmp_path}/a-{{01..03}}.tar")


def test_a_name_that_looks_like_a_glob(tmp_path: Path) -> None:
    name, other = touch(tmp_path, "a[1]{x,y}.tfrecord", "a1.tfrecord")
    assert paths(name) == [name]
    assert paths(f"{tmp_path}/a*.tfrecord") == [other, name]


def test_a_folder_and_what_is_below_it(tmp_path: Path) -> None:
    expected = touch(tmp_path, "a/1.tfrecord", "a/2.tfrecord.gz", "b.h5", "c/d/3.tar")
    touch(tmp_path, ".hidden/4.tfrecord", "a/.1.tfrecord.index", "a/.5.tfrecord.partial", "note.txt", "info.json")
    assert paths(tmp_path) == expected
    assert paths(f"{tmp_path}/**/*.tar") == expected[3:]
    assert paths(f"{tmp_path}/[ac]") == [*expected[:2], expected[3]]


def test_a_run_means_its_committed_parts(tmp_path: Path) -> None:
    run = tmp_path / "run.hold"
    expected = touch(run, "parts/a.1.h5", "parts/b.1.h5")
    touch(run, "parts/a.1.json", "parts/b.1.h5.json", "parts/c.1.h5", "tmp/x.h5", "quarantine/y.h5", "schema.json")
    assert paths(run) == expected
    other = touch(tmp_path, "z.h5")
    assert paths(tmp_path) == expected + other
    os.unlink(run / "parts/a.1.json")
    os.unlink(run / "parts/b.1.h5.json")
    with pytest.raises(InputError, match="run.hold: expected committed parts, this dataset directory has none yet"):
        find_sources(run)


def test_single_files_are_one_shard(tmp_path: Path) -> None:
    images = touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.png")
    assert find_sources(tmp_path) == [SourceSpec(str(tmp_path), True)]
    assert find_sources(f"{tmp_path}/*/*") == [SourceSpec(str(tmp_path), True, tuple(images))]
    assert find_sources(images[:2]) == [SourceSpec(str(tmp_path / "cat"), True, tuple(images[:2]))]
    shard = touch(tmp_path, "x.tar")[0]
    assert find_sources([*images[:2], shard, images[2]]) == [
        SourceSpec(str(tmp_path / "cat"), True, tuple(images[:2])),
        SourceSpec(shard),
        SourceSpec(str(tmp_path / "dog"), True, (images[2],)),
    ]


def test_relative_single_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "1.jpg", "2.jpg")
    monkeypatch.chdir(tmp_path)
    assert find_sources("*.jpg") == [SourceSpec(".", True, ("1.jpg", "2.jpg"))]


# ---- what is wrong


@pytest.mark.parametrize("what", [None, b"a.tfrecord", 3, 0.5, {"a": 1}, [None], [b"x"], [["a"]], object()])
def test_what_is_no_path(what: object) -> None:
    with pytest.raises(TypeError, match="expected a path, a glob, a folder, a URL or a list of them, got "):
        find_sources(what)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [[], (), "", [""], "a\0b", iter(())])
def test_what_is_no_name(what: object) -> None:
    with pytest.raises(InputError, match="expected a path, a glob"):
        find_sources(what)  # type: ignore[arg-type]


def test_the_nearest_folder_and_name_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "train/part-1.tfrecord", "train/part-2.tfrecord")
    with pytest.raises(
        InputError, match=rf"trian/a\.tfrecord: cannot open: No such file or directory; {tmp_path} has 'train'$"
    ):
        find_sources(tmp_path / "trian" / "a.tfrecord")
    with pytest.raises(InputError, match=r"train has 'part-1\.tfrecord'$"):
        find_sources(tmp_path / "train" / "part1.tfrecord")
    with pytest.raises(InputError, match=r"\*\.h5: nothing matches; .*train has 'part-1\.tfrecord', 'part-2"):
        find_sources(tmp_path / "train" / "*.h5")
    with pytest.raises(InputError, match=rf"nothing matches; {tmp_path} has 'train'$"):
        find_sources(tmp_path / "trian" / "*.tfrecord")
    with pytest.raises(InputError, match=r"part-1\.tfrecord is a file, not a folder"):
        find_sources(tmp_path / "train" / "part-1.tfrecord" / "x")


def test_a_folder_with_nothing(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", ".hidden")
    with pytest.raises(InputError, match="expected a folder with shards or files in it, there are none"):
        find_sources(tmp_path)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tfrecord")
    (tmp_path / "link.tfrecord").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"fifo\.tfrecord: expected a file, this is a FIFO"):
        find_sources(tmp_path / "fifo.tfrecord")
    with pytest.raises(InputError, match=r"fifo\.tfrecord: expected a file"):
        find_sources(tmp_path / "f*")
    with pytest.raises(InputError, match=r"link\.tfrecord: cannot open: a broken link to nowhere"):
        find_sources(tmp_path / "link.tfrecord")
    os.unlink(tmp_path / "fifo.tfrecord")
    with pytest.raises(InputError, match=r"link\.tfrecord: cannot open: a broken link to nowhere"):
        find_sources(tmp_path)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nobody may go through the folders above
    os.chmod(tmp_path, 0o755)
    (path,) = touch(Path("."), "a/b.tfrecord")
    os.chmod(path, 0)
    with as_nobody(), pytest.raises(InputError, match=r"^a/b\.tfrecord: no permission to read it"):
        find_sources(path)
    os.chmod("a", 0)
    try:
        with as_nobody(), pytest.raises(InputError, match=r"^\./a: cannot list its files: Permission denied"):
            find_sources(".")
        with as_nobody(), pytest.raises(InputError, match=r"^a/b\.tfrecord: cannot stat: Permission denied"):
            find_sources("a/b.tfrecord")
    finally:
        os.chmod("a", 0o755)


def test_a_file_given_twice(tmp_path: Path) -> None:
    a, b = touch(tmp_path, "a.tfrecord", "b.tfrecord")
    with pytest.raises(InputError, match=r"a\.tfrecord: expected every file once, got it twice$"):
        find_sources([a, b, a])
    (tmp_path / "link.tfrecord").symlink_to(a)
    with pytest.raises(
        InputError, match=r"link\.tfrecord: expected every file once, got it twice: .*a\.tfrecord is the same file"
    ):
        find_sources(tmp_path)


# ---- URLs


def test_urls(memory: fsspec.AbstractFileSystem) -> None:
    for name in ("b.tfrecord", "a.tfrecord", "sub/c.h5", ".x.tfrecord.index", "info.json"):
        memory.pipe(f"/data/{name}", b"x")
    a, b, c = "memory:///data/a.tfrecord", "memory:///data/b.tfrecord", "memory:///data/sub/c.h5"
    assert paths("memory:///data/*.tfrecord") == [a, b]
    assert paths("memory:///data") == paths("memory:///data/") == [a, b, c]
    assert paths("memory:///data/{b,a}.tfrecord") == [b, a]
    assert paths([b, "memory:///data/**/*.h5"]) == [b, c]
    assert find_sources(a)[0].is_remote
    with pytest.raises(InputError, match="got it twice"):
        find_sources([a, "memory:///data/*.tfrecord"])


def test_a_remote_run(memory: fsspec.AbstractFileSystem) -> None:
    for name in ("schema.json", "parts/a.h5", "parts/a.json", "parts/b.h5"):
        memory.pipe(f"/run.hold/{name}", b"x")
    assert paths("memory:///run.hold") == ["memory:///run.hold/parts/a.h5"]


def test_urls_that_lead_nowhere(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/images/a.jpg", b"x")
    with pytest.raises(InputError, match=r"memory:///none: the store has no such file"):
        find_sources("memory:///none")
    with pytest.raises(InputError, match=r"memory:///none/\*: expected shards, nothing matches"):
        find_sources("memory:///none/*")
    with pytest.raises(InputError, match=r"single samples such as /images/a\.jpg: pack them"):
        find_sources("memory:///images")
    with pytest.raises(InputError, match=r"unheard-of://x/\*: Protocol not known"):
        find_sources("unheard-of://x/*")


def test_relative_paths_are_of_the_directory_that_read_was_called_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After os.chdir, a file of the same name in another folder must not be read."""
    for name in ("here", "there"):
        (tmp_path / name / "images").mkdir(parents=True)
        (tmp_path / name / "images" / "0.png").write_bytes(name.encode())
        with hold.TFRecordWriter(tmp_path / name / "x.tfrecord", {"name": hold.Bytes()}) as writer:
            writer.append(name=name)
    monkeypatch.chdir(tmp_path / "here")
    shards, images = hold.read("x.tfrecord"), hold.read("images")
    opened = hold.read("images")
    assert [bytes(sample["data"]) for sample in opened] == [b"here"]
    monkeypatch.chdir(tmp_path / "there")
    for _ in range(2):
        assert [bytes(sample["name"]) for sample in shards] == [b"here"]
        assert [bytes(sample["data"]) for sample in images] == [b"here"]
        assert [bytes(sample["data"]) for sample in opened] == [b"here"]
        monkeypatch.chdir(tmp_path / "here")
