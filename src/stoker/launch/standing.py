"""Where a job stands: its own word, and where that says too little, its pods'."""

from collections.abc import Set
from typing import Any

from stoker.kube import Cluster, Forbidden
from stoker.launch.jobs import JobState, job_kind
from stoker.rundir import PlaceRef
from stoker.spec import contract

Object = dict[str, Any]


def standing(cluster: Cluster, place: PlaceRef, job: Object | None) -> JobState | None:
    """None when it is gone, with all that stood between it and the pods."""
    kind = job_kind(place.job)
    if job is None:
        left = any(cluster.get(inner, name) for inner, name in kind.inside(place.run))
        return JobState(state="stopping") if left else None
    said = kind.state(job)
    if not _says_too_little(said):
        return said
    try:
        return with_pods(said, {phase for phase in ("Running", "Failed") if _any(cluster, place.run, phase)})
    except Forbidden:
        return said


def with_pods(said: JobState, phases: Set[str]) -> JobState:
    """What a job says of itself, and the phases of its pods. Pure.

    A JobSet is ready with all its pods only, so one that waits may well run with some.
    """
    if not _says_too_little(said):
        return said
    if "Running" in phases:
        return JobState(state="running")
    return JobState(state="restarting") if "Failed" in phases else said


def _says_too_little(said: JobState) -> bool:
    return said.state == "waiting" and not said.reason  # one that is suspended makes nothing, whatever is left of it


def _any(cluster: Cluster, run: str, phase: str) -> bool:
    ours = {contract.LABEL_RUN: run}
    return any(cluster.list("Pod", labels=ours, fields={"status.phase": phase}, limit=1))
