"""A run that comes back from a volume is complete: it can be audited and evaluated. The volume is a folder here."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.opening import begin
from stoker.api.staging import staged
from stoker.launch.transfer.client import upload
from stoker.launch.transfer.frames import Cut
from stoker.launch.transfer.meter import ignore
from stoker.observe.audit import audit
from stoker.observe.batch import token_set
from stoker.observe.run_copy import copied_to, copy_run, copy_tokens, run_named, weights_left
from stoker.rundir import OriginRef, PlaceRef, RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.launch.transfer.conftest import There

WORDS = ["name=demo", "model=gpt2-micro", "model.layers=1", "batch.length=16", "until.steps=5"]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[There]:
    (tmp_path / "volume").mkdir()
    place = There(tmp_path / "volume")
    yield place
    for cable in place.cables:
        cable.close()


def launched(volume: There, folder: Path, *words: str) -> RunDir:
    """Uploaded as a launch does it; what it was made from is gone from this machine."""
    run = begin(load(None, [*WORDS, *words]).spec, runs=folder / "laptop").run
    upload(staged(run), volume)
    shutil.rmtree(folder / "laptop")
    return run


def copied(volume: There, to: Path) -> RunDir:
    copy = copied_to(to, "demo")
    copy_run(volume, "demo", copy, ignore)
    list(copy_tokens(volume, copy, ignore))
    return copy


def test_a_copy_is_audited_and_evaluated_without_editing_anything(volume: There, tmp_path: Path, tokens: Path) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    copy = copied(volume, tmp_path / "home")
    assert copy.path == tmp_path / "home"
    assert copy.data().shards == f"/stoker/data/{copy.data().key}"
    assert token_set(copy).path == tmp_path / "home" / "data" / copy.data().key
    assert not audit(copy).mismatched


def test_a_copy_of_a_mixture_has_the_sets_that_it_draws_from(volume: There, tmp_path: Path, books: Path) -> None:
    mix = f"data.mix=[{{path: {books}/book-0.txt, weight: 1}}, {{path: {books}/book-1.txt, weight: 3}}]"
    launched(volume, tmp_path, mix, "data.tokenizer={train: 300}")
    copy = copied(volume, tmp_path / "home")
    assert token_set(copy).key == copy.data().key
    assert len(list((copy.path / "data").iterdir())) == 3


def test_the_same_command_continues_a_copy_that_was_cut_and_updates_one_that_was_not(
    volume: There, tmp_path: Path, tokens: Path
) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    to = tmp_path / "home"
    copy = copied_to(to, "demo")
    volume.cuts = [(None, 4000), None]
    with pytest.raises((UserError, Cut)):
        copy_run(volume, "demo", copy, ignore)
    assert copied_to(to, "demo").path == to, "an unfinished copy"
    copy_run(volume, "demo", copy, ignore)
    assert copied_to(to, "demo").path == to, "an earlier copy, whose token set has not come yet"
    assert token_set(copied(volume, to)).key == copy.data().key
    (tmp_path / "other").mkdir()
    assert copied_to(tmp_path / "other", "demo").path == tmp_path / "other" / "demo"


def test_a_set_that_is_here_already_is_not_fetched(volume: There, tmp_path: Path, tokens: Path) -> None:
    run = launched(volume, tmp_path, f"data.path={tokens}")
    shutil.copytree(tokens, tmp_path / "runs" / ".prepared" / token_key(tokens))
    copy = copied_to(tmp_path / "runs" / "home", run.name)
    copy_run(volume, "demo", copy, ignore)
    [(folder, fetched)] = copy_tokens(volume, copy, ignore)
    assert folder == tmp_path / "runs" / ".prepared" / token_key(tokens)
    assert fetched is None


def test_a_set_that_is_no_longer_on_the_volume_is_named(volume: There, tmp_path: Path, tokens: Path) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    shutil.rmtree(Path(volume.root) / "data")
    with pytest.raises(UserError, match=r"home has the run, but not its token set: there is no .*--no-tokens"):
        copied(volume, tmp_path / "home")


def test_a_volume_that_lies_about_a_set_is_not_believed(volume: There, tmp_path: Path, tokens: Path) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    index = Path(volume.root) / "data" / token_key(tokens) / "index.json"
    index.write_text(index.read_text().replace(token_key(tokens), "0" * 32))
    with pytest.raises(UserError, match="holds other data than the run was trained on"):
        copied(volume, tmp_path / "home")


def test_a_copy_does_not_replace_the_folder_that_says_where_the_run_lives(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "demo")
    run.path.mkdir(parents=True)
    run.write_place(
        PlaceRef(kind="kubernetes", context=None, namespace="team", job="job", run="demo", volume="v", image="i")
    )
    for to in (run.path, run.path.parent):
        with pytest.raises(UserError, match=r"Name another folder, such as \./demo-copy"):
            copied_to(to, "demo")


def test_weights_that_only_a_replay_needs_stay_there_and_the_command_is_told(tmp_path: Path) -> None:
    copy = RunDir(tmp_path / "home")
    copy.path.mkdir()
    copy.write_origins({"init": OriginRef(path="/stoker/models/abc", step=None, key="abc")})
    [command] = weights_left(copy, "demo")
    assert command.endswith(f"stoker cp demo:/models/abc {tmp_path}/home/.origins/init")
    copy.held("init").mkdir(parents=True)
    assert weights_left(copy, "demo") == []
    copy.write_origins({"teacher": OriginRef(path="/stoker/models/x", step=None, key="x; rm -rf y")})
    assert weights_left(copy, "demo") == []


def test_a_path_is_a_run_when_it_is_one_below_runs() -> None:
    assert run_named("runs/demo/") == "demo"
    assert [run_named(path) for path in ("runs", "runs/demo/logs", "data/demo", "", "runs/..")] == [None] * 5


def token_key(tokens: Path) -> str:
    return str(json.loads((tokens / "index.json").read_text())["key"])
