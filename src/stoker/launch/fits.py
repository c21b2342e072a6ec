"""Whether a run's pods find room: pure, from what they need and what the cluster has."""

from collections.abc import Callable
from math import ceil

from stoker.launch.inventory import Inventory, Machine, is_lasting, quantity
from stoker.launch.needs import Needs
from stoker.spec.errors import UserError

Asked = dict[str, float]
HUGE = "hugepages-2Mi"
WORDS: dict[str, Callable[[float], str]] = {
    "cpu": lambda value: f"{value:g} cores",
    "memory": lambda value: f"{value / 2**30:.1f} GiB of memory",
    HUGE: lambda value: f"{value / 2**30:.1f} GiB of huge pages",
}


def check_fits(needs: Needs, inventory: Inventory, *, nodes: int) -> list[str]:
    """Refuses what no node can ever hold; the warnings for what may only have to wait."""
    if not inventory.known:
        return []
    asked = _asked(needs)
    fitting = inventory.fitting(needs)
    if not fitting and inventory.elastic:
        return ["no node that its pods may run on is there now: they wait until one is added"]
    if not inventory.kinds:
        raise UserError("the cluster has no nodes", remedy="Add some; kubectl get nodes shows them")
    if not fitting:
        raise UserError(f"no node of the cluster {_who(needs)}", remedy=_mend(needs, inventory))
    holding = [(machine, count) for machine, count in fitting if not _lacks(machine, asked)]
    if not holding:
        best = min((machine for machine, _ in fitting), key=lambda machine: len(_lacks(machine, asked)))
        lack = _lacks(best, asked)[0]
        problem = f"a pod needs {_words(lack, asked[lack])}, and the node with most has {_most(fitting, lack)}"
        if inventory.elastic:
            return [f"{problem}: it waits until a larger one is added"]
        raise UserError(problem, remedy=_less(lack))
    warnings = _check_workers(needs, fitting, elastic=inventory.elastic)
    there = _room(holding, asked)
    if asked and there < nodes:
        warnings.append(f"{there} of the {nodes} nodes that it asks for are there now: the other pods wait")
    return warnings


def check_open(needs: Needs, inventory: Inventory, *, kubectl: str) -> list[str]:
    """Refuses a cluster whose nodes are all cordoned: not even the pod that brings the run's files starts there.

    A warning where nodes may be added, or none is ready for another reason.
    """
    fitting = inventory.fitting(needs)
    if not inventory.known or not fitting or any(machine.ready for machine, _ in fitting):
        return []
    total = sum(count for _, count in fitting)
    which = "the node that its pods may run on is" if total == 1 else f"all {total} nodes that its pods may run on are"
    cordoned = [machine.name for machine, _ in fitting if machine.cordoned]
    if not cordoned:
        return [f"{which} not ready, such as {fitting[0][0].name}: its pods wait; {kubectl} describe nodes tells more"]
    problem = f"{which} closed to new pods (cordoned{' or not ready' * (len(cordoned) < len(fitting))})"
    remedy = f"{kubectl} uncordon {cordoned[0]}"
    if inventory.elastic:
        return [f"{problem}: its pods wait until another is added, or one is opened with: {remedy}"]
    raise UserError(problem, remedy=f"Run: {remedy}")


def check_room(needs: Needs, inventory: Inventory, *, nodes: int) -> None:
    """Refuses more nodes than there is room for, where nobody adds any: for a run that would end to wait for them."""
    asked = _asked(needs)
    if not inventory.known or inventory.elastic or not asked:
        return
    holding = [(machine, count) for machine, count in inventory.fitting(needs) if not _lacks(machine, asked)]
    if (there := _room(holding, asked)) < nodes:
        raise UserError(
            f"{there} of the {nodes} nodes that it needs are there, and it would have to end before it waits for them",
            remedy="Ask for fewer, or add nodes first; kubectl get nodes shows them",
        )


def _room(holding: list[tuple[Machine, int]], asked: Asked) -> int:
    """Pods that the nodes which are ready hold, were nothing else there."""
    return sum(count * _pods(machine, asked) for machine, count in holding if machine.ready)


def _check_workers(needs: Needs, fitting: list[tuple[Machine, int]], *, elastic: bool) -> list[str]:
    """Pods that ask for no cores are put anywhere: there must be a core for each worker all the same."""
    cores = ceil(max(machine.offers.get("cpu", 0) for machine, _ in fitting))  # of two 1.93 are left to pods
    if needs.device != "cpu" or needs.devices or needs.cpu or not cores or needs.workers <= cores:
        return []
    problem = f"{needs.workers} workers are to run on a node, and the one with most has {cores} core{'s' * (cores > 1)}"
    remedy = f"Set on.workers={cores} or less, or say with on.cpu what a pod is to have"
    if elastic:
        return [f"{problem}: {remedy[:1].lower()}{remedy[1:]}"]
    raise UserError(problem, remedy=remedy)


def _asked(needs: Needs) -> Asked:
    asked: Asked = {name: float(count) for name, count in needs.devices.items()}
    if needs.cpu:
        asked["cpu"] = needs.cpu
    if needs.memory:
        asked["memory"] = float(needs.memory)
    return asked | {name: quantity(amount) for name, amount in needs.resources.items()}


def _lacks(machine: Machine, asked: Asked) -> list[str]:
    return [name for name, value in asked.items() if machine.offers.get(name, 0) < value]


def _pods(machine: Machine, asked: Asked) -> int:
    """How many of them one such node holds, were nothing else there."""
    return min((int(machine.offers[name] / value + 1e-9) for name, value in asked.items() if value), default=0)


def _who(needs: Needs) -> str:
    labels = [f"{key}={value}" for key, value in needs.selectors.items()]
    labels += [" or ".join(f"{key}={value}" for key, value in needs.spot)] if needs.spot else []
    if not labels:
        return f"takes its pods: all have taints{' or are in on.avoid' if needs.avoid else ''}"
    beside = " and is not in on.avoid" if needs.avoid else ""
    return f"has the label{'s' * (len(labels) > 1)} {', '.join(labels)}{beside}"


def _mend(needs: Needs, inventory: Inventory) -> str:
    if not needs.selectors and not needs.spot:
        taints = [taint for machine, _ in inventory.kinds for taint in machine.taints]
        keys = sorted({str(taint["key"]) for taint in taints if is_lasting(taint)})
        ways = [f"Set on.tolerations to some of: {', '.join(keys)}"] if keys else []
        return "; or: ".join([*ways, "Name fewer nodes in on.avoid"] if needs.avoid else ways)
    types = {machine.labels.get("node.kubernetes.io/instance-type") for machine, _ in inventory.kinds} - {None}
    there = f" Instance types that are there: {', '.join(sorted(map(str, types)))}" if types else ""
    return "Change on.instance, on.spot or on.selectors; kubectl get nodes --show-labels shows what there is." + there


def _most(fitting: list[tuple[Machine, int]], name: str) -> str:
    return _words(name, max(machine.offers.get(name, 0) for machine, _ in fitting))


def _words(name: str, value: float) -> str:
    return WORDS[name](value) if name in WORDS else f"{value:g} {name}"


def _less(name: str) -> str:
    if name == HUGE:
        return "EFA wants them: set aside huge pages on the nodes (vm.nr_hugepages), or go without: on.efa=0"
    keys = {"cpu": "on.cpu", "memory": "on.memory"}
    key = keys.get(name, "on.gpus, on.efa or on.neuron")
    more = "" if name in keys else "; where the nodes do have them, their device plugin is missing: stoker check kube"
    return f"Ask for less with {key}{more}"
