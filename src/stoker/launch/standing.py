"""Where a job stands: its own word, and where that says too little, its pods'."""

from typing import Any

from stoker.kube import Cluster, Forbidden
from stoker.launch.jobs import JobState, job_kind
from stoker.rundir import PlaceRef
from stoker.spec import contract

Object = dict[str, Any]


def standing(cluster: Cluster, place: PlaceRef, job: Object | None) -> JobState | None:
    """None when it is gone, with all that stood between it and the pods.

    A JobSet is ready with all its pods only, so one that waits may well run with some.
    """
    kind = job_kind(place.job)
    if job is None:
        left = any(cluster.get(inner, name) for inner, name in kind.inside(place.run))
        return JobState(state="stopping") if left else None
    said = kind.state(job)
    if said.state != "waiting" or said.reason:  # one that is suspended makes nothing, whatever is left of its pods
        return said
    try:
        phases = {phase for phase in ("Running", "Failed") if _any(cluster, place.run, phase)}
    except Forbidden:
        return said
    return JobState(state="running") if "Running" in phases else JobState(state="restarting") if phases else said


def _any(cluster: Cluster, run: str, phase: str) -> bool:
    ours = {contract.LABEL_RUN: run}
    return any(cluster.list("Pod", labels=ours, fields={"status.phase": phase}, limit=1))
