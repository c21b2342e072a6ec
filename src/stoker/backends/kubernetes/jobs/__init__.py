"""The JobKind seam: the Kubernetes job of a run. One file for each kind, with pure functions and a few names."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from stoker.backends.kubernetes.pod import Task
from stoker.kube.kinds import key_of
from stoker.rundir.state import RunState
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes

Object = dict[str, Any]
JOB_TTL_S = 7 * 24 * 3600  # how long an ended job is kept, for kubectl; the run's records stay on the volume
KINDS = {
    "job": "stoker.backends.kubernetes.jobs.job",
    "jobset": "stoker.backends.kubernetes.jobs.jobset",
    "pytorchjob": "stoker.backends.kubernetes.jobs.pytorchjob",
    "trainjob": "stoker.backends.kubernetes.jobs.trainjob",
    "vcjob": "stoker.backends.kubernetes.jobs.vcjob",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """The state of a job, from its own object."""

    state: RunState
    reason: str = ""


class JobKind(Protocol):
    KIND: str
    """The kind of the object that owns all others."""
    CONTAINER: str
    """The container with the supervisor, in its pods."""
    NEEDS: Sequence[str]
    """Custom resources that the cluster must serve."""
    OPERATOR: str
    """The name of the operator that provides them."""
    INSTALL: str
    """The command that installs the operator."""
    FOREGROUND: bool
    """It can be deleted in the foreground: it then stays until its pods are gone."""

    def manifest(self, task: Task) -> list[Object]:
        """The objects, the owner last. Pure."""

    def state(self, job: Object) -> JobState:
        """WAITING where the job does not report a running pod; its pods may run nevertheless. Pure."""

    def node(self, pod: Object) -> int | None:
        """The index of the node that a pod is. Pure."""

    def inner_objects(self, run: str) -> list[tuple[str, str]]:
        """Kind and name of the objects that its controller creates, which in turn create the pods. Pure."""

    def template(self, objects: Sequence[Object]) -> Object:
        """The pod template in the objects of a manifest. Pure."""

    def dry_run_objects(self, objects: Sequence[Object]) -> list[Object]:
        """The objects that the API server checks in a dry run, before anything is created. Pure."""

    def scale_patch(self, job: Object, nodes: Nodes) -> Object | None:
        """A merge patch that sets its number of nodes while it runs; None: it must be recreated. Pure."""


def job_kind(name: str) -> JobKind:
    if name not in KINDS:
        raise UserError(f"this version of Stoker has no kind of job '{name}'", remedy=f"There are: {', '.join(KINDS)}")
    return cast(JobKind, importlib.import_module(KINDS[name]))


def kind_name(owner: Object) -> str:
    """The key in KINDS of the kind of this object."""
    key = key_of(owner)
    return next(name for name in KINDS if key == job_kind(name).KIND)
