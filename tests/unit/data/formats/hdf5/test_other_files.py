"""A data file may name any file of the machine: nothing reads or copies that without the user's permission."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.inspect import inspect_hdf5
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.data.formats.hdf5.salvage import salvage_hdf5
from holdfast.data.formats.hdf5.schema_layout import column_attribute
from holdfast.data.formats.hdf5.verify import verify_hdf5
from holdfast.data.rewrite.convert import convert
from holdfast.errors import CorruptError, DataError, FormatError, SchemaError

SECRET = b"root:x:0:0:secret" + bytes(range(47))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret" / "passwd"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["x"] = np.frombuffer(SECRET, np.uint8)
    return path


def storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset("x", (64,), "u1", external=[(str(secret), 0, 64)])


def link(file: h5py.File, secret: Path) -> None:
    file["x"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "/x")


def soft_link(file: h5py.File, secret: Path) -> None:
    file["out"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "/")
    file["x"] = h5py.SoftLink("/out/x")


def packed(file: h5py.File, secret: Path, name: str = "x") -> None:
    group = file.create_group(name)
    group.attrs["holdfast"] = column_attribute(hold.Bytes())
    group["offsets"] = np.arange(65)
    group.create_dataset("values", (64,), "u1", external=[(str(secret), 0, 64)])


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((64,), "u1")
    layout[:] = h5py.VirtualSource(str(secret.with_suffix(".h5")), "x", (64,))
    file.create_virtual_dataset("x", layout)


Way = Callable[[h5py.File, Path], None]
WAYS: list[Way] = [storage, link, soft_link, packed, virtual]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_read_refuses_it(way: Way, tmp_path: Path, secret: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        way(file, secret)
    for schema in (None, {"x": hold.Bytes()}, {"x": hold.Array("uint8")}):
        with pytest.raises(DataError) as error:
            list(hold.read(tmp_path / "a.h5", schema).batch(64))
        assert schema is None or "passwd" in str(error.value)


def test_nothing_copies_it(tmp_path: Path, secret: Path) -> None:
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            storage(file, secret)
            packed(file, secret, "y")
    with pytest.raises(FormatError, match="'x' has its values in another file, .*passwd"):
        convert(tmp_path / "a.h5", tmp_path / "out.tfrecord")
    with pytest.raises(SchemaError, match="'/x' has its values in .*passwd', another file"):
        merge_hdf5([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "merged.h5")
    salvage_hdf5(tmp_path / "a.h5", tmp_path / "salvaged.h5")
    assert SECRET[:17] not in (tmp_path / "salvaged.h5").read_bytes()


def test_verify_inspect_and_salvage_name_the_other_file(tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        storage(file, secret)
        file["y"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "/x")
    report = verify_hdf5(path)
    notes = [note for note in report.notes if "allow_external=True" in note]
    assert report.ok
    assert [note.partition(":")[0] for note in notes] == ["/x", "/y"]
    assert str(secret) in notes[0]
    assert f"'{secret.with_suffix('.h5')}'" in notes[1]
    [found] = [one for one in inspect_hdf5(path).objects if one["kind"] == "dataset"]
    assert found["external"] == [str(secret)]
    problems = [one.reason for one in salvage_hdf5(path, tmp_path / "b.h5").problems]
    assert problems == [f"not kept: its values are in {str(secret)!r}, another file"]


def test_allowed_values_are_read(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would read what is missing as zeros."""
    path = tmp_path / "secret" / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (64,), "u1", external=[("passwd", 0, 64)])
        file["y"] = h5py.ExternalLink("passwd.h5", "/x")
    schema = {"x": hold.Array("uint8"), "y": hold.Array("uint8")}
    with pytest.raises(CorruptError, match="'passwd', which does not exist"):
        list(hold.read(path, schema, allow_external=True).batch(64))
    monkeypatch.chdir(path.parent)
    [batch] = hold.read(path, schema, allow_external=True).batch(64)
    assert bytes(batch["x"]) == bytes(batch["y"]) == SECRET
    os.truncate(secret, 60)
    with pytest.raises(CorruptError, match="'passwd', which has 60 bytes, expected 64"):
        list(hold.read(path, schema, allow_external=True).batch(64))


def test_tar_members_name_no_file_of_the_machine(tmp_path: Path, secret: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            member = tarfile.TarInfo("0.txt")
            member.type, member.linkname = kind, str(secret)
            tar.addfile(member)
        with pytest.raises(FormatError, match=r"passwd.*links are not followed"):
            list(hold.read(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo(f"{secret.parent}/../secret/passwd.txt")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"own"))
    assert [sample["txt"] for sample in hold.read(tmp_path / "a.tar")] == [b"own"]
    assert secret.read_bytes() == SECRET


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    data = io.BytesIO()
    np.save(data, np.array([Attack(tmp_path / "made")], object), allow_pickle=True)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("0.x.npy")
        member.size = len(data.getvalue())
        tar.addfile(member, io.BytesIO(data.getvalue()))
    assert [sample["x.npy"] for sample in hold.read(tmp_path / "a.tar")] == [data.getvalue()]
    with pytest.raises(DataError, match="x.npy"):
        list(hold.read(tmp_path / "a.tar", {"x.npy": hold.Int64(1)}))
    assert not (tmp_path / "made").exists()


def test_a_saved_state_names_no_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "named.h5", "w") as file:
        file["x"] = np.arange(8)
    run = iter(hold.read(tmp_path / "named.h5").batch(2))
    next(run)
    assert "named" not in json.dumps(run.state_dict())
    run.close()
