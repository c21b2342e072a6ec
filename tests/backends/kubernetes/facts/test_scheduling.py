"""Why a pod fits no node: from the pod and the nodes, or from the scheduler's message."""

import shlex
from typing import Any

from stoker.backends.kubernetes.facts.scheduling import obstacle
from stoker.backends.kubernetes.inventory import Machine
from stoker.backends.kubernetes.inventory import machine as as_machine
from stoker.spec.on import KubernetesOn, On

SHORT = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available"
TAINT = "0/2 nodes are available: 2 node(s) had untolerated taint {team: other}. preemption: …"
AFFINITY = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."


def machine(name: str = "m", *taints: str, cpu: float = 4, gpus: float = 0, **labels: str) -> Machine:
    marks = tuple({"key": key, "value": "x", "effect": "NoSchedule"} for key in taints)
    offers = {"cpu": float(cpu), "memory": 8 * 2.0**30, "nvidia.com/gpu": float(gpus)}
    return Machine(name=name, labels=labels, taints=marks, offers=offers, ready=True)


def pod(**spec: Any) -> dict[str, Any]:
    asked = spec.pop("asked", {"cpu": "2"})
    return {"spec": {"containers": [{"name": "pytorch", "resources": {"requests": asked}}], **spec}}


def required(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def on(**fields: Any) -> On:
    return KubernetesOn(**fields)


def test_too_large_for_every_node_is_not_the_same_as_no_room_now() -> None:
    large = obstacle(pod(asked={"cpu": "64"}), SHORT, [machine(cpu=2), machine(cpu=4)])
    assert (large.obstacle, large.requested, large.largest, large.fix) == ("size", "64 cores", "4 cores", "on.cpu=3.6")
    crowded = obstacle(pod(), SHORT, [machine()])
    assert (crowded.obstacle, crowded.constraint, crowded.requested) == ("room", "cpu", "2 cores")


def test_memory_and_devices_have_their_own_units() -> None:
    found = obstacle(pod(asked={"memory": "64Gi"}), "", [machine()])
    assert (found.requested, found.largest, found.fix) == (
        "64.0 GiB of memory",
        "8.0 GiB of memory",
        "on.memory=7372MiB",
    )
    found = obstacle(pod(asked={"nvidia.com/gpu": "8"}), "", [machine()])
    assert (found.requested, found.largest) == ("8 nvidia.com/gpu", "0 nvidia.com/gpu")


def test_a_label_that_no_node_has_is_named() -> None:
    wants = pod(nodeSelector={"role": "gpu", "zone": "a"})
    found = obstacle(wants, AFFINITY, [machine("one", zone="a")], on(selectors={"role": "gpu", "zone": "a"}))
    assert (found.obstacle, found.constraint, found.example, found.fix) == ("selector", "role=gpu", "one", "role=gpu")
    both = obstacle(wants, AFFINITY, [machine("one")], on(selectors={"role": "gpu", "zone": "a"}))
    assert (both.constraint, both.fix) == ("role=gpu, zone=a", "role=gpu zone=a")


def test_a_label_that_does_not_come_from_the_run_is_not_suggested() -> None:
    kind = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    found = obstacle(pod(nodeSelector=kind), AFFINITY, [machine("one")], on(instance="p5.48xlarge"))
    assert (found.constraint, found.fix) == ("node.kubernetes.io/instance-type=p5.48xlarge", "")


def test_a_node_with_a_conflicting_label_is_not_suggested() -> None:
    wants, ours = pod(nodeSelector={"role": "gpu"}), on(selectors={"role": "gpu"})
    taken = machine("taken", role="cpu")
    assert obstacle(wants, AFFINITY, [taken, machine("free", "team")], ours).example == "free"
    found = obstacle(wants, AFFINITY, [taken], ours)
    assert (found.obstacle, found.constraint, found.example) == ("selector", "role=gpu", "")


def test_an_affinity_counts_as_a_selector() -> None:
    terms = [{"matchExpressions": [{"key": "kind", "operator": "In", "values": ["spot", "cheap"]}]}]
    assert obstacle(pod(affinity=required(terms)), AFFINITY, [machine(kind="dear")]).obstacle == "selector"
    assert obstacle(pod(affinity=required(terms)), SHORT, [machine(kind="cheap")]).obstacle == "room"


def test_one_of_several_spot_labels_is_enough() -> None:
    ways = [("capacity", "SPOT"), ("preemptible", "true")]
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in ways]
    wants = pod(affinity=required(terms))
    found = obstacle(wants, AFFINITY, [machine("one")], on(spot=True))
    assert (found.obstacle, found.constraint) == ("selector", "capacity=SPOT or preemptible=true")
    assert obstacle(wants, SHORT, [machine(preemptible="true")], on(spot=True)).obstacle == "room"


