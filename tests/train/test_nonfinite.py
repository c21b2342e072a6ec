"""A run with NaN or Inf gradients skips the steps or fails; it never succeeds silently."""

import math

import pytest

from stoker.rundir import RunDir
from stoker.spec.derive import derive
from stoker.spec.errors import RunFailed
from stoker.train.nonfinite import MAX_CONSECUTIVE_SKIPS, LossScale, NonFiniteGuard
from stoker.train.optim import learning_rate
from tests.written import events_of

FP16 = ["precision=fp16", "until.steps=12", "model.init_std=1"]  # such weights overflow fp16 now and then


def lowered(times: int) -> LossScale:
    scale = LossScale(active=True)
    for _ in range(times):
        scale.update(finite=False)
    return scale


def test_the_loss_scale_halves_on_overflow_and_doubles_after_2000_good_steps() -> None:
    scale = LossScale(active=True)
    scale.update(finite=False)
    assert scale.scale == 2.0**15
    for _ in range(1999):
        scale.update(finite=True)
    assert scale.scale == 2.0**15
    scale.update(finite=True)
    assert scale.scale == 2.0**16
    for _ in range(1999):
        scale.update(finite=True)
    scale.update(finite=False)
    assert (scale.scale, scale.good_steps) == (2.0**15, 0)


def test_the_loss_scale_continues_from_its_saved_state() -> None:
    scale, restored = LossScale(active=True), LossScale(active=True)
    scale.update(finite=False)
    for _ in range(1500):
        scale.update(finite=True)
    restored.restore(scale.state())
    for _ in range(500):
        scale.update(finite=True)
        restored.update(finite=True)
    assert scale.state() == restored.state() == {"scale": 2.0**16, "good_steps": 2000}


def test_without_fp16_the_loss_scale_stays_one() -> None:
    scale = LossScale(active=False)
    scale.update(finite=False)
    assert scale.scale == 1


def test_fp16_steps_are_skipped_until_the_loss_scale_is_too_small() -> None:
    guard = NonFiniteGuard("stop", lowered(30))
    assert not guard.check(5, finite=False)
    with pytest.raises(RunFailed, match="step 6") as failed:
        NonFiniteGuard("stop", lowered(31)).check(6, finite=False)
    assert "precision: bf16" in failed.value.remedy


def test_any_number_of_steps_may_be_skipped_but_not_ten_in_a_row() -> None:
    guard = NonFiniteGuard("skip", LossScale(active=False))
    for step in range(1, 51):
        finite = step % MAX_CONSECUTIVE_SKIPS == 0
        assert guard.check(step, finite=finite) is finite
    for step in range(51, 60):
        assert not guard.check(step, finite=False)
    with pytest.raises(RunFailed, match="10 steps in a row, up to step 60"):
        guard.check(60, finite=False)


def test_a_run_whose_gradients_are_not_finite_stops(worker) -> None:
    run = worker("name=run", "until.steps=20", "optim.lr=1e30", code=3)
    assert "the gradients are not finite at step 2" in run.exit().reason
    assert "Lower optim.lr" in run.exit().remedy


@pytest.mark.soak
def test_such_a_run_of_two_workers_reports_it_in_one_line_and_is_not_restarted(stoker, tokens) -> None:
    model = ["model.layers=1", "model.heads=1", "model.width=16", "model.context=16", "batch.length=16"]
    overrides = [
        f"data={tokens}",
        *model,
        "until.steps=20",
        "optim.lr=1e30",
        "checkpoint.every=1",
        "log.tensorboard=false",
    ]
    done = stoker("train", "name=poisoned", *overrides, "on.workers=2", "batch.sequences=2", code=3)
    (line,) = done.stderr.splitlines()
    assert "the gradients are not finite at step 2" in line
    assert "Lower optim.lr" in line
    assert "Traceback" not in done.stdout + done.stderr
    run = stoker.run("poisoned")
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.code) == ("failed", 3)
    assert sum(event["kind"] == "world" for event in events_of(run)) == 1, "it was restarted although it cannot succeed"


def test_skipped_steps_are_counted_and_ten_in_a_row_fail_the_run(worker) -> None:
    run = worker("name=run", "until.steps=20", "optim.lr=1e30", "optim.nonfinite=skip", code=3)
    assert [event["step"] for event in events_of(run) if event["kind"] == "skipped"] == list(range(2, 11))
    assert [record["skipped"] for record in run.metrics()] == list(range(10))
    assert "10 steps in a row, up to step 11" in run.exit().reason


@pytest.mark.parametrize("held_out", ["eval.sequences=4", "data.validation=0"])
def test_a_run_whose_weights_become_infinite_in_the_last_step_fails(worker, books, held_out: str) -> None:
    data = [f"data={books}", "data.tokenizer.train=300"] if "data." in held_out else []
    run = worker("name=run", "until.steps=1", "optim.lr=1e30", *data, held_out, code=3)
    assert run.exit().state == "failed"
    assert "Lower optim.lr" in run.exit().remedy
    assert all(event["kind"] != "finished" for event in events_of(run))


def test_in_fp16_the_learning_rate_counts_only_the_steps_that_were_applied(worker) -> None:
    run = worker("name=run", *FP16)
    metrics, derived = run.metrics(), derive(run.spec(), samples=10**6)
    skipped = [event["step"] for event in events_of(run) if event["kind"] == "skipped"]
    assert skipped, "nothing overflowed: the test shows nothing"
    for record in metrics:
        before = sum(step < record["step"] for step in skipped)
        assert record["skipped"] == sum(step <= record["step"] for step in skipped)
        assert record["lr"] == learning_rate(run.spec().optim, derived, record["step"] - before)
        assert record["loss_scale"] == 2.0 ** (16 - record["skipped"])
        assert math.isfinite(record["loss"])
    assert run.saved()[-1].manifest.state.progress.updates == 12 - len(skipped)


@pytest.mark.soak
def test_a_killed_fp16_run_resumes_bit_for_bit(stoker, tokens, eventually, kill_tree) -> None:
    model = ["model.layers=2", "model.heads=2", "model.width=32", "model.context=32", "batch.length=32"]
    overrides = [f"data={tokens}", *model, *FP16, "batch.sequences=4", "until.steps=30"]
    overrides += ["checkpoint.every=5", "log.every=1", "on.workers=1", "log.tensorboard=false"]
    stoker("train", "name=whole", *overrides)
    run = stoker.run("killed")
    process = stoker.start("train", "name=killed", *overrides)
    eventually(lambda: any(saved.step >= 10 for saved in run.saved()))
    kill_tree(process)
    stoker("train", "name=killed", *overrides)
    whole = by_step(stoker.run("whole"))
    assert by_step(run) == whole
    assert any(event["kind"] == "resumed" for event in events_of(run))
    assert whole[30][1] > 0, "nothing overflowed: the test shows nothing"


def by_step(run: RunDir) -> dict[int, tuple[float, int, float]]:
    return {record["step"]: (record["loss"], record["skipped"], record["loss_scale"]) for record in run.metrics()}
