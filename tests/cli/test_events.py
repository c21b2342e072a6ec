import json
import threading
import time
from pathlib import Path

import pytest

from stoker.cli import summary
from stoker.cli.events import sentence
from stoker.cli.main import main
from stoker.rundir import DataRef, RunDir, events
from stoker.rundir.events import parse_event
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until
from tests.written import events_of

SENTENCES = [
    ({"kind": "world", "attempt": 2, "workers": 1, "restart": 1}, "attempt 2 with 1 worker"),
    (
        {"kind": "started", "chip": "CPU", "parameters": 12_345_678, "steps": 1000},
        "training on CPU, 12.3M parameters, until step 1,000",
    ),
    ({"kind": "checkpoint", "step": 20, "seconds": 0.25}, "saved step 20 in 0.2 s"),
    ({"kind": "changed", "changes": {"until.steps": [8, 9]}}, "changed until.steps: 8 -> 9"),
    ({"kind": "stopping", "signal": "SIGTERM"}, "asked to save and stop (SIGTERM)"),
    ({"kind": "finished", "step": 9, "reason": "all 9 steps are done"}, "finished at step 9: all 9 steps are done"),
    ({"kind": "sample", "step": 9, "text": "one\n\x1b[31mtwo"}, "after step 9 the model writes: one \\x1b[31mtwo"),
    ({"kind": "world", "attempt": 3, "workers": 4, "nodes": [{}, {}]}, "attempt 3 with 4 workers on 2 nodes"),
    (
        {"kind": "waiting for nodes", "joined": [0, 2], "missing": [1], "least": 3, "most": 3},
        "waiting for node 1: 2 of 3 are up",
    ),
    (
        {"kind": "waiting for nodes", "joined": [0], "missing": [*range(1, 20)], "least": 2, "most": 20},
        "waiting for node 1, 2, 3, 4, 5, 6, 7, 8 and 11 more: 1 of 2..20 are up",
    ),
    ({"kind": "lost", "node": 1, "pod": "tale-1"}, "node 1 (pod tale-1) was lost"),
    ({"kind": "left", "node": 1}, "node 1 (h) has left"),
    (
        {"kind": "regrouping", "reason": "node 2 (pod x) has joined"},
        "asked to save, then resumes with other nodes: node 2 (pod x) has joined",
    ),
    (
        {"kind": "short schedule", "end": 20, "steps": 80, "horizon": 20, "rate": 0.0},
        "the learning rate is 0 from step 20 of 80 on: later steps change nothing. "
        "optim.horizon=80 extends the schedule",
    ),
    (
        {"kind": "short schedule", "end": 9, "steps": 80, "horizon": 80, "rate": 0.0},
        "the learning rate is 0 from step 9 of 80 on: later steps change nothing. A longer optim.decay extends it",
    ),
    ({"kind": "started"}, "started"),
    ({"kind": "of tomorrow", "step": 3, "why": "x"}, "of tomorrow: step=3 why=x"),
]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    run.add_event(events.World(attempt=1, workers=2, restart=0))
    run.add_event(events.Resumed(step=4), rank=0)
    return run


@pytest.mark.parametrize(("record", "line"), SENTENCES, ids=lambda x: x if isinstance(x, str) else "")
def test_every_event_is_one_sentence(record: dict[str, object], line: str) -> None:
    event = parse_event({"time": 0.0, "rank": 0, "host": "h"} | record)
    assert event is not None
    assert sentence(event) == line


def test_only_some_events_are_shown_while_training() -> None:
    assert summary.shown_while_training(events.Resumed(step=4)) == "resumed at step 4"
    assert summary.shown_while_training(events.CheckpointSaved(step=4, seconds=1.0)) is None


def test_events_have_their_time_and_json_has_all_fields(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", str(run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[21:] for line in lines] == ["attempt 1 with 2 workers", "resumed at step 4"]
    assert lines[0].startswith(time.strftime("%Y-%m-%d "))
    assert main(["events", "tale", "--runs", str(run.path.parent), "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == events_of(run)


def test_following_events_ends_with_the_run(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    locked, pause = threading.Event(), threading.Event()

    def write_event() -> None:
        with run.lock():
            locked.set()
            pause.wait(0.5)
            run.add_event(events.Stopping(signal="SIGTERM"))

    writer = threading.Thread(target=write_event)
    writer.start()
    locked.wait()
    assert main(["events", str(run.path), "-f"]) == 0
    writer.join()
    assert capsys.readouterr().out.splitlines()[-1].endswith("asked to save and stop (SIGTERM)")
