"""`on`: where a run executes, and its resources."""

import json
from pathlib import Path

import pytest
import yaml

from stoker.rundir import RunDir, events
from stoker.spec.change import difference, with_nodes
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import KubernetesOn, LocalOn, Nodes, kubernetes_on
from stoker.spec.run import AnySpec
from stoker.spec.schema import run_schema


def spec(*overrides: str) -> AnySpec:
    return load(None, ["data=x", "until.steps=1", *overrides]).spec


def on_kubernetes(*overrides: str) -> KubernetesOn:
    return kubernetes_on(spec("on.kind=kubernetes", *overrides))


def test_nodes_are_a_number_or_a_range() -> None:
    assert (Nodes("2").least, Nodes("2").most, Nodes("2").fixed) == (2, 2, True)
    assert (Nodes("1..8").least, Nodes("1..8").most, Nodes("1..8").fixed) == (1, 8, False)
    assert Nodes("4..4") == "4"
    assert on_kubernetes("on.nodes=2").nodes.most == 2
    assert on_kubernetes("on.nodes=1..8").nodes == "1..8"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("on.nodes=8..1", r"8\.\.1 is not a range. Write 1\.\.8"),
        ("on.nodes=0", "'0' is not a number of nodes"),
        ("on.nodes=2.5", r"'2\.5' is not a number of nodes"),
        ("on.nodes=true", "true is not a number"),
        ("on.nodes=many", r"'many' is not a number of nodes. Write a number such as 2, or a range such as 1\.\.8"),
        ("on.memory=lots", "'lots' is not a size"),
        ("on.tolerations=[a:Never]", "on.tolerations cannot be"),
        ("on.volume=Big", "on.volume cannot be"),
        ("on.pod={a: 1}", "pod has the unknown key a. Write pod: {spec"),
        ("on.grace=0", "It must be at least 1"),
        ("on.job=mpijob", "none of job, jobset, pytorchjob, trainjob, vcjob, auto"),
        ("on.runtime=torch", "runtime needs a trainjob, and job is job. Set on.job to trainjob"),
        (
            "on.queue_make={weight: 1}",
            "queue_make creates a Volcano queue. Set on.queue to its name and on.job to vcjob",
        ),
        ("on.autoscale={cpu: 80}", r"autoscale is for a pytorchjob with a range of nodes\. Set on.job to pytorchjob"),
    ],
)
def test_an_invalid_value_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        on_kubernetes(override)


@pytest.mark.parametrize("job", ["trainjob", "auto"])
def test_a_runtime_of_the_cluster_needs_a_fixed_number_of_nodes(job: str) -> None:
    with pytest.raises(UserError, match=r"needs a fixed number\. Set on.nodes to 3, or remove on.runtime"):
        on_kubernetes(f"on.job={job}", "on.runtime=torch", "on.nodes=1..3")
    assert on_kubernetes(f"on.job={job}", "on.runtime=torch", "on.nodes=3").runtime == "torch"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["on.nodes=2", "on.cpu=2"], "autoscale is for a pytorchjob with a range of nodes"),
        (["on.nodes=1..4"], r"needs the cores that a pod requests\. Set on.cpu"),
        (["on.nodes=1..4", "on.cpu=2", "on.autoscale.cpu=0"], "It must be more than 0"),
    ],
)
def test_an_autoscaler_needs_a_range_of_nodes_and_pods_that_request_cores(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        on_kubernetes("on.job=pytorchjob", "on.autoscale={cpu: 80}", *overrides)


def test_a_spec_with_another_number_of_nodes_is_validated() -> None:
    spec = load(None, ["data=x", "until.steps=1", "on.kind=kubernetes", "on.job=pytorchjob", "on.nodes=1..4"]).spec
    assert with_nodes(spec, Nodes("2")).on == spec.on.model_copy(update={"nodes": Nodes("2")})
    chosen = load(spec, ["on.autoscale={cpu: 80}", "on.cpu=2"]).spec
    assert with_nodes(chosen, Nodes("2..6")).on.node_range.most == 6
    with pytest.raises(UserError, match=r"cannot have on.nodes=2: autoscale is for .* range of nodes\. Set on.job to"):
        with_nodes(chosen, Nodes("2"))


def test_more_workers_than_gpus_are_refused() -> None:
    with pytest.raises(UserError, match=r"workers is 4, and gpus 2\. Set on.workers to 2"):
        on_kubernetes("on.gpus=2", "on.workers=4")


@pytest.mark.parametrize(
    "override", ["nodes=2", "job=pytorchjob", "namespace=a", "spot=true", "gpus=1", "selectors={a: b}"]
)
def test_a_key_for_kubernetes_is_refused_in_a_local_run(override: str) -> None:
    name = override.partition("=")[0]
    with pytest.raises(UserError, match=f"{name} is for Kubernetes .* Set on.kind to kubernetes"):
        spec(f"on.{override}")
    assert name in KubernetesOn.model_fields


def test_sizes_take_both_spellings() -> None:
    assert on_kubernetes("on.memory=16GiB").memory == on_kubernetes("on.memory=16Gi").memory == 16 * 2**30


def test_a_run_may_move_to_another_backend(tmp_path: Path) -> None:
    local, kubernetes = spec("on.workers=2"), spec("on.kind=kubernetes", "on.nodes=1..4", "on.selectors={a: b}")
    changes = difference(local, kubernetes)
    assert not changes.refused
    assert changes.allowed["on.nodes"] == ("1", "1..4")
    run = RunDir(tmp_path / "run")
    run.create(kubernetes, None)
    run.add_event(events.Changed(changes=changes.allowed))
    assert run.any_spec() == kubernetes


def test_the_schema_has_both_forms_of_nodes() -> None:
    nodes = run_schema()["$defs"]["KubernetesOn"]["properties"]["nodes"]
    assert nodes["default"] == "1"
    assert [form["type"] for form in nodes["anyOf"]] == [["integer", "string"], "string"]
    assert yaml.safe_dump(run_schema())


def test_a_spec_file_of_an_earlier_version_has_the_keys_of_both_kinds() -> None:
    both = KubernetesOn().model_dump(mode="json") | {"kind": "local", "workers": 2}
    assert load(None, ["data=x", "until.steps=1", f"on={json.dumps(both)}"]).spec.on == LocalOn(workers=2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["on.kind=kubernets"], "is none of local, kubernetes. Did you mean kubernetes[?]"),
        (["on.kind=5"], 'on.kind is "5", which is none of local, kubernetes'),
        (["on.kind=null"], "which is none of local, kubernetes"),
        (["on.kind=kubernetes", "on.node=2"], r"on.node is unknown. Did you mean on.nodes\?"),
    ],
)
def test_an_unknown_kind_or_key_is_refused_with_the_nearest(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(*overrides)


def test_a_run_writes_the_keys_of_its_own_kind_only() -> None:
    assert "nodes" not in spec("on.workers=2").model_dump()["on"]
    assert spec("on.kind=kubernetes", "on.nodes=2").model_dump(mode="json")["on"]["nodes"] == "2"
