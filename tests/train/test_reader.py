"""A checkpoint from somebody else cannot run code here."""

import os
import pickle
from pathlib import Path

import pytest

from stoker.train.reader import CheckpointReader


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_a_checkpoint_that_names_a_function_to_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(pickle.UnpicklingError, match=r"has no need of posix\.mkdir"):
        CheckpointReader(tmp_path).read_metadata()
    assert not Path("sprung").exists()
