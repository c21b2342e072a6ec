"""A JobSet of one Indexed Job: the Job replaces pods that are lost, the set starts nothing anew."""

from collections.abc import Sequence
from typing import Any, Literal

from stoker.launch.jobs import KEPT, JobState
from stoker.launch.jobs.job import NODE, indexed, node
from stoker.launch.jobs.job import scaled as scaled_job
from stoker.launch.pod import Task
from stoker.launch.pod import template as pod_template
from stoker.spec import contract
from stoker.spec.on import Nodes

__all__ = ["node"]  # as in a plain Job

Object = dict[str, Any]
KIND = "JobSet"
CONTAINER = contract.CONTAINER
NEEDS = ("JobSet",)
OPERATOR = "JobSet"
LASTS = True
INSTALL = (
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
)
REPLICATED = "node"  # pods are called RUN-node-0-INDEX
NETWORK = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def manifest(task: Task) -> list[Object]:
    """Without a failure policy the set fails with its Job; with one it would begin anew for every pod that is lost."""
    spec = {"ttlSecondsAfterFinished": KEPT} | jobs(task, indexed(task, pod_template(task, node=NODE)))
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state="stopping")
    status = job.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Completed":
            return JobState(state="done")
        if condition["status"] == "True" and condition["type"] == "Failed":
            return JobState(state="failed", reason=condition.get("message", ""))
    return JobState(state=counted(status.get("replicatedJobsStatus")))


def inside(run: str) -> list[tuple[str, str]]:
    return [("Job", f"{run}-{REPLICATED}-0")]


def template(objects: Sequence[Object]) -> Object:
    [replicated] = objects[-1]["spec"]["replicatedJobs"]
    found: Object = replicated["template"]["spec"]["template"]
    return found


def trials(objects: Sequence[Object]) -> list[Object]:
    """The controller makes the Job later, and nobody would hear what is wrong with it."""
    *_, owner = objects
    return [*objects, inner(owner["metadata"], owner["spec"])]


def scaled(job: Object, nodes: Nodes) -> Object | None:
    """Of its Job the two counts alone can be changed, and not how many pods may fail. A list is replaced whole."""
    [replicated] = job["spec"]["replicatedJobs"]
    made = replicated["template"]
    patch = scaled_job(made, nodes)
    if patch is None or patch["spec"]["maxFailedIndexes"] != made["spec"].get("maxFailedIndexes"):
        return None
    return {"spec": {"replicatedJobs": [replicated | {"template": made | {"spec": made["spec"] | patch["spec"]}}]}}


def jobs(task: Task, job: Object, *, labels: dict[str, str] | None = None) -> Object:
    """The spec of a set that has this Job alone."""
    made = {"metadata": {"labels": task.labels | (labels or {})}, "spec": job}
    return {
        "network": dict(NETWORK),
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": made}],
    }


def inner(metadata: Object, spec: Object) -> Object:
    """The Job that a set of this spec makes."""
    [replicated] = spec["replicatedJobs"]
    [(_, own)] = inside(metadata["name"])
    name = {"name": own, "labels": replicated["template"]["metadata"]["labels"]}
    job = replicated["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata | name, "spec": job}


def counted(status: Sequence[Object] | None) -> Literal["running", "waiting"]:
    """A Job is ready when all its pods are; one that lost a pod, or found room for some only, says no more."""
    return "running" if any(one.get("ready") for one in status or []) else "waiting"
