"""`stoker train` as a real process with the real trainer."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.api import opening
from stoker.rundir import RunDir
from stoker.rundir.view import view
from stoker.spec.load import load
from tests.processes import descendants, is_alive
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

STOKER = str(Path(sys.executable).with_name("stoker"))
ENDLESS = "until.steps=1M"
RUN_FILE = """\
name: tale
model: {layers: 1, heads: 1, width: 16, context: 16}
data: {path: book.txt, tokenizer: {train: 300}}
batch: {sequences: 2, length: 16}
until: {steps: 12}
precision: fp32
compile: false
eval: {every: 0, sequences: 2}
log: {every: 4, tensorboard: false}
on: {device: cpu, workers: 1}
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    (tmp_path / "book.txt").write_text("".join(f"It was day {i}, and the sea was calm.\n" for i in range(400)))
    return tmp_path


def stoker(workdir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([STOKER, *arguments], cwd=workdir, capture_output=True, text=True)


@pytest.fixture
def start_command(workdir: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command as the leader of a process group, as a terminal does; it is killed when the test ends."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(
                [STOKER, *arguments], cwd=workdir, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_one_command_trains_and_the_same_command_reports_that_it_is_done(command, workdir: Path) -> None:
    first = stoker(workdir, "train", "run.yaml")
    assert first.returncode == 0, first.stdout + first.stderr
    run = RunDir(workdir / "runs" / "tale")
    assert "\x1b" not in first.stdout
    assert "32 tokens per step" in first.stdout
    assert "step 12/12" in first.stdout
    assert "done at step 12" in first.stdout
    assert str(run.path) in first.stdout
    losses = [record["loss"] for record in run.metrics()]
    assert f"{losses[0]:.4f} -> {losses[-1]:.4f}" in first.stdout

    second = stoker(workdir, "train", "run.yaml")
    assert (second.returncode, "is done" in second.stdout) == (0, True)
    changed = command("train", "run.yaml", "seed=5")
    assert changed.returncode == 2
    assert "seed: 0 -> 5" in changed.stderr
    assert changed.stderr.count("\n") == 1

    status = json.loads(command("status", "tale", "--json").stdout)
    assert (status["state"], status["step"], status["steps"]) == ("done", 12, 12)
    assert "tale  done" in command("status").stdout
    assert command("logs", "tale", "--all").returncode == 0
    audit = command("audit", "tale")
    assert audit.returncode == 0, audit.stdout
    assert "verdict     proven" in audit.stdout
    ledger = next(run.ledger.iterdir())
    ledger.write_text(ledger.read_text().replace('"hash":"', '"hash":"0'))
    audit = command("audit", "tale")
    assert audit.returncode == 1
    assert "verdict     not proven: step 1, rank 0: the model was given other tokens" in audit.stdout


def test_a_dry_run_shows_the_plan_and_does_nothing(command, workdir: Path) -> None:
    result = command("train", "run.yaml", "--dry-run", "batch.sequences=6", "on.workers=2")
    assert result.returncode == 0
    assert "6 × 16 = 96 tokens per step" in result.stdout
    assert "2 on cpu, 3 sequences each" in result.stdout
    assert "stoker.supervise" in result.stdout
    assert not (workdir / "runs").exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 75), pytest.param(signal.SIGHUP, 75, marks=pytest.mark.soak)],
)
def test_an_interrupted_run_is_saved_and_resumes(
    workdir: Path, start_command: Callable[..., "subprocess.Popen[str]"], number: signal.Signals, code: int
) -> None:
    run = RunDir(workdir / "runs" / "tale")
    command = start_command("train", "run.yaml", ENDLESS)
    until(run.metrics)
    os.killpg(command.pid, number)
    out, err = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, err) == (code, "")
    exit = run.exit()
    assert exit is not None
    assert exit.state == "paused"
    assert exit.step
    assert view(run).checkpoint == exit.step
    if number == signal.SIGINT:
        assert "saving" in out
        assert "next        run the same command again to resume" in out
        second = stoker(workdir, "train", "run.yaml", f"until.steps={exit.step + 3}")
        assert second.returncode == 0, second.stderr
        assert f"resumed at step {exit.step}" in second.stdout
        assert stoker(workdir, "audit", "tale").returncode == 0


def test_stop_saves_a_run_and_its_command_exits_with_0(
    workdir: Path, start_command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(workdir / "runs" / "tale")
    command = start_command("train", "run.yaml", ENDLESS)
    until(run.metrics)
    second = stoker(workdir, "train", "run.yaml", ENDLESS)
    assert second.returncode == 2
    assert "is being written by process" in second.stderr
    stopped = stoker(workdir, "stop", "tale")
    exit = run.exit()
    assert exit is not None
    assert stopped.returncode == 0
    assert f"paused at step {exit.step}" in stopped.stdout
    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert "not running (paused)" in stoker(workdir, "stop", "tale").stdout


def test_supervisor_and_workers_end_with_a_killed_command(
    workdir: Path, script: Path, start_command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(workdir / "runs" / "work")
    command = start_command("train", script.name)
    until(lambda: all((run.path / f"alive-{rank}").exists() for rank in range(2)))
    processes = descendants(command.pid)
    assert len(processes) >= 3
    command.kill()
    until(lambda: not any(map(is_alive, processes)), seconds=60)
    assert view(run).state == "interrupted"


def test_a_run_that_failed_shows_why_and_the_end_of_the_log(
    workdir: Path, script: Path, start_command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(workdir / "runs" / "work")
    command = start_command("train", script.name, "on.workers=1")
    until((run.path / "alive-0").exists)
    os.kill(descendants(command.pid)[1], signal.SIGKILL)
    out, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 3
    assert "worker 0 was killed by SIGKILL" in err
    assert "stoker logs" in err
    assert "the last lines of the log of worker 0" in out
    assert out.count("worker 0 is up") == 2, "once while it ran, and once at the end"
    assert view(run).state == "failed"


def test_a_closed_pipe_saves_the_run(workdir: Path, start_command: Callable[..., "subprocess.Popen[str]"]) -> None:
    run = RunDir(workdir / "runs" / "tale")
    command = start_command("train", "run.yaml", ENDLESS)
    until(run.metrics)
    assert command.stdout is not None
    command.stdout.close()
    until(lambda: command.poll() is not None)
    exit = run.exit()
    assert exit is not None
    assert exit.state == "paused"
    assert view(run).checkpoint == exit.step


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_an_interrupt_at_any_moment_ends_without_a_traceback(
    start_command: Callable[..., "subprocess.Popen[str]"], seed: int
) -> None:
    delay = random.Random(seed).uniform(0, 4)
    print(f"seed {seed}: interrupted after {delay:.2f} s")
    command = start_command("train", "run.yaml", ENDLESS)
    assert command.stdout is not None
    command.stdout.readline()
    time.sleep(delay)
    processes = descendants(command.pid)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, err) == (130, "")
    assert not any(map(is_alive, processes))


def test_a_run_whose_text_was_deleted_resumes_and_reports_it(workdir: Path) -> None:
    run = opening.begin(load(workdir / "run.yaml", []).spec, runs=workdir / "runs").run
    (workdir / "book.txt").unlink()
    done = stoker(workdir, "train", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert f"{workdir / 'book.txt'} is gone: the run resumes with the tokens made of it" in done.stdout
    assert run.metrics()[-1]["step"] == 12
