"""Kubeflow's PyTorchJob (training-operator v1): a Master and Workers, or elastic Workers only."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.kubernetes.jobs import JOB_TTL_S, JobState
from stoker.backends.kubernetes.pod import Task
from stoker.backends.kubernetes.pod import template as pod_template
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.on import Nodes, kubernetes_on

Object = dict[str, Any]
KIND = "PyTorchJob"
CONTAINER = contract.CONTAINER
NEEDS = ("PyTorchJob",)
OPERATOR = "Kubeflow's training operator"
FOREGROUND = True
MANIFESTS = "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"
INSTALL = f"kubectl apply --server-side -k '{MANIFESTS}'"
INDEX = "training.kubeflow.org/replica-index"


def manifest(task: Task) -> list[Object]:
    """Without a Master, the operator adds no init container with an image of its own."""
    nodes = kubernetes_on(task.spec).nodes
    index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    spec: Object = {
        "nprocPerNode": str(task.needs.workers),
        "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": JOB_TTL_S},
    }
    if nodes.fixed:
        replicas = {"Master": _replicas(1, pod_template(task, node={"value": "0"}))}
        if nodes.most > 1:  # with `replicas: 0` the operator creates and deletes a pod forever
            # The operator counts the Master first, and sets the variable itself: only arguments can refer to it.
            worker = pod_template(task, node=None, argument="$(PET_NODE_RANK)")
            replicas["Worker"] = _replicas(nodes.most - 1, worker)
    else:
        replicas = {"Worker": _replicas(nodes.most, pod_template(task, node=index))}
        spec["elasticPolicy"] = {"minReplicas": nodes.least, "maxReplicas": nodes.most, "rdzvBackend": "c10d"}
        if autoscale := kubernetes_on(task.spec).autoscale:
            spec["elasticPolicy"]["metrics"] = [_metric("cpu", autoscale.cpu)]
    spec["pytorchReplicaSpecs"] = replicas
    return [{"apiVersion": "kubeflow.org/v1", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state=RunState.STOPPING)
    conditions = job.get("status", {}).get("conditions") or []
    true = [condition for condition in conditions if condition["status"] == "True"]
    for kind in ("Succeeded", "Failed"):
        for condition in true:
            if condition["type"] == kind:
                reason = condition.get("message", "") if kind == "Failed" else ""
                return JobState(state=RunState.DONE if kind == "Succeeded" else RunState.FAILED, reason=reason)
    last = true[-1]["type"] if true else ""
    if last == "Running":
        return JobState(state=RunState.RUNNING)
    return JobState(state=RunState.RESTARTING if last == "Restarting" else RunState.WAITING)


def node(pod: Object) -> int | None:
    """The rank that the operator sets in the pod, where it counts a Master before the Workers."""
    for container in pod["spec"].get("containers", []):
        for variable in container.get("env", []):
            if variable["name"] == "PET_NODE_RANK":
                return int(variable["value"])
    index = pod["metadata"].get("labels", {}).get(INDEX)
    return None if index is None else int(index)


def inner_objects(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (other kinds use it)
    return []


def template(objects: Sequence[Object]) -> Object:
    replicas = objects[-1]["spec"]["pytorchReplicaSpecs"]
    pod: Object = next(iter(replicas.values()))["template"]
    return pod


def dry_run_objects(objects: Sequence[Object]) -> list[Object]:
    return list(objects)


def scale_patch(job: Object, nodes: Nodes) -> Object | None:
    """Its bounds and its replicas in one patch; with an autoscaler only the bounds."""
    replicas = job["spec"]["pytorchReplicaSpecs"]
    if "Master" not in replicas:
        bounds = {"elasticPolicy": {"minReplicas": nodes.least, "maxReplicas": nodes.most}}
        if job["spec"]["elasticPolicy"].get("metrics"):
            return {"spec": bounds}
        return {"spec": bounds | {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes.most}}}}
    if not nodes.fixed or nodes.most == 1 or "Worker" not in replicas:  # the operator does not delete the last Workers
        return None
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes.most - 1}}}}


def _metric(resource: str, percent: int) -> Object:
    """The operator creates a HorizontalPodAutoscaler from it, with the bounds of the elastic policy."""
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": resource, "target": target}}


def _replicas(number: int, pod: Object) -> Object:
    """The restart policy is set here: the operator warns if the pod sets it too."""
    pod["spec"].pop("restartPolicy", None)
    return {"replicas": number, "restartPolicy": "ExitCode", "template": pod}