def test_nodes_that_the_run_avoids_are_named_and_the_others_stay_avoided() -> None:
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("one", "two")]
    found = obstacle(
        pod(affinity=required([{"matchFields": away}])), AFFINITY, [machine("one")], on(avoid=["two", "one"])
    )
    assert (found.obstacle, found.example, found.fix) == ("avoided", "one", "'on.avoid=[two]'")


def test_the_nodes_that_are_looked_at_could_take_the_pod_and_control_planes_come_last() -> None:
    control = machine("control", "node-role.kubernetes.io/control-plane", cpu=64)
    small = machine("small", "node.kubernetes.io/unschedulable", cpu=1)
    assert obstacle(pod(), TAINT, [control, small, machine("one", "team")]).constraint == "team=x"
    large = pod(asked={"cpu": "32"})
    assert obstacle(large, TAINT, [control, machine("one")]).obstacle == "size"
    closed = machine("closed", "node.kubernetes.io/unschedulable", cpu=64)
    assert obstacle(large, SHORT, [machine("one"), closed]).example == "closed"
    assert obstacle(large, SHORT, [machine("one"), machine("theirs", "team", cpu=64)]).obstacle == "size"


def test_devices_on_tainted_nodes_only_need_a_toleration() -> None:
    plain, guarded = machine("plain"), machine("guarded", "nvidia.com/gpu", gpus=8)
    found = obstacle(pod(asked={"nvidia.com/gpu": "8"}), TAINT, [plain, guarded])
    assert (found.obstacle, found.example, found.fix) == ("taint", "guarded", "'on.tolerations=[nvidia.com/gpu]'")
    assert obstacle(pod(asked={"nvidia.com/gpu": "16"}), TAINT, [plain, guarded]).obstacle == "size"
    few = machine("few", gpus=4)
    assert obstacle(pod(asked={"nvidia.com/gpu": "8"}), TAINT, [plain, few, guarded]).fix == "on.gpus=4"


def test_no_toleration_is_suggested_for_an_unhealthy_node() -> None:
    for key in ("memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable", "unreachable"):
        found = obstacle(pod(), TAINT, [machine("one", f"node.kubernetes.io/{key}")])
        assert (found.obstacle, found.fix) == ("sick", "")
    both = "1 had untolerated taint {node.kubernetes.io/disk-pressure: }, 1 had untolerated taint {team: other}."
    assert obstacle(pod(), both, None).fix == "'on.tolerations=[team]'"


def test_what_a_run_tolerates_already_it_keeps() -> None:
    found = obstacle(pod(), TAINT, [machine("one", "team")], on(tolerations=["spot=yes:NoSchedule"]))
    assert shlex.split(found.fix) == ['on.tolerations=["spot=yes:NoSchedule", "team"]']
    assert obstacle(pod(), TAINT, None, on(tolerations=["a"])).fix == "'on.tolerations=[a, team]'"


def test_a_taint_a_cordoned_node_and_an_unhealthy_one_are_distinguished() -> None:
    assert obstacle(pod(), TAINT, [machine("one", "team")]).constraint == "team=x"
    assert obstacle(pod(), TAINT, [machine("one", "team")]).fix == "'on.tolerations=[team]'"
    closed = obstacle(pod(), TAINT, [machine("one", "team"), machine("two", "node.kubernetes.io/unschedulable")])
    assert (closed.obstacle, closed.example) == ("cordon", "two")
    assert obstacle(pod(), TAINT, [machine("one", "node.kubernetes.io/not-ready")]).obstacle == "sick"


def test_a_tolerated_taint_is_no_obstacle() -> None:
    welcome = pod(tolerations=[{"key": "team", "operator": "Exists"}])
    assert obstacle(welcome, SHORT, [machine("one", "team")]).obstacle == "room"
    assert obstacle(pod(tolerations=[{"operator": "Exists"}]), SHORT, [machine("one", "team")]).obstacle == "room"


def test_without_the_right_to_list_nodes_the_schedulers_message_is_used() -> None:
    assert obstacle(pod(), SHORT, None).obstacle == "room"
    assert obstacle(pod(), TAINT, None).constraint == "team"
    assert obstacle(pod(nodeSelector={"a": "b"}), AFFINITY, None).constraint == "a=b"
    assert obstacle(pod(), "0/1 nodes are available: 1 node(s) were unschedulable.", None).obstacle == "cordon"
    assert obstacle(pod(), "0/1 nodes are available: 1 node(s) had something else.", None).obstacle == ""


def test_a_node_is_cordoned_before_its_taint_is_there() -> None:
    node = {"metadata": {"name": "one"}, "spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "4"}}}
    found = obstacle(pod(), "0/1 nodes are available: 1 node(s) were unschedulable.", [as_machine(node)])
    assert (found.obstacle, found.example) == ("cordon", "one")
