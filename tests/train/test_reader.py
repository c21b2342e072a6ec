"""A checkpoint from somebody else cannot run code here."""

import io
import os
import pickle
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as MemoryFormat

from stoker.train.reader import CheckpointReader, TableOfContents


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_a_checkpoint_that_names_a_function_to_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(pickle.UnpicklingError, match=r"has no need of posix\.mkdir"):
        CheckpointReader(tmp_path).read_metadata()
    assert not Path("sprung").exists()


class ByName:
    """Pickled as old versions of Python do with a member of an Enum."""

    def __init__(self, owner: object, name: str) -> None:
        self.call = getattr, (owner, name)

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return self.call


def test_a_checkpoint_of_another_python_is_read() -> None:
    wanted = MemoryFormat.TORCH_CHANNELS_LAST
    packed = pickle.dumps(ByName(MemoryFormat, wanted.name))
    assert TableOfContents(io.BytesIO(packed)).load() is wanted


def test_a_checkpoint_does_not_reach_into_classes() -> None:
    packed = pickle.dumps(ByName(Path, "write_text"))
    with pytest.raises(pickle.UnpicklingError, match="has no need of"):
        TableOfContents(io.BytesIO(packed)).load()
    packed = pickle.dumps(ByName(MemoryFormat, "__init_subclass__"))
    with pytest.raises(KeyError):
        TableOfContents(io.BytesIO(packed)).load()
