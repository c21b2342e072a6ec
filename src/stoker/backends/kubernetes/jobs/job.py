"""A plain Indexed Job and a headless Service: needs no operator."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.kubernetes.jobs import JOB_TTL_S, JobState
from stoker.backends.kubernetes.pod import Task
from stoker.backends.kubernetes.pod import template as pod_template
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.on import Nodes, kubernetes_on

Object = dict[str, Any]
KIND = "Job"
CONTAINER = contract.CONTAINER
NEEDS: tuple[str, ...] = ()
OPERATOR = ""
FOREGROUND = True
INSTALL = ""
INDEX = "batch.kubernetes.io/job-completion-index"
NODE = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
MAX_RETRIES = 10  # of one node that ends by a signal: out of memory, or a killed supervisor


def manifest(task: Task) -> list[Object]:
    spec = {"ttlSecondsAfterFinished": JOB_TTL_S} | indexed(task, pod_template(task, node=NODE, subdomain=task.run))
    return [_service(task), {"apiVersion": "batch/v1", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state=RunState.STOPPING)
    status = job.get("status", {})
    for condition in status.get("conditions", []):
        if condition["status"] == "True" and condition["type"] in ("Complete", "SuccessCriteriaMet"):
            return JobState(state=RunState.DONE)
        if condition["status"] == "True" and condition["type"] in ("Failed", "FailureTarget"):
            return JobState(state=RunState.FAILED, reason=condition.get("message", ""))
    if status.get("ready"):
        return JobState(state=RunState.RUNNING)
    return JobState(state=RunState.RESTARTING if status.get("failed") else RunState.WAITING)


def node(pod: Object) -> int | None:
    index = pod["metadata"].get("annotations", {}).get(INDEX) or pod["metadata"].get("labels", {}).get(INDEX)
    return None if index is None else int(index)


def inner_objects(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (other kinds use it)
    return []


def template(objects: Sequence[Object]) -> Object:
    pod: Object = objects[-1]["spec"]["template"]
    return pod


def dry_run_objects(objects: Sequence[Object]) -> list[Object]:
    return list(objects)


def scale_patch(job: Object, nodes: Nodes) -> Object | None:
    """The success policy of a Job cannot be changed: a Job that waits for all its pods cannot become elastic."""
    if not nodes.fixed and "successPolicy" not in job["spec"]:
        return None
    counts = {"completions": nodes.most, "parallelism": nodes.most}
    return {"spec": counts | {"maxFailedIndexes": nodes.most - nodes.least}}


def indexed(task: Task, pod: Object, *, container: str = CONTAINER) -> Object:
    """The spec of a Job with one pod for each node; lost pods are replaced."""
    nodes = kubernetes_on(task.spec).nodes
    spec: Object = {
        "completionMode": "Indexed",
        "completions": nodes.most,
        "parallelism": nodes.most,
        "backoffLimitPerIndex": MAX_RETRIES,
        "maxFailedIndexes": nodes.most - nodes.least,  # fewer nodes cannot train
        "podFailurePolicy": {"rules": _failures(container)},
        "template": pod,
    }
    if not nodes.fixed:  # a single finished node means the run is done: others may never have been scheduled
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
    return spec


def _failures(container: str) -> list[Object]:
    """The first rule that matches applies."""
    retry = {"containerName": container, "operator": "In", "values": [contract.EXIT_AGAIN]}
    fatal = {"containerName": container, "operator": "In", "values": list(range(1, 128))}
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": retry},
        {"action": "FailJob", "onExitCodes": fatal},
    ]


def _service(task: Task) -> Object:
    """DNS names for the pods: RUN-INDEX.RUN."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": task.metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # nodes look each other up before they are ready
            "selector": {contract.LABEL_RUN: task.run},
            "ports": [{"name": "nodes", "port": contract.NODES_PORT}],
        },
    }
