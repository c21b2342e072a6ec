"""`on.job: auto`: what carries the pods where nobody has said."""

from collections.abc import Collection

from stoker.launch.jobs import job_kind
from stoker.spec.on import On

ORDER = {  # the first that the cluster has, and what speaks for it
    "vcjob": "its pods start together or wait together",
    "trainjob": "it is Kubeflow's own way",
    "jobset": "its pods have names",
    "pytorchjob": "a range of nodes can be resized while it trains",
    "job": "no operator is installed",
}


def chosen(on: On, there: Collection[str] | None, *, kueue: bool) -> tuple[str, str]:
    """The kind, and why that one. Pure. `there`: the kinds whose operators the cluster has, as far as it is known."""
    if on.job != "auto":
        return on.job, ""
    if on.runtime:
        return "trainjob", "on.runtime is for that kind"
    if on.queue_make is not None:
        return "vcjob", "on.queue_make is for that kind"
    if there is None:
        return "job", "the cluster could not be looked at"
    fitting = [name for name in ORDER if name in there]
    if on.queue and kueue:
        first = next(name for name in fitting if name != "vcjob")
        return first, f"on.queue is Kueue's, and {ORDER[first]}"
    first = fitting[0]
    who = f"{job_kind(first).OPERATOR} is installed, and " if first != "job" else ""
    return first, f"{who}{ORDER[first]}"
