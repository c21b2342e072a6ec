"""Kill a run anywhere: resumed, it gives the same losses, bit for bit."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from tests.inside import inside
from tests.training import HOLD
from tests.written import events_of

STEPS = 60
OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=64", "model.context=64",
    "batch.sequences=10", "batch.length=64", f"until.steps={STEPS}",
    "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=5", "optim.lr=1e-3",
    "on.device=cpu", "log.tensorboard=false",
]  # fmt: skip
# And the save of step 40 does not end while there is a file `slow`.
SLOW = """
import os

replace = os.replace

def held(source, target):
    while str(target).endswith("step-000000040/manifest.json") and Path("slow").exists():
        time.sleep(0.01)
    replace(source, target)

os.replace = held
"""


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def last_step(run) -> int:
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def attempts(run) -> int:
    return sum(event["kind"] == "world" for event in events_of(run))


def assert_proven(run) -> None:
    report = json.loads(inside("audit", str(run.path), "--json").stdout)
    assert (report["ok"], report["missing"], report["duplicated"], report["mismatched"]) == (True, 0, 0, 0)


@pytest.mark.parametrize(
    ("workers", "dropout", "seed"),
    [
        (4, 0.1, None),  # of two workers any order of summing gives the same bits
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
    overrides = [*OVERRIDES, f"data={tokens}", f"model.dropout={dropout}", f"on.workers={workers}"]
    stoker("train", "name=whole", *overrides)

    (stoker.folder / "mine.py").write_text(HOLD + SLOW)
    slow, late = stoker.folder / "slow", stoker.folder / "hold-55"
    slow.touch()
    late.touch()
    overrides.append("callbacks=[mine:hold]")
    run = stoker.run("killed")
    process = stoker.start("train", "name=killed", *overrides)
    for low in (3, 23, 43):  # three random steps off the checkpoint steps: one worker dies, the supervisor starts again
        step = draw.choice([s for s in range(low, low + 6) if s % 10])
        before = attempts(run)
        eventually(lambda step=step: last_step(run) >= step)
        os.kill(draw.choice(workers_of(process)), signal.SIGKILL)
        eventually(lambda before=before, now=process: attempts(run) > before or now.poll() is not None)
        if low == 23:  # and once during a save: everything dies, the same command resumes
            eventually(run.checkpoint(40).exists)
            kill_tree(process)
            assert not (run.checkpoint(40) / "manifest.json").exists()
            slow.unlink()
            process = stoker.start("train", "name=killed", *overrides)
    late.unlink()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    assert losses(run) == losses(stoker.run("whole"))
    assert [s.step for s in run.saved()] == [s.step for s in stoker.run("whole").saved()]
    assert_proven(run)
    assert_proven(stoker.run("whole"))


@pytest.mark.soak
def test_a_llama_whose_workers_all_die_resumes_bit_for_bit(stoker, tokens: Path, eventually, kill_tree) -> None:
    overrides = [
        *OVERRIDES,
        f"data={tokens}",
        "model.family=llama",
        "model.kv_heads=1",
        "until.steps=24",
        "on.workers=2",
    ]
    stoker("train", "name=whole", *overrides)
    run, process = stoker.run("killed"), stoker.start("train", "name=killed", *overrides)
    eventually(lambda: last_step(run) >= 13)
    kill_tree(process)
    stoker("train", "name=killed", *overrides)
    assert attempts(run) == 2
    assert losses(run) == losses(stoker.run("whole"))
    assert_proven(run)


@pytest.mark.soak
def test_a_killed_masked_run_gives_the_losses_of_an_undisturbed_one(
    stoker, pairs: Path, eventually, workers_of
) -> None:
    overrides = [
        f"data={pairs}", "model.family=bert", "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
        "model.dropout=0.1", "batch.sequences=9", "batch.length=32", "batch.micro=2", "until.steps=24",
        "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=12", "optim.warmup=5", "on.workers=2",
    ]  # fmt: skip
    stoker("train", "name=whole", *overrides)
    run, process = stoker.run("killed"), stoker.start("train", "name=killed", *overrides)
    eventually(lambda: last_step(run) >= 13)
    os.kill(workers_of(process)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert any(event["kind"] == "resumed" for event in events_of(run))
    assert losses(run) == losses(stoker.run("whole"))
    assert_proven(run)
    again = json.loads(stoker("replay", "killed", "--step", "12", "--json").stdout)
    assert (again["in_order"], again["in_shards"], again["replayed"]["equal"]) == (True, True, True)
    assert again["samples"][0]["documents"][0]["text"].startswith("[CLS]")


@pytest.mark.parametrize("worlds", [(1, 3, 1), pytest.param((1, 2, 3, 4, 1), marks=pytest.mark.soak)])
def test_the_number_of_workers_may_change_while_the_batch_stays_the_same(
    stoker, worker, tokens: Path, worlds: tuple[int, ...]
) -> None:
    overrides = [*OVERRIDES, f"data={tokens}", f"optim.horizon={STEPS}"]
    whole = worker("name=whole", *overrides, f"until.steps={12 * len(worlds)}")
    for part, workers in enumerate(worlds, start=1):
        more = ["name=many", *overrides, f"until.steps={12 * part}"]
        if workers == 1:
            run = worker(*more)
        else:
            stoker("train", *more, f"on.workers={workers}", "--runs", "here")
    assert [record["world"] for record in run.metrics()] == [workers for workers in worlds for _ in range(12)]
    expected, many = losses(whole), losses(run)
    assert many.keys() == expected.keys()
    assert max(abs(many[step] / expected[step] - 1) for step in expected) < 1e-5
    assert_proven(run)
