"""What a pod of a run asks for."""

import pytest

from stoker.launch.fits import check_fits, check_open, check_room
from stoker.launch.inventory import Inventory, grouped, quantity
from stoker.launch.needs import Needs, needs
from stoker.spec.errors import UserError
from stoker.spec.instances import instance, table
from stoker.spec.load import load

GIB = 2**30


def of(*words: str, script: bool = False) -> Needs:
    what = ["script=x.py"] if script else ["data=x", "until.steps=1"]
    return needs(load(None, [*what, "on.kind=kubernetes", *words]).spec, "demo-abcd")


def node(
    name: str, *, taints: tuple[str, ...] = (), labels: dict[str, str] | None = None, **offers: str
) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": {"taints": [{"key": key, "value": "", "effect": "NoSchedule"} for key in taints]},
        "status": {
            "allocatable": {key.replace("gpus", "nvidia.com/gpu"): value for key, value in offers.items()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def cluster(*nodes: dict[str, object], elastic: bool = False) -> Inventory:
    return grouped(nodes, elastic=elastic)


def test_an_instance_type_brings_all_that_it_offers_and_needs() -> None:
    asked = of("on.instance=p5.48xlarge", "on.nodes=2")
    assert asked.devices == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}
    assert asked.resources == {"hugepages-2Mi": "5120Mi"}
    assert asked.capabilities == ("IPC_LOCK",)
    assert (asked.workers, asked.device) == (8, "cuda")
    assert asked.env["FI_PROVIDER"] == "efa"
    assert asked.env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/stoker/runs/demo-abcd/logs/nccl-trace-rank-"
    assert asked.selectors == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    assert 180 < (asked.cpu or 0) < 192
    assert asked.memory_limit is None


def test_one_node_has_no_use_for_efa_and_small_gpu_types_are_seldom_made_with_it() -> None:
    assert "vpc.amazonaws.com/efa" not in of("on.instance=p5.48xlarge").devices
    assert "vpc.amazonaws.com/efa" not in of("on.instance=g5.12xlarge", "on.nodes=2").devices
    assert of("on.instance=g5.12xlarge", "on.nodes=2", "on.efa=1").devices["vpc.amazonaws.com/efa"] == 1


def test_what_is_said_counts_more_than_what_the_instance_has() -> None:
    asked = of("on.instance=p4d.24xlarge", "on.gpus=2", "on.cpu=10", "on.memory=64GiB", "on.shm=8GiB")
    assert (asked.gpus, asked.workers, asked.cpu, asked.memory) == (2, 2, 10, 64 * GIB)
    assert (asked.memory_limit, asked.shm) == (64 * GIB, 8 * GIB)


def test_a_pod_without_a_word_asks_for_nothing() -> None:
    asked = of()
    assert (asked.cpu, asked.memory, asked.devices, asked.workers, asked.device) == (None, None, {}, 1, "cpu")
    assert asked.env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_every_instance_type_can_be_asked_for() -> None:
    for name in table()["instances"]:
        asked = of(f"on.instance={name}", "on.nodes=2", script=True)
        there = instance(name)
        assert there is not None
        assert asked.workers == max(1, there.gpus, there.neuron_cores)
        assert 0 < (asked.cpu or 0) < there.cores
        assert 0 < (asked.memory or 0) < there.memory


def test_spot_nodes_are_marked_as_their_cloud_does() -> None:
    assert of("on.spot=true", "on.instance=m5.large").spot == (
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("karpenter.sh/capacity-type", "spot"),
    )
    assert of("on.spot=true", "on.instance=n2-standard-4").spot == (("cloud.google.com/gke-spot", "true"),)
    assert len(of("on.spot=true").spot) == 3


def test_a_lost_node_holds_no_pod_for_five_minutes() -> None:
    gone = {one["key"]: one for one in of("on.tolerations=[team=nlp:NoSchedule, any]").tolerations}
    assert gone["node.kubernetes.io/unreachable"]["tolerationSeconds"] == 30
    assert gone["team"] == {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"}
    assert gone["any"] == {"key": "any", "operator": "Exists"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["on.instance=p5.48xlrge"], r"nothing is known of on.instance p5.48xlrge. Did you mean p5.48xlarge\?"),
        (["on.device=cuda"], "its pods get no GPU. Set on.gpus"),
        (["on.instance=p4d.24xlarge", "on.workers=9"], "a pod has 8 GPUs. Set on.workers=8"),
        (["on.instance=trn1.32xlarge"], "does not run on Neuron"),
        (
            ["on.instance=m5.large", "on.workers=64"],
            "m5.large has 2 cores. Set on.workers=2 or less, or say",
        ),
        (["on.efa=4", "on.gpus=8"], "EFA needs huge pages.* Set on.cpu or on.memory, or on.instance"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        of(*words)


def test_a_new_instance_type_is_taken_when_its_pods_are_described() -> None:
    assert of("on.instance=p9.48xlarge", "on.gpus=4").workers == 4


def test_quantities_read_as_kubernetes_means_them() -> None:
    read = [quantity(text) for text in ("2", "1930m", "16Gi", "1e3", "129M", "8Ki", "?")]
    assert read == [2, 1.93, 16 * GIB, 1000, 129e6, 8192, 0]


def test_a_thousand_nodes_of_one_kind_are_one_kind() -> None:
    there = cluster(*(node(f"n{number}", cpu="4", memory="16Gi") for number in range(1000)))
    assert [count for _, count in there.kinds] == [1000]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["on.cpu=8"], "a pod needs 8 cores, and the node with most has 4 cores. Ask for less with on.cpu"),
        (["on.memory=32GiB"], "needs 32.0 GiB of memory, and the node with most has 16.0 GiB"),
        (["on.gpus=2"], "needs 2 nvidia.com/gpu, and the node with most has 0"),
        (["on.workers=64"], "64 workers are to run on a node, and the one with most has 4 cores. Set on.workers=4 or"),
        (["on.selectors={role: gpu}"], "no node of the cluster has the label role=gpu"),
        (["on.instance=m5.large"], "Instance types that are there: big"),
    ],
)
def test_more_than_any_node_can_hold_is_refused(words: list[str], said: str) -> None:
    there = cluster(node("a", cpu="4", memory="16Gi", labels={"node.kubernetes.io/instance-type": "big"}))
    with pytest.raises(UserError, match=said):
        check_fits(of(*words), there, nodes=1)


