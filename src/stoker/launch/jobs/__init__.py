"""The JobKind seam: what carries a run's pods in a cluster. One file a kind: pure functions and a few names."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from stoker.kube.kinds import key_of
from stoker.launch.pod import Task
from stoker.spec.on import Nodes

Object = dict[str, Any]
KEPT = 7 * 24 * 3600  # seconds that a job is kept when it has ended, for kubectl's sake; the run's records stay
KINDS = {
    "job": "stoker.launch.jobs.job",
    "jobset": "stoker.launch.jobs.jobset",
    "pytorchjob": "stoker.launch.jobs.pytorchjob",
    "trainjob": "stoker.launch.jobs.trainjob",
    "vcjob": "stoker.launch.jobs.vcjob",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """Where a job stands, as its own object says."""

    state: Literal["waiting", "running", "restarting", "done", "failed", "stopping"]
    reason: str = ""


class JobKind(Protocol):
    KIND: str
    """Of the object that owns all others."""
    CONTAINER: str
    """Of its pods: the one with the supervisor."""
    NEEDS: Sequence[str]
    """Kinds that the cluster must know for it, beyond Kubernetes' own."""
    OPERATOR: str
    """Who brings them, in words."""
    INSTALL: str
    """The command that does."""
    LASTS: bool
    """Deleted in the foreground it stays until its pods are gone."""

    def manifest(self, task: Task) -> list[Object]:
        """The objects, the owner last. Pure."""

    def state(self, job: Object) -> JobState:
        """Pure. `waiting` where the job does not say that a pod of it runs; the pods themselves may."""

    def node(self, pod: Object) -> int | None:
        """Which node of the run a pod is. Pure."""

    def inside(self, run: str) -> list[tuple[str, str]]:
        """Kind and name of what its controller puts between it and the pods. Pure."""

    def template(self, objects: Sequence[Object]) -> Object:
        """The pod of one node, in the objects of a manifest. Pure."""

    def trials(self, objects: Sequence[Object]) -> list[Object]:
        """What the API server is asked to try before anything is made. Pure."""

    def scaled(self, job: Object, nodes: Nodes) -> Object | None:
        """A merge patch that gives it so many nodes while it runs; None: it has to be made anew. Pure."""


def job_kind(name: str) -> JobKind:
    return cast(JobKind, importlib.import_module(KINDS[name]))


def kind_name(owner: Object) -> str:
    """The name of its kind in KINDS."""
    key = key_of(owner)
    return next(name for name in KINDS if key == job_kind(name).KIND)
