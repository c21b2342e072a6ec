import json
import threading
import time
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import DataRef, Exit, RunDir
from stoker.spec.run import Data, RunSpec, Until


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    run.add_event("started", rank=0, steps=8, tokens_per_step=32)
    run.add_metrics({"step": 4, "time": time.time(), "loss": 2.5, "tokens_per_second": 64.0})
    return run


def test_status_shows_a_failed_run_with_its_reason_and_remedy(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_exit(Exit(state="failed", code=3, step=4, reason="loss is NaN", remedy="Lower optim.lr"))
    assert main(["status", str(run.path)]) == 0
    out = capsys.readouterr().out
    for text in ("failed: loss is NaN", "Lower optim.lr", "4 of 8", "2.5000", "none yet", str(run.path)):
        assert text in out


def test_status_of_an_interrupted_run_says_how_to_go_on(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "tale", "--runs", str(run.path.parent)]) == 0
    out = capsys.readouterr().out
    assert "interrupted" in out
    assert "run the same stoker train command again" in out


def test_status_of_all_runs_is_a_table_or_a_list(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with run.lock():
        assert main(["status", "--runs", str(run.path.parent)]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert main(["status", "--runs", str(run.path.parent), "--json"]) == 0
    assert head.split()[:3] == ["RUN", "STATE", "STEP"]
    assert row.split() == ["tale", "running", "4", "of", "8", "2.5000", "-", "64", "2s"]
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["name"], one["state"], one["seconds_left"]) == ("tale", "running", 2.0)


def test_following_logs_ends_with_the_run(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.log(0).write_text("one\ntwo\n")

    def live() -> None:
        with run.lock():
            time.sleep(0.5)
            with run.log(0).open("a") as file:
                file.write("three\n")

    writer = threading.Thread(target=live)
    writer.start()
    while run.holder() is None:
        time.sleep(0.01)
    assert main(["logs", str(run.path), "-f", "--tail", "1"]) == 0
    writer.join()
    assert capsys.readouterr().out.splitlines() == ["two", "three"]


def test_logs_of_a_run_that_never_started_say_so(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(run.path)]) == 2
    assert "has no logs yet" in capsys.readouterr().err


def test_stopping_a_run_that_is_not_running_says_so(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", str(run.path)]) == 0
    assert "is not running (interrupted)" in capsys.readouterr().out
