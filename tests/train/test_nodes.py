"""Kill any worker or node of a run on several nodes: it resumes and gives the same losses."""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.api.opening import begin
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.spec.load import load
from stoker.spec.on import Nodes
from stoker.supervise.scale import request_nodes
from tests.processes import descendants, listening
from tests.training import HOLD

STEPS = 50
OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=32", "model.dropout=0.1",
    "batch.sequences=10", "batch.length=32", f"until.steps={STEPS}", "on.device=cpu",
    "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=25", "optim.warmup=5", "optim.lr=1e-3",
]  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "examples" / "03-script" / "train.py"


def new_run(folder: Path, name: str, tokens: Path, *overrides: str) -> RunDir:
    return begin(load(None, [f"name={name}", f"data={tokens}", *OVERRIDES, *overrides]).spec, runs=folder).run


def losses(run: RunDir) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def last_step(run: RunDir) -> int:
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines and lines[-1].endswith("}") else 0


def worker_of(supervisor: int) -> int:
    """A worker that trains already."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(children[-1])


def assert_proven(run: RunDir) -> None:
    report = audit(run)
    assert report.ok, report.problems


def test_whatever_dies_on_two_nodes_the_losses_are_those_of_one_undisturbed_node(
    tmp_path: Path, stoker: Any, tokens: Path, nodes: Callable[..., Any], mine: Any, eventually: Callable[..., None]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    stoker("train", "name=whole", f"data={tokens}", *OVERRIDES, "on.workers=2")
    whole = stoker.run("whole")

    run = new_run(tmp_path, "killed", tokens, f"callbacks=[{mine(HOLD)}:hold]")
    two = nodes(run, workers=1)
    held = tmp_path / "hold-45"
    held.touch()
    first, second = two.begin(2)

    def reach(low: int) -> None:
        step = draw.choice([step for step in range(low, low + 6) if step % 10])
        eventually(lambda: last_step(run) >= step)

    reach(3)
    for address, node in (("127.0.0.2", first.pid), ("127.0.0.3", second.pid)):
        assert listening(node) <= {address}
        assert listening(*descendants(node)) <= {address, "127.0.0.1"}, "gloo has one address for each interface"
    os.kill(worker_of(second.pid), signal.SIGKILL)
    eventually(lambda: len(two.worlds()) == 2)
    reach(13)
    second.kill()  # its workers die with it
    second = two.start(1)
    eventually(lambda: len(two.worlds()) == 3)
    reach(33)
    first.kill()
    eventually(lambda: json.loads((run.path / ".members" / "leader.json").read_text())["node"] == 1)
    held.unlink()
    first = two.start(0)
    assert [first.wait(timeout=300), second.wait(timeout=300)] == [0, 0], two.log.read_text()

    assert losses(run) == losses(whole)
    assert [saved.step for saved in run.saved()] == [saved.step for saved in whole.saved()]
    assert_proven(run)
    assert two.worlds() == [[0, 1], [0, 1], [0, 1], [1, 0]], two.story()
    assert [event["signal"] for event in two.events("failed")] == ["SIGKILL"]
    assert [event["node"] for event in two.events("lost")] == [1]


def test_nodes_may_leave_and_join_while_the_batch_stays_the_same(
    tmp_path: Path, tokens: Path, nodes: Callable[..., Any], worker: Any, mine: Any, eventually: Callable[..., None]
) -> None:
    whole = worker("name=whole", *OVERRIDES, "model.dropout=0", "eval.every=0", "log.tensorboard=false")
    hold = f"callbacks=[{mine(HOLD)}:hold]"
    run = new_run(tmp_path, "many", tokens, hold, "model.dropout=0", "eval.every=0")
    some = nodes(run, workers=1, nodes="3")
    for step in (7, 24):
        (tmp_path / f"hold-{step}").touch()

    first, second, third = some.begin(3)
    eventually(lambda: last_step(run) >= 7)
    request_nodes(run, Nodes("2..3"))
    eventually(lambda: some.events("scaled"))
    second.terminate()
    eventually(lambda: some.events("regrouping"))
    (tmp_path / "hold-7").unlink()
    assert second.wait(timeout=300) == 203
    eventually(lambda: last_step(run) >= 24)
    second = some.start(1)
    eventually(lambda: some.events("regrouping")[1:])
    (tmp_path / "hold-24").unlink()
    assert [node.wait(timeout=300) for node in (first, second, third)] == [0, 0, 0], some.log.read_text()

    assert some.worlds() == [[0, 1, 2], [0, 2], [0, 1, 2]]
    expected, many = losses(whole), losses(run)
    assert many.keys() == expected.keys()
    assert max(abs(many[step] / expected[step] - 1) for step in expected) < 1e-5
    assert_proven(run)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == STEPS, "a step was trained twice, though all that left had saved"


@pytest.mark.soak
def test_a_run_scaled_to_two_nodes_and_back_trains_as_an_unscaled_one(
    tmp_path: Path, tokens: Path, nodes: Callable[..., Any], worker: Any, mine: Any, eventually: Callable[..., None]
) -> None:
    plain = ("model.dropout=0", "eval.every=0", "log.tensorboard=false")
    whole = worker("name=whole", *OVERRIDES, *plain)
    run = new_run(tmp_path, "scaled", tokens, f"callbacks=[{mine(HOLD)}:hold]", *plain)
    some = nodes(run, workers=1, nodes="1")
    for step in (7, 24):
        (tmp_path / f"hold-{step}").touch()

    first, second = some.begin(2)
    eventually(lambda: last_step(run) >= 7)
    request_nodes(run, Nodes("2"))
    eventually(lambda: some.events("regrouping"))
    (tmp_path / "hold-7").unlink()
    eventually(lambda: last_step(run) >= 24)
    request_nodes(run, Nodes("1"))
    eventually(lambda: some.events("regrouping")[1:])
    (tmp_path / "hold-24").unlink()
    second.terminate()
    assert [second.wait(timeout=300), first.wait(timeout=300)] == [203, 0], some.log.read_text()

    assert some.worlds() == [[0], [0, 1], [0]]
    expected, scaled = losses(whole), losses(run)
    assert scaled.keys() == expected.keys()
    assert [scaled[step] for step in range(1, 8)] == [expected[step] for step in range(1, 8)]
    assert max(abs(scaled[step] / expected[step] - 1) for step in expected) < 1e-5
    assert_proven(run)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == STEPS, "a step was trained twice, though all had saved"
    assert not some.events("failed")


@pytest.mark.soak
def test_a_torchrun_script_runs_on_two_nodes(tmp_path: Path, nodes: Callable[..., Any]) -> None:
    run = begin(load(None, [f"script={SCRIPT}", "name=tale"]).spec, runs=tmp_path).run
    two = nodes(run, sys.executable, str(SCRIPT), "--steps", "100", workers=1)
    assert [node.wait(timeout=300) for node in two.begin(2)] == [0, 0], two.log.read_text()
    assert [(record["step"], record["world"]) for record in run.metrics()] == [(n, 2) for n in range(10, 101, 10)]
    assert "[0] hi from 2 workers, starting at step 1" in two.log.read_text()
