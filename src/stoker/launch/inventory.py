"""What a cluster has, as far as a run's pods care."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from stoker.launch.needs import Needs

Object = dict[str, Any]
CORDON = "node.kubernetes.io/unschedulable"
UNITS = {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
UNITS |= {unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")}
UNITS |= {f"{unit}i": Decimal(1024) ** (n + 1) for n, unit in enumerate("KMGTPE")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A node, as its kubelet describes it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    """Those that keep pods away."""
    offers: Mapping[str, float]
    """Resource -> how much of it pods may have: cores, bytes, devices."""
    ready: bool
    """It takes new pods."""
    cordoned: bool = False
    """Somebody has closed it to new pods."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The kinds of machines that a cluster has, and how many of each: a thousand nodes are often one kind."""

    kinds: tuple[tuple[Machine, int], ...] = ()
    elastic: bool = False
    """Something adds nodes when pods wait."""
    known: bool = True
    names: Mapping[str, int] = field(default_factory=dict)
    """Node -> which of the kinds it is."""

    def fitting(self, needs: Needs) -> list[tuple[Machine, int]]:
        """The machines that its pods may run on, whatever they have."""
        avoided = Counter(self.names[name] for name in set(needs.avoid) if name in self.names)
        left = [(machine, count - avoided[index]) for index, (machine, count) in enumerate(self.kinds)]
        return [(machine, count) for machine, count in left if count and _welcomes(machine, needs)]


NOTHING_KNOWN = Inventory(known=False)


def machine(node: Object) -> Machine:
    spec, status = node.get("spec", {}), node.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    taints = [one for one in spec.get("taints", []) if one["effect"] != "PreferNoSchedule"]
    cordoned = bool(spec.get("unschedulable"))
    if cordoned and all(one["key"] != CORDON for one in taints):  # the node controller adds it a moment later
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
    """Nodes that differ in nothing that matters are counted together, as they are read."""
    indices: dict[object, int] = {}
    kinds: list[tuple[Machine, int]] = []
    names: dict[str, int] = {}
    for node in nodes:
        one = machine(node)
        labels = tuple(sorted(item for item in one.labels.items() if item[1] != one.name))
        key = (labels, repr(one.taints), tuple(sorted(one.offers.items())), one.ready, one.cordoned)
        index = names[one.name] = indices.setdefault(key, len(kinds))
        if index == len(kinds):
            kinds.append((one, 0))
        first, count = kinds[index]
        kinds[index] = (first, count + 1)
    return Inventory(kinds=tuple(kinds), elastic=elastic, names=names)


def quantity(text: str | float) -> float:
    """`3920m` -> 3.92, `16Gi` -> 17179869184."""
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", str(text))
    if not found or found[2] not in UNITS:
        return 0.0  # of no kind that we ask for
    return float(Decimal(found[1]) * UNITS[found[2]])


def is_lasting(taint: Mapping[str, str]) -> bool:
    """Not one that comes and goes with the node's health."""
    return not taint["key"].startswith("node.kubernetes.io/")


def _welcomes(machine: Machine, needs: Needs) -> bool:
    """By its labels and taints."""
    if any(machine.labels.get(key) != value for key, value in needs.selectors.items()):
        return False
    if needs.spot and not any(machine.labels.get(key) == value for key, value in needs.spot):
        return False
    return all(
        any(_tolerates(one, taint) for one in needs.tolerations) for taint in machine.taints if is_lasting(taint)
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]) or toleration["key"] != taint["key"]:
        return False
    return bool(toleration["operator"] == "Exists" or toleration.get("value", "") == taint.get("value", ""))
