"""Runs in the background: with real supervisors, workers and terminals that are closed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.api.launch import await_start, plan
from stoker.backends import backend_for
from stoker.cli.interrupts import Interrupts
from stoker.cli.main import main
from stoker.cli.train import end
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.processes import is_alive

TRAINING = """\
name: tale
model: {{layers: 1, heads: 1, width: 16, context: 16}}
data: {tokens}
batch: {{sequences: 2, length: 16}}
until: {{steps: 12}}
precision: fp32
compile: false
eval: {{every: 0, sequences: 2}}
log: {{every: 4, tensorboard: false}}
on: {{device: cpu, workers: 1}}
"""


def launched(stoker, *arguments: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *arguments, "--json").stdout)["folder"]))


def process_tree(run: RunDir) -> list[int]:
    """The supervisor and its workers."""
    pid = run.holder()["pid"]
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def is_working(run: RunDir) -> bool:
    """Both of its workers have been active in the last half second."""
    marks = [run.path / f"alive-{rank}" for rank in range(2)]
    return all(mark.exists() and mark.stat().st_mtime > time.time() - 0.5 for mark in marks)


def test_a_launched_run_finishes_and_leaves_no_process(stoker, tokens: Path, eventually) -> None:
    (stoker.folder / "run.yaml").write_text(TRAINING.format(tokens=tokens))
    output = stoker("launch", "run.yaml").stdout
    assert "\x1b" not in output
    name = re.search(r"started     (tale-\w{4}), in the background", output)[1]
    run = stoker.run(name)
    for text in ("32 tokens per step", "until       12 steps", str(run.path), f"stoker logs {name} -f", "stoker stop"):
        assert text in output
    processes = process_tree(run) if run.holder() else []
    stoker("logs", name, "-f")
    assert (run.exit().state, run.exit().step) == ("done", 12)
    eventually(lambda: not any(map(is_alive, processes)))

    done = stoker("launch", name).stdout
    assert f"run '{name}' is done" in done
    on = stoker("launch", name, "until.steps=20", "log.every=2").stdout
    assert "resumes from step 12" in on
    eventually(lambda: run.holder() is None)
    assert [record["step"] for record in run.metrics()][-2:] == [18, 20]
    assert "changed until.steps: 12 -> 20" in stoker("events", name).stdout
    assert "resumed at step 12" in stoker("events", name).stdout
    stoker("audit", name)
    refused = stoker("launch", name, "model.width=32", code=2).stderr
    assert "model.width: 16 -> 32" in refused
    assert refused.count("\n") == 1


def test_every_launch_of_a_file_is_a_new_run(stoker, script: Path) -> None:
    runs = [launched(stoker, script.name) for _ in range(2)]
    assert len({run.name for run in runs}) == 2
    assert all(re.fullmatch(r"work-\w{4}", run.name) for run in runs)
    assert all(run.holder() for run in runs), "launch returns when the supervisor holds the run"


def test_a_long_name_is_shortened(stoker, script: Path) -> None:
    run = launched(stoker, script.name, f"name={'x' * 100}")
    assert re.fullmatch(r"x{95}-\w{4}", run.name)
    assert run.any_spec().name == run.name


def test_a_run_outlives_the_terminal_that_it_was_launched_from(stoker, script: Path, terminal, eventually) -> None:
    screen = terminal("launch", script.name)
    name = re.search(r"started     (work-\w{4})", screen.read(until="stoker stop"))[1]
    screen.hang_up()
    run = stoker.run(name)
    eventually(lambda: is_working(run))
    processes = process_tree(run)
    assert len(processes) == 3
    stopped = stoker("stop", name).stdout
    assert f"resume it with: stoker launch {run.name}" in stopped
    assert run.exit().state == "paused"
    eventually(lambda: not any(map(is_alive, processes)))


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGINT,
        *(pytest.param(number, marks=pytest.mark.soak) for number in (signal.SIGHUP, signal.SIGTERM)),
    ],
)
def test_a_run_outlives_the_command_that_launched_it(stoker, script: Path, eventually, number: signal.Signals) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "stoker", "launch", script.name, "name=work"],
        cwd=stoker.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    runs = stoker.folder / "runs"

    def holders() -> list:
        return [RunDir(path.parent).holder() for path in runs.glob("*/lock")]

    eventually(lambda: any(holder and holder["pid"] not in (0, command.pid) for holder in holders()))  # the supervisor
    os.killpg(command.pid, number)
    command.communicate(timeout=300)
    (run,) = [RunDir(path.parent) for path in runs.glob("*/spec.yaml")]
    eventually(lambda: is_working(run))
    (run.path / "enough").touch()
    eventually(lambda: run.holder() is None)
    assert run.exit().state == "done"


def test_a_moved_run_resumes_from_its_own_spec(stoker, script: Path, eventually) -> None:
    run = launched(stoker, script.name, "--runs", "elsewhere")
    stoker("stop", str(run.path))
    assert run.exit().state == "paused"
    moved = RunDir(run.path.rename(stoker.folder / "moved"))
    script.unlink()
    assert "add --trust" in stoker("launch", "moved", "on.workers=1", code=2).stderr, "it was not launched there"
    output = stoker("launch", "moved", "on.workers=1", "--trust").stdout
    assert f"stoker stop {moved.path}" in output
    eventually(lambda: (moved.path / "alive-0").exists())
    assert moved.any_spec().on.workers == 1
    (moved.path / "enough").touch()
    eventually(lambda: moved.holder() is None)


def test_a_new_run_is_started_from_the_spec_of_another(stoker, script: Path) -> None:
    run = launched(stoker, script.name)
    other = launched(stoker, run.name, "--new", "on.workers=1")
    assert other.name.startswith(f"{run.name}-")
    assert (run.any_spec().on.workers, other.any_spec().on.workers) == (2, 1)


def test_a_dry_run_starts_nothing(stoker, script: Path) -> None:
    output = stoker("launch", script.name, "--dry-run").stdout
    assert "(new)" in output
    assert "stoker.supervise" in output
    plan = json.loads(stoker("launch", script.name, "--dry-run", "--json").stdout)
    assert (plan["workers"], plan["device"]) == (2, "cpu")
    assert not (stoker.folder / "runs").exists()


def test_mistakes_are_one_line(
    stoker, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launched(stoker, script.name)
    monkeypatch.chdir(stoker.folder)
    for arguments, text in (
        ([], "launch needs a run file"),
        (["nothing.yaml"], "nothing.yaml"),
        ([run.name[:-1] + "_"], f"Did you mean {run.name}?"),
        ([run.name], f"run '{run.name}' is running already: process {run.holder()['pid']}"),
        ([run.name, "name=other"], "cannot be renamed"),
        ([script.name, "script=none.py"], "none.py"),
        ([script.name, "on.workerz=2"], "workers"),
    ):
        assert main(["launch", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line


def test_a_run_locked_by_another_process_is_reported(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("")
    spec = load(None, [f"script={tmp_path / 'work.py'}", "name=work", "on.device=cpu"]).spec
    run = RunDir(tmp_path / "runs" / "work")
    run.create(spec, None)
    with run.lock():
        submission = plan(spec, runs=run.path.parent).submission
        code = await_start(run, backend_for(spec.on).submit(submission, detached=True))
    assert code == 2
    with pytest.raises(UserError, match=f"is being written by process {os.getpid()}"):
        end(run, code, Interrupts(), seconds=0)
