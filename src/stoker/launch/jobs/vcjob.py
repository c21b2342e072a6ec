"""Volcano's Job: the pods of a run start together or wait together, in a queue."""

from collections.abc import Sequence
from typing import Any

from stoker.launch.jobs import KEPT, JobState
from stoker.launch.pod import Task
from stoker.launch.pod import template as pod_template
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes

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
RETRIES = 2**31 - 1  # it counts every eviction, for ever; supervisors that come to nothing give the run up themselves
PHASES = {
    "Running": "running",
    "Restarting": "restarting",
    "Completing": "done",
    "Completed": "done",
    "Terminating": "failed",
    "Terminated": "failed",
    "Failed": "failed",
}
SUSPENDED = ("Aborting", "Aborted")  # Volcano's words: such a job can be resumed


def manifest(task: Task) -> list[Object]:
    on = task.spec.on
    index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
    template = pod_template(task, node=index)
    _check(template)
    pods = {
        "name": TASK,
        "replicas": on.nodes.most,
        "minAvailable": on.nodes.least,
        "policies": _policies(),
        "template": template,
    }
    spec: Object = {
        "schedulerName": "volcano",
        "minAvailable": on.nodes.least,
        "minSuccess": on.nodes.most if on.nodes.fixed else 1,  # the first node that is done knows that all is
        "maxRetry": RETRIES,
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
    phase = now.get("phase", "")
    if phase in SUSPENDED:
        return JobState(state="waiting", reason="Volcano has suspended it")
    found: Any = PHASES.get(phase, "waiting")
    if found == "failed":
        return JobState(state="failed", reason=now.get("message") or f"Volcano calls it {phase.lower()}")
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
    """TorchX gives every node a task of its own; their pods differ in their node alone."""
    first, *_ = objects[-1]["spec"]["tasks"]
    found: Object = first["template"]
    return found


def trials(objects: Sequence[Object]) -> list[Object]:
    """A Job is refused until its queue is there."""
    *others, owner = objects
    if any(one["kind"] == "Queue" for one in others):
        owner = owner | {"spec": owner["spec"] | {"queue": DEFAULT_QUEUE}}
    return [*others, owner]


def scaled(job: Object, nodes: Nodes) -> Object | None:  # noqa: ARG001 (as in all kinds)
    """Gangs are placed as a whole: one of another size is another."""
    return None


def _queue(name: str, spec: Object) -> Object:
    """For all who name it: no run owns it."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return head | {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _check(pod: Object) -> None:
    """Of a pod that ended Volcano reads the first exit code, and kubelet sorts them by the containers' names."""
    for one in pod["spec"]["containers"]:
        if one["name"] < CONTAINER:
            raise UserError(
                f"on.pod has a container {one['name']}, and of the pods of a vcjob Volcano takes the exit code of the "
                "container whose name comes first",
                remedy=f"Call it something that sorts after {CONTAINER}, such as side-{one['name']}",
            )


def _policies() -> list[Object]:
    """The first that fits counts. A pod that was deleted is made anew without one."""
    fatal = [{"exitCode": code, "action": "TerminateJob"} for code in FATAL]
    return [*fatal, {"event": "PodFailed", "action": "RestartPod"}]
