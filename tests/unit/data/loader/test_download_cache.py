from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import holdfast as hold
from holdfast.data import remote_fs
from holdfast.data.inputs import find_sources
from holdfast.data.loader.sources import download_cache
from holdfast.data.loader.sources.catalog import Catalog
from holdfast.data.loader.sources.download_cache import DownloadCache
from holdfast.errors import CorruptError, InputError

BOUND_S = 60


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fs, "PAUSES_S", (0.0, 0.0, 0.0))


def names(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[2] or path.name for path in folder.iterdir())


def used_at(path: str, s: int) -> None:
    os.utime(path, (s, os.stat(path).st_mtime))


def test_a_copy_is_made_once(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe("/a.tfrecord", b"content")
    cache = DownloadCache(tmp_path / "cache")
    path = cache.fetch("memory:///a.tfrecord")
    assert Path(path).read_bytes() == b"content"
    inode = os.stat(path).st_ino
    assert cache.fetch("memory:///a.tfrecord") == path
    assert os.stat(path).st_ino == inode
    assert names(tmp_path / "cache") == ["a.tfrecord"]


def test_file_urls(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"x" * 1000)
    path = DownloadCache(tmp_path / "cache").fetch(f"file://{tmp_path}/a.h5")
    assert Path(path).read_bytes() == b"x" * 1000
    assert os.stat(path).st_mtime == pytest.approx(os.stat(tmp_path / "a.h5").st_mtime)


def test_a_name_as_long_as_a_store_allows(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    url = f"memory:///{'漢' * 300}.tfrecord"
    memory.pipe(url.removeprefix("memory://"), b"content")
    path = DownloadCache(tmp_path).fetch(url)
    assert Path(path).read_bytes() == b"content"
    assert path.endswith("漢.tfrecord")


def test_an_empty_object(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe("/a.tfrecord", b"")
    assert os.path.getsize(DownloadCache(tmp_path).fetch("memory:///a.tfrecord")) == 0


def test_a_changed_object_is_another_copy(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path)
    memory.pipe("/a.tfrecord", b"first")
    first = cache.fetch("memory:///a.tfrecord")
    memory.pipe("/a.tfrecord", b"other")
    other = cache.fetch("memory:///a.tfrecord")
    assert (Path(first).read_bytes(), Path(other).read_bytes()) == (b"first", b"other")


def test_what_was_used_longest_ago_goes_first(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for name in "abcd":
        memory.pipe(f"/{name}.tar", name.encode() * 100)
    cache = DownloadCache(tmp_path, 300)
    kept = {name: cache.fetch(f"memory:///{name}.tar") for name in "abc"}
    for s, name in enumerate("bca"):
        used_at(kept[name], 1000 + s)
    with open(kept["b"], "rb") as still_open:
        cache.fetch("memory:///d.tar")
        assert names(tmp_path) == ["a.tar", "c.tar", "d.tar"]
        assert still_open.read() == b"b" * 100
    used_at(kept["c"], 1)
    assert cache.touch(kept["c"])
    cache.fetch("memory:///b.tar")
    assert names(tmp_path) == ["b.tar", "c.tar", "d.tar"]
    assert not cache.touch(kept["a"])


def test_one_that_does_not_fit(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe("/a.tar", b"x" * 2000)
    with pytest.raises(InputError, match=r"memory:///a\.tar: 2,000 bytes do not fit the cache of 1,500 in "):
        DownloadCache(tmp_path / "cache", 1500).fetch("memory:///a.tar")
    assert not (tmp_path / "cache").exists()
    memory.pipe("/a.tfrecord", b"x" * 2000)
    with pytest.raises(InputError, match=r"^memory:///a\.tfrecord: 2,000 bytes do not fit"):
        len(hold.read("memory:///a.tfrecord", cache_folder=tmp_path / "cache", cache_bytes=1500))


def test_a_smaller_cache_shrinks(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for name in "abc":
        memory.pipe(f"/{name}.tar", b"x" * 1000)
        used_at(DownloadCache(tmp_path, 5000).fetch(f"memory:///{name}.tar"), ord(name))
    DownloadCache(tmp_path, 2500).fetch("memory:///a.tar")  # there is nothing to download
    assert names(tmp_path) == ["a.tar", "c.tar"]


@pytest.mark.parametrize("maximum", [0, -1, True, 1.5, "20GB"])
def test_a_bound_that_is_none(maximum: Any) -> None:
    with pytest.raises(ValueError, match="expected a cache of at least one byte, got"):
        DownloadCache(max_bytes=maximum)


# ---- what is not there


def test_nothing_there(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe("/folder/a.tar", b"x")
    cache = DownloadCache(tmp_path)
    with pytest.raises(InputError, match=r"^memory:///none\.tar: the store has no such file$"):
        cache.fetch("memory:///none.tar")
    with pytest.raises(InputError, match=r"^memory:///folder: expected a file, this is a folder$"):
        cache.fetch("memory:///folder")


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"gs:// needs the Python package gcsfs: pip install gcsfs"):
        DownloadCache().fetch("gs://bucket/a.tar")


def test_a_cache_that_cannot_be_written(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe("/a.tar", b"x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"memory:///a\.tar: cannot make a copy in .*file/cache: .*Not a directory"):
        DownloadCache(tmp_path / "file" / "cache").fetch("memory:///a.tar")


# ---- stores that fail


class Unreliable(MemoryFileSystem):  # type: ignore[misc]
    """Fails as often as it was told to."""

    protocol = "unreliable"
    cachable = False
    failures = 0
    asked = 0
    kind: type[Exception] = ConnectionResetError
    cut_at: int | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("unreliable://")))

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        type(self).asked += 1
        if type(self).failures:
            type(self).failures -= 1
            Path(lpath).write_bytes(b"torn")
            raise self.kind("the line went dead")
        super().get_file(rpath, lpath, **kwargs)
        if self.cut_at is not None:
            os.truncate(lpath, self.cut_at)


@pytest.fixture
def unreliable(memory: fsspec.AbstractFileSystem, at_once: None) -> Iterator[type[Unreliable]]:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    memory.pipe("/a.tar", b"content")
    yield Unreliable
    Unreliable.failures = Unreliable.asked = 0
    Unreliable.kind, Unreliable.cut_at = ConnectionResetError, None


def test_what_passes_is_tried_again(unreliable: type[Unreliable], tmp_path: Path) -> None:
    unreliable.failures = 3
    assert Path(DownloadCache(tmp_path).fetch("unreliable:///a.tar")).read_bytes() == b"content"
    assert (unreliable.asked, names(tmp_path)) == (4, ["a.tar"])


def test_what_does_not_pass_leaves_nothing(unreliable: type[Unreliable], tmp_path: Path) -> None:
    unreliable.failures = 99
    with pytest.raises(InputError, match=r"^unreliable:///a\.tar: ConnectionResetError: the line went dead$"):
        DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    assert (unreliable.asked, names(tmp_path)) == (4, [])


def test_what_will_never_pass_is_not_tried_again(unreliable: type[Unreliable], tmp_path: Path) -> None:
    unreliable.failures, unreliable.kind = 99, PermissionError
    with pytest.raises(InputError, match=r"no permission: the line went dead"):
        DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    assert unreliable.asked == 1


def test_a_copy_cut_short_is_no_copy(unreliable: type[Unreliable], tmp_path: Path) -> None:
    unreliable.cut_at = 3
    with pytest.raises(InputError, match=r"expected 7 bytes, got 3"):
        DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    assert names(tmp_path) == []


def test_a_full_disk_names_the_folder(
    unreliable: type[Unreliable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(self: Unreliable, rpath: str, lpath: str, **kwargs: Any) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    monkeypatch.setattr(Unreliable, "get_file", fill)
    with pytest.raises(InputError) as caught:
        DownloadCache(tmp_path / "cache").fetch("unreliable:///a.tar")
    text = f"unreliable:///a.tar: no space left in the cache folder {tmp_path}/cache: free space there, or choose "
    assert str(caught.value).startswith(text)


def test_a_store_that_does_not_answer(
    unreliable: type[Unreliable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(remote_fs, "LIMIT_S", 0.01)
    monkeypatch.setattr(Unreliable, "info", lambda *_: answer.wait(BOUND_S))
    before = set(threading.enumerate())
    try:
        with pytest.raises(
            InputError, match=r"unreliable:///a\.tar: TimeoutError: the store did not answer for 0\.01 s"
        ):
            DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    finally:
        answer.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(BOUND_S)


def test_a_slow_download_is_waited_for(
    unreliable: type[Unreliable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the limit, but each time it has brought more."""
    looked = threading.Semaphore(0)
    bytes_in = download_cache._bytes_in

    def look(folder: str) -> int:
        found = bytes_in(folder)
        looked.release()
        return found

    def get_file(self: Unreliable, rpath: str, lpath: str, **kwargs: Any) -> None:
        with open(lpath, "wb", buffering=0) as file:
            for piece in (b"con", b"ten", b"t"):
                file.write(piece)
                assert looked.acquire(timeout=BOUND_S)
                while looked.acquire(blocking=False):  # all of them before the next piece
                    pass

    monkeypatch.setattr(download_cache, "_bytes_in", look)
    monkeypatch.setattr(Unreliable, "get_file", get_file)
    monkeypatch.setattr(remote_fs, "LIMIT_S", 1.0)
    assert Path(DownloadCache(tmp_path).fetch("unreliable:///a.tar")).read_bytes() == b"content"


@pytest.mark.parametrize("other", [b"CONTENT", b"", b"CONTENT and more"])
def test_one_replaced_while_it_is_brought(
    unreliable: type[Unreliable],
    memory: fsspec.AbstractFileSystem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: bytes,
) -> None:
    whole = MemoryFileSystem.get_file

    def replace_and_get(self: Any, rpath: str, lpath: str, **kwargs: Any) -> None:
        memory.pipe("/a.tar", other)
        whole(self, rpath, lpath, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "get_file", replace_and_get)
    with pytest.raises(InputError, match="replaced in its store during the download"):
        DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    assert (unreliable.asked, names(tmp_path)) == (1, [])


def test_a_package_that_writes_by_another_name(
    unreliable: type[Unreliable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes what a failed try has left, and gives the name to another file at the end."""
    whole = Unreliable.get_file

    def get_beside(self: Any, rpath: str, lpath: str, **kwargs: Any) -> None:
        Path(lpath).unlink(missing_ok=True)
        whole(self, rpath, f"{lpath}.tmp", **kwargs)
        os.replace(f"{lpath}.tmp", lpath)

    monkeypatch.setattr(Unreliable, "get_file", get_beside)
    unreliable.failures = 99
    with pytest.raises(InputError, match="the line went dead"):
        DownloadCache(tmp_path).fetch("unreliable:///a.tar")
    assert names(tmp_path) == []
    unreliable.failures = 2
    assert Path(DownloadCache(tmp_path).fetch("unreliable:///a.tar")).read_bytes() == b"content"
    assert names(tmp_path) == ["a.tar"]


# Its GET is answered when Ctrl-C has ended the copy: the store's package asks from a thread of its own, and goes on.
_INTERRUPTED = """
import asyncio, os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from fsspec.asyn import get_loop
from holdfast.data.loader.sources.download_cache import DownloadCache

is_out, content = threading.Event(), b"content"

class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

    def do_GET(self):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_out.wait()
        self.do_HEAD()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    DownloadCache(sys.argv[1]).fetch(f"http://127.0.0.1:{server.server_port}/a.tar")
except KeyboardInterrupt:
    print("interrupted", os.listdir(sys.argv[1]))
is_out.set()

async def all_others():
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

asyncio.run_coroutine_threadsafe(all_others(), get_loop()).result()
print("then", os.listdir(sys.argv[1]))
"""


def test_ctrl_c_while_a_thread_of_the_store_brings_it(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, tmp_path / "cache"],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    assert done.stdout == "interrupted []\nthen []\n"


# ---- several at once


def test_threads_that_want_the_same(unreliable: type[Unreliable], tmp_path: Path) -> None:
    cache = DownloadCache(tmp_path)
    with ThreadPoolExecutor(8) as workers:
        found = set(workers.map(cache.fetch, ["unreliable:///a.tar"] * 32))
    assert len(found) == 1
    assert (unreliable.asked, names(tmp_path)) == (1, ["a.tar"])


_FETCH = """
import sys
from holdfast.data.loader.sources.download_cache import DownloadCache
print(DownloadCache(sys.argv[1]).fetch(sys.argv[2]))
"""

# Says that it has begun, writes half, and never ends.
_HALF = """
import os, sys, time
from fsspec.implementations.local import LocalFileSystem
def get_file(self, source, target, **options):
    with open(target, "wb") as file:
        file.write(b"x" * 500)
    print("half", flush=True)
    time.sleep(600)
LocalFileSystem.get_file = get_file
"""


def test_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"y" * 1000)
    (tmp_path / "b.tar").write_bytes(b"z")
    cache, url = tmp_path / "cache", f"file://{tmp_path}/a.tar"
    with subprocess.Popen([sys.executable, "-c", _HALF + _FETCH, cache, url], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"half\n"
            left = sorted(cache.iterdir())
            assert len(left) == 2, "its lock, and a folder that the copy is made in"
            # A waiting one gets it as soon as the first is dead.
            with subprocess.Popen([sys.executable, "-c", _FETCH, cache, url], stdout=subprocess.PIPE) as second:
                other = DownloadCache(cache).fetch(f"file://{tmp_path}/b.tar")
                assert all(path.exists() for path in left), "it is still being written"
                first.send_signal(signal.SIGKILL)
                path = second.communicate(timeout=BOUND_S)[0].decode().strip()
        finally:
            first.kill()
    assert Path(path).read_bytes() == b"y" * 1000
    assert sorted(cache.iterdir()) == sorted([Path(path), Path(other)])


def test_what_a_killed_one_left_is_removed(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """Also by one that finds all its copies there."""
    memory.pipe("/a.tar", b"x")
    alive = tmp_path / ".alive-y.tar.partial"
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        alive.with_name(f"{alive.name}.ab").mkdir()
        for _ in range(2):
            (tmp_path / ".dead-x.tar.partial").touch()
            for name in (".dead-x.tar.partial.ab", ".dead-z.tar.partial.cd"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "copy").write_bytes(b"half")
            DownloadCache(tmp_path).fetch("memory:///a.tar")
            assert names(tmp_path) == ["a.tar", "y.tar.partial", "y.tar.partial.ab"]


# ---- read as shards


def put_shards(memory: fsspec.AbstractFileSystem, folder: Path, names: list[str]) -> int:
    """Into memory:///data; returns the size of the largest."""
    sizes = []
    for number, name in enumerate(names):
        with hold.TFRecordWriter(folder / name, {"n": hold.Int64()}) as writer:
            for i in range(50):
                writer.append(n=100 * number + i)
        content = (folder / name).read_bytes()
        memory.pipe(f"/data/{name}", content)
        sizes.append(len(content))
    return max(sizes)


@pytest.mark.parametrize("suffix", ["tfrecord", "tfrecord.gz"])
def test_shards_larger_than_the_cache(memory: fsspec.AbstractFileSystem, tmp_path: Path, suffix: str) -> None:
    size = put_shards(memory, tmp_path, [f"{i}.{suffix}" for i in range(4)])
    cache = DownloadCache(tmp_path / "cache", size)
    catalog = Catalog(find_sources("memory:///data"), cache=cache)
    assert catalog.counts == [50] * 4
    assert catalog.paths[1] == f"memory:///data/1.{suffix}"
    with catalog.pool(3) as pool:
        for number in (0, 1, 2, 3, 0, 1, 3, 3):
            with catalog.use(number, pool) as shard:
                assert shard.read(7, 9)["n"].tolist() == [100 * number + 7, 100 * number + 8]
    assert len(names(tmp_path / "cache")) == 1


def test_what_is_held_open_counts(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """An evicted copy takes up space until it is closed."""
    size = put_shards(memory, tmp_path, [f"{i:02}.tfrecord" for i in range(12)])
    folder = tmp_path / "cache"
    catalog = Catalog(find_sources("memory:///data"), cache=DownloadCache(folder, 3 * size))
    with catalog.pool(12) as pool:
        for number in (*range(12), 3, 7, *range(12)):
            with catalog.use(number, pool) as shard:
                assert shard.read(7, 8)["n"].tolist() == [100 * number + 7]
                inodes = {entry.stat().st_ino: entry.stat().st_size for entry in folder.iterdir()}
                for fd in Path("/proc/self/fd").iterdir():
                    with suppress(FileNotFoundError):
                        if str(fd.readlink()).startswith(f"{folder}/"):
                            inodes[fd.stat().st_ino] = fd.stat().st_size
                assert sum(inodes.values()) <= 3 * size


def test_the_folder_is_not_listed_for_every_download(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        memory.pipe(f"/{number}.tar", b"x" * 100)
    cache = DownloadCache(tmp_path, 20_000)
    listed = []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path=".", real=real: (listed.append(str(path)), real(path))[1])
    for number in range(400):
        cache.fetch(f"memory:///{number}.tar")
        assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 20_000
    assert 0 < listed.count(str(tmp_path)) - 400 < 400  # without those of this test
    kept = {int(path.name.partition("-")[2].removesuffix(".tar")) for path in tmp_path.iterdir()}
    assert kept == {*range(400 - len(kept), 400)}
    assert len(kept) >= 20_000 // 100 * 7 // 8 - 3


def test_errors_name_the_url(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    put_shards(memory, tmp_path, ["a.tfrecord"])
    content = bytearray(memory.cat("/data/a.tfrecord"))
    content[20] ^= 0xFF
    memory.pipe("/data/a.tfrecord", bytes(content))
    with pytest.raises(CorruptError, match=r"^memory:///data/a\.tfrecord, record 0"):
        Catalog(find_sources("memory:///data"), cache=DownloadCache(tmp_path / "cache"))


def test_errors_found_while_reading_name_the_url(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    put_shards(memory, tmp_path, ["a.tfrecord"])
    content = bytearray(memory.cat("/data/a.tfrecord"))
    content[-1] ^= 0xFF  # of the last record, which is not looked at before
    memory.pipe("/data/a.tfrecord", bytes(content))
    ds = hold.read("memory:///data", {"n": hold.Int64()}, cache_folder=tmp_path / "cache").batch(50)
    with pytest.raises(CorruptError, match=r"^memory:///data/a\.tfrecord, record 49"):
        list(ds)


def test_a_shard_replaced_in_its_store(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    put_shards(memory, tmp_path, ["a.tfrecord"])
    cache = DownloadCache(tmp_path / "cache")
    catalog = Catalog(find_sources("memory:///data"), cache=cache)
    memory.pipe("/data/a.tfrecord", memory.cat("/data/a.tfrecord"))
    with catalog.pool() as pool:
        with catalog.use(0, pool) as shard:
            assert len(shard.read(0, 50)["n"]) == 50, "the copy is what was planned with"
    (copy,) = (tmp_path / "cache").iterdir()
    copy.unlink()
    with catalog.pool() as pool, pytest.raises(CorruptError, match=r"its store has another version of it now"):
        with catalog.use(0, pool):
            pass


def test_nothing_is_loaded_without_a_url() -> None:
    names = "holdfast.data.inputs, holdfast.data.loader.sources.download_cache"
    code = f"import sys, {names}; print('fsspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND_S, check=True)
    assert done.stdout == "False\n"


# ---- a web server, which has neither an ETag nor, perhaps, a time


@pytest.mark.may_leave("fd", "fsspec keeps its event loop and its connections")
@pytest.mark.may_leave("thread", "fsspec keeps the thread of its event loop")
@pytest.mark.parametrize("has_times", [True, False])
def test_copies_over_http_that_are_evicted_and_downloaded_again(tmp_path: Path, has_times: bool) -> None:
    """The next copy is the same file, whenever it was downloaded; with a time, a changed one is another file."""
    pytest.importorskip("aiohttp")

    class Handler(SimpleHTTPRequestHandler):
        def send_header(self, keyword: str, value: str) -> None:
            if has_times or keyword != "Last-Modified":
                super().send_header(keyword, value)

        def log_message(self, *arguments: object) -> None:
            pass

    web, schema = tmp_path / "web", {"x": hold.Bytes()}
    web.mkdir()
    for number in range(6):
        with hold.TFRecordWriter(web / f"{number}.tfrecord", schema) as writer:
            writer.extend({"x": [b"%d" % number * 1000] * 10})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(web))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            urls = [f"http://127.0.0.1:{server.server_port}/{number}.tfrecord" for number in range(6)]
            options = {"cache_bytes": 35_000, "cache_folder": tmp_path / "cache"}
            found = [bytes(x)[:1] for x in hold.read(urls, schema, **options).batch(1).map(lambda one: one["x"][0])]
            assert found == [b"%d" % number for number in range(6) for _ in range(10)]
            assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 35_000
            if has_times:
                cache = DownloadCache(tmp_path / "cache")
                before = cache.fetch(urls[0])
                changed = (web / "0.tfrecord").read_bytes().replace(b"0", b"9")
                (web / "0.tfrecord").write_bytes(changed)
                os.utime(web / "0.tfrecord", (1e9, 1e9))
                assert cache.fetch(urls[0]) != before
        finally:
            server.shutdown()
            thread.join()
