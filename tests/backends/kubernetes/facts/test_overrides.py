"""An override in a remedy keeps the run's other settings, after a shell and `launch` have parsed it."""

import shlex

import pytest

from stoker.backends.kubernetes.facts.overrides import overrides
from stoker.diagnose.overrides import override
from stoker.spec.load import load
from stoker.spec.on import KubernetesOn, Nodes

POD = {
    "spec": {"containers": [{"name": "pytorch", "imagePullPolicy": "Never", "env": [{"name": "A", "value": "it's"}]}]}
}


def typed(text: str) -> KubernetesOn:
    return load(None, ["script=x.py", "on.kind=kubernetes", *shlex.split(text)]).spec.on


def test_a_list_or_a_mapping_keeps_what_was_in_it() -> None:
    found = overrides(KubernetesOn(image_secrets=["one"], selectors={"role": "gpu"}, pod=POD), 1)
    assert typed(found["add_image_secret"].replace("NAME", "two")).image_secrets == ["one", "two"]
    assert typed(found["select_arch"]).selectors == {"role": "gpu", "kubernetes.io/arch": "ARCH"}
    [container] = typed(found["drop_pull_policy"]).pod["spec"]["containers"]
    assert container == {"name": "pytorch", "env": [{"name": "A", "value": "it's"}]}
    demoted = typed(found["run_as_user"]).pod["spec"]
    assert demoted["containers"] == POD["spec"]["containers"]
    assert demoted["securityContext"]["runAsUser"] == 1000


def test_a_run_with_a_runtime_of_the_cluster_is_not_advised_a_range_of_nodes() -> None:
    four = Nodes("4")
    assert typed(overrides(KubernetesOn(nodes=four), 4)["fewer_nodes"]).nodes.least == 1
    runtime = KubernetesOn(job="trainjob", runtime="torch-distributed", nodes=four)
    fewer = overrides(runtime, 4)["fewer_nodes"].replace("N", "2")
    assert typed(f"on.job=trainjob on.runtime=torch-distributed {fewer}").nodes.fixed


@pytest.mark.parametrize(("wanted", "now", "fewer"), [("2", 2, "on.nodes=1..2"), ("2..4", 4, "on.nodes=1..4")])
def test_fewer_nodes_are_advised_where_it_needs_more_than_one(wanted: str, now: int, fewer: str) -> None:
    assert overrides(KubernetesOn(nodes=Nodes(wanted)), now)["fewer_nodes"] == fewer


@pytest.mark.parametrize(("wanted", "now"), [("1..2", 2), ("1..8", 3), ("1", 1)])
def test_a_range_is_not_advised_to_a_run_that_has_it(wanted: str, now: int) -> None:
    assert overrides(KubernetesOn(nodes=Nodes(wanted)), now)["fewer_nodes"] == ""


def test_a_single_node_is_advised_to_request_less() -> None:
    assert overrides(KubernetesOn(nodes=Nodes("2")), 2)["ask_less"] == "on.nodes=N"
    assert overrides(KubernetesOn(gpus=8), 1)["ask_less"] == "on.gpus=N"
    assert overrides(KubernetesOn(), 1)["ask_less"] == "on.cpu=CORES"


def test_overrides_survive_a_shell() -> None:
    for value in (["a b", "$(x)"], ["it's"], ["key=value:NoSchedule"], []):
        key, _, text = shlex.split(override("on.x", value))[0].partition("=")
        assert key == "on.x"
        assert load(None, ["script=x.py", f"args={text}"]).spec.args == value
