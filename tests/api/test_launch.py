"""A launch that fails deletes what it has created, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from stoker.api import opening
from stoker.api.launch import NullListener, launch, plan
from stoker.api.opening import Opened
from stoker.rundir import DataRef, RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec


@pytest.fixture
def spec(tokens: Path) -> AnySpec:
    model = "model={layers: 1, heads: 1, width: 16, context: 32}"
    return load(None, [f"data={tokens}", model, "batch.length=32", "until.steps=2", "on.device=cpu", "name=tale"]).spec


class FailingListener(NullListener):
    def prepared(self, opened: Opened) -> None:
        assert opened.run.exists()
        raise UserError("the image cannot be pulled", remedy="")


def test_a_launch_that_fails_deletes_the_run_that_it_created(spec: AnySpec, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be pulled"):
        launch(plan(spec, runs=tmp_path), listener=FailingListener())
    assert not (tmp_path / "tale").exists()


def test_a_launch_that_fails_keeps_an_existing_run(spec: AnySpec, tmp_path: Path) -> None:
    opening.begin(spec, runs=tmp_path)
    with pytest.raises(UserError, match="cannot be pulled"):
        launch(plan(spec, runs=tmp_path), listener=FailingListener())
    assert RunDir(tmp_path / "tale").exists()


@pytest.mark.parametrize("is_training", [True, False])
def test_a_run_that_another_command_creates_during_a_launch_is_kept(
    spec: AnySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_training: bool
) -> None:
    run, prepare = RunDir(tmp_path / "tale"), opening.set_of

    def prepare_while_another_command_creates_the_run(*args: Any, **options: Any) -> Any:
        tokens = prepare(*args, **options)
        run.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))
        if is_training:
            lock.__enter__()
        return tokens

    lock = run.lock()
    monkeypatch.setattr(opening, "set_of", prepare_while_another_command_creates_the_run)
    problem = "is being written by process" if is_training else "was just started by another command"
    with pytest.raises(UserError, match=problem):
        launch(plan(spec, runs=tmp_path))
    if is_training:
        lock.__exit__(None, None, None)
    assert run.exists()
