"""Facts about the pods of a run: the newest of each node, and how those before it ended. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stoker.backends.kubernetes.facts.scheduling import amount, obstacle
from stoker.backends.kubernetes.inventory import Machine, quantity
from stoker.backends.kubernetes.state import seconds
from stoker.diagnose.facts import UNKNOWN, PodFact
from stoker.spec.on import KubernetesOn

Object = dict[str, Any]
Newest = list[tuple[Object, list[Object]]]
"""The newest pod of each node, and those before it, newest first."""
TRACKING = "batch.kubernetes.io/job-tracking"  # a finalizer of every pod of a Job until it was counted
STABLE_AFTER_S = 120.0  # a pod that runs so long does not fail for the reason of the one before it


def newest(pods: Iterable[Object], node: Callable[[Object], int | None]) -> Newest:
    by_node: dict[object, list[Object]] = {}
    for pod in pods:
        index = node(pod)
        by_node.setdefault(pod["metadata"]["name"] if index is None else index, []).append(pod)
    groups = []
    for group in by_node.values():
        group.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True)
        groups.append((group[0], group[1:]))
    return sorted(groups, key=lambda group: (node(group[0]) is None, node(group[0]) or 0, group[0]["metadata"]["name"]))


def pod_fact(
    pod: Object,
    before: Sequence[Object],
    *,
    node: int | None,
    container: str,
    now: float,
    machines: Mapping[str, Machine] | None,
    on: KubernetesOn | None = None,
) -> PodFact:
    """`container`: the one with the supervisor; `machines`: all nodes, None where the user may not list them."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    own = _container_status(pod, container)
    blocking = _blocking_container(status, container)
    waiting = blocking.waiting
    started = seconds((_state(own, "running") or {}).get("startedAt"))
    up = max(0.0, now - started) if started else 0.0
    conditions = _conditions(pod)
    scheduled = conditions.get("PodScheduled", {})
    previous = before[0] if before and up < STABLE_AFTER_S else None
    own_failure = _failure(own)
    failure = own_failure or (_failure(_container_status(previous, container)) if previous else {})
    failed = previous if previous and not status.get("reason") else pod
    fact = PodFact(
        pod=metadata["name"],
        node=node,
        machine=spec.get("nodeName", ""),
        machine_state=_machine(spec.get("nodeName", ""), machines),
        image=_container_spec(pod, blocking.name or container).get("image", ""),
        container=blocking.name,
        init=blocking.init,
        injected=bool(blocking.name) and blocking.name not in _own_containers(on),
        init_code=blocking.code,
        phase=status.get("phase", ""),
        alive=any(_state(entry, "running") for entry in status.get("containerStatuses") or []),
        running_s=up,
        waiting_s=now - (seconds(metadata.get("creationTimestamp")) or now),
        unscheduled=scheduled.get("message") or "" if scheduled.get("status") == "False" else "",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        scheduler_saw=bool(scheduled) or bool(spec.get("nodeName")),
        waiting=waiting.get("reason", ""),
        message=waiting.get("message") or _message(failed) or failure.get("message") or "",
        exit_reason=failure.get("reason") or ("Error" if failure.get("exitCode") else ""),
        exit_code=failure.get("exitCode"),
        failed_pod=(previous or pod)["metadata"]["name"] if failure and not own_failure else metadata["name"],
        reason=failed.get("status", {}).get("reason") or "",
        disrupted=_disrupted(conditions) or (_disrupted(_conditions(previous)) if previous else ""),
        overdue_s=_overdue(metadata, now),
        finalizers=", ".join(name for name in metadata.get("finalizers") or [] if name != TRACKING),
        **_memory(_container_spec(pod, container), machines),
    )
    if not fact.unscheduled:
        return fact
    known = None if machines is None else list(machines.values())
    return replace(fact, **asdict(obstacle(pod, fact.unscheduled, known, on)))


def ended_at(pod: Object, container: str) -> str:
    """When its container failed; empty when it has not."""
    return str(_failure(_container_status(pod, container)).get("finishedAt") or "")


def _container_status(pod: Object, name: str) -> Object:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == name), {})


def _container_spec(pod: Object, name: str) -> Object:
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    return next((container for container in containers if container["name"] == name), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class _BlockingContainer:
    """The container that keeps a pod from starting."""

    name: str = ""
    """Empty: the run's own container, or none."""
    init: bool = False
    waiting: Object = field(default_factory=dict)
    code: int | None = None
    """The exit code of an init container that failed."""


def _blocking_container(status: Object, container: str) -> _BlockingContainer:
    """The first container that waits, or init container that failed; init containers come first."""
    statuses = [(entry, True) for entry in status.get("initContainerStatuses") or []]
    statuses += [(entry, False) for entry in status.get("containerStatuses") or []]
    for entry, init in statuses:
        waiting, code = _state(entry, "waiting") or {}, _failure(entry).get("exitCode") if init else None
        waits = waiting.get("reason") not in (None, "PodInitializing")
        recovered = (_state(entry, "terminated") or {}).get("exitCode") == 0 or _state(entry, "running")
        if waits or (code and not recovered):
            name = entry["name"] if entry["name"] != container else ""
            return _BlockingContainer(name=name, init=init, waiting=waiting if waits else {}, code=code)
    return _BlockingContainer()


def _own_containers(on: KubernetesOn | None) -> set[str]:
    """Names of the containers that on.pod adds."""
    spec = (on.pod.get("spec") or {}) if on else {}
    return {entry.get("name", "") for field in ("containers", "initContainers") for entry in spec.get(field) or []}


def _state(container: Object, name: str) -> Object | None:
    return (container.get("state") or {}).get(name)


def _failure(container: Object) -> Object:
    terminated = _state(container, "terminated") or (container.get("lastState") or {}).get("terminated") or {}
    return terminated if terminated.get("exitCode") else {}


def _conditions(pod: Object) -> dict[str, Object]:
    return {condition["type"]: condition for condition in pod.get("status", {}).get("conditions") or []}


def _disrupted(conditions: Mapping[str, Object]) -> str:
    target = conditions.get("DisruptionTarget", {})
    return target.get("reason", "") if target.get("status") == "True" else ""


def _message(pod: Object) -> str:
    return str(pod.get("status", {}).get("message") or "")


def _overdue(metadata: Object, now: float) -> float | None:
    deadline = seconds(metadata.get("deletionTimestamp"))
    return None if deadline is None else now - deadline


def _machine(name: str, machines: Mapping[str, Machine] | None) -> str:
    if not name or machines is None:
        return UNKNOWN
    if name not in machines:
        return "gone"
    is_lost = any(taint["key"].endswith(("/not-ready", "/unreachable")) for taint in machines[name].taints)
    return "lost" if is_lost else "ready"


def _memory(container: Object, machines: Mapping[str, Machine] | None) -> dict[str, Any]:
    limit = (container.get("resources", {}).get("limits") or {}).get("memory")
    if not limit:
        return {}
    current = quantity(limit)
    largest = max((machine.offers.get("memory", 0.0) for machine in (machines or {}).values()), default=0.0)
    more = min(2 * current, 0.9 * largest) if largest > current / 0.9 else 2 * current
    return {"memory_limit": amount("memory", current), "more_memory": f"{int(more / 2**20)}MiB"}
