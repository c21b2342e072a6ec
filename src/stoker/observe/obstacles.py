"""What keeps a pod from every node of its cluster: pure, from what it asks for and what the nodes are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.launch.inventory import Machine, quantity

Object = dict[str, Any]
GIB = 2**30
SHARE = 0.9  # of the largest node is what a pod is told to ask for: something runs on every node
CORDON = "node.kubernetes.io/unschedulable"
SICK = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
INSUFFICIENT = re.compile(r"(?:insufficient|overused) ([^\s,.]+(?:\.[^\s,.]+)*)", re.IGNORECASE)
TAINTED = re.compile(r"untolerated taint(?:\(s\))? \{?([^:}\s]+)")
DEVICES = {"nvidia.com/gpu": "on.gpus", "vpc.amazonaws.com/efa": "on.efa", "aws.amazon.com/neuron": "on.neuron"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    obstacle: str
    """selector, taint, cordon, sick, size, room or none that is known."""
    lacks: str = ""
    asked: str = ""
    most: str = ""
    mend: str = ""
    example: str = ""


def obstacle(pod: Object, said: str, machines: Sequence[Machine] | None) -> Obstacle:
    """`said`: by the scheduler; `machines`: None where nobody may see them."""
    if machines is None:
        return _as_said(pod, said)
    labels = _labels(pod)
    fitting = [one for one in machines if all(one.labels.get(key) in values for key, values in labels.items())]
    if not fitting:
        return _by_label(labels, machines)
    welcome = [one for one in fitting if all(_tolerated(taint, pod) for taint in one.taints)]
    if not welcome:
        return _by_taint(pod, fitting)
    asked = requests(pod)
    for name, value in asked.items():
        most = max(one.offers.get(name, 0.0) for one in welcome)
        if value > most:
            return _too_large(name, value, most)
    named = INSUFFICIENT.search(said)
    if named and named[1] in asked:
        name = named[1]
        most = max(one.offers.get(name, 0.0) for one in welcome)
        return Obstacle(obstacle="room", lacks=name, asked=amount(name, asked[name]), most=amount(name, most))
    return Obstacle(obstacle="")


def requests(pod: Object) -> dict[str, float]:
    """Of all its containers together: cores, bytes, devices."""
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        given = container.get("resources", {})
        for name, value in (given.get("limits", {}) | given.get("requests", {})).items():
            total[name] = total.get(name, 0.0) + quantity(value)
    return total


def amount(name: str, value: float) -> str:
    if name == "cpu":
        return f"{value:g} core{'s' * (value != 1)}"
    if name == "memory" or name.startswith(("hugepages", "ephemeral")):
        kind = {"memory": "memory", "ephemeral-storage": "disk"}.get(name, "huge pages")
        return f"{value / GIB:.1f} GiB of {kind}" if value >= GIB / 10 else f"{value / 2**20:.0f} MiB of {kind}"
    return f"{value:g} {name}"


def _as_said(pod: Object, said: str) -> Obstacle:
    """Where the scheduler's own words are all there is."""
    if found := INSUFFICIENT.search(said):
        asked = requests(pod).get(found[1])
        return Obstacle(obstacle="room", lacks=found[1], asked=amount(found[1], asked) if asked else found[1])
    if found := TAINTED.search(said):
        return Obstacle(obstacle="taint", lacks=found[1], mend=f"'on.tolerations=[{found[1]}]'")
    if "didn't match Pod's node affinity/selector" in said:
        labels = {key: "|".join(map(str, values)) for key, values in _labels(pod).items()}
        return Obstacle(obstacle="selector", lacks=_pairs(labels))
    return Obstacle(obstacle="")


def _by_label(labels: Mapping[str, list[str]], machines: Sequence[Machine]) -> Obstacle:
    """The labels that no node has, or all of them when each has some."""
    alone = [key for key, values in labels.items() if not any(one.labels.get(key) in values for one in machines)]
    wanted = {key: labels[key][0] for key in alone or labels}
    example = next((one.name for one in machines if one.ready and not one.taints), machines[0].name if machines else "")
    return Obstacle(obstacle="selector", lacks=_pairs(wanted), example=example)


def _by_taint(pod: Object, fitting: Sequence[Machine]) -> Obstacle:
    for one in fitting:  # the best of them lacks one thing only
        strange = [taint for taint in one.taints if not _tolerated(taint, pod)]
        keys = {taint["key"] for taint in strange}
        if keys <= {CORDON}:
            return Obstacle(obstacle="cordon", lacks=CORDON, example=one.name)
    own = [
        (one, taint)
        for one in fitting
        for taint in one.taints
        if not _tolerated(taint, pod) and taint["key"] not in (CORDON, *SICK)
    ]
    if not own:
        return Obstacle(obstacle="sick", example=fitting[0].name)
    one, taint = own[0]
    words = taint["key"] + (f"={taint['value']}" if taint.get("value") else "")
    return Obstacle(obstacle="taint", lacks=words, example=one.name, mend=f"'on.tolerations=[{taint['key']}]'")


def _too_large(name: str, value: float, most: float) -> Obstacle:
    return Obstacle(
        obstacle="size", lacks=name, asked=amount(name, value), most=amount(name, most), mend=_mend(name, most)
    )


def _mend(name: str, most: float) -> str:
    if name == "cpu":
        return f"on.cpu={max(0.1, int(most * SHARE * 10) / 10):g}"
    if name == "memory":
        return f"on.memory={int(most * SHARE / 2**20)}MiB"
    return f"{DEVICES[name]}={most:g}" if name in DEVICES else ""


def _labels(pod: Object) -> dict[str, list[str]]:
    """What its node must have: by selector, or by an affinity that names values."""
    wanted = {key: [value] for key, value in (pod["spec"].get("nodeSelector") or {}).items()}
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = affinity.get("nodeSelectorTerms") or []
    if len(terms) == 1:  # of several one is enough: the scheduler's words tell
        for one in terms[0].get("matchExpressions") or []:
            if one["operator"] == "In":
                wanted[one["key"]] = list(one["values"])
    return wanted


def _tolerated(taint: Mapping[str, str], pod: Object) -> bool:
    return any(_tolerates(one, taint) for one in pod["spec"].get("tolerations") or [])


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    return bool(toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
