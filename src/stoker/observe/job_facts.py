"""What the object that carries a run's pods says of itself, whatever its kind. Pure."""

import json
import shlex
from typing import Any

from stoker.launch.jobs.vcjob import SUSPENDED
from stoker.launch.kubernetes import LABEL_QUEUE

Object = dict[str, Any]


def wanted(job: Object | None, otherwise: int) -> int:
    """How many pods it is to have now: an autoscaler may have changed that."""
    spec = (job or {}).get("spec") or {}
    if jobs := spec.get("replicatedJobs"):
        spec = jobs[0]["template"]["spec"]
    roles = [*(spec.get("pytorchReplicaSpecs") or {}).values(), *(spec.get("tasks") or [])]
    if roles:
        return sum(one.get("replicas", 1) for one in roles)
    return int((spec.get("trainer") or {}).get("numNodes") or spec.get("completions") or otherwise)


def first_pod(job: Object) -> tuple[str, Object] | None:
    """Name and spec of a Volcano job's: TorchX makes a task of each."""
    tasks = job["spec"].get("tasks") or []
    return (f"{job['metadata']['name']}-{tasks[0]['name']}-0", tasks[0]["template"]["spec"]) if tasks else None


def suspension(job: Object | None, kubectl: str, name: str) -> tuple[bool, str]:
    """Whether it is suspended, and the command that lets it go on. `name`: kind and name, as kubectl takes them."""
    spec = (job or {}).get("spec") or {}
    if spec.get("suspend"):
        return True, _patch(kubectl, name, {"spec": {"suspend": False}})
    if (spec.get("runPolicy") or {}).get("suspend"):
        return True, _patch(kubectl, name, {"spec": {"runPolicy": {"suspend": False}}})
    if job and _volcano(job).get("phase") in SUSPENDED:
        meta = job["metadata"]
        return True, f"vcctl job resume --name {meta['name']} --namespace {meta['namespace']}"
    return False, ""


def blame(job: Object | None) -> tuple[str, str]:
    """The reason that it gives for its failure, and the same in its own words."""
    for condition in ((job or {}).get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in ("Failed", "FailureTarget"):
            return condition.get("reason") or "", condition.get("message") or ""
    said = _volcano(job or {})
    return said.get("reason") or "", said.get("message") or ""


def kueue(job: Object | None) -> str:
    """The queue of Kueue's that it waits in."""
    return ((job or {}).get("metadata", {}).get("labels") or {}).get(LABEL_QUEUE) or ""


def _volcano(job: Object) -> Object:
    state: Object = (job.get("status") or {}).get("state") or {}
    return state


def _patch(kubectl: str, name: str, change: Object) -> str:
    return f"{kubectl} patch {name} --type=merge -p {shlex.quote(json.dumps(change))}"
