"""Runs that are interrupted repeatedly or always fail: nothing is lost, and the reason is reported."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.written import events_of

OVERRIDES = [
    "name=run", "data.tokenizer.train=300", "model.layers=1", "model.heads=1", "model.width=16", "model.context=16",
    "batch.sequences=2", "batch.length=16", "precision=fp32", "compile=false", "log.every=1", "log.tensorboard=false",
    "eval.every=0", "optim.horizon=20", "on.device=cpu",
]  # fmt: skip


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_a_run_interrupted_at_any_moment_loses_nothing(stoker, books: Path, times: int) -> None:
    seed = random.randrange(2**32)
    delays = sorted(random.Random(seed).uniform(0, 8) for _ in range(times))
    print(f"seed {seed}: interrupted after {', '.join(f'{delay:.2f} s' for delay in delays)}")
    run = stoker.run("run")
    saved = 0
    for delay in delays:
        process = stoker.start("train", f"data.path={books}", *OVERRIDES, "on.workers=2", "until.steps=1M")
        process.stdout.readline()  # Stoker has started; before, an interrupt would end the interpreter
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 130, output
        assert "Traceback" not in output
        now = max((checkpoint.step for checkpoint in run.saved()), default=0)
        assert now >= saved, output
        saved = now
    has_checkpoint = bool(run.saved())  # a run stopped before its first step may have a checkpoint of step 0
    done = stoker("train", f"data.path={books}", *OVERRIDES, "on.workers=2", f"until.steps={saved + 5}")
    assert (f"resumed at step {saved}" in done.stdout) is has_checkpoint
    assert run.exit().state == "done"
    assert [record["step"] for record in run.metrics()] == list(range(1, saved + 6))
    stoker("audit", "run")


@pytest.mark.parametrize("times", [6, pytest.param(40, marks=pytest.mark.soak)])
def test_an_interrupt_while_it_starts_shows_no_traceback(stoker, books: Path, eventually, times: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(times):
        process = stoker.start("train", f"data.path={books}", *OVERRIDES, "until.steps=1M", "on.workers=1")
        # Until its first library is loaded the interpreter starts, and prints its own traceback.
        eventually(lambda now=process: "pydantic_core" in Path(f"/proc/{now.pid}/maps").read_text())
        delay = draw.uniform(0, 0.5)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 130, f"after {delay:.3f} s: {output}"
        assert "Traceback" not in output


@pytest.mark.soak
def test_a_second_command_on_a_run_is_refused_and_the_first_continues(stoker, books: Path, eventually) -> None:
    run = stoker.run("run")
    arguments = ["train", f"data.path={books}", *OVERRIDES, "on.workers=1", "until.steps=1M"]
    first = stoker.start(*arguments)
    eventually(lambda: len(run.metrics()) > 0)
    second = stoker(*arguments, code=2)
    (line,) = second.stderr.splitlines()
    assert f"is being written by process {run.holder()['pid']}" in line
    assert "stoker stop run" in line
    reached = run.metrics()[-1]["step"]
    eventually(lambda: run.metrics()[-1]["step"] > reached + 5, every_s=0.1)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 75, output
    exit = run.exit()
    assert exit.state == "paused"
    assert [checkpoint.step for checkpoint in run.saved()] == [exit.step]
    assert sum(event["kind"] == "world" for event in events_of(run)) == 1


def test_a_worker_that_always_crashes_fails_the_run_with_its_own_error(stoker, books: Path) -> None:
    arguments = [*OVERRIDES, "on.workers=1", "until.steps=5", "on.max_restarts=2", "env.PYTHONHASHSEED=abc"]
    done = stoker("train", f"data.path={books}", *arguments, code=3)
    (line,) = done.stderr.splitlines()
    assert "3 times in a row with no new checkpoint between" in line
    assert "stoker logs" in line
    assert "PYTHONHASHSEED must be" in done.stdout, "the end of the log shows why"
    assert "restarting from the last checkpoint" in done.stdout
    run = stoker.run("run")
    assert (run.exit().state, run.exit().code) == ("failed", 3)
    assert sum(event["kind"] == "world" for event in events_of(run)) == 3


@pytest.mark.parametrize("times", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_a_worker_killed_repeatedly_is_restarted_as_long_as_it_saves(
    stoker, books: Path, eventually, workers_of, times: int
) -> None:
    run = stoker.run("run")
    arguments = [*OVERRIDES, "on.workers=1", "on.max_restarts=1", "checkpoint.every=3", "until.steps=1M"]
    process: subprocess.Popen[str] = stoker.start("train", f"data.path={books}", *arguments)
    for _ in range(times):
        before = max((checkpoint.step for checkpoint in run.saved()), default=0)
        eventually(lambda before=before: any(checkpoint.step > before for checkpoint in run.saved()))
        os.kill(workers_of(process)[0], signal.SIGKILL)
    before = run.saved()[-1].step
    eventually(lambda: any(checkpoint.step > before for checkpoint in run.saved()))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert sum(event["kind"] == "world" for event in events_of(run)) == times + 1
    stoker("audit", "run")
