"""A run that is scaled while it runs: real supervisor processes over a small worker script that needs no torch."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import RunDir
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes
from stoker.spec.run import On, RunSpec, ScriptSpec, Until
from stoker.supervise.wanted import want, wanted
from tests.waiting import PATIENCE_S, until

# Ends as the trainer does: when one worker is asked to, all of them save and leave.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
run, rank, attempt = Path(os.environ["STOKER_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["STOKER_ATTEMPT"])
asked = run / f"asked-{attempt}"
(run / "ledger" / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl").touch()
signal.signal(signal.SIGTERM, lambda *_: asked.touch())
(run / f"ready-{attempt}-{rank}").touch()

def leave(state, code):
    if rank == 0:
        (run / ".exit").write_text(json.dumps({"state": state, "code": code, "step": 7, "reason": ""}))
        os.replace(run / ".exit", run / "exit.json")
    sys.exit(code)

while not (run / "finish").exists():
    if asked.exists(): leave("paused", 75)
    time.sleep(0.01)
leave("done", 0)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    on = On(kind="kubernetes", nodes=Nodes("1"))
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=10), on=on), None)
    return run


@pytest.fixture
def tale(tmp_path: Path, run: RunDir, nodes: Callable[..., Any]) -> Callable[[str], Any]:
    (tmp_path / "worker.py").write_text(WORKER)
    return lambda number: nodes(run, sys.executable, str(tmp_path / "worker.py"), workers=1, nodes=number)


@pytest.fixture
def scale(run: RunDir) -> Callable[..., str]:
    """As it is done in a pod; what it was before."""

    def call(*number: str) -> str:
        argv = [sys.executable, "-P", "-m", "stoker.supervise.wanted", str(run.path), *number]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return str(json.loads(said)["was"])

    return call


def train(tale: Any, *nodes: int) -> None:
    """Until an attempt of just these nodes runs."""

    def trains() -> bool:
        world = (tale.events("world") or [{"nodes": []}])[-1]
        places = [f"ready-{world.get('attempt')}-{rank}" for rank in range(len(nodes))]
        return [node["node"] for node in world["nodes"]] == list(nodes) and all(
            (tale.run.path / place).exists() for place in places
        )

    until(trains, tell=tale.story)


def finish(run: RunDir, *supervisors: "subprocess.Popen[bytes]") -> None:
    (run.path / "finish").touch()
    assert [one.wait(timeout=PATIENCE_S) for one in supervisors] == [0] * len(supervisors)


def test_one_node_grows_to_two_and_shrinks_again(run: RunDir, tale: Any, scale: Callable[[str], str]) -> None:
    one = tale("1")
    first = one.start(0)
    train(one, 0)
    second = one.start(1)  # its pod may be there before the leader knows
    assert scale("2") == "1"
    train(one, 0, 1)
    assert scale("1") == "2"
    train(one, 0)  # before the node that has to go is told to
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    until(lambda: one.events("left"))
    finish(run, first)
    assert one.worlds() == [[0], [0, 1], [0]]
    reasons = [event["reason"] for event in one.events("regrouping")]
    assert reasons == ["node 1 (pod pod-1) has come", "the run is scaled to 1 node"]
    assert [(event["was"], event["nodes"]) for event in one.events("scaled")] == [("1", "2"), ("2", "1")]
    assert not one.events("failed")
    assert not one.events("lost")
    assert run.any_spec().on.nodes == "1"


def test_a_node_that_came_before_anybody_told_of_it_waits_and_disturbs_nobody(
    run: RunDir, tale: Any, scale: Callable[..., str]
) -> None:
    """The command was cut off between the two."""
    one = tale("1")
    first = one.start(0)
    train(one, 0)
    assert scale() == "1"  # asked, and nothing said
    second = one.start(1)
    time.sleep(3)  # the leader has looked for a number meanwhile
    assert one.worlds() == [[0]]
    assert not one.events("regrouping")
    assert second.poll() is None
    assert scale("2") == "1"  # typed again
    train(one, 0, 1)
    finish(run, first, second)
    assert one.worlds() == [[0], [0, 1]]


def test_a_node_that_goes_before_its_leader_knows_is_not_waited_for(
    run: RunDir, tale: Any, scale: Callable[[str], str]
) -> None:
    two = tale("2")
    first, second = two.begin(2)
    train(two, 0, 1)
    scale("1")
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    train(two, 0)
    finish(run, first)
    assert two.worlds() == [[0, 1], [0]]
    assert not two.events("waiting")


def test_a_leader_that_has_to_go_hands_over_to_one_that_knows_the_number(
    run: RunDir, tale: Any, scale: Callable[[str], str]
) -> None:
    two = tale("2")
    second = two.start(1)
    until((run.path / ".members" / "leader.json").exists)
    first = two.start(0)
    train(two, 1, 0)
    scale("1")
    until(lambda: two.events("scaled"))
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    train(two, 0)
    finish(run, first)
    assert two.worlds() == [[1, 0], [0]]
    assert len(two.events("scaled")) == 1


def test_a_number_that_nobody_saw_is_seen_by_the_next_leader(
    run: RunDir, tale: Any, scale: Callable[[str], str]
) -> None:
    scale("1..2")
    one = tale("1")
    first, second = one.begin(2)
    train(one, 0, 1)
    finish(run, first, second)
    assert [(event["was"], event["nodes"]) for event in one.events("scaled")] == [("1", "1..2")]


def test_a_run_grows_only_when_all_that_it_needs_have_come(run: RunDir, tale: Any, scale: Callable[[str], str]) -> None:
    some = tale("1")
    first = some.start(0)
    train(some, 0)
    scale("3")
    second = some.start(1)
    until(lambda: "pod-1) follows" in some.log.read_text(), tell=some.story)
    time.sleep(1)
    assert some.worlds() == [[0]]
    third = some.start(2)
    train(some, 0, 1, 2)
    finish(run, first, second, third)
    assert some.worlds() == [[0], [0, 1, 2]]


def test_a_run_that_waits_for_a_node_goes_on_when_it_is_scaled_to_those_that_are_there(
    run: RunDir, tale: Any, scale: Callable[[str], str]
) -> None:
    two = tale("2")
    first = two.start(0)
    until(lambda: two.events("waiting"), tell=two.story)
    scale("1")
    train(two, 0)
    finish(run, first)


def test_a_run_without_a_cluster_keeps_its_spec(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    assert wanted(run) is None
    assert want(run, Nodes("2..3")) == "1"
    assert want(run, Nodes("2")) == "2..3"
    assert wanted(run) == "2"
    assert want(run) == "2"
    assert wanted(run) == "2"
    assert run.any_spec().on.nodes == "1"


def test_a_number_that_its_spec_cannot_have_is_not_said(run: RunDir) -> None:
    on = On.model_validate(
        {"kind": "kubernetes", "nodes": "1..4", "job": "pytorchjob", "autoscale": {"cpu": 80}, "cpu": 1}
    )
    run.write_spec(run.spec().model_copy(update={"on": on}))
    with pytest.raises(UserError, match="autoscale is for a pytorchjob of some nodes"):
        want(run, Nodes("2"))
    assert want(run, Nodes("1..2")) == "1..4"
    assert run.any_spec().on.nodes == "1..2"


@pytest.mark.parametrize(("words", "said"), [("3..2", "ends before it begins"), ("two", "no number of nodes")])
def test_what_is_no_number_of_nodes_is_refused(run: RunDir, words: str, said: str) -> None:
    argv = [sys.executable, "-P", "-m", "stoker.supervise.wanted", str(run.path), words]
    refused = subprocess.run(argv, capture_output=True, text=True)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert wanted(run) is None
