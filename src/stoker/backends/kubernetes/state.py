"""The state of a run's job and of its pods, as the API server reports them."""

import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.backends.kubernetes.jobs import JobState, job_kind
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.kube import Cluster, Forbidden, Object
from stoker.rundir import Record
from stoker.rundir.state import RunState
from stoker.spec import contract

MAX_ASKED = 256  # pods of a run that are asked at the same time
OBJECT_SUFFIXES = {
    "Pod": re.compile(
        r"([0-9]+|node-[0-9]+(-[0-9]+)?)(-[a-z0-9]{5})?|(master|worker)-[0-9]+|reader|mover|shell-[0-9a-f]+"
    ),
    "Service": re.compile(r"(master|worker)-[0-9]+"),
    "PodGroup": re.compile(r"[0-9a-f-]{36}"),
}
"""What follows the name of the run in the names of objects that controllers and Stoker create for it."""


def job_state(cluster: Cluster, place: ClusterPlace, job: Object | None) -> JobState | None:
    """The job's own state or, where it reports none, the state of its pods. None when the job and all that it created
    are gone.
    """
    kind = job_kind(place.job)
    if job is None:
        remaining = any(cluster.get(inner, name) for inner, name in kind.inner_objects(place.run))
        return JobState(state=RunState.STOPPING) if remaining else None
    state = kind.state(job)
    if not _depends_on_pods(state):
        return state
    try:
        return with_pod_phases(state, {phase for phase in ("Running", "Failed") if _any(cluster, place.run, phase)})
    except Forbidden:
        return state


def with_pod_phases(state: JobState, phases: Set[str]) -> JobState:
    """The state of a job whose pods are in these phases. Pure.

    A JobSet is ready only once all its pods are, so a JobSet that waits may already train on some of them.
    """
    if not _depends_on_pods(state):
        return state
    if "Running" in phases:
        return JobState(state=RunState.RUNNING)
    return JobState(state=RunState.RESTARTING) if "Failed" in phases else state


def _depends_on_pods(state: JobState) -> bool:
    """False if the job has a reason to wait: a suspended job starts no pods, whatever the phase of old pods."""
    return state.state is RunState.WAITING and not state.reason


def _any(cluster: Cluster, run: str, phase: str) -> bool:
    return any(cluster.list("Pod", labels={contract.LABEL_RUN: run}, fields={"status.phase": phase}, limit=1))


def is_up(pod: Object) -> bool:
    """All its containers run, and it is not being deleted."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    running = status.get("phase") == "Running" and all("running" in state for state in states)
    return running and "deletionTimestamp" not in pod["metadata"]


def has_started(pod: Object, container: str) -> bool:
    """Whether that container runs, or has run. Pure."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status["name"] == container:
            states = (status.get("state") or {}, status.get("lastState") or {})
            return any("running" in state or "terminated" in state for state in states)
    return False


def unscheduled_reason(pod: Object) -> str:
    """The scheduler's message, for a pod that fits no node."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    unschedulable = (condition for condition in conditions if condition.get("reason") == "Unschedulable")
    return next((condition.get("message") or "" for condition in unschedulable), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRow:
    """The newest pod of one node of the run."""

    node: int | None
    ranks: str
    """`0-3`, or empty where the records do not say."""
    pod: str
    state: str
    """Running, Pending, Succeeded, Failed, Stopping, or what keeps it from starting."""
    reason: str
    machine: str
    """The Kubernetes node that it runs on."""
    image: str
    """By its digest, once it was pulled."""
    restarts: int
    since: float | None
    code: int | None = None
    """The exit code of its container."""


def pod_rows(
    pods: Iterable[Object],
    node: Callable[[Object], int | None],
    node_records: list[Record],
    *,
    container: str = contract.CONTAINER,
) -> list[PodRow]:
    """`node_records`: the ranks of each node, from the run's records. Only the row of each pod is kept in memory."""
    ranks: dict[object, str] = {str(record.get("pod")): _ranks(record) for record in node_records}
    newest: dict[object, tuple[str, PodRow]] = {}
    for pod in pods:
        index, created = node(pod), str(pod["metadata"].get("creationTimestamp", ""))
        row = _row(pod, index, ranks, container)
        key = row.pod if index is None else index
        before, last = newest.get(key, (created, row))
        first = key not in newest
        shown = row if before <= created else last
        restarts = row.restarts if first else 1 + last.restarts + row.restarts
        newest[key] = (max(before, created), replace(shown, restarts=restarts))
    rows = [row for _, row in newest.values()]
    return sorted(rows, key=lambda row: (row.node is None, row.node or 0, row.pod))


