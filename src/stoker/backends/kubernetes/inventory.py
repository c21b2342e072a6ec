"""The nodes of a cluster: labels, taints and resources, and which of them a run's pods may use."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from stoker.backends.kubernetes.needs import Needs

Object = dict[str, Any]
CORDON = "node.kubernetes.io/unschedulable"
UNITS = {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
UNITS |= {unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")}
UNITS |= {f"{unit}i": Decimal(1024) ** (n + 1) for n, unit in enumerate("KMGTPE")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A node of the cluster, as its kubelet describes it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    """NoSchedule and NoExecute taints."""
    offers: Mapping[str, float]
    """Resource -> how much of it is allocatable: cores, bytes, devices."""
    ready: bool
    """It is ready and not cordoned."""
    cordoned: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The distinct kinds of nodes, and how many of each: a thousand nodes are often one kind."""

    kinds: tuple[tuple[Machine, int], ...] = ()
    elastic: bool = False
    """An autoscaler adds nodes when pods wait."""
    known: bool = True
    names: Mapping[str, int] = field(default_factory=dict)
    """Node -> index of its kind."""

    def fitting(self, needs: Needs) -> list[tuple[Machine, int]]:
        """The kinds of nodes that its pods may run on by labels and taints, whatever resources they have."""
        avoided = Counter(self.names[name] for name in set(needs.avoid) if name in self.names)
        left = [(machine, count - avoided[index]) for index, (machine, count) in enumerate(self.kinds)]
        return [(machine, count) for machine, count in left if count and _accepts(machine, needs)]


NOTHING_KNOWN = Inventory(known=False)


def machine(node: Object) -> Machine:
    spec, status = node.get("spec", {}), node.get("status", {})
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    taints = [taint for taint in spec.get("taints", []) if taint["effect"] != "PreferNoSchedule"]
    cordoned = bool(spec.get("unschedulable"))
    if cordoned and all(taint["key"] != CORDON for taint in taints):  # the node controller adds it a moment later
        taints.append({"key": CORDON, "effect": "NoSchedule"})
    return Machine(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels", {}),
        taints=tuple(taints),
        offers={name: quantity(value) for name, value in status.get("allocatable", {}).items()},
        ready=conditions.get("Ready") == "True" and not cordoned,
        cordoned=cordoned,
    )


def grouped(nodes: Iterable[Object], *, elastic: bool) -> Inventory:
    """Counts equal nodes together while they are listed."""
    indices: dict[object, int] = {}
    kinds: list[tuple[Machine, int]] = []
    names: dict[str, int] = {}
    for node in nodes:
        kind = machine(node)
        labels = tuple(sorted(item for item in kind.labels.items() if item[1] != kind.name))
        key = (labels, repr(kind.taints), tuple(sorted(kind.offers.items())), kind.ready, kind.cordoned)
        index = names[kind.name] = indices.setdefault(key, len(kinds))
        if index == len(kinds):
            kinds.append((kind, 0))
        first, count = kinds[index]
        kinds[index] = (first, count + 1)
    return Inventory(kinds=tuple(kinds), elastic=elastic, names=names)


def quantity(text: str | float) -> float:
    """`3920m` -> 3.92, `16Gi` -> 17179869184."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", str(text))
    if not match or match[2] not in UNITS:
        return 0.0  # no unit that Kubernetes knows
    return float(Decimal(match[1]) * UNITS[match[2]])


def is_lasting(taint: Mapping[str, str]) -> bool:
    """Not set by Kubernetes for the node's health."""
    return not taint["key"].startswith("node.kubernetes.io/")


def _accepts(machine: Machine, needs: Needs) -> bool:
    """By its labels and taints."""
    if any(machine.labels.get(key) != value for key, value in needs.selectors.items()):
        return False
    if needs.spot and not any(machine.labels.get(key) == value for key, value in needs.spot):
        return False
    return all(
        any(tolerates(toleration, taint) for toleration in needs.tolerations)
        for taint in machine.taints
        if is_lasting(taint)
    )


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """As the scheduler decides it: without an effect it is for all effects, without a key for all taints."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    exists = toleration.get("operator") == "Exists"
    return bool(exists or (toleration.get("key") and toleration.get("value", "") == taint.get("value", "")))
