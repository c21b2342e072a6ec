"""A malicious run directory is refused in one line, and none of its code is executed."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from stoker.models.checkpoint_reader import read_table
from stoker.rundir import RunDir, write_json
from stoker.rundir.checkpoint import damage, file_facts, sealed
from tests.inside import inside

MARKER = "executed"
VERBS = [
    ("generate", "tale", "the"),
    ("eval", "tale"),
    ("export", "tale"),
    ("generate", "runs/tale/checkpoints/{step}"),
]


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (MARKER,)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return tmp_path


def object_among_tensors(folder: Path) -> None:
    packed = io.BytesIO()
    torch.save(Trap(), packed)
    (folder / "__9_9.distcp").write_bytes(packed.getvalue())
    table = read_table(folder / ".metadata")
    name = next(iter(table.state_dict_metadata))
    table.state_dict_metadata[name] = BytesStorageMetadata()
    table.storage_data[MetadataIndex(name)] = StorageInfo("__9_9.distcp", 0, len(packed.getvalue()))
    (folder / ".metadata").write_bytes(pickle.dumps(table))


def function_in_the_table(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Trap()))


def reseal(folder: Path) -> None:
    names = [file.name for file in folder.iterdir() if file.name != "manifest.json"]
    record = {"step": int(folder.name[-9:]), "world": 1}
    write_json(folder / "manifest.json", sealed(record, {name: file_facts(folder / name) for name in names}))
    assert damage(folder) is None


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("plant", [object_among_tensors, function_in_the_table])
@pytest.mark.parametrize("arguments", VERBS, ids=lambda arguments: arguments[0])
def test_a_checkpoint_executes_nothing(tale: Path, plant: Callable[[Path], None], arguments: tuple[str, ...]) -> None:
    newest = RunDir(tale).saved()[-1].path
    plant(newest)
    reseal(newest)
    done = inside(*(argument.format(step=newest.name) for argument in arguments), code=2)
    (line,) = done.stderr.splitlines()
    assert "cannot be read: a checkpoint does not need" in line
    assert not Path(MARKER).exists()


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "9" * 5000, "[" * 100_000, '{"step": "1", "files": {}}', '{"step": 40, "files": {"../x": 1}}'],
)
def test_a_malformed_manifest_is_named(tale: Path, text: str) -> None:
    for saved in RunDir(tale).saved():
        (saved.path / "manifest.json").write_text(text)
    done = inside("generate", "tale", "the", code=2)
    (line,) = done.stderr.splitlines()
    assert "step-000000040: manifest.json" in line


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab", 301), ("vocab", 2**24), ("heads", 4), ("layers", 1), ("layers", 10_000), ("context", 64), ("width", 64)],
)
def test_a_spec_with_an_edited_model_is_refused(tale: Path, key: str, value: int) -> None:
    """No tensor's shape depends on heads, and a model with fewer layers finds all of its tensors."""
    values = yaml.safe_load((tale / "spec.yaml").read_text())
    values["model"][key] = value
    (tale / "spec.yaml").write_text(yaml.safe_dump(values))
    done = inside("generate", "tale", "the", code=2)
    (line,) = done.stderr.splitlines()
    assert f"spec.yaml has been changed: model.{key} is {value} and was " in line


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("text", ["[" * 100_000, "a: " * 10, "9" * 5000, "[]", "", "model: {family: [1]}"])
def test_a_malformed_spec_is_named(tale: Path, text: str) -> None:
    (tale / "spec.yaml").write_text(text)
    done = inside("generate", "tale", "the", code=2)
    (line,) = done.stderr.splitlines()
    assert "spec.yaml" in line
