"""The pod that reads a run's volume, as it is asked for."""

from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.launch.reader import BINDING, MOVER, READER, reader_pod, trouble
from stoker.rundir import PlaceRef
from stoker.spec.run import ScriptSpec

REF = PlaceRef(
    kind="kubernetes", context=None, namespace="lab", job="job", run="demo-x1y2", volume="shared", image="img:1"
)


def spec(**on: object) -> ScriptSpec:
    values = {"kind": "kubernetes", "image": "img:1", "volume": "shared"} | on
    return ScriptSpec.model_validate(
        {"name": "demo", "script": "train.py", "env": {"A": "1"}, "secrets": {"S": "env:S"}, "on": values}
    )


def test_it_has_the_runs_image_and_volume_and_ends_by_itself() -> None:
    pod = reader_pod(REF, spec(), name="demo-x1y2-reader", kind=READER)
    assert pod["metadata"]["labels"]["stoker.dev/reader"] == "demo-x1y2"
    assert "stoker.dev/run" not in pod["metadata"]["labels"], "it is no pod of the run"
    assert pod["spec"]["activeDeadlineSeconds"] == 600
    container = pod["spec"]["containers"][0]
    assert container["image"] == "img:1"
    assert container["volumeMounts"] == [{"name": "stoker", "mountPath": "/stoker"}]
    assert pod["spec"]["volumes"] == [{"name": "stoker", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert set(container["resources"]) == {"requests"}


def test_it_may_go_where_the_run_may() -> None:
    on = spec(tolerations=["team=ml:NoSchedule"], service_account="trainer", image_secrets=["pull"])
    pod = reader_pod(REF, on, name="r", kind=READER)["spec"]
    assert {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert "nodeSelector" not in pod


def test_it_leaves_the_machines_of_the_run_to_its_workers_where_it_can() -> None:
    pod = reader_pod(REF, spec(selectors={"pool": "gpu"}), name="r", kind=READER)["spec"]
    [term] = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchExpressions"] == [{"key": "pool", "operator": "NotIn", "values": ["gpu"]}]


def test_only_who_fetches_from_elsewhere_gets_the_secrets() -> None:
    assert "envFrom" not in reader_pod(REF, spec(), name="r", kind=READER)["spec"]["containers"][0]
    mover = reader_pod(REF, spec(), name="m", kind=MOVER)["spec"]["containers"][0]
    assert mover["envFrom"] == [{"secretRef": {"name": "demo-x1y2-env", "optional": True}}]


def test_the_user_whose_files_they_are_reads_them() -> None:
    on = spec(pod={"spec": {"securityContext": {"runAsUser": 1000}}})
    assert reader_pod(REF, on, name="r", kind=READER)["spec"]["securityContext"] == {"runAsUser": 1000}


def test_it_keeps_to_the_rules_that_the_training_pods_keep_to() -> None:
    assert reader_pod(REF, spec(), name="r", kind=READER)["spec"]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False
    }
    strict = {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    on = spec(pod={"spec": {"containers": [{"name": "side"}, {"name": "pytorch", "securityContext": strict}]}})
    container = reader_pod(REF, on, name="m", kind=MOVER)["spec"]["containers"][0]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False} | strict


def test_a_claim_that_was_just_made_is_given_time_to_be_bound() -> None:
    unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    young, old = waiting(unbound, seconds=5), waiting(unbound, seconds=BINDING + 5)
    assert trouble(young, "kubectl") is None
    assert "the volume claim 'shared' is not bound" in str(trouble(old, "kubectl"))
    absent = waiting('0/3 nodes are available: persistentvolumeclaim "shared" not found.', seconds=0)
    assert "the volume claim 'shared' is not bound" in str(trouble(absent, "kubectl"))


def waiting(why: str, *, seconds: float) -> dict[str, Any]:
    made = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    pod = reader_pod(REF, spec(), name="r", kind=READER)
    status = {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": why}]}
    return pod | {"metadata": pod["metadata"] | {"creationTimestamp": made}, "status": status}


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
    assert "the image alpine:3.10 cannot be pulled" in str(trouble(pod, "kubectl"))
    statuses = [{"name": "pytorch", "state": {"running": {}}}, {"name": "mesh", "state": {"waiting": waiting}}]
    pod["status"] = {"initContainerStatuses": [done], "containerStatuses": statuses}
    assert "the image proxy:1 cannot be pulled" in str(trouble(pod, "kubectl"))
    pod["status"] = {"initContainerStatuses": [done], "containerStatuses": statuses[:1]}
    assert trouble(pod, "kubectl") is None
