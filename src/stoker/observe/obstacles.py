"""What keeps a pod from every node of its cluster: pure, from what it asks for and what the nodes are."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.launch.inventory import CORDON, Machine, quantity
from stoker.observe.launch_words import word
from stoker.spec.on import On

Object = dict[str, Any]
GIB = 2**30
SHARE = 0.9  # of the largest node is what a pod is told to ask for: something runs on every node
HEALTH = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""How the taints begin that come and go with a node's health."""
CONTROL = "node-role.kubernetes.io/control-plane"
INSUFFICIENT = re.compile(r"(?:insufficient|overused) ([^\s,.]+(?:\.[^\s,.]+)*)", re.IGNORECASE)
TAINTED = re.compile(r"untolerated taint(?:\(s\))? \{?([^:}\s]+)")
DEVICES = {"nvidia.com/gpu": "on.gpus", "vpc.amazonaws.com/efa": "on.efa", "aws.amazon.com/neuron": "on.neuron"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    obstacle: str
    """selector, avoided, taint, cordon, sick, size, room or none that is known."""
    lacks: str = ""
    asked: str = ""
    most: str = ""
    mend: str = ""
    example: str = ""


def obstacle(pod: Object, said: str, machines: Sequence[Machine] | None, on: On | None = None) -> Obstacle:
    """`said`: by the scheduler; `machines`: None where nobody may see them; `on`: what the run asks for itself."""
    on = on or On()
    if machines is None:
        return _as_said(pod, said, on)
    fitting = [one for one in machines if _chosen(pod, one)]
    if not fitting:
        return _by_name(pod, machines, on) or _by_label(pod, machines, on)
    asked = requests(pod)
    able = [one for one in fitting if all(value <= one.offers.get(name, 0.0) for name, value in asked.items())]
    welcome = [one for one in fitting if not _strange(pod, one)]
    if not any(one in welcome for one in able):
        closed = _closed(pod, able)
        taint = _by_taint(pod, able, on) if able else None
        large = _too_large(asked, welcome or fitting)
        return closed or (taint if _guarded(asked, welcome) else None) or large or taint or Obstacle(obstacle="")
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


def _as_said(pod: Object, said: str, on: On) -> Obstacle:
    """Where the scheduler's own words are all there is."""
    if found := INSUFFICIENT.search(said):
        asked = requests(pod).get(found[1])
        return Obstacle(obstacle="room", lacks=found[1], asked=amount(found[1], asked) if asked else found[1])
    if taints := [key for key in TAINTED.findall(said) if not key.startswith(HEALTH)]:  # no toleration makes one well
        key = min(taints, key=lambda key: key == CONTROL)
        return Obstacle(obstacle="taint", lacks=key, mend=_tolerate(key, on=on))
    if CORDON in said or "were unschedulable" in said:
        return Obstacle(obstacle="cordon", lacks=CORDON)
    if "didn't match Pod's node affinity/selector" in said:
        return Obstacle(obstacle="selector", lacks=_wanted(pod))
    return Obstacle(obstacle="")


def _by_name(pod: Object, machines: Sequence[Machine], on: On) -> Obstacle | None:
    """All nodes that would do are among those that it avoids."""
    away = {*on.avoid}
    shunned = [one for one in machines if one.name in away and _chosen(pod, one, fields=False)]
    if not shunned:
        return None
    one = min(shunned, key=_rank)
    mend = word("on.avoid", [name for name in on.avoid if name != one.name])
    return Obstacle(obstacle="avoided", lacks=one.name, example=one.name, mend=mend)


def _by_label(pod: Object, machines: Sequence[Machine], on: On) -> Obstacle:
    """The labels that no node has, or all of them when each has some.

    Those that the run names itself can be given, to a node where nothing else stands in their place.
    """
    selector = _selector(pod)
    alone = {key: value for key, value in selector.items() if all(one.labels.get(key) != value for one in machines)}
    if alone or (selector and not _terms(pod)):
        lacking = alone or selector
        ours = all(on.selectors.get(key) == value for key, value in lacking.items())
        unmarked = [
            one for one in machines if all(one.labels.get(key, value) == value for key, value in lacking.items())
        ]
        free = sorted(unmarked, key=lambda one: (not one.ready, bool(one.taints), _rank(one)))
        example = free[0].name if free and ours else ""
        given = " ".join(shlex.quote(f"{key}={value}") for key, value in lacking.items())
        return Obstacle(obstacle="selector", lacks=_pairs(lacking), example=example, mend=given if ours else "")
    return Obstacle(obstacle="selector", lacks=_wanted(pod))


def _closed(pod: Object, able: Sequence[Machine]) -> Obstacle | None:
    """Nothing but its health, or somebody who closed it, keeps the pod from a node that could take it."""
    for one in sorted(able, key=_rank):
        if {taint["key"] for taint in _strange(pod, one)} == {CORDON}:
            return Obstacle(obstacle="cordon", lacks=CORDON, example=one.name)
    for one in sorted(able, key=_rank):
        strange = _strange(pod, one)
        if strange and all(taint["key"].startswith(HEALTH) for taint in strange):
            return Obstacle(obstacle="sick", lacks=strange[0]["key"], example=one.name)
    return None


def _guarded(asked: Mapping[str, float], welcome: Sequence[Machine]) -> bool:
    """No node that takes it has a device of a kind that it needs: those that do are mostly tainted for that."""
    devices = [name for name, value in asked.items() if value and "/" in name]
    return bool(welcome) and any(not any(one.offers.get(name) for one in welcome) for name in devices)


def _by_taint(pod: Object, able: Sequence[Machine], on: On) -> Obstacle:
    one = min(able, key=lambda one: (_rank(one), len(_strange(pod, one))))
    own = [taint for taint in _strange(pod, one) if not taint["key"].startswith(HEALTH)]
    lacks = ", ".join(taint["key"] + (f"={taint['value']}" if taint.get("value") else "") for taint in own)
    return Obstacle(
        obstacle="taint", lacks=lacks, example=one.name, mend=_tolerate(*(taint["key"] for taint in own), on=on)
    )


def _tolerate(*keys: str, on: On) -> str:
    """All that it tolerates already, too: a list on the command line takes the place of the one before."""
    return word("on.tolerations", list(dict.fromkeys([*on.tolerations, *keys])))


def _too_large(asked: Mapping[str, float], machines: Sequence[Machine]) -> Obstacle | None:
    others = [one for one in machines if not _rank(one)] or machines
    for name, value in asked.items():
        most = max(one.offers.get(name, 0.0) for one in others)
        if value > most:
            words = {"asked": amount(name, value), "most": amount(name, most), "mend": _mend(name, most)}
            return Obstacle(obstacle="size", lacks=name, **words)
    return None


def _mend(name: str, most: float) -> str:
    if name == "cpu":
        return f"on.cpu={max(0.1, int(most * SHARE * 10) / 10):g}"
    if name == "memory":
        return f"on.memory={int(most * SHARE / 2**20)}MiB"
    return f"{DEVICES[name]}={most:g}" if name in DEVICES else ""


def _selector(pod: Object) -> dict[str, str]:
    return pod["spec"].get("nodeSelector") or {}


def _terms(pod: Object) -> list[Object]:
    """Of its affinity: one of them has to hold."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    needed = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return needed.get("nodeSelectorTerms") or []


def _chosen(pod: Object, one: Machine, *, fields: bool = True) -> bool:
    """By its labels, and its name unless `fields` are left out."""
    if any(one.labels.get(key) != value for key, value in _selector(pod).items()):
        return False
    terms = _terms(pod)
    return not terms or any(_term_holds(term, one, fields=fields) for term in terms)


def _term_holds(term: Object, one: Machine, *, fields: bool) -> bool:
    by_name = term.get("matchFields") or []
    if fields and not all(_holds(part, {"metadata.name": one.name}) for part in by_name):
        return False
    return all(_holds(part, one.labels) for part in term.get("matchExpressions") or [])


def _holds(part: Object, labels: Mapping[str, str]) -> bool:
    there, values = labels.get(part["key"]), part.get("values") or []
    match part["operator"]:
        case "In":
            return there in values
        case "NotIn":
            return there not in values
        case "Exists":
            return there is not None
        case "DoesNotExist":
            return there is None
        case "Gt":
            return there is not None and quantity(there) > quantity(values[0])
        case "Lt":
            return there is not None and quantity(there) < quantity(values[0])
    return True  # of a kind that we do not know: the scheduler's words tell


def _wanted(pod: Object) -> str:
    """The labels that its node must have, in words."""
    ways = []
    for term in _terms(pod):
        parts = [part for part in term.get("matchExpressions") or [] if part["operator"] == "In"]
        ways.append(", ".join(f"{part['key']}={'|'.join(part['values'])}" for part in parts))
    ways = list(dict.fromkeys(filter(None, ways)))
    return ", ".join(filter(None, [_pairs(_selector(pod)), " or ".join(ways)]))


def _rank(one: Machine) -> bool:
    """Control planes come last."""
    return CONTROL in one.labels or any(taint["key"] == CONTROL for taint in one.taints)


def _strange(pod: Object, one: Machine) -> list[Mapping[str, str]]:
    """Its taints that the pod does not tolerate."""
    return [taint for taint in one.taints if not _tolerated(taint, pod)]


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
