"""Kill it anywhere: a resumed run goes on as if nothing had happened, bit for bit."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

STEPS = 60
WORDS = [
    "model.layers=2", "model.heads=2", "model.width=64", "model.context=64",
    "batch.sequences=10", "batch.length=64", f"until.steps={STEPS}",
    "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=5", "optim.lr=1e-3",
]  # fmt: skip


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def last_step(run) -> int:
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def attempts(run) -> int:
    return sum(event["kind"] == "world" for event in run.events())


def assert_proven(stoker, name: str) -> None:
    report = json.loads(stoker("audit", name, "--json").stdout)
    assert (report["ok"], report["missing"], report["duplicated"], report["mismatched"]) == (True, 0, 0, 0)


@pytest.mark.parametrize(
    ("workers", "dropout", "seed"),
    [
        (4, 0.1, None),
        pytest.param(2, 0.0, None, marks=pytest.mark.soak),
        *(pytest.param(w, d, s, marks=pytest.mark.soak) for w in (2, 4) for d in (0.0, 0.1) for s in range(3)),
    ],
)
def test_a_run_killed_at_any_step_gives_the_losses_of_an_undisturbed_one(
    stoker, tokens: Path, eventually, workers_of, kill_tree, workers: int, dropout: float, seed: int | None
) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    draw = random.Random(seed)
    words = [*WORDS, f"data={tokens}", f"model.dropout={dropout}", f"on.workers={workers}"]
    stoker("train", "name=whole", *words)

    run = stoker.run("killed")
    process = stoker.start("train", "name=killed", *words)
    for low in (3, 23, 43):  # three random steps off the checkpoint steps: one worker dies, the supervisor starts again
        step = draw.choice([s for s in range(low, low + 6) if s % 10])
        before = attempts(run)
        eventually(lambda step=step: last_step(run) >= step)
        os.kill(draw.choice(workers_of(process)), signal.SIGKILL)
        eventually(lambda before=before, now=process: attempts(run) > before or now.poll() is not None)
        if low == 23:  # and once inside a save: everything dies, the same command goes on
            _kill_inside_a_save(run, process, eventually, kill_tree, step=40)
            process = stoker.start("train", "name=killed", *words)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    assert losses(run) == losses(stoker.run("whole"))
    assert [s.step for s in run.saved()] == [s.step for s in stoker.run("whole").saved()]
    assert_proven(stoker, "killed")
    assert_proven(stoker, "whole")


@pytest.mark.soak
def test_a_llama_that_dies_with_all_its_workers_goes_on_bit_for_bit(
    stoker, tokens: Path, eventually, kill_tree
) -> None:
    words = [*WORDS, f"data={tokens}", "model.family=llama", "model.kv_heads=1", "until.steps=24", "on.workers=2"]
    stoker("train", "name=whole", *words)
    run, process = stoker.run("killed"), stoker.start("train", "name=killed", *words)
    eventually(lambda: last_step(run) >= 13)
    kill_tree(process)
    stoker("train", "name=killed", *words)
    assert attempts(run) == 2
    assert losses(run) == losses(stoker.run("whole"))
    assert_proven(stoker, "killed")


def _kill_inside_a_save(
    run, process: subprocess.Popen[str], eventually: Callable[..., None], kill_tree: Callable[..., None], *, step: int
) -> None:
    half = run.checkpoint(step)
    eventually(half.exists, every_s=0)
    kill_tree(process)
    assert not (half / "manifest.json").exists(), "the save was over before it could be cut off"


@pytest.mark.soak
def test_a_masked_model_killed_on_the_way_gives_the_losses_of_an_undisturbed_one(
    stoker, pairs: Path, eventually, workers_of
) -> None:
    words = [
        f"data={pairs}", "model.family=bert", "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
        "model.dropout=0.1", "batch.sequences=9", "batch.length=32", "batch.micro=2", "until.steps=24",
        "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=12", "optim.warmup=5", "on.workers=2",
    ]  # fmt: skip
    stoker("train", "name=whole", *words)
    run, process = stoker.run("killed"), stoker.start("train", "name=killed", *words)
    eventually(lambda: last_step(run) >= 13)
    os.kill(workers_of(process)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert any(event["kind"] == "resumed" for event in run.events())
    assert losses(run) == losses(stoker.run("whole"))
    assert_proven(stoker, "killed")
    again = json.loads(stoker("replay", "killed", "--step", "12", "--json").stdout)
    assert (again["in_order"], again["in_shards"], again["replayed"]["equal"]) == (True, True, True)
    assert again["samples"][0]["documents"][0]["text"].startswith("[CLS]")


def test_the_number_of_workers_may_change_while_the_batch_stays(stoker, tokens: Path) -> None:
    words = [*WORDS, f"data={tokens}", f"optim.horizon={STEPS}"]
    stoker("train", "name=one", *words, "on.workers=1")
    for part, workers in enumerate((1, 2, 3, 4, 1), start=1):
        stoker("train", "name=many", *words, f"until.steps={part * 12}", f"on.workers={workers}")
    run = stoker.run("many")
    assert [e["workers"] for e in run.events() if e["kind"] == "world"] == [1, 2, 3, 4, 1]
    one, many = losses(stoker.run("one")), losses(run)
    assert many.keys() == one.keys()
    assert max(abs(many[step] / one[step] - 1) for step in one) < 1e-5
    assert_proven(stoker, "many")