def test_efa_wants_huge_pages_on_the_nodes() -> None:
    offers = {"vpc.amazonaws.com/efa": "4", "nvidia.com/gpu": "8"}
    there = cluster(node("a", cpu="96", memory="1000Gi", **offers))
    with pytest.raises(UserError, match=r"needs 5\.0 GiB of huge pages, .* has 0\.0 GiB.*vm\.nr_hugepages"):
        check_fits(of("on.efa=4", "on.gpus=8", "on.cpu=8"), there, nodes=1)
    ready = cluster(node("a", cpu="96", memory="1000Gi", **offers, **{"hugepages-2Mi": "10256Mi"}))
    assert check_fits(of("on.efa=4", "on.gpus=8", "on.cpu=8"), ready, nodes=1) == []


def test_a_worker_has_a_core_unless_its_pods_say_what_they_get() -> None:
    there = cluster(node("a", cpu="1930m", memory="8Gi"))
    assert check_fits(of("on.workers=2"), there, nodes=2) == []
    assert check_fits(of("on.workers=8", "on.cpu=0.1"), there, nodes=2) == []
    assert check_fits(of("on.workers=8"), cluster(node("a", cpu="2"), elastic=True), nodes=1) == [
        "8 workers are to run on a node, and the one with most has 2 cores: "
        "set on.workers=2 or less, or say with on.cpu what a pod is to have"
    ]


def test_taints_count_unless_they_are_tolerated() -> None:
    there = cluster(node("a", cpu="4", memory="16Gi", taints=("team",)))
    with pytest.raises(UserError, match=r"all have taints\. Set on.tolerations to some of: team"):
        check_fits(of(), there, nodes=1)
    assert check_fits(of("on.tolerations=[team]"), there, nodes=1) == []


