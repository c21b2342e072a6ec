"""A shard that changed stops the run: no checkpoint holds a step that was trained on it."""

import json
import shutil
from pathlib import Path

import pytest

from stoker.data.sets import open_set
from stoker.data.shards import TokenSet
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.spec.contract import MANIFEST_FILE
from stoker.train import data_check
from tests.flip import flip
from tests.written import events_of

SPOIL = """
from pathlib import Path

from tests.flip import flip
from tests.waiting import until

def spoil(record):
    for note in Path.cwd().glob(f"spoil-{record['step']}"):
        saved, shard = map(Path, note.read_text().splitlines())
        until(lambda: saved.exists())
        flip(shard)
        note.unlink()
"""


@pytest.fixture
def copied(tokens: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tokens, tmp_path / "set"))


@pytest.fixture
def spoiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A callback that damages the shard named in the file `spoil-N`, after step N, once another file exists."""
    (tmp_path / "spoiling.py").write_text(SPOIL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shard_of(folder: Path, split: str = "train") -> Path:
    return next(file.path for file in open_set(folder).files() if file.file.startswith(split))


def to_spoil(folder: Path, run: Path, shard: Path) -> None:
    """After step 3, when the checkpoint of step 2 is complete."""
    saved = RunDir(run).checkpoint(2) / MANIFEST_FILE
    (folder / "spoil-3").write_text(f"{saved}\n{shard}")


def losses(run) -> list[float]:
    return [record["loss"] for record in run.metrics()]


def test_a_run_on_a_changed_shard_trains_nothing_and_names_the_shard(worker, copied: Path) -> None:
    whole = worker("name=whole", f"data={copied}", "until.steps=4")
    shard = shard_of(copied)
    flip(shard)
    run = worker("name=run", f"data={copied}", "until.steps=4", "checkpoint.every=1", code=2)
    assert run.saved() == []
    assert run.metrics() == [], "a small set is read before the first step"
    exit = run.exit()
    assert (exit.state, exit.reason) == ("failed", f"{shard} is damaged: its sha256 is not the one in index.json")
    assert exit.remedy == f"Restore that file, or delete {copied} and prepare the data again"
    flip(shard)
    worker("name=run", f"data={copied}", "until.steps=4", "checkpoint.every=1")
    assert losses(run) == losses(whole)
    assert audit(run).ok


def test_a_changed_shard_of_held_out_text_stops_the_run_too(worker, copied: Path) -> None:
    flip(shard_of(copied, "validation"))
    run = worker(f"data={copied}", "until.steps=1", code=2)
    assert "validation-" in run.exit().reason


def test_a_large_set_is_checked_during_training_and_before_a_checkpoint_becomes_valid(
    worker, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_check, "SMALL_BYTES", 0)
    shard = shard_of(copied)
    flip(shard)
    run = worker(f"data={copied}", "until.steps=3", "checkpoint.every=1", "checkpoint.first=true", code=2)
    assert run.saved() == []
    assert str(shard) in run.exit().reason


@pytest.mark.parametrize("end", ["until.steps=5", "until.steps=3", "until.steps_this_run=3"])
def test_a_shard_that_changes_during_the_run_is_in_no_later_checkpoint(
    worker, copied: Path, spoiler: Path, end: str
) -> None:
    overrides = [f"data={copied}", "optim.horizon=5", "checkpoint.every=2", "callbacks=[spoiling:spoil]"]
    shard = shard_of(copied)
    to_spoil(spoiler, spoiler / "here/run", shard)
    overrides += ["until.steps=5"] if "this_run" in end else []
    run = worker(*overrides, end, code=2)
    assert [saved.step for saved in run.saved()] == [2]
    assert str(shard) in run.exit().reason
    flip(shard)
    worker(*overrides, "until.steps=5")
    assert (run.exit().state, run.exit().step) == ("done", 5)
    assert [event["step"] for event in events_of(run) if event["kind"] == "resumed"] == [2]
    assert audit(run).ok


def test_a_shard_of_a_stream_is_checked_when_it_is_added(worker, books: Path, spoiler: Path) -> None:
    overrides = [
        f"data.path={books}", "data.stream=true", "data.window=2000", "data.tokenizer={train: 300}",
        "callbacks=[spoiling:spoil]", "optim.horizon=5", "checkpoint.every=2",
    ]  # fmt: skip
    run = worker(*overrides, "until.steps=2")
    made = Path(json.loads((run.path / "data.json").read_text())["shards"])
    shard = open_set(made).train.files()[0].path
    to_spoil(spoiler, run.path, shard)
    worker(*overrides, "until.steps=5", code=2)
    assert [saved.step for saved in run.saved()] == [2]
    assert str(shard) in run.exit().reason


def test_all_workers_stop_with_the_one_that_reads_the_shards(stoker, copied: Path) -> None:
    flip(shard_of(copied))
    shape = ["model.layers=1", "model.heads=1", "model.width=16", "model.context=32", "batch.length=32"]
    overrides = [f"data={copied}", *shape, "batch.sequences=4", "until.steps=4", "on.workers=2", "checkpoint.every=1"]
    ended = stoker("train", "name=run", *overrides, "log.tensorboard=false", "compile=false", code=2)
    assert "is damaged" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    run = stoker.run("run")
    assert run.saved() == []
    assert TokenSet.open(copied).key == run.data().key
    assert not [event for event in events_of(run) if event["kind"] == "failed"], "it is not started again"
