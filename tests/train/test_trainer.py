"""The training loop: when it ends, what it logs, and what may change when it resumes."""

import json
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stoker.data.shards import TokenSet
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.rundir.events import ScheduleEnds
from stoker.spec.derive import derive
from stoker.train.optim import learning_rate
from tests.written import events_of

FIELDS = {
    "step", "time", "loss", "lr", "grad_norm", "tokens", "tokens_per_second", "mfu", "memory_gib", "data_wait", "world",
}  # fmt: skip


def test_a_run_without_a_better_validation_loss_ends_early_and_is_done(worker) -> None:
    overrides = [
        "name=run",
        "until.steps=1000",
        "until.patience=3",
        "eval.every=2",
        "optim.lr=1",
        "optim.schedule=constant",
    ]
    run = worker(*overrides)
    losses = {record["step"]: record["val_loss"] for record in run.metrics() if "val_loss" in record}
    best = min(losses, key=lambda step: losses[step])
    exit = run.exit()
    assert (exit.state, exit.code) == ("done", 0)
    assert exit.reason == "no better validation loss in 3 evaluations"
    assert exit.step == best + 6 == max(losses)
    assert [saved.step for saved in run.saved()][-1] == exit.step
    assert best in [saved.step for saved in run.saved()]


def test_a_time_limit_pauses_the_run_and_each_launch_has_its_own(worker) -> None:
    overrides = ["name=run", "until.steps=100k", "optim.horizon=100"]
    run = worker(*overrides, "until.time=1s")
    first = run.exit()
    assert (first.state, first.code, first.reason) == ("paused", 0, "until.time is reached")
    assert [saved.step for saved in run.saved()] == [first.step]
    worker(*overrides, "until.time=1s")
    second = run.exit()
    assert second.state == "paused"
    assert second.step > first.step
    worker(*overrides, f"until.steps={second.step + 2}")
    assert run.exit().state == "done"
    assert [record["step"] for record in run.metrics()] == list(range(1, second.step + 3))
    assert audit(run).ok