def closed(name: str, **state: object) -> dict[str, object]:
    one = node(name, cpu="4", memory="16Gi")
    return one | {"spec": {"unschedulable": True}} if not state else one | state


def test_a_cluster_whose_nodes_are_all_cordoned_is_called_so() -> None:
    with pytest.raises(UserError, match=r"all 2 nodes .* closed to new pods \(cordoned\)\. Run: kubectl uncordon a$"):
        check_open(of(), cluster(closed("a"), closed("b")), kubectl="kubectl")
    with pytest.raises(UserError, match=r"the node that its pods may run on is closed to new pods \(cordoned\)"):
        check_open(of(), cluster(closed("a"), node("b", taints=("team",))), kubectl="kubectl")
    sick = closed("b", status={"conditions": [{"type": "Ready", "status": "False"}]})
    with pytest.raises(UserError, match=r"\(cordoned or not ready\)"):
        check_open(of(), cluster(closed("a"), sick), kubectl="kubectl")
    assert check_open(of(), cluster(closed("a"), node("b")), kubectl="kubectl") == []
    [warning] = check_open(of(), cluster(closed("a"), elastic=True), kubectl="kubectl")
    assert "closed to new pods (cordoned): its pods wait" in warning
    assert "kubectl uncordon a" in warning
    [warning] = check_open(of(), cluster(sick), kubectl="kubectl")
    assert "is not ready, such as b" in warning


def test_a_run_that_would_end_first_is_refused_nodes_that_nobody_adds() -> None:
    nodes = [node(name, cpu="4", memory="16Gi") for name in "ab"]
    check_room(of("on.cpu=2"), cluster(*nodes), nodes=4)
    with pytest.raises(UserError, match="4 of the 5 nodes that it needs are there"):
        check_room(of("on.cpu=2"), cluster(*nodes), nodes=5)
    check_room(of("on.cpu=2"), cluster(*nodes, elastic=True), nodes=5)
    check_room(of(), cluster(*nodes), nodes=5)


def test_nodes_to_avoid_are_no_room() -> None:
    there = cluster(*(node(name, cpu="4", memory="16Gi") for name in "abc"))
    asked = ("on.cpu=3", "on.avoid=[c, gone]")
    check_room(of(*asked), there, nodes=2)
    with pytest.raises(UserError, match="2 of the 3 nodes that it needs are there"):
        check_room(of(*asked), there, nodes=3)
    assert check_fits(of(*asked), there, nodes=3) == [
        "2 of the 3 nodes that it asks for are there now: the other pods wait"
    ]
    with pytest.raises(UserError, match=r"are in on\.avoid\. Name fewer nodes in on\.avoid$"):
        check_fits(of("on.avoid=[a, b, c]"), there, nodes=1)


def test_where_nodes_are_added_on_demand_it_may_only_have_to_wait() -> None:
    there = cluster(node("a", cpu="4", memory="16Gi"), elastic=True)
    assert "it waits until a larger one is added" in check_fits(of("on.gpus=8"), there, nodes=1)[0]
    assert "wait until one is added" in check_fits(of("on.instance=p5.48xlarge"), there, nodes=1)[0]


def test_more_pods_than_there_is_room_for_are_worth_a_word() -> None:
    there = cluster(*(node(f"n{number}", cpu="4", memory="16Gi", gpus="8") for number in range(2)))
    assert check_fits(of("on.cpu=0.1"), there, nodes=80) == []
    assert check_fits(of(), there, nodes=1000) == [], "a pod that asks for nothing always fits"
    assert check_fits(of("on.gpus=1"), there, nodes=16) == []
    assert check_fits(of("on.cpu=2", "on.memory=4GiB"), there, nodes=1000) == [
        "4 of the 1000 nodes that it asks for are there now: the other pods wait"
    ]


def test_fewer_gpu_nodes_than_asked_for_is_worth_a_word() -> None:
    there = cluster(node("a", cpu="4", memory="16Gi", gpus="8"))
    assert check_fits(of("on.gpus=8"), there, nodes=2) == [
        "1 of the 2 nodes that it asks for are there now: the other pods wait"
    ]
