"""The JobKind seam: what carries a run's pods in a cluster. One file a kind, two pure functions and a few names."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from stoker.launch.pod import Task
from stoker.spec.on import Nodes

Object = dict[str, Any]
KEPT = 7 * 24 * 3600  # seconds that a job is kept when it has ended, for kubectl's sake; the run's records stay
KINDS = {"job": "stoker.launch.jobs.job", "pytorchjob": "stoker.launch.jobs.pytorchjob"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """Where a job stands, as its own object says."""

    state: Literal["waiting", "running", "restarting", "done", "failed", "stopping"]
    reason: str = ""


class JobKind(Protocol):
    KIND: str
    """Of the object that owns all others."""
    NEEDS: Sequence[str]
    """Kinds that the cluster must know for it, beyond Kubernetes' own."""
    INSTALL: str
    """The command that brings them."""

    def manifest(self, task: Task) -> list[Object]:
        """The objects, the owner last. Pure."""

    def state(self, job: Object) -> JobState:
        """Pure."""

    def node(self, pod: Object) -> int | None:
        """Which node of the run a pod is. Pure."""

    def scaled(self, job: Object, nodes: Nodes) -> Object | None:
        """A merge patch that gives it so many nodes while it runs; None: it has to be made anew. Pure."""


def job_kind(name: str) -> JobKind:
    return cast(JobKind, importlib.import_module(KINDS[name]))
