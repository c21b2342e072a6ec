"""The pods of a run, as the API server describes them: pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stoker.rundir import Record
from stoker.spec import contract

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRow:
    """The newest pod of one node of the run."""

    node: int | None
    ranks: str
    """`0-3`, or empty where nobody has told."""
    pod: str
    state: str
    """Running, Pending, Succeeded, Failed, Stopping, or what keeps it from starting."""
    reason: str
    machine: str
    """The cluster's node that it is on."""
    image: str
    """By its digest, once it was pulled."""
    restarts: int
    since: float | None
    code: int | None = None
    """That its container ended with."""


def pod_rows(
    pods: Iterable[Object],
    node: Callable[[Object], int | None],
    seats: list[Record],
    *,
    container: str = contract.CONTAINER,
) -> list[PodRow]:
    """`seats`: who has which ranks, as the run's records say. Of each pod no more than its row is kept."""
    ranks: dict[object, str] = {str(seat.get("pod")): _ranks(seat) for seat in seats}
    newest: dict[object, tuple[str, PodRow]] = {}
    for pod in pods:
        index, born = node(pod), str(pod["metadata"].get("creationTimestamp", ""))
        row = _row(pod, index, ranks, container)
        key = row.pod if index is None else index
        before, last = newest.get(key, (born, row))
        first = key not in newest
        shown = row if before <= born else last
        restarts = row.restarts if first else 1 + last.restarts + row.restarts
        newest[key] = (max(before, born), replace(shown, restarts=restarts))
    found = [row for _, row in newest.values()]
    return sorted(found, key=lambda row: (row.node is None, row.node or 0, row.pod))


def seconds(stamp: str | None) -> float | None:
    """Since 1970, of a time as Kubernetes writes it."""
    return None if not stamp else datetime.fromisoformat(stamp).timestamp()


def _row(pod: Object, node: int | None, ranks: dict[object, str], container: str) -> PodRow:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    ours: Object = next((one for one in status.get("containerStatuses", []) if one["name"] == container), {})
    state, reason = _state(pod, ours)
    return PodRow(
        node=node,
        ranks=ranks.get(name, ""),
        pod=name,
        state=state,
        reason=" ".join(reason.split()),
        machine=pod["spec"].get("nodeName", ""),
        image=ours.get("imageID", "").rpartition("://")[2] or _image(pod, container),
        restarts=ours.get("restartCount", 0),
        since=seconds(status.get("startTime") or pod["metadata"].get("creationTimestamp")),
        code=(ours.get("state", {}).get("terminated") or {}).get("exitCode"),
    )


def _state(pod: Object, container: Object) -> tuple[str, str]:
    status = pod.get("status", {})
    state = container.get("state", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "Stopping", ""
    for init in status.get("initContainerStatuses") or []:
        waits = (init.get("state") or {}).get("waiting") or {}
        if waits.get("reason") not in (None, "PodInitializing"):
            return f"Init:{waits['reason']}", f"{init['name']}: {waits.get('message', '')}"
    if waiting := state.get("waiting"):
        return waiting.get("reason", "Waiting"), waiting.get("message", "")
    if (ended := state.get("terminated")) and status.get("phase") == "Failed":
        why = ended.get("reason", "Error")
        return "Failed", f"exit code {ended['exitCode']}" + (f" ({why})" if why != "Error" else "")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "Pending", condition.get("message", "")
    return status.get("phase", "Unknown"), status.get("message") or status.get("reason") or ""


def _image(pod: Object, container: str) -> str:
    return next((str(one["image"]) for one in pod["spec"]["containers"] if one["name"] == container), "")


def _ranks(seat: Record) -> str:
    first, workers = seat.get("first"), seat.get("workers")
    if not isinstance(first, int) or not isinstance(workers, int):
        return ""  # not what a supervisor writes
    last = first + workers - 1
    return str(first) if first == last else f"{first}-{last}"
