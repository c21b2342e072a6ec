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
from stoker.spec.on import KubernetesOn, Nodes
from stoker.spec.run import RunSpec, ScriptSpec, Until
from stoker.supervise.scale import request_nodes, requested_nodes
from tests.waiting import PATIENCE_S, until
from tests.written import events_of

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
    on = KubernetesOn(nodes=Nodes("1"))
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=10), on=on), None)
    return run


@pytest.fixture
def make_nodes(tmp_path: Path, run: RunDir, nodes: Callable[..., Any]) -> Callable[[str], Any]:
    (tmp_path / "worker.py").write_text(WORKER)
    return lambda number: nodes(run, sys.executable, str(tmp_path / "worker.py"), workers=1, nodes=number)


@pytest.fixture
def scale(run: RunDir) -> Callable[..., str]:
    """scale("2"): as in a pod. Returns the number before."""

    def call(*number: str) -> str:
        argv = [sys.executable, "-P", "-m", "stoker.supervise.scale", str(run.path), *number]
        output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return str(json.loads(output)["was"])

    return call


def wait_for_attempt(cluster: Any, *nodes: int) -> None:
    """Waits until an attempt of exactly these nodes runs."""

    def is_training() -> bool:
        world = (cluster.events("world") or [{"nodes": []}])[-1]
        files = [f"ready-{world.get('attempt')}-{rank}" for rank in range(len(nodes))]
        return [node["node"] for node in world["nodes"]] == list(nodes) and all(
            (cluster.run.path / file).exists() for file in files
        )

    until(is_training, tell=cluster.story)


def finish(run: RunDir, *supervisors: "subprocess.Popen[bytes]") -> None:
    (run.path / "finish").touch()
    assert [process.wait(timeout=PATIENCE_S) for process in supervisors] == [0] * len(supervisors)


def test_one_node_grows_to_two_and_shrinks_again(run: RunDir, make_nodes: Any, scale: Callable[[str], str]) -> None:
    cluster = make_nodes("1")
    first = cluster.start(0)
    wait_for_attempt(cluster, 0)
    second = cluster.start(1)  # its pod may start before the leader knows of it
    assert scale("2") == "1"
    wait_for_attempt(cluster, 0, 1)
    assert scale("1") == "2"
    wait_for_attempt(cluster, 0)  # before the node that is no longer needed is stopped
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    until(lambda: cluster.events("left"))
    finish(run, first)
    assert cluster.worlds() == [[0], [0, 1], [0]]
    reasons = [event["reason"] for event in cluster.events("regrouping")]
    assert reasons == ["node 1 (pod pod-1) has joined", "the run is scaled to 1 node"]
    assert [(event["was"], event["nodes"]) for event in cluster.events("scaled")] == [("1", "2"), ("2", "1")]
    assert not cluster.events("failed")
    assert not cluster.events("lost")
    assert run.any_spec().on.nodes == "1"


def test_a_node_that_starts_before_the_run_is_scaled_waits_and_disturbs_nobody(
    run: RunDir, make_nodes: Any, scale: Callable[..., str]
) -> None:
    """`stoker scale` was interrupted between the two."""
    cluster = make_nodes("1")
    first = cluster.start(0)
    wait_for_attempt(cluster, 0)
    assert scale() == "1"  # only read
    second = cluster.start(1)
    time.sleep(3)  # the leader has checked the number in the meantime
    assert cluster.worlds() == [[0]]
    assert not cluster.events("regrouping")
    assert second.poll() is None
    assert scale("2") == "1"  # the command is repeated
    wait_for_attempt(cluster, 0, 1)
    finish(run, first, second)
    assert cluster.worlds() == [[0], [0, 1]]


def test_the_run_does_not_wait_for_a_node_that_stops_before_its_leader_knows_of_the_scaling(
    run: RunDir, make_nodes: Any, scale: Callable[[str], str]
) -> None:
    cluster = make_nodes("2")
    first, second = cluster.begin(2)
    wait_for_attempt(cluster, 0, 1)
    scale("1")
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    wait_for_attempt(cluster, 0)
    finish(run, first)
    assert cluster.worlds() == [[0, 1], [0]]
    kinds = [event["kind"] for event in events_of(run)]
    assert "waiting for nodes" not in kinds[kinds.index("world") :]  # on a busy machine the first start may be slow


