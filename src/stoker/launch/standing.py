"""Where a job stands: its own word, and where that says too little, its pods'."""

from typing import Any

from stoker.kube import Cluster, Forbidden
from stoker.launch.jobs import JobState, job_kind
from stoker.rundir import PlaceRef
from stoker.spec import contract

Object = dict[str, Any]


def standing(cluster: Cluster, place: PlaceRef, job: Object) -> JobState:
    """A JobSet is ready with all its pods only, so one that waits may well run with some."""
    said = job_kind(place.job).state(job)
    if said.state != "waiting":
        return said
    try:
        phases = {phase for phase in ("Running", "Failed") if _any(cluster, place.run, phase)}
    except Forbidden:
        return said
    return JobState(state="running") if "Running" in phases else JobState(state="restarting") if phases else said


def _any(cluster: Cluster, run: str, phase: str) -> bool:
    ours = {contract.LABEL_RUN: run}
    return any(cluster.list("Pod", labels=ours, fields={"status.phase": phase}, limit=1))
