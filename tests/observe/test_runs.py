import json
import os
import random
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from stoker.observe.runs import all_runs, find
from stoker.rundir import DataRef, Exit, RunDir, events
from stoker.rundir.view import row, view
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec, ScriptSpec, Until
from tests.written import events_of


def new_run(runs: Path, name: str) -> RunDir:
    run = RunDir(runs / name)
    run.create(RunSpec(name=name, data=Data(path="x"), until=Until(steps=100)), DataRef(shards="/nowhere", key="k"))
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """At step 40 of 100."""
    run = new_run(tmp_path, "tale")
    run.add_event(events.World(attempt=1, workers=2))
    run.add_event(events.Started(steps=100, tokens_per_step=512, chip="CPU", parameters=8), rank=0)
    for step in (10, 20, 30, 40):
        record = {
            "step": step,
            "time": time.time(),
            "loss": 5 - step / 20,
            "tokens": step * 512,
            "tokens_per_second": 1024.0,
        }
        run.add_metrics(record | ({"val_loss": 4.5} if step == 20 else {}))
    folder = run.checkpoint(30)
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"step": 30, "files": {}}))
    return run


def test_a_run_that_somebody_holds_is_running_and_says_how_long_it_will_take(run: RunDir) -> None:
    run.write_exit(Exit(state="failed", code=3, step=5, reason="of an earlier launch"))
    with run.lock():
        seen = view(run)
    assert (seen.state, seen.step, seen.steps, seen.reason) == ("running", 40, 100, "")
    assert (seen.loss, seen.val_loss, seen.checkpoint, seen.workers) == (3.0, 4.5, 30, 2)
    assert seen.seconds_left == 60 * 512 / 1024


def test_a_run_that_nobody_holds_and_that_left_no_word_is_interrupted(run: RunDir) -> None:
    assert view(run).state == "interrupted"
    assert view(run).seconds_left is None


@pytest.mark.parametrize("state", ["done", "paused", "failed"])
def test_a_run_that_ended_tells_how(run: RunDir, state: str) -> None:
    run.write_exit(Exit(state=state, code=0, step=42, reason="because", remedy="do this"))  # type: ignore[arg-type]
    seen = view(run)
    assert (seen.state, seen.step, seen.reason, seen.remedy) == (state, 42, "because", "do this")


def test_a_resumed_run_is_where_it_resumed_not_where_it_was_killed(run: RunDir) -> None:
    run.add_event(events.Failed(code=None, signal="SIGKILL", line="", again=True), rank=1)
    run.add_event(events.Resumed(step=30), rank=0)
    assert (view(run).step, view(run).restarts) == (30, 1)
    run.add_metrics({"step": 31, "time": time.time() + 1, "loss": 1.0})
    assert view(run).step == 31


def test_a_run_that_never_started_can_be_looked_at(tmp_path: Path) -> None:
    seen = view(new_run(tmp_path, "young"))
    assert (seen.state, seen.step, seen.steps, seen.loss, seen.checkpoint) == ("interrupted", 0, None, None, None)


def test_a_run_is_found_by_name_or_folder(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("tale", tmp_path).path == run.path
    assert find(str(run.path), Path("elsewhere")).path == run.path
    monkeypatch.chdir(new_run(tmp_path / "here", "tale").path.parent)
    assert find("./tale", tmp_path).path == tmp_path / "here" / "tale"
    assert find("tale", tmp_path).path == run.path
    (tmp_path / "no-run").mkdir()
    assert [one.name for one in all_runs(tmp_path)] == ["tale"]


def test_an_unknown_run_names_the_nearest(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no run 'tail' in {tmp_path}. Did you mean {run.name}?"):
        find("tail", tmp_path)
    with pytest.raises(UserError, match="There are: tale"):
        find("xyz", tmp_path)
    with pytest.raises(UserError, match="Start one with: stoker train"):
        find("tale", tmp_path / "empty")


def test_a_loss_that_was_not_finite_is_none_and_hides_no_older_one(run: RunDir) -> None:
    run.add_metrics({"step": 50, "time": time.time(), "loss": None, "val_loss": None, "grad_norm": None})
    seen = view(run)
    assert (seen.step, seen.loss, seen.val_loss) == (50, None, None)


def test_runs_are_listed_in_the_order_that_they_first_started(tmp_path: Path) -> None:
    for name in ("first", "second"):
        new_run(tmp_path, name).add_event(events.World(attempt=1, workers=1, restart=0))
    script = RunDir(tmp_path / "third")
    script.create(ScriptSpec(name="third", script="x.py"), None)
    first = RunDir(tmp_path / "first")
    first.write_spec(first.any_spec())  # as a run that goes on with a changed spec does
    os.utime(first.path / "data.json")
    assert [run.name for run in all_runs(tmp_path)] == ["first", "second", "third"]


def test_a_run_whose_first_event_is_torn_is_listed_all_the_same(tmp_path: Path) -> None:
    run = new_run(tmp_path, "torn")
    (run.path / "events.jsonl").write_text('{"time": 17')
    assert [one.name for one in all_runs(tmp_path)] == ["torn"]
    assert row(run).state == "interrupted"


def test_a_list_says_of_every_run_what_a_close_look_says(tmp_path: Path) -> None:
    """Of many runs with long files: those that run, ended, died, were resumed, and never began."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(60):
        long_run(new_run(tmp_path, f"run-{number}"), draw)
    held = [draw.choice(all_runs(tmp_path)) for _ in range(5)]
    with ExitStack() as locks:
        for run in {run.name: run for run in held}.values():
            locks.enter_context(run.lock())
        for run in all_runs(tmp_path):
            seen, metrics, events = row(run), run.metrics(), events_of(run)
            assert asdict(view(run)) | asdict(seen) == asdict(view(run))
            resumed = max((e["time"] for e in events if e["kind"] == "resumed"), default=0)
            if metrics and resumed < metrics[-1]["time"]:
                assert (seen.step, seen.loss) == (metrics[-1]["step"], metrics[-1]["loss"])
            worlds = [e["workers"] for e in events if e["kind"] == "world"]
            assert seen.workers == (worlds[-1] if worlds else None)
            assert (seen.state == "running") is (run.name in {one.name for one in held})
            assert (seen.seconds_left is not None) is (seen.state == "running" and bool(metrics))


def long_run(run: RunDir, draw: random.Random) -> None:
    now, lines = 1e9, []
    events = []
    for attempt in range(draw.randrange(4)):
        events.append({"time": now, "kind": "world", "attempt": attempt, "workers": draw.randint(1, 8)})
        started = {"kind": "started", "chip": "CPU", "parameters": 8, "steps": 10**6, "tokens_per_step": 512}
        events.append({"time": now} | started)
        if attempt:
            events.append({"time": now, "kind": "resumed", "step": 10 * len(lines)})
        for _ in range(draw.randrange(1, 900)):
            now += 1
            lines.append({"step": 10 * (len(lines) + 1), "time": now, "loss": draw.random(), "tokens_per_second": 99.0})
            events += [{"time": now, "kind": "checkpoint", "step": 1, "seconds": 1.0}] * (draw.random() < 0.1)
    for name, records in (("events.jsonl", events), ("metrics.jsonl", lines)):
        (run.path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    if draw.random() < 0.5:
        run.write_exit(Exit(state="paused", code=75, step=10 * len(lines), reason="stopped as asked"))
