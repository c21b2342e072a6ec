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


def test_a_locked_run_is_running_with_the_time_left(run: RunDir) -> None:
    run.write_exit(Exit(state="failed", code=3, step=5, reason="of an earlier launch"))
    with run.lock():
        status = view(run)
    assert (status.state, status.step, status.steps, status.reason) == ("running", 40, 100, "")
    assert (status.loss, status.val_loss, status.checkpoint, status.workers) == (3.0, 4.5, 30, 2)
    assert status.seconds_left == 60 * 512 / 1024


def test_an_unlocked_run_without_an_exit_is_interrupted(run: RunDir) -> None:
    assert view(run).state == "interrupted"
    assert view(run).seconds_left is None


@pytest.mark.parametrize("state", ["done", "paused", "failed"])
def test_a_run_that_ended_has_the_state_of_its_exit(run: RunDir, state: str) -> None:
    run.write_exit(Exit(state=state, code=0, step=42, reason="because", remedy="do this"))  # type: ignore[arg-type]
    status = view(run)
    assert (status.state, status.step, status.reason, status.remedy) == (state, 42, "because", "do this")


def test_a_resumed_run_is_at_the_step_that_it_resumed_from(run: RunDir) -> None:
    run.add_event(events.Failed(code=None, signal="SIGKILL", line="", again=True), rank=1)
    run.add_event(events.Resumed(step=30), rank=0)
    assert (view(run).step, view(run).restarts) == (30, 1)
    run.add_metrics({"step": 31, "time": time.time() + 1, "loss": 1.0})
    assert view(run).step == 31


def test_a_run_that_never_started_has_a_view(tmp_path: Path) -> None:
    status = view(new_run(tmp_path, "young"))
    assert (status.state, status.step, status.steps, status.loss, status.checkpoint) == (
        "interrupted",
        0,
        None,
        None,
        None,
    )


def test_a_run_is_found_by_name_or_folder(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("tale", tmp_path).path == run.path
    assert find(str(run.path), Path("elsewhere")).path == run.path
    monkeypatch.chdir(new_run(tmp_path / "here", "tale").path.parent)
    assert find("./tale", tmp_path).path == tmp_path / "here" / "tale"
    assert find("tale", tmp_path).path == run.path
    (tmp_path / "no-run").mkdir()
    assert [listed_run.name for listed_run in all_runs(tmp_path)] == ["tale"]


def test_an_unknown_run_is_refused_with_a_similar_name(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no run 'tail' in {tmp_path}. Did you mean {run.name}?"):
        find("tail", tmp_path)
    with pytest.raises(UserError, match="There are: tale"):
        find("xyz", tmp_path)
    with pytest.raises(UserError, match="Start one with: stoker train"):
        find("tale", tmp_path / "empty")


def test_a_loss_that_is_not_finite_is_none(run: RunDir) -> None:
    run.add_metrics({"step": 50, "time": time.time(), "loss": None, "val_loss": None, "grad_norm": None})
    status = view(run)
    assert (status.step, status.loss, status.val_loss) == (50, None, None)


def test_runs_are_listed_in_the_order_that_they_first_started(tmp_path: Path) -> None:
    for name in ("first", "second"):
        new_run(tmp_path, name).add_event(events.World(attempt=1, workers=1, restart=0))
    script = RunDir(tmp_path / "third")
    script.create(ScriptSpec(name="third", script="x.py"), None)
    first = RunDir(tmp_path / "first")
    first.write_spec(first.any_spec())  # as a resume with a changed spec does
    os.utime(first.path / "data.json")
    assert [run.name for run in all_runs(tmp_path)] == ["first", "second", "third"]


def test_a_run_with_a_truncated_first_event_is_listed(tmp_path: Path) -> None:
    run = new_run(tmp_path, "torn")
    (run.path / "events.jsonl").write_text('{"time": 17')
    assert [listed_run.name for listed_run in all_runs(tmp_path)] == ["torn"]
    assert row(run).state == "interrupted"


def test_the_row_of_every_run_agrees_with_its_view(tmp_path: Path) -> None:
    """Runs with long files: running, ended, killed, resumed, and never started."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(60):
        long_run(new_run(tmp_path, f"run-{number}"), draw)
    locked = [draw.choice(all_runs(tmp_path)) for _ in range(5)]
    with ExitStack() as locks:
        for run in {run.name: run for run in locked}.values():
            locks.enter_context(run.lock())
        for run in all_runs(tmp_path):
            status, metrics, events = row(run), run.metrics(), events_of(run)
            assert asdict(view(run)) | asdict(status) == asdict(view(run))
            resumed = max((e["time"] for e in events if e["kind"] == "resumed"), default=0)
            if metrics and resumed < metrics[-1]["time"]:
                assert (status.step, status.loss) == (metrics[-1]["step"], metrics[-1]["loss"])
            worlds = [e["workers"] for e in events if e["kind"] == "world"]
            assert status.workers == (worlds[-1] if worlds else None)
            assert (status.state == "running") is (run.name in {locked_run.name for locked_run in locked})
            assert (status.seconds_left is not None) is (status.state == "running" and bool(metrics))


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
