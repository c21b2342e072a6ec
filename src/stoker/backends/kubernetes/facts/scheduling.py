"""Why a pod fits no node of its cluster, from what it asks for and what the nodes are. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.backends.kubernetes.inventory import CORDON, Machine, quantity, tolerates
from stoker.diagnose.overrides import override
from stoker.spec.on import KubernetesOn

Object = dict[str, Any]
GIB = 2**30
SHARE = 0.9  # of the largest node is suggested: other pods run on every node
HEALTH = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of the taints that Kubernetes sets for a node's health."""
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
INSUFFICIENT = re.compile(r"(?:insufficient|overused) ([^\s,.]+(?:\.[^\s,.]+)*)", re.IGNORECASE)
CORDONED = re.compile(rf"{CORDON}|were unschedulable")
NOT_SELECTED = re.compile("didn't match Pod's node affinity/selector")
TAINTED = re.compile(r"untolerated taint(?:\(s\))? \{?([^:}\s]+)")
DEVICES = {"nvidia.com/gpu": "on.gpus", "vpc.amazonaws.com/efa": "on.efa", "aws.amazon.com/neuron": "on.neuron"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    obstacle: str
    """selector, avoided, taint, cordon, sick, size or room; empty if unknown."""
    constraint: str = ""
    requested: str = ""
    largest: str = ""
    fix: str = ""
    example: str = ""


def obstacle(pod: Object, message: str, machines: Sequence[Machine] | None, on: KubernetesOn | None = None) -> Obstacle:
    """`message`: the scheduler's; `machines`: None where the user may not list nodes; `on`: of the run."""
    on = on or KubernetesOn()
    if machines is None:
        return _from_message(pod, message, on)
    fitting = [machine for machine in machines if _selects(pod, machine)]
    if not fitting:
        return _by_name(pod, machines, on) or _by_label(pod, machines, on)
    requested = requests(pod)
    large_enough = [machine for machine in fitting if _has_all(machine, requested)]
    tolerated = [machine for machine in fitting if not _untolerated(pod, machine)]
    if not any(machine in tolerated for machine in large_enough):
        closed = _closed(pod, large_enough)
        taint = _by_taint(pod, large_enough, on) if large_enough else None
        large = _too_large(requested, tolerated or fitting)
        for_devices = taint if _tainted_for_devices(requested, tolerated) else None
        return closed or for_devices or large or taint or Obstacle(obstacle="")
    insufficient = INSUFFICIENT.search(message)
    if insufficient and insufficient[1] in requested:
        name = insufficient[1]
        most = max(machine.offers.get(name, 0.0) for machine in tolerated)
        return Obstacle(
            obstacle="room", constraint=name, requested=amount(name, requested[name]), largest=amount(name, most)
        )
    return Obstacle(obstacle="")


def requests(pod: Object) -> dict[str, float]:
    """The sum over its containers: cores, bytes, devices."""
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        for name, value in (resources.get("limits", {}) | resources.get("requests", {})).items():
            total[name] = total.get(name, 0.0) + quantity(value)
    return total


def amount(name: str, value: float) -> str:
    if name == "cpu":
        return f"{value:g} core{'s' * (value != 1)}"
    if name == "memory" or name.startswith(("hugepages", "ephemeral")):
        kind = {"memory": "memory", "ephemeral-storage": "disk"}.get(name, "huge pages")
        return f"{value / GIB:.1f} GiB of {kind}" if value >= GIB / 10 else f"{value / 2**20:.0f} MiB of {kind}"
    return f"{value:g} {name}"


def _has_all(machine: Machine, requested: Mapping[str, float]) -> bool:
    return all(value <= machine.offers.get(name, 0.0) for name, value in requested.items())


def _from_message(pod: Object, message: str, on: KubernetesOn) -> Obstacle:
    """From the scheduler's message only, for users who may not list nodes."""
    if insufficient := INSUFFICIENT.search(message):
        name = insufficient[1]
        requested = requests(pod).get(name)
        return Obstacle(obstacle="room", constraint=name, requested=amount(name, requested) if requested else name)
    if taints := [key for key in TAINTED.findall(message) if not key.startswith(HEALTH)]:
        key = min(taints, key=lambda key: key == CONTROL_PLANE)
        return Obstacle(obstacle="taint", constraint=key, fix=_tolerate(key, on=on))
    if CORDONED.search(message):
        return Obstacle(obstacle="cordon", constraint=CORDON)
    if NOT_SELECTED.search(message):
        return Obstacle(obstacle="selector", constraint=_wanted_labels(pod))
    return Obstacle(obstacle="")


def _by_name(pod: Object, machines: Sequence[Machine], on: KubernetesOn) -> Obstacle | None:
    """All nodes that fit are in on.avoid."""
    avoided = [machine for machine in machines if machine.name in on.avoid and _selects(pod, machine, fields=False)]
    if not avoided:
        return None
    machine = min(avoided, key=_is_control_plane)
    fix = override("on.avoid", [name for name in on.avoid if name != machine.name])
    return Obstacle(obstacle="avoided", constraint=machine.name, example=machine.name, fix=fix)


def _by_label(pod: Object, machines: Sequence[Machine], on: KubernetesOn) -> Obstacle:
    """The labels that no node has, or all labels if each node has some of them.

    If they come from on.selectors, a node without a conflicting label can be labelled.
    """
    selector = _selector(pod)
    on_no_node = {
        key: value for key, value in selector.items() if all(machine.labels.get(key) != value for machine in machines)
    }
    if on_no_node or (selector and not _terms(pod)):
        missing = on_no_node or selector
        from_run = all(on.selectors.get(key) == value for key, value in missing.items())
        unlabelled = [
            machine
            for machine in machines
            if all(machine.labels.get(key, value) == value for key, value in missing.items())
        ]
        unlabelled.sort(key=lambda machine: (not machine.ready, bool(machine.taints), _is_control_plane(machine)))
        example = unlabelled[0].name if unlabelled and from_run else ""
        labels = " ".join(shlex.quote(f"{key}={value}") for key, value in missing.items())
        return Obstacle(
            obstacle="selector", constraint=_pairs(missing), example=example, fix=labels if from_run else ""
        )
    return Obstacle(obstacle="selector", constraint=_wanted_labels(pod))


def _closed(pod: Object, large_enough: Sequence[Machine]) -> Obstacle | None:
    """A node would take the pod if it were not cordoned, or not unhealthy."""
    for machine in sorted(large_enough, key=_is_control_plane):
        if {taint["key"] for taint in _untolerated(pod, machine)} == {CORDON}:
            return Obstacle(obstacle="cordon", constraint=CORDON, example=machine.name)
    for machine in sorted(large_enough, key=_is_control_plane):
        taints = _untolerated(pod, machine)
        if taints and all(taint["key"].startswith(HEALTH) for taint in taints):
            return Obstacle(obstacle="sick", constraint=taints[0]["key"], example=machine.name)
    return None


def _tainted_for_devices(requested: Mapping[str, float], tolerated: Sequence[Machine]) -> bool:
    """No tolerated node has a device that the pod needs: nodes with devices are usually tainted."""
    devices = [name for name, value in requested.items() if value and "/" in name]
    return bool(tolerated) and any(not any(machine.offers.get(name) for machine in tolerated) for name in devices)


def _by_taint(pod: Object, large_enough: Sequence[Machine], on: KubernetesOn) -> Obstacle:
    machine = min(large_enough, key=lambda machine: (_is_control_plane(machine), len(_untolerated(pod, machine))))
    taints = [taint for taint in _untolerated(pod, machine) if not taint["key"].startswith(HEALTH)]
    names = ", ".join(taint["key"] + (f"={taint['value']}" if taint.get("value") else "") for taint in taints)
    fix = _tolerate(*(taint["key"] for taint in taints), on=on)
    return Obstacle(obstacle="taint", constraint=names, example=machine.name, fix=fix)


def _tolerate(*keys: str, on: KubernetesOn) -> str:
    """Repeats what it tolerates already, because a list on the command line replaces the old one."""
    return override("on.tolerations", list(dict.fromkeys([*on.tolerations, *keys])))


def _too_large(requested: Mapping[str, float], machines: Sequence[Machine]) -> Obstacle | None:
    workers = [machine for machine in machines if not _is_control_plane(machine)] or machines
    for name, value in requested.items():
        most = max(machine.offers.get(name, 0.0) for machine in workers)
        if value > most:
            values = {
                "requested": amount(name, value),
                "largest": amount(name, most),
                "fix": _smaller_request(name, most),
            }
            return Obstacle(obstacle="size", constraint=name, **values)
    return None


def _smaller_request(name: str, most: float) -> str:
    if name == "cpu":
        return f"on.cpu={max(0.1, int(most * SHARE * 10) / 10):g}"
    if name == "memory":
        return f"on.memory={int(most * SHARE / 2**20)}MiB"
    return f"{DEVICES[name]}={most:g}" if name in DEVICES else ""


def _selector(pod: Object) -> dict[str, str]:
    return pod["spec"].get("nodeSelector") or {}


def _terms(pod: Object) -> list[Object]:
    """The terms of its node affinity, of which one must match."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    needed = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return needed.get("nodeSelectorTerms") or []


def _selects(pod: Object, machine: Machine, *, fields: bool = True) -> bool:
    """By its labels and, with `fields`, its name."""
    if any(machine.labels.get(key) != value for key, value in _selector(pod).items()):
        return False
    terms = _terms(pod)
    return not terms or any(_term_matches(term, machine, fields=fields) for term in terms)


def _term_matches(term: Object, machine: Machine, *, fields: bool) -> bool:
    by_name = term.get("matchFields") or []
    if fields and not all(_matches(expression, {"metadata.name": machine.name}) for expression in by_name):
        return False
    return all(_matches(expression, machine.labels) for expression in term.get("matchExpressions") or [])


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    label, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return label in values
        case "NotIn":
            return label not in values
        case "Exists":
            return label is not None
        case "DoesNotExist":
            return label is None
        case "Gt":
            return label is not None and quantity(label) > quantity(values[0])
        case "Lt":
            return label is not None and quantity(label) < quantity(values[0])
    return True  # an unknown operator


def _wanted_labels(pod: Object) -> str:
    """The labels that its node must have, as text."""
    alternatives = []
    for term in _terms(pod):
        expressions = [entry for entry in term.get("matchExpressions") or [] if entry["operator"] == "In"]
        alternatives.append(", ".join(f"{entry['key']}={'|'.join(entry['values'])}" for entry in expressions))
    alternatives = list(dict.fromkeys(filter(None, alternatives)))
    return ", ".join(filter(None, [_pairs(_selector(pod)), " or ".join(alternatives)]))


def _is_control_plane(machine: Machine) -> bool:
    """As a sort key: control planes come last."""
    return CONTROL_PLANE in machine.labels or any(taint["key"] == CONTROL_PLANE for taint in machine.taints)


def _untolerated(pod: Object, machine: Machine) -> list[Mapping[str, str]]:
    """The node's taints that the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or []
    return [taint for taint in machine.taints if not any(tolerates(entry, taint) for entry in tolerations)]


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
