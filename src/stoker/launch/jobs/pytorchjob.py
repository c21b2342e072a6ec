"""Kubeflow's PyTorchJob, of training-operator v1: a Master and Workers, or elastic Workers alone."""

from collections.abc import Sequence
from typing import Any

from stoker.launch.jobs import KEPT, JobState
from stoker.launch.pod import Task
from stoker.launch.pod import template as pod_template
from stoker.spec import contract
from stoker.spec.on import Nodes

Object = dict[str, Any]
KIND = "PyTorchJob"
CONTAINER = contract.CONTAINER
NEEDS = ("PyTorchJob",)
OPERATOR = "Kubeflow's training operator"
LASTS = True
MANIFESTS = "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"
INSTALL = f"kubectl apply --server-side -k '{MANIFESTS}'"
INDEX = "training.kubeflow.org/replica-index"


def manifest(task: Task) -> list[Object]:
    """Without a Master the operator adds no init container, whose image it would pull from elsewhere."""
    nodes = task.spec.on.nodes
    index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    spec: Object = {
        "nprocPerNode": str(task.needs.workers),
        "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": KEPT},
    }
    if nodes.fixed:
        replicas = {"Master": _replicas(1, pod_template(task, node={"value": "0"}))}
        if nodes.most > 1:  # `replicas: 0` makes the operator create and delete a pod for ever
            # The operator's own count begins with the Master; only arguments can use what it adds to the environment.
            worker = pod_template(task, node=None, argument="$(PET_NODE_RANK)")
            replicas["Worker"] = _replicas(nodes.most - 1, worker)
    else:
        replicas = {"Worker": _replicas(nodes.most, pod_template(task, node=index))}
        spec["elasticPolicy"] = {"minReplicas": nodes.least, "maxReplicas": nodes.most, "rdzvBackend": "c10d"}
        if autoscale := task.spec.on.autoscale:
            spec["elasticPolicy"]["metrics"] = [_metric("cpu", autoscale.cpu)]
    spec["pytorchReplicaSpecs"] = replicas
    return [{"apiVersion": "kubeflow.org/v1", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state="stopping")
    holding = [one for one in job.get("status", {}).get("conditions") or [] if one["status"] == "True"]
    for kind in ("Succeeded", "Failed"):
        for condition in holding:
            if condition["type"] == kind:
                reason = condition.get("message", "") if kind == "Failed" else ""
                return JobState(state="done" if kind == "Succeeded" else "failed", reason=reason)
    last = holding[-1]["type"] if holding else ""
    if last == "Running":
        return JobState(state="running")
    return JobState(state="restarting" if last == "Restarting" else "waiting")


def node(pod: Object) -> int | None:
    """As the operator tells the pod itself where it has counted a Master before the Workers."""
    for container in pod["spec"].get("containers", []):
        for variable in container.get("env", []):
            if variable["name"] == "PET_NODE_RANK":
                return int(variable["value"])
    index = pod["metadata"].get("labels", {}).get(INDEX)
    return None if index is None else int(index)


def inside(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (of others it needs the name)
    return []


def template(objects: Sequence[Object]) -> Object:
    replicas = objects[-1]["spec"]["pytorchReplicaSpecs"]
    found: Object = next(iter(replicas.values()))["template"]
    return found


def trials(objects: Sequence[Object]) -> list[Object]:
    return list(objects)


def scaled(job: Object, nodes: Nodes) -> Object | None:
    """Its bounds, and what its scale subresource writes, in one change; between the bounds an autoscaler chooses."""
    replicas = job["spec"]["pytorchReplicaSpecs"]
    if "Master" not in replicas:
        bounds = {"elasticPolicy": {"minReplicas": nodes.least, "maxReplicas": nodes.most}}
        if job["spec"]["elasticPolicy"].get("metrics"):
            return {"spec": bounds}
        return {"spec": bounds | {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes.most}}}}
    if not nodes.fixed or nodes.most == 1 or "Worker" not in replicas:  # the operator leaves the last Workers be
        return None
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes.most - 1}}}}


def _metric(resource: str, percent: int) -> Object:
    """The operator makes a HorizontalPodAutoscaler of it, with the policy's bounds."""
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": resource, "target": target}}


def _replicas(number: int, pod: Object) -> Object:
    """The policy stands here; in the pod as well, the operator complains of it."""
    pod["spec"].pop("restartPolicy", None)
    return {"replicas": number, "restartPolicy": "ExitCode", "template": pod}
