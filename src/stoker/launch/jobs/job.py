"""A plain Indexed Job and a headless Service: no operator at all."""

from collections.abc import Sequence
from typing import Any

from stoker.launch.jobs import KEPT, JobState
from stoker.launch.pod import Task
from stoker.launch.pod import template as pod_template
from stoker.spec import contract
from stoker.spec.on import Nodes

Object = dict[str, Any]
KIND = "Job"
CONTAINER = contract.CONTAINER
NEEDS: tuple[str, ...] = ()
OPERATOR = ""
LASTS = True
INSTALL = ""
INDEX = "batch.kubernetes.io/job-completion-index"
NODE = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
TRIES = 10  # of one node, by signals: memory that ran out, a supervisor killed


def manifest(task: Task) -> list[Object]:
    spec = {"ttlSecondsAfterFinished": KEPT} | indexed(task, pod_template(task, node=NODE, subdomain=task.run))
    return [_service(task), {"apiVersion": "batch/v1", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state="stopping")
    status = job.get("status", {})
    for condition in status.get("conditions", []):
        if condition["status"] == "True" and condition["type"] in ("Complete", "SuccessCriteriaMet"):
            return JobState(state="done")
        if condition["status"] == "True" and condition["type"] in ("Failed", "FailureTarget"):
            return JobState(state="failed", reason=condition.get("message", ""))
    if status.get("ready"):
        return JobState(state="running")
    return JobState(state="restarting" if status.get("failed") else "waiting")


def node(pod: Object) -> int | None:
    index = pod["metadata"].get("annotations", {}).get(INDEX) or pod["metadata"].get("labels", {}).get(INDEX)
    return None if index is None else int(index)


def inside(run: str) -> list[tuple[str, str]]:  # noqa: ARG001 (of others it needs the name)
    return []


def template(objects: Sequence[Object]) -> Object:
    found: Object = objects[-1]["spec"]["template"]
    return found


def trials(objects: Sequence[Object]) -> list[Object]:
    return list(objects)


def scaled(job: Object, nodes: Nodes) -> Object | None:
    """When it is done cannot be said anew: one that waits for all its pods would wait for those without room."""
    if not nodes.fixed and "successPolicy" not in job["spec"]:
        return None
    counts = {"completions": nodes.most, "parallelism": nodes.most}
    return {"spec": counts | {"maxFailedIndexes": nodes.most - nodes.least}}


def indexed(task: Task, pod: Object, *, container: str = CONTAINER) -> Object:
    """The spec of a Job with a pod for each node, which is replaced when it is lost."""
    nodes = task.spec.on.nodes
    spec: Object = {
        "completionMode": "Indexed",
        "completions": nodes.most,
        "parallelism": nodes.most,
        "backoffLimitPerIndex": TRIES,
        "maxFailedIndexes": nodes.most - nodes.least,  # with fewer the others would wait in vain
        "podFailurePolicy": {"rules": _failures(container)},
        "template": pod,
    }
    if not nodes.fixed:  # the first node that is done knows that all is: others may never have found room
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
    return spec


def _failures(container: str) -> list[Object]:
    """The first that fits counts."""
    again = {"containerName": container, "operator": "In", "values": [contract.EXIT_AGAIN]}
    fatal = {"containerName": container, "operator": "In", "values": list(range(1, 128))}
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": again},
        {"action": "FailJob", "onExitCodes": fatal},
    ]


def _service(task: Task) -> Object:
    """Names for the pods: RUN-INDEX.RUN."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": task.metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # nodes find each other before any of them is ready
            "selector": {contract.LABEL_RUN: task.run},
            "ports": [{"name": "nodes", "port": contract.NODES_PORT}],
        },
    }
