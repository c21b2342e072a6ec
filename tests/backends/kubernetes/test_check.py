"""`stoker check kube` on a cluster that has only some of what runs need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.backends.kubernetes.check import check
from tests.backends.kubernetes.served import NOT_FOUND, served

PARTS = ("volcano-admission", "volcano-controller", "volcano-scheduler")


@pytest.mark.parametrize(
    ("scheduler", "detail", "remedy"),
    [
        (None, "its controller volcano-scheduler is not", "volcano-development.yaml"),
        ((0, 0), "controller volcano-scheduler is scaled to zero", "scale deployment/volcano-scheduler --replicas=1"),
        ((1, 0), "controller volcano-scheduler is not ready", "rollout status deployment/volcano-scheduler"),
        ((1, 1), "Volcano in namespace volcano-system", ""),
    ],
)
def test_every_part_of_an_operator_must_exist_and_be_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: tuple[int, int] | None, detail: str, remedy: str
) -> None:
    parts: dict[str, tuple[int, int] | None] = dict.fromkeys(PARTS, (1, 1)) | {"volcano-scheduler": scheduler}

    def answer(method: str, path: str, query: str) -> tuple[int, Any]:
        last = path.rpartition("/")[2]
        if method == "POST":
            return 201, {"status": {"allowed": True}}
        if "volcano.sh" in path:
            return 200, {"resources": [{"name": "jobs"}, {"name": "queues"}]}
        if last == "deployments":
            items = [deployment(name, *count) for name, count in parts.items() if count and f"app={name}" in query]
            return 200, {"metadata": {}, "items": items}
        if path.startswith("/api/v1") or last in ("storageclasses", "endpointslices"):
            return 200, {"metadata": {"name": last}, "items": []}
        return 404, NOT_FOUND

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        [result] = [result for result in check(None, None) if result.name == "vcjob"]
    assert detail in result.detail
    assert remedy in result.remedy
    assert result.ok is (scheduler == (1, 1))


def answers_of(classes: list[dict[str, Any]] | None, *, allowed: bool = True) -> Callable[..., tuple[int, Any]]:
    """A cluster with these storage classes (None: they may not be listed), and no claim."""

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        last = path.rpartition("/")[2]
        if last == "selfsubjectreviews":
            return 201, {"status": {"userInfo": {"username": "system:serviceaccount:team:ann"}}}
        if method == "POST":
            return 201, {"status": {"allowed": allowed}}
        if last == "storageclasses" and classes is None:
            return 403, {"message": 'User "ann" cannot list resource "storageclasses" in API group "storage.k8s.io"'}
        if last == "storageclasses":
            return 200, {"metadata": {}, "items": classes}
        if path.startswith("/api/v1") or last == "endpointslices":
            return 200, {"metadata": {"name": last}, "items": []}
        return 404, NOT_FOUND

    return answer


def storage(name: str, provisioner: str, *, default: bool = False) -> dict[str, Any]:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": notes}, "provisioner": provisioner}


DISK, FILES = storage("gp3", "ebs.csi.aws.com", default=True), storage("efs", "efs.csi.aws.com")


@pytest.mark.parametrize(
    ("classes", "chosen", "remedy"),
    [
        ([DISK, FILES], "efs", "Create one (there are also: gp3):"),
        ([FILES], "efs", "Create one: kubectl"),
        ([storage("a", "x"), DISK], "gp3", "Create one (if that class supports ReadWriteMany; there are also: a):"),
        ([DISK], "gp3", "Create one (if that class supports ReadWriteMany):"),
        (None, "CLASS", "replace CLASS with a storage class for shared volumes"),
        ([], None, "The cluster has no storage class"),
    ],
)
def test_the_suggested_claim_names_an_existing_storage_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: list[dict[str, Any]] | None, chosen: str, remedy: str
) -> None:
    with served(tmp_path, answers_of(classes)) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        [volumes] = [result for result in check(None, None) if result.name == "volumes"]
    assert remedy in volumes.remedy
    claim = yaml.safe_load(volumes.remedy.partition("<<'END'\n")[2].removesuffix("END"))
    assert (claim["spec"]["storageClassName"] if claim else None) == chosen


def test_missing_rights_come_with_a_role_and_its_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, answers_of([], allowed=False)) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        results = {result.name: result for result in check(None, None)}
    role, binding = yaml.safe_load_all(results["rights"].remedy.partition("\n")[2])
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "stoker"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "ann", "namespace": "team"}]
    policy = results["policy rights"]
    assert "a run without on.network_policy needs none of it" in policy.detail
    assert not policy.needed
    role, _ = yaml.safe_load_all(policy.remedy.partition("\n")[2])
    assert role["metadata"]["name"] == "stoker-network-policies"
    assert role["rules"][0]["resources"] == ["networkpolicies"]


def deployment(name: str, wanted: int, ready: int) -> dict[str, Any]:
    status = {"readyReplicas": ready} if ready else {}
    meta = {"name": name, "namespace": "volcano-system"}
    return {"metadata": meta, "spec": {"replicas": wanted}, "status": status}
