"""What is said of operators that are there in part."""

from pathlib import Path
from typing import Any

import pytest

from stoker.launch.check_kube import check
from tests.launch.served import NOT_FOUND, served

PARTS = ("volcano-admission", "volcano-controller", "volcano-scheduler")


@pytest.mark.parametrize(
    ("scheduler", "found", "remedy"),
    [
        (None, "its controller volcano-scheduler is not", "volcano-development.yaml"),
        ((0, 0), "controller volcano-scheduler is scaled to none", "scale deployment/volcano-scheduler --replicas=1"),
        ((1, 0), "controller volcano-scheduler is not ready", "rollout status deployment/volcano-scheduler"),
        ((1, 1), "Volcano in namespace volcano-system", ""),
    ],
)
def test_every_part_of_an_operator_must_be_there_and_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: tuple[int, int] | None, found: str, remedy: str
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
        [said] = [one for one in check(None, None) if one.name == "vcjob"]
    assert found in said.found
    assert remedy in said.remedy
    assert said.ok is (scheduler == (1, 1))


def deployment(name: str, wanted: int, ready: int) -> dict[str, Any]:
    status = {"readyReplicas": ready} if ready else {}
    meta = {"name": name, "namespace": "volcano-system"}
    return {"metadata": meta, "spec": {"replicas": wanted}, "status": status}
