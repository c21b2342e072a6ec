"""The command as a user runs it: a real process over the real trainer."""

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
def place(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    (tmp_path / "book.txt").write_text("".join(f"It was day {i}, and the sea was calm.\n" for i in range(400)))
    return tmp_path


def stoker(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([STOKER, *words], cwd=place, capture_output=True, text=True)


@pytest.fixture
def begin(place: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command as a terminal does, leader of a process group; none is left when the test ends."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen([STOKER, *words], cwd=place, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_one_command_trains_and_the_same_again_says_that_it_is_done(command, place: Path) -> None:
    first = stoker(place, "train", "run.yaml")
    assert first.returncode == 0, first.stdout + first.stderr
    run = RunDir(place / "runs" / "tale")
    assert "\x1b" not in first.stdout
    assert "32 tokens per step" in first.stdout
    assert "step 12/12" in first.stdout
    assert "done at step 12" in first.stdout
    assert str(run.path) in first.stdout
    losses = [record["loss"] for record in run.metrics()]
    assert f"{losses[0]:.4f} -> {losses[-1]:.4f}" in first.stdout

    again = stoker(place, "train", "run.yaml")
    assert (again.returncode, "is done" in again.stdout) == (0, True)
    other = command("train", "run.yaml", "seed=5")
    assert other.returncode == 2
    assert "seed: 0 -> 5" in other.stderr
    assert other.stderr.count("\n") == 1

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


def test_a_dry_run_shows_the_plan_and_does_nothing(command, place: Path) -> None:
    shown = command("train", "run.yaml", "--dry-run", "batch.sequences=6", "on.workers=2")
    assert shown.returncode == 0
    assert "6 × 16 = 96 tokens per step" in shown.stdout
    assert "2 on cpu, 3 sequences each" in shown.stdout
    assert "stoker.supervise" in shown.stdout
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 75), pytest.param(signal.SIGHUP, 75, marks=pytest.mark.soak)],
)
def test_an_interrupted_run_is_saved_and_goes_on(
    place: Path, begin: Callable[..., "subprocess.Popen[str]"], number: signal.Signals, code: int
) -> None:
    run = RunDir(place / "runs" / "tale")
    command = begin("train", "run.yaml", ENDLESS)
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
        again = stoker(place, "train", "run.yaml", f"until.steps={exit.step + 3}")
        assert again.returncode == 0, again.stderr
        assert f"resumed at step {exit.step}" in again.stdout
        assert stoker(place, "audit", "tale").returncode == 0


def test_stop_saves_a_run_and_its_command_ends_as_asked(
    place: Path, begin: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(place / "runs" / "tale")
    command = begin("train", "run.yaml", ENDLESS)
    until(run.metrics)
    second = stoker(place, "train", "run.yaml", ENDLESS)
    assert second.returncode == 2
    assert "is being written by process" in second.stderr
    stopped = stoker(place, "stop", "tale")
    exit = run.exit()
    assert exit is not None
    assert stopped.returncode == 0
    assert f"paused at step {exit.step}" in stopped.stdout
    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert "not running (paused)" in stoker(place, "stop", "tale").stdout


def test_a_killed_command_takes_supervisor_and_workers_with_it(
    place: Path, script: Path, begin: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(place / "runs" / "work")
    command = begin("train", script.name)
    until(lambda: all((run.path / f"alive-{rank}").exists() for rank in range(2)))
    family = descendants(command.pid)
    assert len(family) >= 3
    command.kill()
    until(lambda: not any(map(is_alive, family)), seconds=60)
    assert view(run).state == "interrupted"


def test_a_run_that_failed_shows_why_and_the_end_of_the_log(
    place: Path, script: Path, begin: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(place / "runs" / "work")
    command = begin("train", script.name, "on.workers=1")
    until((run.path / "alive-0").exists)
    os.kill(descendants(command.pid)[1], signal.SIGKILL)
    out, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 3
    assert "worker 0 was killed by SIGKILL" in err
    assert "stoker logs" in err
    assert "the last lines of the log of worker 0" in out
    assert out.count("worker 0 is up") == 2, "as it came, and at the end"
    assert view(run).state == "failed"


def test_a_command_that_nobody_reads_any_more_saves_the_run(
    place: Path, begin: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = RunDir(place / "runs" / "tale")
    command = begin("train", "run.yaml", ENDLESS)
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
    begin: Callable[..., "subprocess.Popen[str]"], seed: int
) -> None:
    delay = random.Random(seed).uniform(0, 4)
    print(f"seed {seed}: interrupted after {delay:.2f} s")
    command = begin("train", "run.yaml", ENDLESS)
    assert command.stdout is not None
    command.stdout.readline()
    time.sleep(delay)
    family = descendants(command.pid)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, err) == (130, "")
    assert not any(map(is_alive, family))


def test_a_run_whose_text_is_gone_goes_on_and_says_so(place: Path) -> None:
    run = opening.begin(load(place / "run.yaml", []).spec, runs=place / "runs").run
    (place / "book.txt").unlink()
    done = stoker(place, "train", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert f"{place / 'book.txt'} is gone: the run resumes with the tokens made of it" in done.stdout
    assert run.metrics()[-1]["step"] == 12
