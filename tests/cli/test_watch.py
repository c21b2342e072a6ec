import json
import os
import signal
import time
from pathlib import Path

import pytest

from stoker.backends.local import backend
from stoker.backends.local.backend import Local
from stoker.cli.main import main
from stoker.rundir import DataRef, Exit, RunDir, events
from stoker.spec.data import Data
from stoker.spec.errors import RunFailed
from stoker.spec.run import RunSpec, Until


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    run.add_event(events.Started(steps=8, tokens_per_step=32, chip="CPU", parameters=8), rank=0)
    run.add_metrics({"step": 4, "time": time.time(), "loss": 2.5, "tokens_per_second": 64.0})
    return run


def test_status_shows_a_failed_run_with_its_reason_and_remedy(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_exit(Exit(state="failed", code=3, step=4, reason="loss is NaN", remedy="Lower optim.lr"))
    assert main(["status", str(run.path)]) == 0
    out = capsys.readouterr().out
    for text in ("failed: loss is NaN", "Lower optim.lr", "4 of 8", "2.5000", "none yet", str(run.path)):
        assert text in out


def test_status_of_an_interrupted_run_names_the_command_that_resumes_it(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "tale", "--runs", str(run.path.parent)]) == 0
    out = capsys.readouterr().out
    assert "interrupted" in out
    assert "run the same stoker train command again" in out


@pytest.mark.parametrize("verb", ["ps", "status"])
def test_all_runs_are_a_table_or_a_list(run: RunDir, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    run.add_event(events.World(attempt=1, workers=2, restart=0))
    with run.lock():
        assert main([verb, "--runs", str(run.path.parent)]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert main([verb, "--runs", str(run.path.parent), "--json"]) == 0
    assert head.split() == ["RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "LEFT", "WORKERS", "UPDATED"]
    *cells, ago, unit = row.split()
    assert cells == ["tale", "running", "4", "of", "8", "2.5000", "64", "2s", "2"]
    assert (ago[-1], unit) == ("s", "ago")
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["state"], record["seconds_left"], record["workers"]) == ("tale", "running", 2.0, 2)


def test_ps_without_runs_names_the_command_that_starts_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}. Start one with: stoker train RUN.yaml\n"
    assert main(["ps", "--runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_file_instead_of_the_runs_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["ps", "--runs", str(tmp_path / "file")]) == 2
    assert "is not a folder. Name the folder that holds the runs" in capsys.readouterr().err


def test_a_terminal_shows_states_in_colour_unless_disabled(run: RunDir, terminal) -> None:
    run.write_exit(Exit(state="failed", code=3, step=4, reason="loss is NaN"))
    runs = str(run.path.parent)
    assert "\x1b[31mfailed\x1b[0m" in terminal("ps", "--runs", runs).read()
    assert "\x1b[31mfailed\x1b[0m" in terminal("status", str(run.path)).read()
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        for arguments in (["ps", "--runs", runs], ["status", str(run.path)]):
            output = terminal(*arguments, **environment).read()
            assert "failed" in output
            assert "\x1b" not in output


def test_watch_redraws_the_table_in_a_terminal(run: RunDir, terminal, eventually) -> None:
    screen = terminal("ps", "--runs", str(run.path.parent), "--watch", "0.05")
    eventually(lambda: screen.read(until="tale").count("tale") > 0)
    run.add_metrics({"step": 6, "time": time.time(), "loss": 2.25})
    screen.read(until="6 of 8")
    assert screen.interrupt() == 130
    assert screen.text.count("\x1b[H\x1b[2J") == screen.text.count("RUN") > 1
    assert "Traceback" not in screen.text


def test_more_runs_than_a_terminal_has_lines_show_the_last(tmp_path: Path, terminal) -> None:
    for number in range(40):
        folder = RunDir(tmp_path / f"run-{number:02d}")
        folder.path.mkdir()
        (folder.path / "spec.yaml").write_text("{}")
        folder.add_event(events.World(attempt=1, workers=1, restart=0))
    screen = terminal("ps", "--runs", ".", "--watch", LINES="24", COLUMNS="100")
    output = screen.read(until="run-39")
    assert "the last 21 of 40 runs:" in output
    assert "run-19" in output
    assert "run-18" not in output
    screen.interrupt()


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_watch_in_a_pipe_prints_one_table_after_another(run: RunDir, stoker, arguments: list[str]) -> None:
    process = stoker.start("ps", "--runs", str(run.path.parent), "--watch", "0.05", *arguments)
    lines = [process.stdout.readline() for _ in range(6)]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "\x1b" not in "".join(lines) + rest
    if arguments:
        assert all(json.loads(line)[0]["name"] == "tale" for line in lines)
    else:
        assert [line.split()[0] for line in lines[1::3]] == ["RUN", "RUN"]
        assert [line.split()[0] for line in lines[2::3]] == ["tale", "tale"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_an_invalid_watch_interval_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["ps", "--runs", str(run.path.parent), f"--watch={seconds}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--watch is {float(seconds):g}" in line


def test_stopping_a_run_that_is_not_running_says_so(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", str(run.path)]) == 0
    assert "is not running (interrupted)" in capsys.readouterr().out
    assert main(["stop", str(run.path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["name"], result["state"], result["stopped"]) == ("tale", "interrupted", False)


def test_stop_prints_as_json_how_the_run_ended(stoker, script: Path) -> None:
    name = json.loads(stoker("launch", script.name, "--json").stdout)["name"]
    (line,) = stoker("stop", name, "--json").stdout.splitlines()
    result = json.loads(line)
    assert (result["name"], result["state"], result["stopped"]) == (name, "paused", True)


def test_status_of_a_paused_run_names_the_command_that_resumes_it(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write_exit(Exit(state="paused", code=75, step=4, reason="stopped by SIGTERM"))
    assert main(["status", str(run.path)]) == 0
    assert "run the same stoker train command again" in capsys.readouterr().out
    run.write_exit(Exit(state="paused", code=75, step=4, reason="the disk is full", remedy="Make room"))
    assert main(["status", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "Make room" in out
    assert "run the same stoker train command again" not in out


def test_status_of_a_run_whose_loss_is_not_finite(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.add_metrics({"step": 5, "time": time.time(), "loss": None, "val_loss": None, "grad_norm": None})
    assert main(["status", str(run.path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (row["step"], row["loss"], row["val_loss"]) == (5, None, None)
    assert main(["status", "--runs", str(run.path.parent)]) == 0


def test_a_stop_that_waits_reports_the_reason_and_names_a_command(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend, "MESSAGE_EVERY_S", 0.05)
    monkeypatch.setattr(backend, "STOP_TIMEOUT_S", 0.5)
    with run.lock(), pytest.raises(RunFailed) as caught:
        Local().await_stopped(run, print)
    assert f"kill -9 {os.getpid()}" in caught.value.remedy
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("waiting for its workers to save (") for line in lines)
    assert all(line.endswith(f"to stop it without a save: stoker stop {run.path}") for line in lines)


def test_a_stop_that_does_not_wait_prints_nothing(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    Local().await_stopped(run, print)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", ["status", "logs", "events", "top", "stop", "launch"])
def test_an_unknown_run_is_refused_with_a_similar_name(
    run: RunDir, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main([verb, "tail", "--runs", str(run.path.parent)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"stoker: there is no run 'tail' in {run.path.parent}. Did you mean tale?"
