"""What is checked before a run is launched in a cluster. What a real cluster does is in tests/lab."""

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.preflight import (
    check_fits,
    check_room,
    check_schedulable,
    local_code_warnings,
    other_volume_warnings,
)
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.backends.kubernetes.nodes import cluster, node, of

PLACE = ClusterPlace(kind="kubernetes", context="lab", namespace="team", job="job", run="demo", volume="old", image="x")


def test_a_run_that_resumes_on_another_volume_gives_a_warning(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    moved = replace(PLACE, volume="new")
    assert other_volume_warnings(run, moved) == []
    PLACE.write(run)
    assert other_volume_warnings(run, moved) == []
    run.write_seen({"asked": 0.0, "view": {"state": "failed", "step": 7}})
    assert other_volume_warnings(run, replace(PLACE, image="y")) == []
    [warning] = other_volume_warnings(run, moved)
    assert "it was trained to step 7 on volume old" in warning
    assert "on volume new of namespace team it starts at step 0" in warning
    assert other_volume_warnings(run, replace(PLACE, namespace="other"))


def test_local_code_without_a_registry_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    on = ["on.kind=kubernetes", "on.image=team/torch"]
    script = load(None, [f"script={tmp_path}/train.py", *on]).spec
    assert local_code_warnings(script) == [
        f"script {tmp_path}/train.py must be in the image: without on.registry your code is not added to it"
    ]
    assert local_code_warnings(load(None, ["script=/nowhere/train.py", *on]).spec) == []
    assert local_code_warnings(load(None, [f"script={tmp_path}/train.py", *on, "on.registry=team/runs"]).spec) == []
    own = load(None, ["data=x", "until.steps=1", "callbacks=[mine.watch:Watch]", *on]).spec
    assert "mine.watch:Watch must be in the image" in local_code_warnings(own)[0]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["on.cpu=8"], "a pod needs 8 cores, and the largest node has 4 cores. Ask for less with on.cpu"),
        (["on.memory=32GiB"], "needs 32.0 GiB of memory, and the largest node has 16.0 GiB"),
        (["on.gpus=2"], "needs 2 nvidia.com/gpu, and the largest node has 0"),
        (["on.workers=64"], "each node runs 64 workers, and the largest node has 4 cores. Set on.workers=4 or"),
        (["on.selectors={role: gpu}"], "no node of the cluster has the label role=gpu"),
        (["on.instance=m5.large"], "Instance types in the cluster: big"),
    ],
)
def test_more_than_any_node_can_hold_is_refused(overrides: list[str], problem: str) -> None:
    inventory = cluster(node("a", cpu="4", memory="16Gi", labels={"node.kubernetes.io/instance-type": "big"}))
    with pytest.raises(UserError, match=problem):
        check_fits(of(*overrides), inventory, nodes=1)


def test_efa_needs_huge_pages_on_the_nodes() -> None:
    offers = {"vpc.amazonaws.com/efa": "4", "nvidia.com/gpu": "8"}
    inventory = cluster(node("a", cpu="96", memory="1000Gi", **offers))
    with pytest.raises(UserError, match=r"needs 5\.0 GiB of huge pages, .* has 0\.0 GiB.*vm\.nr_hugepages"):
        check_fits(of("on.efa=4", "on.gpus=8", "on.cpu=8"), inventory, nodes=1)
    ready = cluster(node("a", cpu="96", memory="1000Gi", **offers, **{"hugepages-2Mi": "10256Mi"}))
    assert check_fits(of("on.efa=4", "on.gpus=8", "on.cpu=8"), ready, nodes=1) == []


def test_a_worker_has_a_core_unless_its_pods_request_cpu() -> None:
    inventory = cluster(node("a", cpu="1930m", memory="8Gi"))
    assert check_fits(of("on.workers=2"), inventory, nodes=2) == []
    assert check_fits(of("on.workers=8", "on.cpu=0.1"), inventory, nodes=2) == []
    assert check_fits(of("on.workers=8"), cluster(node("a", cpu="2"), elastic=True), nodes=1) == [
        "each node runs 8 workers, and the largest node has 2 cores: "
        "set on.workers=2 or less, or request cores with on.cpu"
    ]


