"""The temporary pods of the network probe: like the run's own, without its command and its volume."""

import itertools
from typing import Any

from stoker.backends.kubernetes.state import MAX_ASKED, evenly
from stoker.net.pods import manifest, sites
from stoker.spec.load import load

OVERRIDES = ["script=train.py", "on.kind=kubernetes", "on.image=x", "on.volume=v"]


def probe_manifest(*overrides: str, gpus: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = load(None, [*OVERRIDES, *overrides]).spec
    service, job = manifest(spec, name="books-net-ab12", namespace="lab", image="x@sha256:1", gpus=gpus)
    return service, job


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only


def test_a_probe_pod_has_the_runs_image_and_nodes_but_not_its_volume_and_command() -> None:
    service, job = probe_manifest("on.nodes=3", "on.selectors={role: gpu}", "on.tolerations=[spot]", "secrets=[TOKEN]")
    pod, trainer = job["spec"]["template"]["spec"], container(job)
    assert trainer["image"] == "x@sha256:1"
    assert trainer["command"][-1] == "wait"
    assert "envFrom" not in trainer
    assert pod["nodeSelector"] == {"role": "gpu"}
    assert any(toleration["key"] == "spot" for toleration in pod["tolerations"])
    assert [volume["name"] for volume in pod["volumes"]] == ["shm"]
    assert [mount["name"] for mount in trainer["volumeMounts"]] == ["shm"]
    assert service["spec"]["clusterIP"] == "None"


def test_no_container_mounts_the_runs_volume() -> None:
    init = "{name: fill, image: x, volumeMounts: [{name: stoker, mountPath: /a}, {name: shm, mountPath: /b}]}"
    _, job = probe_manifest(f"on.pod={{spec: {{initContainers: [{init}]}}}}")
    (container,) = job["spec"]["template"]["spec"]["initContainers"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["shm"]


def test_probe_pods_are_on_different_nodes_and_end_by_themselves() -> None:
    _, job = probe_manifest("on.nodes=3")
    (apart,) = job["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert job["spec"]["completions"] == 3
    assert job["spec"]["activeDeadlineSeconds"] + job["spec"]["ttlSecondsAfterFinished"] < 3600


def test_network_devices_are_requested_as_by_the_run_and_gpus_only_for_a_preflight() -> None:
    _, plain = probe_manifest("on.nodes=2", "on.instance=p5.48xlarge")
    _, with_gpus = probe_manifest("on.nodes=2", "on.instance=p5.48xlarge", gpus=True)
    assert container(plain)["resources"]["limits"] == {"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}
    assert container(with_gpus)["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container(plain)["resources"]["requests"]["cpu"] == "100m"


def test_every_term_excludes_the_nodes_to_avoid() -> None:
    _, job = probe_manifest("on.avoid=[node-7, node-9]", "on.spot=true")
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 3
    assert all([field["values"] for field in term["matchFields"]] == [["node-7"], ["node-9"]] for term in terms)
    assert all(term["matchExpressions"] for term in terms)


def test_of_too_many_pods_an_even_sample_is_probed() -> None:
    pods = [{"metadata": {"name": str(number)}} for number in range(MAX_ASKED + 44)]
    numbers = [int(pod["metadata"]["name"]) for pod in evenly(pods)]
    assert len(set(numbers)) == MAX_ASKED
    assert {after - before for before, after in itertools.pairwise(numbers)} == {1, 2}
    assert evenly(pods[:3]) == pods[:3]
    assert evenly([]) == []


def test_dns_names_of_a_pod_come_from_its_subdomain_and_headless_services() -> None:
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
