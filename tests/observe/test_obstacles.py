"""Why no node takes a pod: told from the pod and the nodes; by the scheduler's words where nobody may see the nodes."""

from typing import Any

from stoker.launch.inventory import Machine
from stoker.observe.obstacles import obstacle

SHORT = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available"
TAINT = "0/2 nodes are available: 2 node(s) had untolerated taint {team: other}. preemption: …"
AFFINITY = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."


def machine(name: str = "m", *taints: str, cpu: float = 4, **labels: str) -> Machine:
    marks = tuple({"key": key, "value": "x", "effect": "NoSchedule"} for key in taints)
    offers = {"cpu": float(cpu), "memory": 8 * 2.0**30, "nvidia.com/gpu": 0.0}
    return Machine(name=name, labels=labels, taints=marks, offers=offers, ready=True)


def pod(**spec: Any) -> dict[str, Any]:
    asked = spec.pop("asked", {"cpu": "2"})
    return {"spec": {"containers": [{"name": "pytorch", "resources": {"requests": asked}}], **spec}}


def test_too_large_for_every_node_is_not_the_same_as_no_room_now() -> None:
    large = obstacle(pod(asked={"cpu": "64"}), SHORT, [machine(cpu=2), machine(cpu=4)])
    assert (large.obstacle, large.asked, large.most, large.mend) == ("size", "64 cores", "4 cores", "on.cpu=3.6")
    crowded = obstacle(pod(), SHORT, [machine()])
    assert (crowded.obstacle, crowded.lacks, crowded.asked) == ("room", "cpu", "2 cores")


def test_memory_and_devices_are_told_in_their_own_words() -> None:
    found = obstacle(pod(asked={"memory": "64Gi"}), "", [machine()])
    assert (found.asked, found.most, found.mend) == ("64.0 GiB of memory", "8.0 GiB of memory", "on.memory=7372MiB")
    found = obstacle(pod(asked={"nvidia.com/gpu": "8"}), "", [machine()])
    assert (found.asked, found.most) == ("8 nvidia.com/gpu", "0 nvidia.com/gpu")


def test_a_label_that_no_node_has_is_named() -> None:
    found = obstacle(pod(nodeSelector={"role": "gpu", "zone": "a"}), AFFINITY, [machine("one", zone="a")])
    assert (found.obstacle, found.lacks, found.example) == ("selector", "role=gpu", "one")


def test_an_affinity_counts_as_a_selector() -> None:
    terms = [{"matchExpressions": [{"key": "kind", "operator": "In", "values": ["spot", "cheap"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert obstacle(pod(affinity=affinity), AFFINITY, [machine(kind="dear")]).obstacle == "selector"
    assert obstacle(pod(affinity=affinity), SHORT, [machine(kind="cheap")]).obstacle == "room"


def test_a_taint_a_closed_node_and_a_sick_one_are_told_apart() -> None:
    assert obstacle(pod(), TAINT, [machine("one", "team")]).lacks == "team=x"
    assert obstacle(pod(), TAINT, [machine("one", "team")]).mend == "'on.tolerations=[team]'"
    closed = obstacle(pod(), TAINT, [machine("one", "team"), machine("two", "node.kubernetes.io/unschedulable")])
    assert (closed.obstacle, closed.example) == ("cordon", "two")
    assert obstacle(pod(), TAINT, [machine("one", "node.kubernetes.io/not-ready")]).obstacle == "sick"


def test_a_taint_that_is_tolerated_is_none() -> None:
    welcome = pod(tolerations=[{"key": "team", "operator": "Exists"}])
    assert obstacle(welcome, SHORT, [machine("one", "team")]).obstacle == "room"
    assert obstacle(pod(tolerations=[{"operator": "Exists"}]), SHORT, [machine("one", "team")]).obstacle == "room"


def test_without_a_look_at_the_nodes_the_schedulers_words_tell() -> None:
    assert obstacle(pod(), SHORT, None).obstacle == "room"
    assert obstacle(pod(), TAINT, None).lacks == "team"
    assert obstacle(pod(nodeSelector={"a": "b"}), AFFINITY, None).lacks == "a=b"
    assert obstacle(pod(), "0/1 nodes are available: 1 node(s) had something else.", None).obstacle == ""