def test_taints_count_unless_they_are_tolerated() -> None:
    inventory = cluster(node("a", cpu="4", memory="16Gi", taints=("team",)))
    with pytest.raises(UserError, match=r"all have taints\. Set on.tolerations to some of: team"):
        check_fits(of(), inventory, nodes=1)
    assert check_fits(of("on.tolerations=[team]"), inventory, nodes=1) == []


def closed(name: str, **state: object) -> dict[str, object]:
    machine = node(name, cpu="4", memory="16Gi")
    return machine | {"spec": {"unschedulable": True}} if not state else machine | state


def test_a_cluster_whose_nodes_are_all_cordoned_is_refused() -> None:
    with pytest.raises(UserError, match=r"all 2 nodes .* cordoned\. Run: kubectl uncordon a$"):
        check_schedulable(of(), cluster(closed("a"), closed("b")), kubectl="kubectl")
    with pytest.raises(UserError, match=r"the node that its pods may run on is cordoned"):
        check_schedulable(of(), cluster(closed("a"), node("b", taints=("team",))), kubectl="kubectl")
    sick = closed("b", status={"conditions": [{"type": "Ready", "status": "False"}]})
    with pytest.raises(UserError, match=r"are cordoned or not ready"):
        check_schedulable(of(), cluster(closed("a"), sick), kubectl="kubectl")
    assert check_schedulable(of(), cluster(closed("a"), node("b")), kubectl="kubectl") == []
    [warning] = check_schedulable(of(), cluster(closed("a"), elastic=True), kubectl="kubectl")
    assert "cordoned: its pods wait" in warning
    assert "kubectl uncordon a" in warning
    [warning] = check_schedulable(of(), cluster(sick), kubectl="kubectl")
    assert "is not ready, such as b" in warning


def test_a_run_that_would_stop_to_wait_for_nodes_is_refused() -> None:
    nodes = [node(name, cpu="4", memory="16Gi") for name in "ab"]
    check_room(of("on.cpu=2"), cluster(*nodes), nodes=4)
    with pytest.raises(UserError, match="the cluster has room for 4 of the 5 nodes that it needs"):
        check_room(of("on.cpu=2"), cluster(*nodes), nodes=5)
    check_room(of("on.cpu=2"), cluster(*nodes, elastic=True), nodes=5)
    check_room(of(), cluster(*nodes), nodes=5)


def test_nodes_to_avoid_are_no_room() -> None:
    inventory = cluster(*(node(name, cpu="4", memory="16Gi") for name in "abc"))
    overrides = ("on.cpu=3", "on.avoid=[c, gone]")
    check_room(of(*overrides), inventory, nodes=2)
    with pytest.raises(UserError, match="the cluster has room for 2 of the 3 nodes that it needs"):
        check_room(of(*overrides), inventory, nodes=3)
    assert check_fits(of(*overrides), inventory, nodes=3) == [
        "the cluster has room for 2 of its 3 nodes now: the other pods wait"
    ]
    with pytest.raises(UserError, match=r"are in on\.avoid\. Name fewer nodes in on\.avoid$"):
        check_fits(of("on.avoid=[a, b, c]"), inventory, nodes=1)


def test_where_nodes_are_added_on_demand_it_may_only_have_to_wait() -> None:
    inventory = cluster(node("a", cpu="4", memory="16Gi"), elastic=True)
    assert "it waits until a larger one is added" in check_fits(of("on.gpus=8"), inventory, nodes=1)[0]
    assert "wait until one is added" in check_fits(of("on.instance=p5.48xlarge"), inventory, nodes=1)[0]


def test_more_pods_than_fit_give_a_warning() -> None:
    inventory = cluster(*(node(f"n{number}", cpu="4", memory="16Gi", gpus="8") for number in range(2)))
    assert check_fits(of("on.cpu=0.1"), inventory, nodes=80) == []
    assert check_fits(of(), inventory, nodes=1000) == [], "a pod that asks for nothing always fits"
    assert check_fits(of("on.gpus=1"), inventory, nodes=16) == []
    assert check_fits(of("on.cpu=2", "on.memory=4GiB"), inventory, nodes=1000) == [
        "the cluster has room for 4 of its 1000 nodes now: the other pods wait"
    ]


def test_fewer_gpu_nodes_than_requested_give_a_warning() -> None:
    inventory = cluster(node("a", cpu="4", memory="16Gi", gpus="8"))
    assert check_fits(of("on.gpus=8"), inventory, nodes=2) == [
        "the cluster has room for 1 of its 2 nodes now: the other pods wait"
    ]
