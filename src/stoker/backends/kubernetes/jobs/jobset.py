"""A JobSet with one Indexed Job: the Job replaces lost pods, the JobSet restarts nothing."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.kubernetes.jobs import JOB_TTL_S, JobState
from stoker.backends.kubernetes.jobs.job import NODE, indexed, node
from stoker.backends.kubernetes.jobs.job import scale_patch as job_scale_patch
from stoker.backends.kubernetes.pod import Task
from stoker.backends.kubernetes.pod import template as pod_template
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.on import Nodes

__all__ = ["node"]  # as in a plain Job

Object = dict[str, Any]
KIND = "JobSet"
CONTAINER = contract.CONTAINER
NEEDS = ("JobSet",)
OPERATOR = "JobSet"
FOREGROUND = True
INSTALL = (
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
)
REPLICATED = "node"  # pods are called RUN-node-0-INDEX
NETWORK = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def manifest(task: Task) -> list[Object]:
    """Without a failure policy the JobSet fails with its Job; with one it would restart for every lost pod."""
    spec = {"ttlSecondsAfterFinished": JOB_TTL_S} | jobset_spec(task, indexed(task, pod_template(task, node=NODE)))
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state=RunState.STOPPING)
    status = job.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Completed":
            return JobState(state=RunState.DONE)
        if condition["status"] == "True" and condition["type"] == "Failed":
            return JobState(state=RunState.FAILED, reason=condition.get("message", ""))
    return JobState(state=ready_state(status.get("replicatedJobsStatus")))


def inner_objects(run: str) -> list[tuple[str, str]]:
    return [("Job", f"{run}-{REPLICATED}-0")]


def template(objects: Sequence[Object]) -> Object:
    [replicated] = objects[-1]["spec"]["replicatedJobs"]
    pod: Object = replicated["template"]["spec"]["template"]
    return pod


def dry_run_objects(objects: Sequence[Object]) -> list[Object]:
    """Includes the Job: the controller creates it later, and its errors would go unnoticed."""
    *_, owner = objects
    return [*objects, inner_job(owner["metadata"], owner["spec"])]


def scale_patch(job: Object, nodes: Nodes) -> Object | None:
    """Only the two counts of its Job can change, not how many pods may fail. A merge patch replaces a whole list."""
    [replicated] = job["spec"]["replicatedJobs"]
    template = replicated["template"]
    patch = job_scale_patch(template, nodes)
    if patch is None or patch["spec"]["maxFailedIndexes"] != template["spec"].get("maxFailedIndexes"):
        return None
    changed = template | {"spec": template["spec"] | patch["spec"]}
    return {"spec": {"replicatedJobs": [replicated | {"template": changed}]}}


def jobset_spec(task: Task, job: Object, *, labels: dict[str, str] | None = None) -> Object:
    """The spec of a JobSet with this Job only."""
    template = {"metadata": {"labels": task.labels | (labels or {})}, "spec": job}
    return {
        "network": dict(NETWORK),
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": template}],
    }


def inner_job(metadata: Object, spec: Object) -> Object:
    """The Job that a JobSet with this spec creates."""
    [replicated] = spec["replicatedJobs"]
    [(_, job_name)] = inner_objects(metadata["name"])
    named = {"name": job_name, "labels": replicated["template"]["metadata"]["labels"]}
    job = replicated["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata | named, "spec": job}


def ready_state(status: Sequence[Object] | None) -> RunState:
    """A Job counts as ready when all its pods are; with fewer the JobSet does not report any."""
    return RunState.RUNNING if any(job.get("ready") for job in status or []) else RunState.WAITING
