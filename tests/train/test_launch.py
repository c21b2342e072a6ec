"""A launch has its steps and its time once, however often its workers die in it."""

import os
import signal
import time
from pathlib import Path

from stoker.rundir import RunDir
from stoker.spec.run import Until
from stoker.train.dist import Ranks
from stoker.train.launch import launch_of

WORDS = [
    "name=run", "model={layers: 1, heads: 1, width: 16, context: 32}", "batch={sequences: 4, length: 32}",
    "until.steps=100k", "optim.horizon=100", "precision=fp32", "compile=false", "log={every: 1, tensorboard: false}",
    "eval.every=0", "on={device: cpu, workers: 1}", "optim.lr=1e-3", "optim.warmup=2", "checkpoint.every=5",
]  # fmt: skip
SLOW = """
import time
import stoker

class Slow(stoker.Callback):
    def step(self, record):
        time.sleep(0.2)
"""


def test_a_worker_that_is_killed_does_not_begin_the_steps_of_its_launch_anew(
    stoker, worker, tokens: Path, eventually, workers_of
) -> None:
    run = worker(*WORDS, "until.steps_this_run=4")
    assert run.exit().step == 4
    (stoker.folder / "mine.py").write_text(SLOW)
    words = [*WORDS, f"data={tokens}", "callbacks=[mine:Slow]", "until.steps_this_run=10"]
    process = stoker.start("train", *words, "--runs", "here")
    eventually(lambda: [saved.step for saved in run.saved()][-1] >= 5 and run.metrics()[-1]["step"] >= 7)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert [event["step"] for event in run.events() if event["kind"] == "resumed"][1:] in ([5], [10])
    assert (run.exit().state, run.exit().step, run.exit().reason) == ("paused", 14, "until.steps_this_run is reached")


def test_the_time_of_a_launch_goes_on_through_a_restart_and_not_through_another_launch(tmp_path: Path) -> None:
    run, until = RunDir(tmp_path), Until(steps_this_run=10, time=3600)
    before = time.monotonic()
    for restart, step in ((0, 0), (0, 4), (1, 5), (2, 10)):
        run.add_event("world", attempt=1, workers=1, restart=restart)
        me = Ranks(rank=0, local_rank=0, world=1, attempt=1, restart=restart)
        launch = launch_of(run, me, until, step=step)
        run.add_event("started", step=step)
        if restart == 0:
            after = time.monotonic()
            time.sleep(0.2)
        assert before - 0.01 <= launch.began <= after + 0.01
    assert (launch.first, launch.has_enough(13), launch.has_enough(14)) == (4, False, True)
