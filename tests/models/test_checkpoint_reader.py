"""A checkpoint that is not trusted cannot run code: its tensors are read, or it is refused."""

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as MemoryFormat
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from stoker.models.checkpoint_reader import TABLE, TableOfContents, Untrusted, read_table, read_tensors
from stoker.rundir import write_json
from stoker.rundir.checkpoint import damage, file_facts, sealed
from stoker.train.checkpoint import write_checkpoint

TENSORS = "__0_0.distcp"
MARKER = Path("executed")


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(MARKER),)


class ByName:
    """Pickled as old versions of Python do with a member of an Enum."""

    def __init__(self, owner: object, name: str) -> None:
        self.call = getattr, (owner, name)

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return self.call


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "step-000000001"
    write_checkpoint(folder, {"model": {"w": torch.arange(6.0), "b": torch.ones(2, 2)}}, {"step": 1, "world": 1})
    return folder


def seal(folder: Path, *more: str) -> None:
    """As an attacker would: the hashes fit the changed files."""
    files = {name: file_facts(folder / name) for name in (TABLE, TENSORS, *more)}
    write_json(folder / "manifest.json", sealed({"step": 1, "world": 1}, files))
    assert damage(folder) is None


def changed(folder: Path, change: Callable[[Metadata], None]) -> None:
    table = read_table(folder / TABLE)
    change(table)
    (folder / TABLE).write_bytes(pickle.dumps(table))
    seal(folder)


def read(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {"w": torch.zeros(6), "b": torch.zeros(2, 2)}
    read_tensors({"model": tensors}, folder, no_dist=True)
    return tensors


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointException) as error:
        read(folder)
    (failure,) = error.value.failures.values()
    assert isinstance(failure[0], Untrusted), failure[0]
    assert not MARKER.exists()
    return str(failure[0])


def test_tensors_are_read_as_they_were_written(checkpoint: Path) -> None:
    tensors = read(checkpoint)
    assert torch.equal(tensors["w"], torch.arange(6.0))
    assert torch.equal(tensors["b"], torch.ones(2, 2))


def test_a_table_that_names_a_function_to_call_is_refused(checkpoint: Path) -> None:
    (checkpoint / TABLE).write_bytes(pickle.dumps(Trap()))
    seal(checkpoint)
    assert "does not need posix.mkdir" in refusal(checkpoint)


def test_an_entry_that_is_an_object_and_not_a_tensor_is_refused(checkpoint: Path) -> None:
    """torch would unpickle such bytes without limits."""
    packed = io.BytesIO()
    torch.save(Trap(), packed)
    (checkpoint / TENSORS).write_bytes(packed.getvalue())

    def plant(table: Metadata) -> None:
        table.state_dict_metadata["model.w"] = BytesStorageMetadata()
        table.storage_data[MetadataIndex("model.w")] = StorageInfo(TENSORS, 0, len(packed.getvalue()))

    changed(checkpoint, plant)
    assert "BytesStorageMetadata" in refusal(checkpoint)


def test_a_tensor_whose_bytes_are_an_object_is_refused(checkpoint: Path) -> None:
    packed = io.BytesIO()
    torch.save(Trap(), packed)
    (checkpoint / TENSORS).write_bytes(packed.getvalue())

    def point(table: Metadata) -> None:
        for info in table.storage_data.values():
            info.offset, info.length = 0, len(packed.getvalue())

    changed(checkpoint, point)
    with pytest.raises(CheckpointException):
        read(checkpoint)
    assert not MARKER.exists()


@pytest.mark.parametrize("name", ["other.distcp", "../outside", "/etc/passwd", "..", "", "manifest.json"])
def test_a_file_that_the_manifest_does_not_list_is_not_opened(checkpoint: Path, name: str) -> None:
    for path in (checkpoint / "other.distcp", checkpoint.parent / "outside"):
        path.write_bytes((checkpoint / TENSORS).read_bytes())

    def point(table: Metadata) -> None:
        for info in table.storage_data.values():
            info.relative_path = name

    changed(checkpoint, point)
    assert "which the manifest does not list" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", "a/b", "a\n", ""])