def test_a_leader_that_is_scaled_away_hands_over_to_one_that_knows_the_number(
    run: RunDir, make_nodes: Any, scale: Callable[[str], str]
) -> None:
    cluster = make_nodes("2")
    second = cluster.start(1)
    until((run.path / ".members" / "leader.json").exists)
    first = cluster.start(0)
    wait_for_attempt(cluster, 1, 0)
    scale("1")
    until(lambda: cluster.events("scaled"))
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    wait_for_attempt(cluster, 0)
    finish(run, first)
    assert cluster.worlds() == [[1, 0], [0]]
    assert len(cluster.events("scaled")) == 1


def test_a_number_that_no_leader_has_read_is_read_by_the_next(
    run: RunDir, make_nodes: Any, scale: Callable[[str], str]
) -> None:
    scale("1..2")
    cluster = make_nodes("1")
    first, second = cluster.begin(2)
    wait_for_attempt(cluster, 0, 1)
    finish(run, first, second)
    assert [(event["was"], event["nodes"]) for event in cluster.events("scaled")] == [("1", "1..2")]


def test_a_run_grows_only_when_all_nodes_that_it_needs_have_joined(
    run: RunDir, make_nodes: Any, scale: Callable[[str], str]
) -> None:
    cluster = make_nodes("1")
    first = cluster.start(0)
    wait_for_attempt(cluster, 0)
    scale("3")
    second = cluster.start(1)
    until(lambda: "pod-1) follows" in cluster.log.read_text(), tell=cluster.story)
    time.sleep(1)
    assert cluster.worlds() == [[0]]
    third = cluster.start(2)
    wait_for_attempt(cluster, 0, 1, 2)
    finish(run, first, second, third)
    assert cluster.worlds() == [[0], [0, 1, 2]]


def test_a_run_that_waits_for_a_node_continues_when_it_is_scaled_down_to_those_that_have_joined(
    run: RunDir, make_nodes: Any, scale: Callable[[str], str]
) -> None:
    cluster = make_nodes("2")
    first = cluster.start(0)
    until(lambda: cluster.events("waiting for nodes"), tell=cluster.story)
    scale("1")
    wait_for_attempt(cluster, 0)
    finish(run, first)


def test_a_run_without_a_cluster_keeps_its_spec(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    assert requested_nodes(run) is None
    assert request_nodes(run, Nodes("2..3")) == "1"
    assert request_nodes(run, Nodes("2")) == "2..3"
    assert requested_nodes(run) == "2"
    assert request_nodes(run) == "2"
    assert requested_nodes(run) == "2"
    assert run.any_spec().on.node_range == "1"


def test_a_number_that_the_spec_does_not_allow_is_not_written(run: RunDir) -> None:
    on = KubernetesOn.model_validate(
        {"kind": "kubernetes", "nodes": "1..4", "job": "pytorchjob", "autoscale": {"cpu": 80}, "cpu": 1}
    )
    run.write_spec(run.spec().model_copy(update={"on": on}))
    with pytest.raises(UserError, match="autoscale is for a pytorchjob with a range of nodes"):
        request_nodes(run, Nodes("2"))
    assert request_nodes(run, Nodes("1..2")) == "1..4"
    assert run.any_spec().on.nodes == "1..2"


@pytest.mark.parametrize(("number", "message"), [("3..2", "is not a range"), ("two", "not a number of nodes")])
def test_an_invalid_number_of_nodes_is_refused(run: RunDir, number: str, message: str) -> None:
    argv = [sys.executable, "-P", "-m", "stoker.supervise.scale", str(run.path), number]
    refused = subprocess.run(argv, capture_output=True, text=True)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert requested_nodes(run) is None
