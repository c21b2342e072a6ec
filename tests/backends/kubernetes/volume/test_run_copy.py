"""A run that is copied from a volume is complete: it can be audited and evaluated. The volume is a local folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.opening import begin
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.run_copy import copy_run, copy_target, copy_tokens, run_at, weight_commands
from stoker.backends.kubernetes.volume.staging import staged
from stoker.backends.transfer.client import upload
from stoker.backends.transfer.frames import PeerLost
from stoker.backends.transfer.meter import ignore
from stoker.observe.audit import audit
from stoker.observe.step_batch import token_set
from stoker.rundir import OriginRef, RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.backends.transfer.conftest import RemoteFolder

OVERRIDES = ["name=demo", "model=gpt2-micro", "model.layers=1", "batch.length=16", "until.steps=5"]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[RemoteFolder]:
    (tmp_path / "volume").mkdir()
    place = RemoteFolder(tmp_path / "volume")
    yield place
    for cable in place.cables:
        cable.close()


def launched(volume: RemoteFolder, folder: Path, *overrides: str) -> RunDir:
    """Uploaded as by a launch; then deleted on this machine."""
    run = begin(load(None, [*OVERRIDES, *overrides]).spec, runs=folder / "laptop").run
    upload(staged(run), volume)
    shutil.rmtree(folder / "laptop")
    return run


def copied(volume: RemoteFolder, to: Path) -> RunDir:
    copy = copy_target(to, "demo")
    copy_run(volume, "demo", copy, ignore)
    list(copy_tokens(volume, copy, ignore))
    return copy


def test_a_copy_is_audited_and_evaluated_without_editing_anything(
    volume: RemoteFolder, tmp_path: Path, tokens: Path
) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    copy = copied(volume, tmp_path / "home")
    assert copy.path == tmp_path / "home"
    assert copy.data().shards == f"/stoker/data/{copy.data().key}"
    assert token_set(copy).path == tmp_path / "home" / "data" / copy.data().key
    assert not audit(copy).mismatched


def test_a_copy_of_a_mixture_has_the_sets_that_it_draws_from(volume: RemoteFolder, tmp_path: Path, books: Path) -> None:
    mix = f"data.mix=[{{path: {books}/book-0.txt, weight: 1}}, {{path: {books}/book-1.txt, weight: 3}}]"
    launched(volume, tmp_path, mix, "data.tokenizer={train: 300}")
    copy = copied(volume, tmp_path / "home")
    assert token_set(copy).key == copy.data().key
    assert len(list((copy.path / "data").iterdir())) == 3


def test_the_same_command_continues_a_copy_that_was_cut_and_updates_one_that_was_not(
    volume: RemoteFolder, tmp_path: Path, tokens: Path
) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    to = tmp_path / "home"
    copy = copy_target(to, "demo")
    volume.cuts = [(None, 4000), None]
    with pytest.raises((UserError, PeerLost)):
        copy_run(volume, "demo", copy, ignore)
    assert copy_target(to, "demo").path == to, "an unfinished copy"
    copy_run(volume, "demo", copy, ignore)
    assert copy_target(to, "demo").path == to, "an earlier copy, whose token set has not come yet"
    assert token_set(copied(volume, to)).key == copy.data().key
    (tmp_path / "other").mkdir()
    assert copy_target(tmp_path / "other", "demo").path == tmp_path / "other" / "demo"


def test_a_token_set_that_is_already_here_is_not_downloaded(volume: RemoteFolder, tmp_path: Path, tokens: Path) -> None:
    run = launched(volume, tmp_path, f"data.path={tokens}")
    shutil.copytree(tokens, tmp_path / "runs" / ".prepared" / token_key(tokens))
    copy = copy_target(tmp_path / "runs" / "home", run.name)
    copy_run(volume, "demo", copy, ignore)
    [(folder, fetched)] = copy_tokens(volume, copy, ignore)
    assert folder == tmp_path / "runs" / ".prepared" / token_key(tokens)
    assert fetched is None


def test_a_token_set_that_is_missing_on_the_volume_is_named(volume: RemoteFolder, tmp_path: Path, tokens: Path) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    shutil.rmtree(Path(volume.root) / "data")
    with pytest.raises(UserError, match=r"home has the run, but not its token set: there is no .*--no-tokens"):
        copied(volume, tmp_path / "home")


def test_a_token_set_with_another_key_is_refused(volume: RemoteFolder, tmp_path: Path, tokens: Path) -> None:
    launched(volume, tmp_path, f"data.path={tokens}")
    index = Path(volume.root) / "data" / token_key(tokens) / "index.json"
    index.write_text(index.read_text().replace(token_key(tokens), "0" * 32))
    with pytest.raises(UserError, match="has other data than the run was trained on"):
        copied(volume, tmp_path / "home")


def test_a_copy_does_not_overwrite_the_record_of_the_run_in_the_cluster(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "demo")
    run.path.mkdir(parents=True)
    ClusterPlace(kind="kubernetes", context=None, namespace="team", job="job", run="demo", volume="v", image="i").write(
        run
    )
    for to in (run.path, run.path.parent):
        with pytest.raises(UserError, match=r"Name another folder, such as \./demo-copy"):
            copy_target(to, "demo")


def test_weights_that_only_a_replay_needs_are_not_copied_and_the_command_is_shown(tmp_path: Path) -> None:
    copy = RunDir(tmp_path / "home")
    copy.path.mkdir()
    copy.write_origins({"init": OriginRef(path="/stoker/models/abc", step=None, key="abc")})
    [command] = weight_commands(copy, "demo")
    assert command.endswith(f"stoker cp demo:/models/abc {tmp_path}/home/.origins/init")
    copy.origin_folder("init").mkdir(parents=True)
    assert weight_commands(copy, "demo") == []
    copy.write_origins({"teacher": OriginRef(path="/stoker/models/x", step=None, key="x; rm -rf y")})
    assert weight_commands(copy, "demo") == []


def test_a_path_is_a_run_when_it_is_one_below_runs() -> None:
    assert run_at("runs/demo/") == "demo"
    assert [run_at(path) for path in ("runs", "runs/demo/logs", "data/demo", "", "runs/..")] == [None] * 5


def token_key(tokens: Path) -> str:
    return str(json.loads((tokens / "index.json").read_text())["key"])