def test_a_manifest_cannot_list_a_file_outside_the_folder(checkpoint: Path, name: str) -> None:
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    files[name] = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    write_json(checkpoint / "manifest.json", sealed({"step": 1, "world": 1}, files))
    assert "is not a manifest" in (damage(checkpoint) or "")


@pytest.mark.parametrize("name", [TABLE, TENSORS])
def test_a_link_is_not_followed(checkpoint: Path, name: str) -> None:
    (checkpoint / name).rename(checkpoint.parent / "outside")
    (checkpoint / name).symlink_to(checkpoint.parent / "outside")
    assert damage(checkpoint) == f"{name} is a link"
    assert refusal(checkpoint) == f"{name} is a link"


def test_a_tensor_that_is_compressed_is_refused(checkpoint: Path) -> None:
    """A small file could claim all memory."""
    packed, plain = io.BytesIO(), io.BytesIO()
    torch.save(torch.arange(6.0), plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    (checkpoint / TENSORS).write_bytes(packed.getvalue())

    def point(table: Metadata) -> None:
        for info in table.storage_data.values():
            info.offset, info.length = 0, len(packed.getvalue())

    changed(checkpoint, point)
    assert "compressed" in refusal(checkpoint)


def nested(levels: int) -> bytes:
    """A dict whose key is a deeply nested tuple: hashing it crashes a process."""
    return b"\x80\x04}(" + b")" + b"\x85" * levels + b"Nu."


@pytest.mark.parametrize(
    "data",
    [
        nested(1_000_000),
        b"\x80\x04Nr\xff\xff\xff\xff.",  # a memo of 4 billion entries
        b"\x80\x04" + b"(" * 1_000_000 + b".",
        b"\x80\x04N\x942" + b"\x85h\x00." * 3,
        b"\x80\x04cposix\nmkdir\n.",
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # an integer of 2 GB
        b"",
        b"\x80\x04.",
        pickle.dumps({"state_dict_metadata": {}}),
        pickle.dumps(Metadata(state_dict_metadata=None)),  # type: ignore[arg-type]
        pickle.dumps(Metadata({"w": None}, storage_data={})),  # type: ignore[dict-item]
        pickle.dumps(Metadata({}, storage_data={"w": 1})),
        pickle.dumps(Metadata({}, storage_data={MetadataIndex("w"): StorageInfo(TENSORS, -1, 5)})),
        pickle.dumps(Metadata({}, storage_data={MetadataIndex("w"): StorageInfo(TENSORS, 0, 5, ("zstd",))})),
    ],
    ids=lambda data: data[:14].hex(),
)
def test_an_invalid_table_is_refused_without_a_crash(checkpoint: Path, data: bytes) -> None:
    (checkpoint / TABLE).write_bytes(data)
    seal(checkpoint)
    refusal(checkpoint)


def test_a_checkpoint_of_another_python_is_read() -> None:
    wanted = MemoryFormat.TORCH_CHANNELS_LAST
    packed = pickle.dumps(ByName(MemoryFormat, wanted.name))
    assert TableOfContents(io.BytesIO(packed)).load() is wanted


@pytest.mark.parametrize("named", [ByName(Path, "write_text"), io.StringIO, Path.home, BytesStorageMetadata()])
def test_a_checkpoint_cannot_get_attributes_of_classes(named: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="does not need"):
        TableOfContents(io.BytesIO(pickle.dumps(named))).load()


def test_a_checkpoint_can_only_get_members_of_an_enum() -> None:
    packed = pickle.dumps(ByName(MemoryFormat, "__init_subclass__"))
    with pytest.raises(KeyError):
        TableOfContents(io.BytesIO(packed)).load()
