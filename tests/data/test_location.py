"""Where the token set of a run is found after the run was copied."""

import json
import shutil
from pathlib import Path

import pytest

from stoker.data.location import key_in, missing, token_folder
from stoker.rundir import DataRef, RunDir
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until

KEY = "a" * 32


def token_set(folder: Path, key: str = KEY, head: str = "index.json") -> Path:
    folder.mkdir(parents=True)
    (folder / head).write_text(json.dumps({"key": key}))
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> RunDir:
    """A run directory as it comes from a volume."""
    run = RunDir(tmp_path / "work" / "copies" / "home")
    spec = RunSpec(name="books-ab3d", data=Data(path="."), until=Until(steps=1))
    run.create(spec, DataRef(shards=f"/stoker/data/{KEY}", key=KEY))
    return run


@pytest.mark.parametrize("place", ["home/data", ".prepared", "../data"])
@pytest.mark.parametrize("head", ["index.json", "mix.json", "stream.json"])
def test_a_copy_finds_the_set_beside_it_by_its_key(copy: RunDir, place: str, head: str) -> None:
    folder = token_set(copy.path.parent / place / KEY, head=head)
    assert token_folder(copy).resolve() == folder.resolve()


def test_the_place_in_data_json_comes_first(copy: RunDir, tmp_path: Path) -> None:
    named = token_set(tmp_path / "tokens")
    token_set(copy.path / "data" / KEY)
    copy.write_data(DataRef(shards=str(named), key=KEY))
    assert token_folder(copy) == named
    shutil.rmtree(named)
    token_set(named, key="b" * 32)
    assert token_folder(copy) == copy.path / "data" / KEY, "another set in its place is not the run's"


@pytest.mark.parametrize("text", ['{"key": "' + "b" * 32 + '"}', "[]", "{", '{"key": 7}', "[" * 100_000])
def test_a_set_of_another_key_is_never_taken(copy: RunDir, text: str) -> None:
    folder = token_set(copy.path / "data" / KEY)
    (folder / "index.json").write_text(text)
    assert token_folder(copy) == Path("/stoker/data") / KEY
    assert key_in(folder) != KEY


def test_a_key_is_no_path(copy: RunDir, tmp_path: Path) -> None:
    token_set(tmp_path / "work" / "out", key="../../../out")
    copy.write_data(DataRef(shards="/stoker/none", key="../../../out"))
    assert token_folder(copy) == Path("/stoker/none")


def test_a_missing_set_is_reported_with_the_command_that_fetches_it(copy: RunDir, tmp_path: Path) -> None:
    error = missing(copy, token_folder(copy))
    assert error.problem == f"the run's token set /stoker/data/{KEY} is missing"
    assert error.remedy.endswith(f"stoker cp books-ab3d: {copy.path}")
    assert "prepare the data again" in missing(copy, tmp_path / "none").remedy
