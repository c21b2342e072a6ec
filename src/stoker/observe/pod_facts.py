"""The pods of a run as facts: the newest of each node, with what became of those before it. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stoker.launch.inventory import Machine, quantity
from stoker.observe.facts import UNKNOWN, PodFact
from stoker.observe.obstacles import amount, obstacle
from stoker.observe.pods import seconds
from stoker.spec.on import On

Object = dict[str, Any]
Newest = list[tuple[Object, list[Object]]]
"""The newest pod of each node, and those before it, newest first."""
TRACKING = "batch.kubernetes.io/job-tracking"  # a finalizer that every pod of a Job has until it was counted
STEADY = 120.0  # seconds after which a pod is taken to have got over what ended the one before it


def newest(pods: Iterable[Object], node: Callable[[Object], int | None]) -> Newest:
    by_node: dict[object, list[Object]] = {}
    for pod in pods:
        index = node(pod)
        by_node.setdefault(pod["metadata"]["name"] if index is None else index, []).append(pod)
    found = []
    for some in by_node.values():
        some.sort(key=lambda one: str(one["metadata"].get("creationTimestamp", "")), reverse=True)
        found.append((some[0], some[1:]))
    return sorted(found, key=lambda one: (node(one[0]) is None, node(one[0]) or 0, one[0]["metadata"]["name"]))


def pod_fact(
    pod: Object,
    before: Sequence[Object],
    *,
    node: int | None,
    container: str,
    now: float,
    machines: Mapping[str, Machine] | None,
    on: On | None = None,
) -> PodFact:
    """`container`: the one with the supervisor; `machines`: all of the cluster, None where nobody may see them."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    ours = _container(pod, container)
    part = _part_that_waits(status, container)
    waiting = part.waiting
    started = seconds((_part(ours, "running") or {}).get("startedAt"))
    up = max(0.0, now - started) if started else 0.0
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    stands_in = before[0] if before and up < STEADY else None
    own = _ended(ours)
    ended = own or (_ended(_container(stands_in, container)) if stands_in else {})
    struck = stands_in if stands_in and not status.get("reason") else pod
    fact = PodFact(
        pod=meta["name"],
        node=node,
        machine=spec.get("nodeName", ""),
        machine_state=_machine(spec.get("nodeName", ""), machines),
        image=_spec(pod, part.name or container).get("image", ""),
        part=part.name,
        init=part.init,
        injected=bool(part.name) and part.name not in _named(on),
        init_code=part.code,
        phase=status.get("phase", ""),
        alive=any(_part(one, "running") for one in status.get("containerStatuses") or []),
        up=up,
        waited=now - (seconds(meta.get("creationTimestamp")) or now),
        unscheduled=scheduled.get("message") or "" if scheduled.get("status") == "False" else "",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        seen=bool(scheduled) or bool(spec.get("nodeName")),
        waiting=waiting.get("reason", ""),
        said=waiting.get("message") or _told(struck) or ended.get("message") or "",
        ended=ended.get("reason") or ("Error" if ended.get("exitCode") else ""),
        code=ended.get("exitCode"),
        fell=(stands_in or pod)["metadata"]["name"] if ended and not own else meta["name"],
        reason=struck.get("status", {}).get("reason") or "",
        disrupted=_disrupted(conditions) or (_disrupted(_conditions(stands_in)) if stands_in else ""),
        overdue=_overdue(meta, now),
        held=", ".join(one for one in meta.get("finalizers") or [] if one != TRACKING),
        **_memory(_spec(pod, container), machines),
    )
    if not fact.unscheduled:
        return fact
    known = None if machines is None else list(machines.values())
    return replace(fact, **asdict(obstacle(pod, fact.unscheduled, known, on)))


def ended_at(pod: Object, container: str) -> str:
    """When its container ended, for putting them in order; empty when it has not."""
    return str(_ended(_container(pod, container)).get("finishedAt") or "")


def _container(pod: Object, name: str) -> Object:
    """What is said of it."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == name), {})


def _spec(pod: Object, name: str) -> Object:
    some = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    return next((one for one in some if one["name"] == name), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """The container that keeps a pod from starting."""

    name: str = ""
    """Empty: the run's own, or none."""
    init: bool = False
    waiting: Object = field(default_factory=dict)
    code: int | None = None
    """That an init container failed with."""


def _part_that_waits(status: Object, container: str) -> _Part:
    """The first that waits or, of those that prepare the pod, has failed; they come before the others."""
    first = [(one, True) for one in status.get("initContainerStatuses") or []]
    for one, init in [*first, *((one, False) for one in status.get("containerStatuses") or [])]:
        waiting, code = _part(one, "waiting") or {}, _ended(one).get("exitCode") if init else None
        waits = waiting.get("reason") not in (None, "PodInitializing")
        over = (_part(one, "terminated") or {}).get("exitCode") == 0 or _part(one, "running")
        if waits or (code and not over):
            name = one["name"] if one["name"] != container else ""
            return _Part(name=name, init=init, waiting=waiting if waits else {}, code=code)
    return _Part()


def _named(on: On | None) -> set[str]:
    """Containers that the run itself adds to its pods."""
    spec = (on.pod.get("spec") or {}) if on else {}
    return {one.get("name", "") for part in ("containers", "initContainers") for one in spec.get(part) or []}


def _part(container: Object, name: str) -> Object | None:
    return (container.get("state") or {}).get(name)


def _ended(container: Object) -> Object:
    ended = _part(container, "terminated") or (container.get("lastState") or {}).get("terminated") or {}
    return ended if ended.get("exitCode") else {}


def _conditions(pod: Object) -> dict[str, Object]:
    return {one["type"]: one for one in pod.get("status", {}).get("conditions") or []}


def _disrupted(conditions: Mapping[str, Object]) -> str:
    target = conditions.get("DisruptionTarget", {})
    return target.get("reason", "") if target.get("status") == "True" else ""


def _told(pod: Object) -> str:
    return str(pod.get("status", {}).get("message") or "")


def _overdue(meta: Object, now: float) -> float | None:
    leaves = seconds(meta.get("deletionTimestamp"))
    return None if leaves is None else now - leaves


def _machine(name: str, machines: Mapping[str, Machine] | None) -> str:
    if not name or machines is None:
        return UNKNOWN
    if name not in machines:
        return "gone"
    sick = any(taint["key"].endswith(("/not-ready", "/unreachable")) for taint in machines[name].taints)
    return "lost" if sick else "ready"


def _memory(container: Object, machines: Mapping[str, Machine] | None) -> dict[str, Any]:
    limit = (container.get("resources", {}).get("limits") or {}).get("memory")
    if not limit:
        return {}
    has = quantity(limit)
    largest = max((one.offers.get("memory", 0.0) for one in (machines or {}).values()), default=0.0)
    more = min(2 * has, 0.9 * largest) if largest > has / 0.9 else 2 * has
    return {"limit": amount("memory", has), "more": f"{int(more / 2**20)}MiB"}
