"""Models can be loaded from runs that are done, damaged, new or being written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from stoker.api.opening import begin
from stoker.data.tokenizer import load_folder
from stoker.models.gpt2 import SPEC
from stoker.models.load import load_model
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load as load_spec


@pytest.fixture
def run(worker: Callable[..., RunDir]) -> RunDir:
    return worker("name=run", "until.steps=6", "checkpoint.every=2", "eval.every=3", "checkpoint.keep=9")


def weights(run: RunDir, step: int) -> dict[str, torch.Tensor]:
    tensors = {name: torch.empty_like(p) for name, p in SPEC.build(run.spec().model).named_parameters()}
    load({"model": tensors}, checkpoint_id=run.checkpoint(step), no_dist=True)
    return tensors


def assert_step(run: RunDir, model: torch.nn.Module, step: int) -> None:
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], tensor) for name, tensor in weights(run, step).items())


def test_a_run_gives_its_newest_checkpoint_or_the_requested_one(run: RunDir) -> None:
    newest = load_model(run.path, device="cpu")
    assert (newest.step, newest.origin) == (6, "run 'run', step 6")
    assert (newest.run.path, newest.shape) == (run.path, run.spec().model)
    assert not newest.model.training
    assert {p.dtype for p in newest.model.parameters()} == {torch.float32}
    assert_step(run, newest.model, 6)
    assert load_folder(newest.tokenizer).vocab == newest.read_tokenizer().vocab == newest.shape.vocab

    assert_step(run, load_model(run.path, step=2, device="cpu").model, 2)
    best = load_model(run.path, step="best", device="cpu")
    losses = {record["step"]: record["val_loss"] for record in run.metrics() if "val_loss" in record}
    assert best.step == min(losses, key=losses.__getitem__)
    by_folder = load_model(run.checkpoint(4), device="cpu")
    assert (by_folder.step, by_folder.run.path) == (4, run.path)
    assert_step(run, by_folder.model, 4)


def test_a_damaged_newest_checkpoint_is_skipped_and_named(run: RunDir) -> None:
    file = next(run.checkpoint(6).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    loaded = load_model(run.path, device="cpu")
    assert loaded.step == 4
    assert f"step 6 was passed over: {file.name} has changed since it was written" in loaded.origin
    with pytest.raises(UserError, match=r"no checkpoint of run 'run' can be read; that of step 6: .* has changed"):
        load_model(run.path, step=6, device="cpu")
    with pytest.raises(UserError, match="has changed since it was written"):
        load_model(run.checkpoint(6), device="cpu")


def test_a_checkpoint_that_is_still_being_written_is_ignored(run: RunDir) -> None:
    shutil.copytree(run.checkpoint(6), run.checkpoint(8))
    (run.checkpoint(8) / "manifest.json").unlink()
    assert load_model(run.path, device="cpu").step == 6


def test_a_run_can_be_read_while_it_saves_and_prunes(stoker, tokens: Path, eventually) -> None:
    overrides = ["model.layers=1", "model.heads=1", "model.width=16", "model.context=16", "batch.sequences=2"]
    ends = ["batch.length=16", "until.steps=1M", "checkpoint.every=1", "checkpoint.keep=1", "eval.every=0"]
    stoker.start("train", "name=live", f"data={tokens}", *overrides, *ends, "on.workers=1")
    run = stoker.run("live")
    eventually(lambda: bool(run.saved()))
    steps: list[int | None] = []

    def ten_seen() -> bool:
        steps.append(load_model(run.path, device="cpu").step)
        return len(set(steps)) == 10

    eventually(ten_seen)
    assert steps == sorted(steps)


def test_a_missing_checkpoint_is_reported(tmp_path: Path, tokens: Path, run: RunDir, worker) -> None:
    young = begin(load_spec(None, [f"data={tokens}", "until.steps=5", "name=young"]).spec, runs=tmp_path).run
    with pytest.raises(UserError, match="run 'young' has no checkpoint yet"):
        load_model(young.path)
    with pytest.raises(UserError, match=r"no checkpoint of step 5\. There are: 2, 3, 4, 6"):
        load_model(run.path, step=5)
    plain = worker("name=plain", "until.steps=1", "checkpoint.first=true")
    shutil.rmtree(plain.checkpoint(1))
    with pytest.raises(UserError, match="has had no evaluation"):
        load_model(plain.path, step="best")


def test_a_folder_without_a_model_is_refused(tmp_path: Path, run: RunDir) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no model"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="is no run, so it has no step 3"):
        load_model(run.checkpoint(4), step=3)
    apart = tmp_path / "a" / "step-000000004"
    shutil.copytree(run.checkpoint(4), apart)
    with pytest.raises(UserError, match="is not inside its run"):
        load_model(apart)
    for device in ("tpu-ish", "meta", "mps:7", "vulkan"):
        with pytest.raises(UserError, match=f"'{device}' is not a device of this machine"):
            load_model(run.path, device=device)
    run.write_spec(run.spec().model_copy(update={"model": run.spec().model.model_copy(update={"width": 64})}))
    with pytest.raises(UserError, match=r"spec\.yaml has been changed: model\.width is 64 and was 32"):
        load_model(run.path, device="cpu")


def test_a_run_of_a_script_has_no_model_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('loss 1')\n")
    run = begin(load_spec(None, [f"script={tmp_path / 'mine.py'}", "name=own"]).spec, runs=tmp_path).run
    with pytest.raises(UserError, match="runs a script"):
        load_model(run.path)


def test_a_model_without_its_tokenizer_loads_and_says_what_is_missing(run: RunDir) -> None:
    shutil.rmtree(run.tokenizer)
    loaded = load_model(run.path, device="cpu")
    assert loaded.tokenizer is None
    with pytest.raises(UserError, match=r"run 'run', step 6 has no tokenizer\. Put the tokenizer\.json"):
        loaded.read_tokenizer()
