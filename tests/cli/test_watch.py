import json
import os
import threading
import time
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.cli.watch import await_end
from stoker.rundir import DataRef, Exit, RunDir
from stoker.spec.errors import RunFailed
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


def test_fewer_lines_than_none_are_refused_in_one_line(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(run.path), "--tail", "-3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stoker: --tail is -3. ")


def test_status_of_a_paused_run_says_how_to_go_on(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_exit(Exit(state="paused", code=75, step=4, reason="stopped by SIGTERM"))
    assert main(["status", str(run.path)]) == 0
    assert "run the same stoker train command again" in capsys.readouterr().out
    run.write_exit(Exit(state="paused", code=75, step=4, reason="the disk is full", remedy="Make room"))
    assert main(["status", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "Make room" in out
    assert "run the same stoker train command again" not in out


def test_a_run_whose_loss_was_not_finite_can_be_looked_at(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.add_metrics({"step": 5, "time": time.time(), "loss": None, "val_loss": None, "grad_norm": None})
    assert main(["status", str(run.path), "--json"]) == 0
    one = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (one["step"], one["loss"], one["val_loss"]) == (5, None, None)
    assert main(["status", "--runs", str(run.path.parent)]) == 0


def test_a_stop_that_waits_says_what_for_and_in_the_end_what_to_type(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.lock(), pytest.raises(RunFailed) as caught:
        await_end(run, word=0.05, patience=0.3)
    assert f"kill -9 {os.getpid()}" in caught.value.remedy
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("waiting for its workers to save (") for line in lines)
    assert all(line.endswith(f"to end it without: stoker stop {run.path}") for line in lines)


def test_a_stop_of_a_run_that_ends_soon_has_nothing_to_say(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    await_end(run)
    assert capsys.readouterr().out == ""
