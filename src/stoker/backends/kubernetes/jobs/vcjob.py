"""Volcano's Job: the pods of a run start together or wait together in a queue (gang scheduling)."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.kubernetes.jobs import JOB_TTL_S, JobState
from stoker.backends.kubernetes.pod import Task
from stoker.backends.kubernetes.pod import template as pod_template
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes, kubernetes_on

Object = dict[str, Any]
KIND = "Job.batch.volcano.sh"
CONTAINER = contract.CONTAINER
NEEDS = ("Job.batch.volcano.sh", "Queue")
OPERATOR = "Volcano"
FOREGROUND = True
INSTALL = (
    "kubectl apply --server-side -f "
    "https://raw.githubusercontent.com/volcano-sh/volcano/v1.14.1/installer/volcano-development.yaml"
)
DEFAULT_QUEUE = "default"
INDEX = "volcano.sh/task-index"
TORCHX_INDEX = "torchx.pytorch.org/replica-id"
TASK = "node"  # pods are called RUN-node-INDEX
FATAL = (1, contract.EXIT_USER, contract.EXIT_FAILED, 126, 127, 128)  # the last three: the command cannot be run
MAX_RETRIES = 2**31 - 1  # Volcano counts every eviction; a run that makes no progress is failed by its supervisors
PHASES = {
    "Running": RunState.RUNNING,
    "Restarting": RunState.RESTARTING,
    "Completing": RunState.DONE,
    "Completed": RunState.DONE,
    "Terminating": RunState.FAILED,
    "Terminated": RunState.FAILED,
    "Failed": RunState.FAILED,
}
SUSPENDED = ("Aborting", "Aborted")  # phases of a job that can be resumed


def manifest(task: Task) -> list[Object]:
    on = kubernetes_on(task.spec)
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
        "minSuccess": on.nodes.most if on.nodes.fixed else 1,  # a single finished node means the run is done
        "maxRetry": MAX_RETRIES,
        "queue": on.queue or DEFAULT_QUEUE,
        "ttlSecondsAfterFinished": JOB_TTL_S,
        "tasks": [pods],
    }
    if on.priority:
        spec["priorityClassName"] = on.priority
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": task.metadata, "spec": spec}
    return [job] if on.queue_make is None else [_queue(str(on.queue), on.queue_make), job]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state=RunState.STOPPING)
    status = job.get("status", {})
    current = status.get("state", {})
    phase = current.get("phase", "")
    if phase in SUSPENDED:
        return JobState(state=RunState.WAITING, reason="Volcano has suspended it")
    state = PHASES.get(phase, RunState.WAITING)
    if state is RunState.FAILED:
        return JobState(
            state=RunState.FAILED, reason=current.get("message") or f"Volcano reports it as {phase.lower()}"
        )
    if state is RunState.WAITING and status.get("retryCount"):
        state = RunState.RESTARTING
    return JobState(state=state)


def node(pod: Object) -> int | None:
    """TorchX creates a task for every node, with one pod each."""
    labels, annotations = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
    index = labels.get(TORCHX_INDEX) or annotations.get(INDEX) or labels.get(INDEX)
    return None if index is None else int(index)


def inner_objects(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (other kinds use it)
    return []


def template(objects: Sequence[Object]) -> Object:
    """TorchX creates a task for every node; their pods differ only in the node."""
    first, *_ = objects[-1]["spec"]["tasks"]
    pod: Object = first["template"]
    return pod


def dry_run_objects(objects: Sequence[Object]) -> list[Object]:
    """A Job is refused until its queue exists: it is checked with the default queue."""
    *others, owner = objects
    if any(manifest["kind"] == "Queue" for manifest in others):
        owner = owner | {"spec": owner["spec"] | {"queue": DEFAULT_QUEUE}}
    return [*others, owner]


def scale_patch(job: Object, nodes: Nodes) -> Object | None:  # noqa: ARG001 (other kinds use them)
    """A gang is scheduled as a whole, so its size cannot change."""
    return None


def _queue(name: str, spec: Object) -> Object:
    """Shared by all runs that name it; owned by none."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return head | {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _check(pod: Object) -> None:
    """Volcano reads the first exit code of a pod, and the kubelet sorts containers by name."""
    for container in pod["spec"]["containers"]:
        if container["name"] < CONTAINER:
            raise UserError(
                f"on.pod has a container {container['name']}, and Volcano takes the exit code of the container whose "
                "name sorts first",
                remedy=f"Give it a name that sorts after {CONTAINER}, such as side-{container['name']}",
            )


def _policies() -> list[Object]:
    """The first that matches applies. A deleted pod is recreated without any."""
    fatal = [{"exitCode": code, "action": "TerminateJob"} for code in FATAL]
    return [*fatal, {"event": "PodFailed", "action": "RestartPod"}]
