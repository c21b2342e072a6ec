import json
import random
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec
from stoker.supervise.output.loss_curve import LossCurve, last_step, parse

LINES: list[tuple[str, dict[str, Any]]] = [
    (
        "{'loss': 2.3, 'grad_norm': 0.91, 'learning_rate': 1e-4, 'epoch': 0.7}",
        {"loss": 2.3, "grad_norm": 0.91, "lr": 1e-4, "epoch": 0.7},
    ),
    ("{'loss': '2.3', 'learning_rate': '5e-05', 'epoch': '1.0'}", {"loss": 2.3, "lr": 5e-5, "epoch": 1.0}),
    ("{'eval_loss': 3.1, 'eval_runtime': 1.2, 'epoch': 1.0}", {"val_loss": 3.1, "epoch": 1.0}),
    (
        "machine1: {'loss': 8.125, 'learning_rate': 0.00035, "
        "'activations/layer0_attention_weight_max': 3.5, 'epoch': 0.7}",
        {"loss": 8.125, "lr": 0.00035, "epoch": 0.7},
    ),
    ('{"step": 12, "loss": 1.5e0, "lr": 0.1}', {"step": 12, "loss": 1.5, "lr": 0.1}),
    (
        "Batch 120 Loss: 2.34567, Speed: 1.20 samples/sec, lr: 0.000100",
        {"step": 120, "loss": 2.34567, "samples_per_second": 1.2, "lr": 1e-4},
    ),
    ("Batch 100 Validation loss: 2.5", {"step": 100, "val_loss": 2.5}),
    ("Batch 100 Validation loss: tensor(2.5, device='cuda:0')", {"step": 100, "val_loss": 2.5}),
    (
        "[0]:LOG Wed Dec 21 00:51:01 2022 - (0, 14) step_loss : 10.7011 learning_rate : 2.80e-06 throughput : 6449.36",
        {"epoch": 0.0, "step": 14, "loss": 10.7011, "lr": 2.8e-6, "samples_per_second": 6449.36},
    ),
    (
        "(1, 20) step_loss : 9.1 learning_rate : 4.00e-04 throughput : 12.5 grad-norm : 0.5",
        {"epoch": 1.0, "step": 20, "loss": 9.1, "lr": 4e-4, "samples_per_second": 12.5, "grad_norm": 0.5},
    ),
    (
        "[INFO] [logging.py:60:log_dist] [Rank 0] step=150, skipped=17, lr=[0.00035], mom=[[0.9, 0.95]]",
        {"step": 150, "skipped": 17, "lr": 0.00035},
    ),
    ("loss: 2.303125  [   64/60000]", {"loss": 2.303125}),
    ("World size: 4 Global rank: 0, local rank 0 loss: 0.231  [ 1280/60000]", {"loss": 0.231}),
    ("step 10 and so on loss 2.3", {"step": 10, "loss": 2.3}),
    ("step: 10, loss: 2.3", {"step": 10, "loss": 2.3}),
    ("Step 10/100 | train_loss=2.3", {"step": 10, "loss": 2.3}),
    ("iter 10: loss 2.3, time 123.45ms, mfu 12.3%", {"step": 10, "loss": 2.3}),
    ("step 250: train loss 1.9, val loss 2.0", {"step": 250, "loss": 1.9, "val_loss": 2.0}),
    (
        "step    10 | loss: 9.5 | lr 1.0e-04 | norm: 0.3 | dt: 12.1ms | tok/sec: 1234.5",
        {"step": 10, "loss": 9.5, "lr": 1e-4, "grad_norm": 0.3, "tokens_per_second": 1234.5},
    ),
    ("Epoch 3, loss: 0.5", {"epoch": 3.0, "loss": 0.5}),
    ("\x1b[32mstep 1\x1b[0m loss 2", {"step": 1, "loss": 2.0}),
]
NO_METRICS = [
    "",
    "loss",
    "the loss of a node at step 10",
    "Test Error: Accuracy: 64.5%, Avg loss: 1.08",
    "Created optimizer",
    "step 10",
    "step 10 lossy 2.3",
    "{'train_runtime': 12.3, 'train_loss': 2.1, 'epoch': 3.0}",
    "{'loss': 'high'}",
    "[timer.py:154:stop] 0/1200, SamplesPerSec=463.86",
    "step=150, lr=[0.1]",
]