def seconds(stamp: str | None) -> float | None:
    """Seconds since 1970, from a timestamp of Kubernetes."""
    return None if not stamp else datetime.fromisoformat(stamp).timestamp()


def is_about(event: Object, place: ClusterPlace) -> bool:
    """Whether an event of Kubernetes is about an object of the run.

    A prefix of its name is not enough: `gpt` and `gpt-2` may both be runs.
    """
    subject = event["involvedObject"]
    kind, name = subject.get("kind") or "", subject.get("name") or ""
    suffix = OBJECT_SUFFIXES.get(kind)
    if suffix and name.startswith(f"{place.run}-"):
        return suffix.fullmatch(name.removeprefix(f"{place.run}-")) is not None
    return name == place.run or (kind, name) in job_kind(place.job).inner_objects(place.run)


def event_time(event: Object) -> float:
    """When an event of Kubernetes was last seen."""
    series = (event.get("series") or {}).get("lastObservedTime")
    stamp = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return seconds(stamp) or 0.0


def _row(pod: Object, node: int | None, ranks: dict[object, str], container: str) -> PodRow:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    statuses = status.get("containerStatuses", [])
    own: Object = next((status for status in statuses if status["name"] == container), {})
    state, reason = _pod_state(pod, own)
    return PodRow(
        node=node,
        ranks=ranks.get(name, ""),
        pod=name,
        state=state,
        reason=" ".join(reason.split()),
        machine=pod["spec"].get("nodeName", ""),
        image=own.get("imageID", "").rpartition("://")[2] or _image(pod, container),
        restarts=own.get("restartCount", 0),
        since=seconds(status.get("startTime") or pod["metadata"].get("creationTimestamp")),
        code=(own.get("state", {}).get("terminated") or {}).get("exitCode"),
    )


def _pod_state(pod: Object, container: Object) -> tuple[str, str]:
    """Its state and the reason for it."""
    status = pod.get("status", {})
    state = container.get("state", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "Stopping", ""
    for init in status.get("initContainerStatuses") or []:
        waiting = (init.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing"):
            return f"Init:{waiting['reason']}", f"{init['name']}: {waiting.get('message', '')}"
    if waiting := state.get("waiting"):
        return waiting.get("reason", "Waiting"), waiting.get("message", "")
    if (terminated := state.get("terminated")) and status.get("phase") == "Failed":
        why = terminated.get("reason", "Error")
        return "Failed", f"exit code {terminated['exitCode']}" + (f" ({why})" if why != "Error" else "")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "Pending", condition.get("message", "")
    return status.get("phase", "Unknown"), status.get("message") or status.get("reason") or ""


def _image(pod: Object, container: str) -> str:
    containers = pod["spec"]["containers"]
    return next((str(spec["image"]) for spec in containers if spec["name"] == container), "")


def _ranks(record: Record) -> str:
    first, workers = record.get("first"), record.get("workers")
    if not isinstance(first, int) or not isinstance(workers, int):
        return ""  # not written by a supervisor
    last = first + workers - 1
    return str(first) if first == last else f"{first}-{last}"


def evenly(pods: Sequence[Object], most: int = MAX_ASKED) -> list[Object]:
    """A sample of at most `most` pods, evenly spaced from the first to the last. Pure."""
    count = min(most, len(pods))
    return [pods[index * len(pods) // count] for index in range(count)]
