"""What a pod of a run requests."""

import pytest

from stoker.spec.errors import UserError
from stoker.spec.hardware import instance_table, instance_type
from tests.backends.kubernetes.nodes import GIB, of


def test_an_instance_type_sets_resources_tolerations_and_variables() -> None:
    wanted = of("on.instance=p5.48xlarge", "on.nodes=2")
    assert wanted.devices == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}
    assert wanted.resources == {"hugepages-2Mi": "5120Mi"}
    assert wanted.capabilities == ("IPC_LOCK",)
    assert (wanted.workers, wanted.device) == (8, "cuda")
    assert wanted.env["FI_PROVIDER"] == "efa"
    assert wanted.env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/stoker/runs/demo-abcd/logs/nccl-trace-rank-"
    assert wanted.selectors == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    assert 180 < (wanted.cpu or 0) < 192
    assert wanted.memory_limit is None


def test_one_node_gets_no_efa_and_neither_do_small_gpu_types() -> None:
    assert "vpc.amazonaws.com/efa" not in of("on.instance=p5.48xlarge").devices
    assert "vpc.amazonaws.com/efa" not in of("on.instance=g5.12xlarge", "on.nodes=2").devices
    assert of("on.instance=g5.12xlarge", "on.nodes=2", "on.efa=1").devices["vpc.amazonaws.com/efa"] == 1


def test_settings_override_the_instance_type() -> None:
    wanted = of("on.instance=p4d.24xlarge", "on.gpus=2", "on.cpu=10", "on.memory=64GiB", "on.shm=8GiB")
    assert (wanted.gpus, wanted.workers, wanted.cpu, wanted.memory) == (2, 2, 10, 64 * GIB)
    assert (wanted.memory_limit, wanted.shm) == (64 * GIB, 8 * GIB)


def test_a_pod_without_settings_requests_nothing() -> None:
    wanted = of()
    assert (wanted.cpu, wanted.memory, wanted.devices, wanted.workers, wanted.device) == (None, None, {}, 1, "cpu")
    assert wanted.env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_every_instance_type_can_be_used() -> None:
    for name in instance_table()["instances"]:
        wanted = of(f"on.instance={name}", "on.nodes=2", script=True)
        instance = instance_type(name)
        assert instance is not None
        assert wanted.workers == max(1, instance.gpus, instance.neuron_cores)
        assert 0 < (wanted.cpu or 0) < instance.cores
        assert 0 < (wanted.memory or 0) < instance.memory


def test_spot_nodes_are_marked_as_their_cloud_does() -> None:
    assert of("on.spot=true", "on.instance=m5.large").spot == (
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("karpenter.sh/capacity-type", "spot"),
    )
    assert of("on.spot=true", "on.instance=n2-standard-4").spot == (("cloud.google.com/gke-spot", "true"),)
    assert len(of("on.spot=true").spot) == 3


def test_a_lost_node_holds_no_pod_for_five_minutes() -> None:
    wanted = of("on.tolerations=[team=nlp:NoSchedule, any]")
    tolerations = {toleration["key"]: toleration for toleration in wanted.tolerations}
    assert tolerations["node.kubernetes.io/unreachable"]["tolerationSeconds"] == 30
    assert tolerations["team"] == {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"}
    assert tolerations["any"] == {"key": "any", "operator": "Exists"}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["on.instance=p5.48xlrge"], r"on.instance p5.48xlrge is unknown. Did you mean p5.48xlarge\?"),
        (["on.device=cuda"], "its pods get no GPU. Set on.gpus"),
        (["on.instance=p4d.24xlarge", "on.workers=9"], "a pod has 8 GPUs. Set on.workers=8"),
        (["on.instance=trn1.32xlarge"], "does not run on Neuron"),
        (
            ["on.instance=m5.large", "on.workers=64"],
            "m5.large has 2 cores. Set on.workers=2 or less, or request",
        ),
        (["on.efa=4", "on.gpus=8"], "EFA needs huge pages.* Set on.cpu or on.memory, or on.instance"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        of(*overrides)


def test_a_new_instance_type_is_taken_when_its_pods_are_described() -> None:
    assert of("on.instance=p9.48xlarge", "on.gpus=4").workers == 4
