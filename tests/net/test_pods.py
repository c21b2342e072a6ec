"""Pods that are made to look at the network from: like the run's own, and nothing of its work."""

import itertools
from typing import Any

from stoker.backends.kubernetes.state import MAX_ASKED, evenly
from stoker.net.pods import manifest, sites
from stoker.spec.load import load

WORDS = ["script=train.py", "on.kind=kubernetes", "on.image=x", "on.volume=v"]


def made(*words: str, gpus: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = load(None, [*WORDS, *words]).spec
    service, job = manifest(spec, name="books-net-ab12", namespace="lab", image="x@sha256:1", gpus=gpus)
    return service, job


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return found


def test_a_probe_pod_has_the_runs_image_and_place_but_not_its_volume_and_work() -> None:
    service, job = made("on.nodes=3", "on.selectors={role: gpu}", "on.tolerations=[spot]", "secrets=[TOKEN]")
    pod, ours = job["spec"]["template"]["spec"], container(job)
    assert ours["image"] == "x@sha256:1"
    assert ours["command"][-1] == "wait"
    assert "envFrom" not in ours
    assert pod["nodeSelector"] == {"role": "gpu"}
    assert any(one["key"] == "spot" for one in pod["tolerations"])
    assert [one["name"] for one in pod["volumes"]] == ["shm"]
    assert [one["name"] for one in ours["volumeMounts"]] == ["shm"]
    assert service["spec"]["clusterIP"] == "None"


def test_no_two_probe_pods_are_on_one_node_and_all_are_gone_soon() -> None:
    _, job = made("on.nodes=3")
    (apart,) = job["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert job["spec"]["completions"] == 3
    assert job["spec"]["activeDeadlineSeconds"] + job["spec"]["ttlSecondsAfterFinished"] < 3600


def test_network_devices_are_asked_for_as_the_run_does_and_gpus_for_a_preflight_alone() -> None:
    _, plain = made("on.nodes=2", "on.instance=p5.48xlarge")
    _, tried = made("on.nodes=2", "on.instance=p5.48xlarge", gpus=True)
    assert container(plain)["resources"]["limits"] == {"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}
    assert container(tried)["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container(plain)["resources"]["requests"]["cpu"] == "100m"


def test_nodes_to_avoid_are_kept_from_every_term() -> None:
    _, job = made("on.avoid=[node-7, node-9]", "on.spot=true")
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 3
    assert all([one["values"] for one in term["matchFields"]] == [["node-7"], ["node-9"]] for term in terms)
    assert all(term["matchExpressions"] for term in terms)


def test_of_too_many_pods_as_many_as_can_be_asked_lie_evenly_among_them() -> None:
    pods = [{"metadata": {"name": str(number)}} for number in range(MAX_ASKED + 44)]
    found = [int(one["metadata"]["name"]) for one in evenly(pods)]
    assert len(set(found)) == MAX_ASKED
    assert {after - before for before, after in itertools.pairwise(found)} == {1, 2}
    assert evenly(pods[:3]) == pods[:3]
    assert evenly([]) == []


def test_names_that_lead_to_a_pod_come_from_its_subdomain_and_headless_services() -> None:
    pod = {
        "metadata": {"name": "books-0-xyz", "labels": {"stoker.dev/run": "books", "a": "b"}},
        "spec": {
            "nodeName": "node-1",
            "hostname": "books-0",
            "subdomain": "books",
            "containers": [{"resources": {"limits": {"vpc.amazonaws.com/efa": "4", "nvidia.com/gpu": "8"}}}],
        },
        "status": {"podIP": "10.0.0.7"},
    }
    services = [
        {"metadata": {"name": "books"}, "spec": {"clusterIP": "None", "selector": {"stoker.dev/run": "books"}}},
        {"metadata": {"name": "other"}, "spec": {"clusterIP": "None", "selector": {"stoker.dev/run": "other"}}},
        {"metadata": {"name": "front"}, "spec": {"clusterIP": "10.1.1.1", "selector": {"a": "b"}}},
    ]
    (site,) = sites([pod], services)
    assert site.names == ("books-0.books", "books")
    assert site.wants == {"vpc.amazonaws.com/efa": 4}
