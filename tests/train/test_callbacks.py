"""The user's own code is told what happens, cannot change it, and when it fails nothing is lost."""

import json
import re
from pathlib import Path

import pytest

from stoker.rundir import RunDir

TELL = """
import json
from pathlib import Path
import stoker

class Tell(stoker.Callback):
    def write(self, *words):
        with open("told.jsonl", "a") as file:
            file.write(json.dumps(words, default=str) + "\\n")
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


def told(folder: Path) -> list[list]:
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


def losses(run: RunDir) -> list[float]:
    return [record["loss"] for record in run.metrics()]


def test_it_is_told_of_the_start_every_logged_step_evaluations_saves_and_the_end(worker, mine, tmp_path: Path) -> None:
    run = worker("name=told", f"callbacks=[{mine(TELL)}:Tell]", "until.steps=4", "eval.every=2", "checkpoint.every=2")
    words = told(tmp_path)
    assert words[0] == ["started", str(run.path), 0, 0]
    assert [record for kind, *record in words if kind == "step"] == [[record] for record in run.metrics()]
    evaluated = [facts for kind, *facts in words if kind == "evaluated"]
    assert [facts[:2] for facts in evaluated] == [[r["step"], r["val_loss"]] for r in run.metrics() if "val_loss" in r]
    assert evaluated[0][2] is True
    assert sorted(facts[0] for kind, *facts in words if kind == "saved") == [2, 4]
    assert words[-1] == ["ended", "done", 4, "all 4 steps are done"]


def test_a_run_that_goes_on_tells_from_where(worker, mine, tmp_path: Path) -> None:
    words = ["name=told", f"callbacks=[{mine(TELL)}:Tell]", "optim.schedule=constant"]
    worker(*words, "until.steps=2")
    run = worker(*words, "until.steps=4")
    assert [facts for kind, *facts in told(tmp_path) if kind == "started"] == [
        [str(run.path), 0, 0],
        [str(run.path), 0, 2],
    ]


def test_a_function_is_told_of_every_logged_step(worker, mine, tmp_path: Path) -> None:
    name = mine("def note(record):\n    open('seen', 'a').write(f\"{record['step']} \")\n")
    worker("name=told", f"callbacks=[{name}:note]", "until.steps=5", "log.every=2")
    assert (tmp_path / "seen").read_text() == "1 2 4 5 "


def test_it_cannot_change_the_training(worker, mine) -> None:
    name = mine(
        "import random, numpy, torch\n"
        "def spoil(record):\n"
        "    record['loss'] = 0.0\n"
        "    record['parameters'].clear()\n"
        "    torch.manual_seed(1); random.seed(1); numpy.random.seed(1); torch.rand(5)\n"
    )
    words = ["until.steps=4", "model.dropout=0.1", "log.parameters=true"]
    plain = worker("name=plain", *words)
    spoilt = worker("name=spoilt", *words, f"callbacks=[{name}:spoil]")
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
def test_one_that_fails_saves_the_run_and_ends_it_and_without_it_the_run_goes_on(
    worker, mine, tmp_path: Path, method: str, step: int
) -> None:
    words = ["until.steps=4", "eval.every=2", "model.dropout=0.1"]
    whole = worker("name=whole", *words)
    bad = mine(f"import stoker\nclass Bad(stoker.Callback):\n    def {method}:\n        raise KeyError('mouse')\n")
    run = worker("name=broken", *words, f"callbacks=[{bad}:Bad, {mine(TELL)}:Tell]", code=3)
    exit = run.exit()
    name = method.partition("(")[0]
    assert (exit.state, exit.code) == ("failed", 3)
    assert exit.reason == f"the callback {bad}:Bad failed in {name}: KeyError: 'mouse' ({bad}.py, line 4)"
    assert exit.remedy == f"Mend it and run the same command again: it goes on from step {step}"
    assert run.saved()[-1].step == step
    if name != "ended":
        assert told(tmp_path)[-1] == ["ended", "failed", step, exit.reason], "the others hear of it"
    worker("name=broken", *words)
    assert run.exit().state == "done"
    assert losses(run) == losses(whole)


def test_a_failure_at_the_last_step_is_not_taken_for_a_good_end(worker, mine) -> None:
    name = mine("def bad(record):\n    assert record['step'] < 3, 'enough'\n")
    run = worker("name=broken", f"callbacks=[{name}:bad]", "until.steps=3", code=3)
    assert "failed in step: AssertionError: enough" in run.exit().reason
    assert not [event for event in run.events() if event["kind"] == "finished"]
    assert run.saved()[-1].step == 3


def test_a_run_that_fails_tells_so(worker, mine, tmp_path: Path) -> None:
    words = ["optim.lr=1e20", "optim.warmup=0", "optim.clip=null", "until.steps=50"]
    worker("name=wild", f"callbacks=[{mine(TELL)}:Tell]", *words, code=3)
    kind, state, _, reason = told(tmp_path)[-1]
    assert (kind, state) == ("ended", "failed")
    assert "not finite" in reason or "loss is" in reason


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Name = 7", "neither a class nor a function but int"),
        ("class Name: ...", "a class that is no stoker.Callback"),
        (
            "import stoker\nclass Name(stoker.Callback):\n    def __init__(self, where): ...",
            "making one fails: TypeError: .*missing 1 required positional argument",
        ),
    ],
)
def test_one_that_cannot_be_made_is_told_before_anything_is_trained(worker, mine, text: str, part: str) -> None:
    run = worker("name=broken", f"callbacks=[{mine(text)}:Name]", "until.steps=2", code=2)
    exit = run.exit()
    assert re.search(part, exit.reason), exit.reason
    assert run.metrics() == []


def test_callbacks_can_be_changed_when_a_run_goes_on(worker, mine) -> None:
    words = ["name=told", "optim.schedule=constant"]
    worker(*words, "until.steps=1")
    run = worker(*words, "until.steps=2", f"callbacks=[{mine('def f(record): ...')}:f]")
    assert run.exit().step == 2
