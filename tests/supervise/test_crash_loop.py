"""Supervisors that were killed together with their workers are counted by the next one."""

from pathlib import Path

import pytest

from stoker.rundir import RunDir, events
from stoker.spec import contract
from stoker.spec.run import ScriptSpec
from stoker.supervise.crash_loop import MAX_KILLED_SUPERVISORS, end_crash_loop, killed_supervisors


def world(time: float, *, restart: int = 0) -> events.Event:
    return events.World(time=time, attempt=1, workers=1, restart=restart)


def test_supervisors_that_end_without_a_record_are_counted() -> None:
    started = events.Started(time=2.0, chip="CPU", parameters=8)
    assert killed_supervisors([]) == 0
    assert killed_supervisors([world(1), started, world(3), world(5)]) == 3


@pytest.mark.parametrize(
    "event",
    [
        events.CheckpointSaved(time=3.0, step=1),
        events.Stopping(time=3.0, signal="SIGTERM"),
        events.NodeLost(time=3.0, node=1),
        events.Failed(time=3.0, code=1, signal=None, again=True),
    ],
    ids=lambda event: event.kind,
)
def test_an_event_that_explains_the_end_ends_the_count(event: events.Event) -> None:
    assert killed_supervisors([world(1), world(2), event, world(4)]) == 1


def test_attempts_of_one_supervisor_count_once() -> None:
    assert killed_supervisors([world(1), world(2, restart=1), world(3, restart=2)]) == 1


def test_a_script_that_ran_for_long_has_made_progress() -> None:
    assert killed_supervisors([world(0), world(700), world(701)], stable_after_s=600) == 2
    assert killed_supervisors([world(0), world(700), world(701)]) == 3


def test_a_run_whose_pods_are_killed_again_and_again_fails_and_may_be_launched_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create(ScriptSpec(name="run", script="train.py"), None)
    for _ in range(MAX_KILLED_SUPERVISORS):
        run.add_event(events.World(attempt=1, workers=1, restart=0))
    assert end_crash_loop(run) is None
    run.add_event(events.World(attempt=1, workers=1, restart=0))
    exit = end_crash_loop(run)
    assert exit
    assert (exit.state, exit.code) == ("failed", contract.EXIT_FAILED)
    assert run.exit() == exit
    run.clear_exit()  # as a launch does
    assert end_crash_loop(run) is None
