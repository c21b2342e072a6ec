"""Callbacks are called with what happens, cannot change it, and if a callback fails nothing is lost."""

import json
import re
from pathlib import Path

import pytest

from stoker.rundir import RunDir
from tests.written import events_of

RECORDER = """
import json
from pathlib import Path
import stoker

class Recorder(stoker.Callback):
    def write(self, *call):
        with open("calls.jsonl", "a") as file:
            file.write(json.dumps(call, default=str) + "\\n")
    def started(self, run, spec, step):
        self.write("started", run, spec["seed"], step)
    def step(self, record):
        self.write("step", record)
    def evaluated(self, step, loss, best):
        self.write("evaluated", step, loss, best)
    def saved(self, step, folder):
        assert (folder / "manifest.json").is_file()
        self.write("saved", step, folder)
    def ended(self, state, step, reason):
        self.write("ended", state, step, reason)
"""


def calls_in(folder: Path) -> list[list]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def losses(run: RunDir) -> list[float]:
    return [record["loss"] for record in run.metrics()]


def test_a_callback_is_called_at_the_start_logged_steps_evaluations_saves_and_the_end(
    worker, mine, tmp_path: Path
) -> None:
    run = worker(
        "name=called", f"callbacks=[{mine(RECORDER)}:Recorder]", "until.steps=4", "eval.every=2", "checkpoint.every=2"
    )
    calls = calls_in(tmp_path)
    assert calls[0] == ["started", str(run.path), 0, 0]
    assert [record for kind, *record in calls if kind == "step"] == [[record] for record in run.metrics()]
    evaluated = [facts for kind, *facts in calls if kind == "evaluated"]
    assert [facts[:2] for facts in evaluated] == [[r["step"], r["val_loss"]] for r in run.metrics() if "val_loss" in r]
    assert evaluated[0][2] is True
    assert sorted(facts[0] for kind, *facts in calls if kind == "saved") == [2, 4]
    assert calls[-1] == ["ended", "done", 4, "all 4 steps are done"]


def test_a_resumed_run_passes_the_step_it_resumes_from(worker, mine, tmp_path: Path) -> None:
    overrides = ["name=called", f"callbacks=[{mine(RECORDER)}:Recorder]", "optim.schedule=constant"]
    worker(*overrides, "until.steps=2")
    run = worker(*overrides, "until.steps=4")
    assert [facts for kind, *facts in calls_in(tmp_path) if kind == "started"] == [
        [str(run.path), 0, 0],
        [str(run.path), 0, 2],
    ]


def test_a_function_is_called_with_every_logged_step(worker, mine, tmp_path: Path) -> None:
    name = mine("def note(record):\n    open('seen', 'a').write(f\"{record['step']} \")\n")
    worker("name=called", f"callbacks=[{name}:note]", "until.steps=5", "log.every=2")
    assert (tmp_path / "seen").read_text() == "1 2 4 5 "


def test_a_callback_cannot_change_the_training(worker, mine) -> None:
    name = mine(
        "import random, numpy, torch\n"
        "def spoil(record):\n"
        "    record['loss'] = 0.0\n"
        "    record['parameters'].clear()\n"
        "    torch.manual_seed(1); random.seed(1); numpy.random.seed(1); torch.rand(5)\n"
    )
    overrides = ["until.steps=4", "model.dropout=0.1", "log.parameters=true"]
    plain = worker("name=plain", *overrides)
    spoilt = worker("name=spoilt", *overrides, f"callbacks=[{name}:spoil]")
    assert losses(spoilt) == losses(plain)
    assert all(record["parameters"] for record in spoilt.metrics())


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("started(self, run, spec, step)", 0),
        ("step(self, record)", 1),
        ("evaluated(self, step, loss, best)", 2),
        ("ended(self, state, step, reason)", 4),
    ],
)
def test_a_callback_that_fails_saves_and_ends_the_run_and_without_it_the_run_resumes(
    worker, mine, tmp_path: Path, method: str, step: int
) -> None:
    overrides = ["until.steps=4", "eval.every=2", "model.dropout=0.1"]
    whole = worker("name=whole", *overrides)
    bad = mine(f"import stoker\nclass Bad(stoker.Callback):\n    def {method}:\n        raise KeyError('mouse')\n")
    run = worker("name=broken", *overrides, f"callbacks=[{bad}:Bad, {mine(RECORDER)}:Recorder]", code=3)
    exit = run.exit()
    name = method.partition("(")[0]
    assert (exit.state, exit.code) == ("failed", 3)
    assert exit.reason == f"the callback {bad}:Bad failed in {name}: KeyError: 'mouse' ({bad}.py, line 4)"
    assert exit.remedy == f"Fix it and run the same command again: the run resumes from step {step}"
    assert run.saved()[-1].step == step
    if name != "ended":
        assert calls_in(tmp_path)[-1] == ["ended", "failed", step, exit.reason], "the other callbacks are called too"
    worker("name=broken", *overrides)
    assert run.exit().state == "done"
    assert losses(run) == losses(whole)


def test_a_callback_that_fails_at_the_last_step_fails_the_run(worker, mine) -> None:
    name = mine("def bad(record):\n    assert record['step'] < 3, 'enough'\n")
    run = worker("name=broken", f"callbacks=[{name}:bad]", "until.steps=3", code=3)
    assert "failed in step: AssertionError: enough" in run.exit().reason
    assert not [event for event in events_of(run) if event["kind"] == "finished"]
    assert run.saved()[-1].step == 3


def test_callbacks_are_called_when_a_run_fails(worker, mine, tmp_path: Path) -> None:
    overrides = ["optim.lr=1e20", "optim.warmup=0", "optim.clip=null", "until.steps=50"]
    worker("name=wild", f"callbacks=[{mine(RECORDER)}:Recorder]", *overrides, code=3)
    kind, state, _, reason = calls_in(tmp_path)[-1]
    assert (kind, state) == ("ended", "failed")
    assert "not finite" in reason or "loss is" in reason


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Name = 7", "neither a class nor a function but int"),
        ("class Name: ...", "a class that is not a stoker.Callback"),
        (
            "import stoker\nclass Name(stoker.Callback):\n    def __init__(self, where): ...",
            "creating one fails: TypeError: .*missing 1 required positional argument",
        ),
    ],
)
def test_a_callback_that_cannot_be_created_is_reported_before_training(worker, mine, text: str, part: str) -> None:
    run = worker("name=broken", f"callbacks=[{mine(text)}:Name]", "until.steps=2", code=2)
    exit = run.exit()
    assert re.search(part, exit.reason), exit.reason
    assert run.metrics() == []


def test_callbacks_can_be_changed_when_a_run_resumes(worker, mine) -> None:
    overrides = ["name=called", "optim.schedule=constant"]
    worker(*overrides, "until.steps=1")
    run = worker(*overrides, "until.steps=2", f"callbacks=[{mine('def f(record): ...')}:f]")
    assert run.exit().step == 2
