"""Volcano's Job: the pods of a run start together or wait together, in a queue."""

from collections.abc import Sequence
from typing import Any

from stoker.launch.jobs import KEPT, JobState
from stoker.launch.jobs.job import TRIES
from stoker.launch.pod import Task
from stoker.launch.pod import template as pod_template
from stoker.spec import contract

Object = dict[str, Any]
KIND = "Job.batch.volcano.sh"
CONTAINER = contract.CONTAINER
NEEDS = ("Job.batch.volcano.sh", "Queue")
OPERATOR = "Volcano"
LASTS = True
INSTALL = (
    "kubectl apply --server-side -f "
    "https://raw.githubusercontent.com/volcano-sh/volcano/v1.14.1/installer/volcano-development.yaml"
)
DEFAULT_QUEUE = "default"
INDEX = "volcano.sh/task-index"
TORCHX_INDEX = "torchx.pytorch.org/replica-id"
TASK = "node"  # pods are called RUN-node-INDEX
FATAL = (1, contract.EXIT_USER, contract.EXIT_FAILED, 126, 127, 128)  # the last three: its command cannot be run
PHASES = {
    "Running": "running",
    "Restarting": "restarting",
    "Completing": "done",
    "Completed": "done",
    "Aborting": "stopping",
    "Aborted": "failed",
    "Terminating": "failed",
    "Terminated": "failed",
    "Failed": "failed",
}


def manifest(task: Task) -> list[Object]:
    on = task.spec.on
    index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
    pods = {
        "name": TASK,
        "replicas": on.nodes.most,
        "minAvailable": on.nodes.least,
        "policies": _policies(),
        "template": pod_template(task, node=index),
    }
    spec: Object = {
        "schedulerName": "volcano",
        "minAvailable": on.nodes.least,
        "minSuccess": on.nodes.most if on.nodes.fixed else 1,  # the first node that is done knows that all is
        "maxRetry": TRIES * on.nodes.most,
        "queue": on.queue or DEFAULT_QUEUE,
        "ttlSecondsAfterFinished": KEPT,
        "tasks": [pods],
    }
    if on.priority:
        spec["priorityClassName"] = on.priority
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": task.metadata, "spec": spec}
    return [job] if on.queue_make is None else [_queue(str(on.queue), on.queue_make), job]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state="stopping")
    status = job.get("status", {})
    now = status.get("state", {})
    found: Any = PHASES.get(now.get("phase", ""), "waiting")
    if found == "failed":
        return JobState(state="failed", reason=now.get("message") or f"Volcano has {now['phase'].lower()} it")
    if found == "waiting" and status.get("retryCount"):
        found = "restarting"
    return JobState(state=found)


def node(pod: Object) -> int | None:
    """TorchX gives every node a task of its own, in which it is the first."""
    labels, notes = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
    index = labels.get(TORCHX_INDEX) or notes.get(INDEX) or labels.get(INDEX)
    return None if index is None else int(index)


def inside(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (of others it needs the name)
    return []


def template(objects: Sequence[Object]) -> Object:
    [task] = objects[-1]["spec"]["tasks"]
    found: Object = task["template"]
    return found


def trials(objects: Sequence[Object]) -> list[Object]:
    """A Job is refused until its queue is there."""
    *others, owner = objects
    if any(one["kind"] == "Queue" for one in others):
        owner = owner | {"spec": owner["spec"] | {"queue": DEFAULT_QUEUE}}
    return [*others, owner]


def _queue(name: str, spec: Object) -> Object:
    """For all who name it: no run owns it."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return head | {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _policies() -> list[Object]:
    """The first that fits counts. A pod that was deleted is made anew without one."""
    fatal = [{"exitCode": code, "action": "TerminateJob"} for code in FATAL]
    return [*fatal, {"event": "PodFailed", "action": "RestartPod"}]