@pytest.mark.parametrize(("line", "metrics"), LINES, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_a_line_of_a_known_form_has_metrics(line: str, metrics: dict[str, Any]) -> None:
    assert parse(line) == metrics
    assert parse(f"2026-01-01 12:00:00,123 - INFO - {line}") == metrics


@pytest.mark.parametrize("line", NO_METRICS)
def test_other_lines_have_no_metrics(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize("line", ["step 1 loss nan", "{'loss': nan, 'epoch': 0.1}"])
def test_a_loss_of_nan_is_kept(line: str) -> None:
    metrics = parse(line)
    assert metrics is not None
    assert isnan(metrics["loss"])


@pytest.mark.parametrize("step", ["nan", "inf", "-inf", "-1", "1e300"])
def test_a_step_that_is_not_a_count_is_dropped(step: str) -> None:
    assert parse(f"{{'loss': 2.5, 'step': {step}}}") == {"loss": 2.5}


def test_any_line_can_be_parsed() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    tokens = [*"{}':= []()1.e-,é\x00", "loss", "step", "nan", "inf"]
    for _ in range(3000):
        parse("".join(draw.choice(tokens) for _ in range(draw.randrange(60))))
    for evil in (
        "a" * 16000,
        "loss " + " " * 15000,
        "1" * 16000,
        "'" * 16000,
        "loss: 1 [" * 1500,
        "x" * 10**6 + "loss",
    ):
        parse(f"{{{evil}")


def new_run(folder: Path) -> RunDir:
    run = RunDir(folder / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    return run


def add(run: RunDir, *lines: str) -> LossCurve:
    curve = LossCurve(run, world=2)
    for line in lines:
        curve.add(f"{line}\n".encode())
    return curve


def last_line(run: RunDir) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    return record


def test_lines_become_records_with_their_time_and_world(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert not add(run, "hello", "no loss yet").started
    assert add(run, "step 10 loss 2.5", "noise", "step 20 loss 2.25").started
    assert [(r["step"], r["loss"], r["world"]) for r in run.metrics()] == [(10, 2.5, 2), (20, 2.25, 2)]
    assert all(record["time"] > 0 for record in run.metrics())


def test_lines_without_a_step_are_counted_also_across_attempts(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    add(run, "{'loss': 3.0, 'epoch': 0.1}", "{'loss': 2.0, 'epoch': 0.2}", "{'eval_loss': 2.5, 'epoch': 0.2}")
    add(run, "{'loss': 1.0, 'epoch': 0.3}")
    assert [(r["step"], r["loss"], r.get("val_loss")) for r in run.metrics()] == [
        (1, 3.0, None),
        (2, 2.0, 2.5),
        (3, 1.0, None),
    ]
    assert last_line(run)["step"] == 3


def test_two_lines_of_one_step_become_one_record(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    add(run, "{'loss': 2.0, 'epoch': 0.2}", "{'eval_loss': 2.5, 'epoch': 0.3}")
    assert {key: last_line(run)[key] for key in ("step", "loss", "val_loss", "epoch")} == {
        "step": 1,
        "loss": 2.0,
        "val_loss": 2.5,
        "epoch": 0.3,
    }


def test_a_loss_belongs_to_the_step_of_the_line_before_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for step in (150, 160):
        add(run, f"step={step}, skipped=17, lr=[0.1], mom=[[0.9, 0.95]]", f"{{'loss': {step / 100}, 'epoch': 0.7}}")
    assert [(r["step"], r["loss"], r["skipped"]) for r in run.metrics()] == [(150, 1.5, 17), (160, 1.6, 17)]


def test_of_a_step_that_is_trained_again_the_last_line_counts(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    add(run, "step 1 loss 3", "step 2 loss 2")
    add(run, "step 2 loss 2.5", "step 3 loss 1")
    assert [record["loss"] for record in run.metrics()] == [3, 2.5, 1]
    assert last_step(run) == 3


def test_lines_that_a_script_wrote_itself_do_no_harm(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "metrics.jsonl").write_text('{"step": 7, "time": 1}\n{"accuracy": 1, "step": "many"}\n')
    assert last_step(run) == 7
