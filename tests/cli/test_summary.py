import json
from pathlib import Path

from stoker.api.opening import OpenedTraining as Opened
from stoker.api.opening import begin
from stoker.backends.backend import Submission
from stoker.cli import summary
from stoker.rundir import Exit, RunDir
from stoker.spec.contract import MANIFEST_FILE
from stoker.spec.load import load
from stoker.spec.run import RunSpec

OVERRIDES = [
    "name=tale", "model={layers: 1, heads: 1, width: 16, context: 32}", "data.tokenizer.train=300",
    "batch={sequences: 7, length: 32}",
]  # fmt: skip


def spec(book: Path, *overrides: str) -> RunSpec:
    return load(None, [f"data={book}", *OVERRIDES, *overrides]).spec


def opened(book: Path, *overrides: str) -> Opened:
    return begin(spec(book, *overrides), runs=book.parent / "runs")


def test_one_epoch_with_a_short_last_step_is_one_epoch(book: Path) -> None:
    run = opened(book, "until.epochs=1")
    samples = run.tokens.train.samples(32)
    assert samples % 7, "the last step must be short for this test to prove anything"
    until = dict(summary.goal(run))["until"]
    assert until == f"{-(-samples // 7)} steps = {samples * 32:,} tokens, 1 epoch"


def test_two_epochs_are_two_epochs(book: Path) -> None:
    assert "2 epochs" in dict(summary.goal(opened(book, "until.epochs=2")))["until"]


def test_the_plan_warns_of_steps_beyond_the_schedule_and_names_the_override(book: Path) -> None:
    run = opened(book, "until.steps=20").run
    assert "warning" not in dict(summary.goal(opened(book, "until.steps=20")))
    state = {"progress": {"step": 10, "drawn": 70}, "horizon": 20}
    saved = run.checkpoint(10)
    saved.mkdir(parents=True)
    (saved / MANIFEST_FILE).write_text(json.dumps({"step": 10, "state": state, "files": {}}))
    warning = dict(summary.goal(opened(book, "until.steps=80")))["warning"]
    assert warning.startswith("the learning rate is 0 from step 20 of 80 on: later steps change nothing")
    assert "optim.horizon=80" in warning
    assert "warning" not in dict(summary.goal(opened(book, "until.steps=80", "optim.horizon=80")))


def test_the_plan_counts_layers(book: Path) -> None:
    submission = Submission(run=book.parent, workers=1, device="cpu", argv=(), env={}, secrets={})
    run = RunDir(book.parent / "runs" / "tale")
    assert "1 layer of width 16" in dict(summary.plan(spec(book, "until.steps=1"), submission, run))["model"]
    more = spec(book, "until.steps=1", "model.layers=2")
    assert "2 layers of width 16" in dict(summary.plan(more, submission, run))["model"]


def test_the_ending_of_a_run_names_the_next_command(book: Path) -> None:
    run = opened(book, "until.steps=5").run
    paused = Exit(state="paused", code=75, step=3, reason="stopped by SIGTERM")
    assert dict(summary.ending(run, paused, seconds=1))["next"] == "run the same command again to resume"
    full = Exit(state="paused", code=75, step=3, reason="the disk is full", remedy="Make room")
    assert dict(summary.ending(run, full, seconds=1))["next"] == "Make room"
    done = Exit(state="done", code=0, step=5, reason="all 5 steps are done")
    assert "stoker audit" in dict(summary.ending(run, done, seconds=1))["next"]


def test_the_ending_of_a_run_whose_loss_is_not_finite(book: Path) -> None:
    run = opened(book, "until.steps=5").run
    run.add_metrics({"step": 1, "time": 0.0, "loss": 5.5})
    run.add_metrics({"step": 2, "time": 1.0, "loss": None, "val_loss": None})
    done = Exit(state="done", code=0, step=2, reason="all 2 steps are done")
    assert dict(summary.ending(run, done, seconds=1))["loss"] == "5.5000 -> not finite"
