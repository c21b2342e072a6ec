"""The limits of a launch count once, however often its workers are restarted."""

import os
import signal
import time
from pathlib import Path

from stoker.rundir import RunDir, events
from stoker.spec.run import Until
from stoker.train.process_group import Ranks
from stoker.train.stopping import launch_limits
from tests.written import events_of

OVERRIDES = [
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


def test_a_killed_worker_does_not_restart_the_count_of_steps_this_run(
    stoker, worker, tokens: Path, eventually, workers_of
) -> None:
    run = worker(*OVERRIDES, "until.steps_this_run=4")
    assert run.exit().step == 4
    (stoker.folder / "mine.py").write_text(SLOW)
    overrides = [*OVERRIDES, f"data={tokens}", "callbacks=[mine:Slow]", "until.steps_this_run=10"]
    process = stoker.start("train", *overrides, "--runs", "here")
    eventually(lambda: [saved.step for saved in run.saved()][-1] >= 5 and run.metrics()[-1]["step"] >= 7)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert [event["step"] for event in events_of(run) if event["kind"] == "resumed"][1:] in ([5], [10])
    assert (run.exit().state, run.exit().step, run.exit().reason) == ("paused", 14, "until.steps_this_run is reached")


def test_the_time_limit_of_a_launch_includes_restarts_but_not_other_launches(tmp_path: Path) -> None:
    run, until = RunDir(tmp_path), Until(steps_this_run=10, time=3600)
    before = time.monotonic()
    for restart, step in ((0, 0), (0, 4), (1, 5), (2, 10)):
        run.add_event(events.World(attempt=1, workers=1, restart=restart))
        me = Ranks(rank=0, local_rank=0, world=1, attempt=1, restart=restart)
        launch = launch_limits(run, me, until, step=step)
        run.add_event(events.Started(step=step, chip="CPU", parameters=8))
        if restart == 0:
            after = time.monotonic()
            time.sleep(0.2)
        assert before - 0.01 <= launch.start_time <= after + 0.01
    assert (launch.first_step, launch.steps_are_done(13), launch.steps_are_done(14)) == (4, False, True)