def test_epochs_use_every_sample_exactly_once_in_each(worker, tokens: Path) -> None:
    samples = TokenSet.open(tokens).train.samples(32)
    sequences = samples // 3 - 5
    assert samples % sequences
    run = worker("name=run", "until.epochs=2", f"batch.sequences={sequences}", "model.layers=1", "model.width=16")
    report = audit(run)
    assert report.ok
    assert (report.missing, report.duplicated, report.epochs, report.samples) == (0, 0, 2, 2 * samples)
    metrics = run.metrics()
    assert len(metrics) == -(-2 * samples // sequences)
    assert metrics[-1]["tokens"] == 2 * samples * 32
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_a_batch_smaller_than_the_number_of_workers_trains_as_one_worker_would(stoker, tokens: Path, worker) -> None:
    overrides = [
        "batch.sequences=1",
        "until.steps=8",
        "eval.every=4",
        "eval.sequences=1",
        "model.heads=2",
        "model.width=32",
        "log.tensorboard=false",
    ]
    alone = worker("name=alone", *overrides)
    shape = ["model.layers=2", "model.context=32", "batch.length=32", "precision=fp32", "optim.warmup=2"]
    watched = ["log.attention=true", "log.parameters=true"]  # computed by the worker without samples too
    more = ["on.workers=2", "log.every=1", "optim.lr=1e-3", *watched]
    stoker("train", "name=two", f"data={tokens}", *overrides, *shape, *more)
    two = stoker.run("two")
    for key in ("loss", "val_loss", "grad_norm"):
        expected = [record[key] for record in alone.metrics() if key in record]
        assert [record[key] for record in two.metrics() if key in record] == pytest.approx(expected, rel=1e-5)
    assert {record["world"] for record in two.metrics()} == {2}
    assert audit(two).ok


def test_metrics_have_every_field_and_tensorboard_shows_them_with_activations_and_parameters(worker) -> None:
    overrides = ["until.steps=6", "eval.every=3", "log.every=2", "log.tensorboard=true"]
    run = worker("name=run", *overrides, "log.attention=true", "log.parameters=true")
    metrics = run.metrics()
    assert [record["step"] for record in metrics] == [1, 2, 3, 4, 6]
    for record in metrics:
        assert record.keys() >= FIELDS | {"samples_per_second", "skipped", "attention", "parameters"}
        assert ("val_loss" in record) is (record["step"] % 3 == 0)
        assert record["mfu"] is None, "no CPU has a peak that we know"
        assert record["tokens"] == record["step"] * 4 * 32
        assert (record["world"], record["skipped"]) == (1, 0)
        assert 0 <= record["data_wait"] < 1
        assert record["memory_gib"] > 0
        assert record["tokens_per_second"] == pytest.approx(32 * record["samples_per_second"])
        assert len(record["attention"]) == 2
        assert all(largest >= smallest for largest, smallest in record["attention"])
        stats = record["parameters"]["h.0.attn.c_attn.weight"]
        assert stats.keys() == {"parameter_mean", "parameter_std", "grad_mean", "grad_std"}
        assert len(record["parameters"]) == 28
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == metrics
    assert_tensorboard_agrees(run)


def assert_tensorboard_agrees(run: RunDir) -> None:
    board = EventAccumulator(str(run.tensorboard)).Reload()
    metrics = run.metrics()

    def shown(tag: str) -> list[tuple[int, float]]:
        return [(scalar.step, scalar.value) for scalar in board.Scalars(tag)]

    def near(pairs: list[tuple[int, float]]) -> list[tuple[int, object]]:
        return [(step, pytest.approx(value, rel=1e-6)) for step, value in pairs]

    assert shown("train/loss") == near([(r["step"], r["loss"]) for r in metrics])
    assert shown("train/learning_rate") == near([(r["step"], r["lr"]) for r in metrics])
    assert shown("eval/loss") == near([(r["step"], r["val_loss"]) for r in metrics if "val_loss" in r])
    assert shown("activations/layer1_attention_weight_max") == near(
        [(r["step"], r["attention"][1][0]) for r in metrics]
    )
    assert shown("activations/layer0_attention_weight_min") == near(
        [(r["step"], r["attention"][0][1]) for r in metrics]
    )
    name = "h.1.mlp.c_fc.bias"
    for kind in ("parameter_mean", "parameter_std", "grad_mean", "grad_std"):
        assert shown(f"{kind}/{name}") == near([(r["step"], r["parameters"][name][kind]) for r in metrics])


def test_logging_activations_and_parameters_changes_nothing(worker) -> None:
    overrides = ["until.steps=4", "model.dropout=0.1"]
    plain, watched = (
        worker("name=plain", *overrides),
        worker("name=watched", *overrides, "log.attention=true", "log.every=1"),
    )
    also = worker("name=also", *overrides, "log.parameters=true", "eval.every=2")
    losses = [record["loss"] for record in plain.metrics()]
    assert [record["loss"] for record in watched.metrics()] == losses
    assert [record["loss"] for record in also.metrics()] == losses


def test_bf16_trains(worker) -> None:
    run = worker("name=run", "precision=bf16", "until.steps=15")
    losses = [record["loss"] for record in run.metrics()]
    assert losses[-1] < losses[0] - 0.2
    assert run.saved()[-1].manifest.state.choices.precision == "bf16"


def test_a_later_end_keeps_the_schedule_and_a_new_horizon_changes_it(worker) -> None:
    overrides = ["name=run", "optim.warmup=10%", "checkpoint.keep=9"]
    run = worker(*overrides, "until.steps=10")
    first = derive(run.spec(), samples=10**6)
    worker(*overrides, "until.steps=14")
    rates = {record["step"]: record["lr"] for record in run.metrics()}
    assert rates == {step: learning_rate(run.spec().optim, first, step) for step in range(1, 15)}
    assert {rates[step] for step in range(10, 15)} == {0.0}

    worker(*overrides, "until.steps=18", "optim.horizon=20")
    longer = derive(run.spec(), samples=10**6)
    assert longer.horizon == 20
    rates = {record["step"]: record["lr"] for record in run.metrics()}
    assert [rates[step] for step in range(15, 19)] == [
        learning_rate(run.spec().optim, longer, step) for step in range(15, 19)
    ]
    worker(*overrides, "until.steps=19")
    assert run.metrics()[-1]["lr"] == learning_rate(run.spec().optim, longer, 19), "the new horizon is kept too"


def test_a_run_rewinds_to_a_step_and_trains_again_from_there(worker) -> None:
    overrides = ["name=run", "optim.horizon=8", "checkpoint.every=2", "checkpoint.keep=9"]
    run = worker(*overrides, "until.steps=8")
    before = run.metrics()
    worker(*overrides, "until.steps=8", "checkpoint.resume=4")
    resumed = [event["step"] for event in events_of(run) if event["kind"] == "resumed"]
    assert resumed == [4]
    assert [record["loss"] for record in run.metrics()] == [record["loss"] for record in before]
    assert [saved.step for saved in run.saved()] == [2, 4, 6, 8]
    assert audit(run).ok
    worker(*overrides, "until.steps=9", "checkpoint.resume=5", code=2)
    assert "no checkpoint of that step" in run.exit().reason


def test_a_run_resumed_after_a_short_last_step_still_uses_every_sample_once(worker) -> None:
    overrides = ["batch.sequences=300", "batch.micro=75", "batch.length=16", "until.epochs=1"]
    run = worker(*overrides)
    short = run.saved()[-1].manifest.state.progress
    assert short.drawn < short.step * 300, "the test needs a short last step"
    worker(*overrides, "until.epochs=2", "optim.horizon=100")
    report = audit(run)
    assert (report.ok, report.epochs, report.problems) == (True, 2, [])


def short_schedules(run: RunDir) -> list[str]:
    return [event.sentence for event in run.events() if isinstance(event, ScheduleEnds)]


def test_steps_beyond_the_schedule_are_warned_of_when_the_run_starts_and_when_it_resumes(worker, capfd) -> None:
    run = worker("until.steps=20", "until.steps_this_run=2")
    assert short_schedules(run) == []
    worker("until.steps=80", "until.steps_this_run=2")
    warning = (
        "the learning rate is 0 from step 20 of 80 on: later steps change nothing. "
        "optim.horizon=80 extends the schedule"
    )
    assert short_schedules(run) == [warning]
    assert f"warning: {warning}\n" in capfd.readouterr().out
    worker("until.steps=80", "until.steps_this_run=2", "optim.horizon=80")
    assert short_schedules(run) == [warning], "no further warning once the horizon is extended"


def test_a_run_limited_by_time_reports_when_its_schedule_is_over(worker) -> None:
    run = worker("until.time=1h", "until.steps_this_run=4", "optim.horizon=3")
    notes = [event["text"] for event in events_of(run) if event["kind"] == "note"]
    assert notes == [
        "the learning rate is 0 from step 3 on: later steps change nothing. A larger optim.horizon extends the schedule"
    ]
    worker("until.time=1h", "until.steps_this_run=5", "optim.horizon=3")
    assert len(short_schedules(run)) == 1


def test_a_run_that_skipped_every_step_has_failed(worker) -> None:
    run = worker("precision=fp16", "model.init_std=5", "until.steps=3", code=3)
    assert "every step was skipped" in run.exit().reason


def test_a_compiled_run_gives_the_losses_of_an_uncompiled_one(worker) -> None:
    plain = [record["loss"] for record in worker("name=plain", "until.steps=5", "compile=false").metrics()]
    overrides = ["name=compiled", "optim.horizon=5", "compile=true"]
    compiled = worker(*overrides, "until.steps=3")
    worker(*overrides, "until.steps=5")
    assert [record["loss"] for record in compiled.metrics()] == pytest.approx(plain, rel=1e-3)


def micro_batches(run: RunDir) -> list[int]:
    return [event["micro"] for event in events_of(run) if event["kind"] == "started"]


def test_the_micro_batch_of_the_run_file_is_used_whatever_was_used_before(worker) -> None:
    overrides = ["batch.sequences=8", "optim.horizon=8"]
    run = worker(*overrides, "until.steps=1", "batch.micro=2")
    worker(*overrides, "until.steps=2", "batch.micro=8")
    worker(*overrides, "until.steps=3", "batch.micro=1")
    assert micro_batches(run) == [2, 8, 1]
    worker(*overrides, "until.steps=4")
    assert micro_batches(run)[-1] == 8, "left out, it is chosen"
    worker(*overrides, "until.steps=5", "batch.micro=2")
    worker(*overrides, "until.steps=6", "batch.micro=2")
    assert micro_batches(run)[-2:] == [2, 2]


def test_a_run_without_its_tokenizer_still_finishes(worker) -> None:
    run = worker("until.steps=2", "until.steps_this_run=1")
    shutil.rmtree(run.tokenizer)
    worker("until.steps=2")
    assert (run.exit().state, run.exit().step) == ("done", 2)
    events = events_of(run)
    assert [event["kind"] for event in events][-2:] == ["note", "finished"]
    assert events[-2]["text"].startswith("no sample of what the model writes: ")


def test_a_run_continues_when_tensorboards_files_cannot_be_written(worker) -> None:
    run = worker("until.steps=3", "until.steps_this_run=1", "log.tensorboard=true")
    shutil.rmtree(run.tensorboard)
    run.tensorboard.write_text("in the way")
    worker("until.steps=3", "log.tensorboard=true")
    assert run.exit().state == "done"
    notes = [event["text"] for event in events_of(run) if event["kind"] == "note"]
    assert len(notes) == 1
    assert notes[0].startswith("TensorBoard's files are not written any more: ")
