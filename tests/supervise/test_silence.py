"""Supervisors that were killed with all they had started are counted by those after them."""

from pathlib import Path

import pytest

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import ScriptSpec
from stoker.supervise.silence import MOST, give_up, silent_ends


def world(time: float, *, restart: int = 0) -> dict:
    return {"kind": "world", "time": time, "restart": restart}


def test_ends_without_a_word_are_counted() -> None:
    started = {"kind": "started", "time": 2.0}
    assert silent_ends([]) == 0
    assert silent_ends([world(1), started, world(3), world(5)]) == 3


@pytest.mark.parametrize("kind", ["checkpoint", "stopping", "lost", "failed"])
def test_a_word_ends_the_count(kind: str) -> None:
    assert silent_ends([world(1), world(2), {"kind": kind, "time": 3.0}, world(4)]) == 1


def test_attempts_of_one_supervisor_are_its_own_affair() -> None:
    assert silent_ends([world(1), world(2, restart=1), world(3, restart=2)]) == 1


def test_a_script_that_ran_for_long_got_somewhere() -> None:
    assert silent_ends([world(0), world(700), world(701)], steady=600) == 2
    assert silent_ends([world(0), world(700), world(701)]) == 3


def test_a_run_whose_pods_are_killed_for_ever_is_given_up_and_may_be_launched_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create(ScriptSpec(name="run", script="train.py"), None)
    for _ in range(MOST):
        run.add_event("world", attempt=1, workers=1, restart=0)
    assert give_up(run) is None
    run.add_event("world", attempt=1, workers=1, restart=0)
    end = give_up(run)
    assert end
    assert (end.state, end.code) == ("failed", contract.EXIT_FAILED)
    assert run.exit() == end
    run.clear_exit()  # as a launch does
    assert give_up(run) is None
