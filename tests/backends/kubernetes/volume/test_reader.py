"""The pod that reads a run's volume."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.reader import (
    BIND_TIMEOUT_S,
    MOVER,
    READER,
    ensure,
    reader_pod,
    shared,
    startup_error,
)
from stoker.kube import connect
from stoker.spec.run import ScriptSpec
from tests.backends.kubernetes.served import NOT_FOUND, served

PLACE = ClusterPlace(
    kind="kubernetes", context=None, namespace="lab", job="job", run="demo-x1y2", volume="shared", image="img:1"
)


def spec(**on: object) -> ScriptSpec:
    values = {"kind": "kubernetes", "image": "img:1", "volume": "shared"} | on
    return ScriptSpec.model_validate(
        {"name": "demo", "script": "train.py", "env": {"A": "1"}, "secrets": {"S": "env:S"}, "on": values}
    )


def test_it_has_the_runs_image_and_volume_and_ends_by_itself() -> None:
    pod = reader_pod(PLACE, spec(), name="demo-x1y2-reader", kind=READER)
    assert pod["metadata"]["labels"]["stoker.dev/reader"] == "demo-x1y2"
    assert "stoker.dev/run" not in pod["metadata"]["labels"], "it is no pod of the run"
    assert pod["spec"]["activeDeadlineSeconds"] == 3600
    container = pod["spec"]["containers"][0]
    assert container["image"] == "img:1"
    assert container["volumeMounts"] == [{"name": "stoker", "mountPath": "/stoker"}]
    assert pod["spec"]["volumes"] == [{"name": "stoker", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert set(container["resources"]) == {"requests"}


def test_it_tolerates_what_the_run_tolerates() -> None:
    on = spec(tolerations=["team=ml:NoSchedule"], service_account="trainer", image_secrets=["pull"])
    pod = reader_pod(PLACE, on, name="r", kind=READER)["spec"]
    assert {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert "nodeSelector" not in pod


def test_it_prefers_other_nodes_than_the_workers() -> None:
    pod = reader_pod(PLACE, spec(selectors={"pool": "gpu"}), name="r", kind=READER)["spec"]
    [term] = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchExpressions"] == [{"key": "pool", "operator": "NotIn", "values": ["gpu"]}]


def test_only_pods_that_move_files_get_the_secrets() -> None:
    assert "envFrom" not in reader_pod(PLACE, spec(), name="r", kind=READER)["spec"]["containers"][0]
    mover = reader_pod(PLACE, spec(), name="m", kind=MOVER)["spec"]["containers"][0]
    assert mover["envFrom"] == [{"secretRef": {"name": "demo-x1y2-env", "optional": True}}]


def test_the_user_whose_files_they_are_reads_them() -> None:
    on = spec(pod={"spec": {"securityContext": {"runAsUser": 1000}}})
    assert reader_pod(PLACE, on, name="r", kind=READER)["spec"]["securityContext"] == {"runAsUser": 1000}


def test_it_has_the_security_context_of_the_training_pods() -> None:
    assert reader_pod(PLACE, spec(), name="r", kind=READER)["spec"]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False
    }
    strict = {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    on = spec(pod={"spec": {"containers": [{"name": "side"}, {"name": "pytorch", "securityContext": strict}]}})
    container = reader_pod(PLACE, on, name="m", kind=MOVER)["spec"]["containers"][0]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False} | strict


LENT = {
    "volumes": [
        {"name": "torch", "hostPath": {"path": "/opt/torch"}},
        {"name": "filled", "emptyDir": {}},
        {"name": "keys", "secret": {"secretName": "keys"}},
    ],
    "nodeSelector": {"has": "torch"},
    "initContainers": [
        {"name": "fills", "image": "filler:1", "volumeMounts": [{"name": "filled", "mountPath": "/to"}]},
        {"name": "waits", "image": "waiter:1"},
    ],
    "containers": [
        {
            "name": "pytorch",
            "env": [
                {"name": "B", "value": "2"},
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "k", "key": "k"}}},
            ],
            "volumeMounts": [
                {"name": "torch", "mountPath": "/opt/torch"},
                {"name": "filled", "mountPath": "/lib/filled"},
                {"name": "keys", "mountPath": "/keys"},
                {"name": "shm", "mountPath": "/tmp/shm"},
            ],
        }
    ],
}


@pytest.mark.parametrize("job", ["job", "trainjob"])
def test_an_image_that_gets_torch_or_stoker_from_a_volume_gets_it_here_too(job: str) -> None:
    pod = reader_pod(replace(PLACE, job=job), spec(pod={"spec": LENT}), name="r", kind=READER)["spec"]
    [container] = pod["containers"]
    assert [entry["name"] for entry in pod["volumes"]] == ["stoker", "torch", "filled"]
    assert [entry["mountPath"] for entry in container["volumeMounts"]] == ["/stoker", "/opt/torch", "/lib/filled"]
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert pod["nodeSelector"] == {"has": "torch"}, "the folder of a node is on that node"
    assert [entry["name"] for entry in pod["initContainers"]] == ["fills"], "only what fills a volume of the pod"


def test_a_pod_that_moves_files_gets_values_from_secrets_too() -> None:
    pod = reader_pod(PLACE, spec(pod={"spec": LENT}), name="m", kind=MOVER)["spec"]
    assert "keys" in [entry["name"] for entry in pod["volumes"]]
    assert "K" in [entry["name"] for entry in pod["containers"][0]["env"]]


def test_a_variable_reaches_the_pod_as_it_was_written() -> None:
    run = spec().model_copy(update={"env": {"A": "$(HOME)/x"}})
    pod = reader_pod(PLACE, run, name="r", kind=READER)["spec"]
    assert pod["containers"][0]["env"] == [{"name": "A", "value": "$$(HOME)/x"}]


def test_runs_that_need_the_same_reader_share_one() -> None:
    def named(ref: ClusterPlace, run: ScriptSpec) -> str:
        pod = shared(reader_pod(ref, run, name="any", kind=READER))
        assert pod["metadata"]["labels"]["stoker.dev/reader"] == "shared"
        return str(pod["metadata"]["name"])

    first = named(PLACE, spec())
    assert named(replace(PLACE, run="other-z9"), spec(nodes=4)) == first
    others = [
        named(replace(PLACE, image="img:2"), spec()),
        named(replace(PLACE, volume="else"), spec()),
        named(PLACE, spec(service_account="trainer")),
        named(PLACE, spec().model_copy(update={"env": {"A": "2"}})),
    ]
    assert len({first, *others}) == 5


def test_ended_readers_are_deleted_when_another_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod_manifest = shared(reader_pod(PLACE, spec(), name="r", kind=READER))
    name, pods = pod_manifest["metadata"]["name"], "/api/v1/namespaces/lab/pods"
    phase_by_path = {f"{pods}/old-reader": "Succeeded", f"{pods}/old-mover": "Failed"}

    def answer(method: str, path: str, query: str) -> tuple[int, Any]:
        if method == "PATCH":
            phase_by_path[path] = "Running"
        elif method == "DELETE":
            del phase_by_path[path]
        elif path == pods:
            assert "stoker.dev/reader" in query or f"metadata.name={name}" in query, "no pod of a run is looked at"
            phases = [phase for phase in ("Succeeded", "Failed", "Running") if f"status.phase={phase}" in query]
            items = [running(path) for path, phase in phase_by_path.items() if phase in (phases or ["Running"])]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
        elif path.endswith("/persistentvolumeclaims/shared"):
            return 200, {"metadata": {"name": "shared"}, "spec": {}}
        elif path not in phase_by_path:
            return 404, NOT_FOUND
        return 200, running(path)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        assert ensure(connect(None, "lab"), pod_manifest) == name
    assert list(phase_by_path) == [f"{pods}/{name}"]


def running(path: str) -> dict[str, Any]:
    meta = {"name": path.rpartition("/")[2], "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Running"}}


def test_an_image_without_stoker_is_named_with_its_error_and_a_remedy() -> None:
    pod = reader_pod(PLACE, spec(), name="r", kind=READER)
    ended = {"exitCode": 1, "message": "Traceback …\n/usr/bin/python3: No module named stoker\n"}
    error = startup_error(
        pod | {"status": {"containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}}, "k"
    )
    assert error is not None
    assert error.problem.endswith("ended with code 1, /usr/bin/python3: No module named stoker")
    assert "env.PYTHONPATH" in error.remedy


def test_an_init_image_that_cannot_be_pulled_is_not_taken_for_the_runs() -> None:
    pod = reader_pod(PLACE, spec(pod={"spec": LENT}), name="r", kind=READER)
    waits = {"name": "fills", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    assert "the image filler:1 cannot be pulled" in str(
        startup_error(pod | {"status": {"initContainerStatuses": [waits]}}, "k")
    )
    fails = {"name": "fills", "state": {"terminated": {"exitCode": 7}}}
    problem = str(startup_error(pod | {"status": {"initContainerStatuses": [fails]}}, "k"))
    assert "init container fills of pod r ended with code 7" in problem
    well = {"name": "fills", "state": {"terminated": {"exitCode": 0}}}
    assert startup_error(pod | {"status": {"initContainerStatuses": [well]}}, "k") is None


def test_a_new_claim_gets_time_to_be_bound() -> None:
    unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    young, old = waiting(unbound, seconds=5), waiting(unbound, seconds=BIND_TIMEOUT_S + 5)
    assert startup_error(young, "kubectl") is None
    assert "the volume claim 'shared' is not bound" in str(startup_error(old, "kubectl"))
    absent = waiting('0/3 nodes are available: persistentvolumeclaim "shared" not found.', seconds=0)
    assert "the volume claim 'shared' is not bound" in str(startup_error(absent, "kubectl"))


def waiting(why: str, *, seconds: float) -> dict[str, Any]:
    created = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    pod = reader_pod(PLACE, spec(), name="r", kind=READER)
    status = {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": why}]}
    return pod | {"metadata": pod["metadata"] | {"creationTimestamp": created}, "status": status}


def test_the_image_that_cannot_be_pulled_is_named_and_not_the_runs_own() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    done = {"name": "init", "state": {"terminated": {"exitCode": 0}}}
    pod = {
        "metadata": {"name": "reader"},
        "spec": {
            "containers": [{"name": "pytorch", "image": "own"}, {"name": "mesh", "image": "proxy:1"}],
            "initContainers": [{"name": "init", "image": "alpine:3.10"}],
        },
        "status": {"initContainerStatuses": [{"name": "init", "state": {"waiting": waiting}}]},
    }
    assert "the image alpine:3.10 cannot be pulled" in str(startup_error(pod, "kubectl"))
    statuses = [{"name": "pytorch", "state": {"running": {}}}, {"name": "mesh", "state": {"waiting": waiting}}]
    pod["status"] = {"initContainerStatuses": [done], "containerStatuses": statuses}
    assert "the image proxy:1 cannot be pulled" in str(startup_error(pod, "kubectl"))
    pod["status"] = {"initContainerStatuses": [done], "containerStatuses": statuses[:1]}
    assert startup_error(pod, "kubectl") is None
