"""Facts from the job of a run, whatever its kind. Pure."""

import json
import shlex
from typing import Any

from stoker.backends.kubernetes.jobs.vcjob import SUSPENDED
from stoker.backends.kubernetes.plan import LABEL_QUEUE

Object = dict[str, Any]


def wanted_pods(job: Object | None, default: int) -> int:
    """How many pods it should have now: an autoscaler may have changed that."""
    spec = (job or {}).get("spec") or {}
    if jobs := spec.get("replicatedJobs"):
        spec = jobs[0]["template"]["spec"]
    roles = [*(spec.get("pytorchReplicaSpecs") or {}).values(), *(spec.get("tasks") or [])]
    if roles:
        return sum(role.get("replicas", 1) for role in roles)
    return int((spec.get("trainer") or {}).get("numNodes") or spec.get("completions") or default)


def first_pod(job: Object) -> tuple[str, Object] | None:
    """Name and spec of the first pod of a Volcano job."""
    tasks = job["spec"].get("tasks") or []
    return (f"{job['metadata']['name']}-{tasks[0]['name']}-0", tasks[0]["template"]["spec"]) if tasks else None


def suspension(job: Object | None, kubectl: str, name: str) -> tuple[bool, str]:
    """Whether it is suspended, and the command that resumes it. `name`: kind and name, as kubectl takes them."""
    spec = (job or {}).get("spec") or {}
    if spec.get("suspend"):
        return True, _patch(kubectl, name, {"spec": {"suspend": False}})
    if (spec.get("runPolicy") or {}).get("suspend"):
        return True, _patch(kubectl, name, {"spec": {"runPolicy": {"suspend": False}}})
    if job and _volcano(job).get("phase") in SUSPENDED:
        metadata = job["metadata"]
        return True, f"vcctl job resume --name {metadata['name']} --namespace {metadata['namespace']}"
    return False, ""


def failure(job: Object | None) -> tuple[str, str]:
    """The reason and the message of its failure."""
    for condition in ((job or {}).get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in ("Failed", "FailureTarget"):
            return condition.get("reason") or "", condition.get("message") or ""
    state = _volcano(job or {})
    return state.get("reason") or "", state.get("message") or ""


def kueue_queue(job: Object | None) -> str:
    """The Kueue queue that it waits in."""
    return ((job or {}).get("metadata", {}).get("labels") or {}).get(LABEL_QUEUE) or ""


def _volcano(job: Object) -> Object:
    state: Object = (job.get("status") or {}).get("state") or {}
    return state


def _patch(kubectl: str, name: str, change: Object) -> str:
    return f"{kubectl} patch {name} --type=merge -p {shlex.quote(json.dumps(change))}"
