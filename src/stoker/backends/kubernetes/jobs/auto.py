"""`on.job: auto`: which kind of job a run gets."""

from collections.abc import Collection

from stoker.backends.kubernetes.jobs import job_kind
from stoker.spec.on import KubernetesOn

ORDER = {  # the first that the cluster has, and its advantage
    "vcjob": "its pods start together or wait together",
    "trainjob": "it is Kubeflow's current API",
    "jobset": "its pods have names",
    "pytorchjob": "a range of nodes can be resized while it trains",
    "job": "no operator is installed",
}


def choose_job(on: KubernetesOn, installed: Collection[str] | None, *, kueue: bool) -> tuple[str, str]:
    """The kind, and the reason for it. `installed`: the kinds whose operators the cluster has, if known. Pure."""
    if on.job != "auto":
        return on.job, ""
    if on.runtime:
        return "trainjob", "on.runtime is for that kind"
    if on.queue_make is not None:
        return "vcjob", "on.queue_make is for that kind"
    if installed is None:
        return "job", "the cluster could not be reached"
    available = [name for name in ORDER if name in installed]
    if on.queue and kueue:
        first = next(name for name in available if name != "vcjob")
        return first, f"on.queue is a Kueue queue, and {ORDER[first]}"
    first = available[0]
    operator = f"{job_kind(first).OPERATOR} is installed, and " if first != "job" else ""
    return first, f"{operator}{ORDER[first]}"
