"""What one pod of a run needs: pure, from the `on` section, the instance type's facts and what the nodes have."""

from dataclasses import dataclass
from typing import Any

from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.instances import Instance, instance, nearest, table
from stoker.spec.on import On
from stoker.spec.run import AnySpec, RunSpec

GIB, MIB = 2**30, 2**20
AWAY = 30  # seconds that a pod stays bound to a node that is not ready or cannot be reached; the default is 300
GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TYPE_LABEL = "node.kubernetes.io/instance-type"

Taint = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Of each pod."""

    workers: int
    device: str
    cpu: float | None
    """Cores asked for; None: no word of it."""
    memory: int | None
    memory_limit: int | None
    shm: int | None
    devices: dict[str, int]
    """Resource name -> how many."""
    resources: dict[str, str]
    """Others: huge pages."""
    capabilities: tuple[str, ...]
    env: dict[str, str]
    selectors: dict[str, str]
    spot: tuple[tuple[str, str], ...]
    """Labels of which a node must have one."""
    tolerations: tuple[Taint, ...]
    avoid: tuple[str, ...] = ()
    """Nodes of the cluster, by name."""

    @property
    def gpus(self) -> int:
        return self.devices.get(table()["devices"]["gpus"], 0)


def needs(spec: AnySpec, run: str) -> Needs:
    on = spec.on
    offers = _instance(on)
    counts = {
        "gpus": _or(on.gpus, offers.gpus if offers else 0),
        "efa": _or(on.efa, offers.efa if offers and offers.rdma and on.nodes.most > 1 else 0),
        "neuron": _or(on.neuron, offers.neuron if offers else 0),
    }
    has = [name for name, count in counts.items() if count]
    if offers and offers.rdma and counts["efa"]:
        has.append("rdma")
    _check_devices(spec, counts)
    memory = on.memory or (_free_memory(offers) if offers else None)
    workers = _workers(on, offers, counts)
    cpu, resources = on.cpu or (_free_cores(offers) if offers else None), _merged("resources", has)
    if resources and not cpu and not memory:
        raise UserError(
            "EFA needs huge pages, and Kubernetes gives those only to a pod that asks for cores or memory as well",
            remedy="Set on.cpu or on.memory, or on.instance, which brings both",
        )
    return Needs(
        workers=workers,
        device="cuda" if counts["gpus"] and on.device != "cpu" else "cpu",
        cpu=cpu,
        memory=memory,
        memory_limit=on.memory,
        shm=on.shm or (memory // 2 // MIB * MIB if memory else None),
        devices={table()["devices"][name]: count for name, count in counts.items() if count},
        resources=resources,
        capabilities=tuple(word for name in has for word in table()["capabilities"].get(name, [])),
        env=_environment(has, run),
        selectors=({TYPE_LABEL: on.instance} if on.instance else {}) | on.selectors,
        spot=_spot_labels(on, offers),
        tolerations=_tolerations(on, offers, has),
        avoid=tuple(on.avoid),
    )


def _instance(on: On) -> Instance | None:
    if on.instance is None:
        return None
    found = instance(on.instance)
    if found is None and not (on.cpu or on.memory or on.gpus or on.neuron):
        near = nearest(on.instance)
        raise UserError(
            f"nothing is known of on.instance {on.instance}",
            remedy=(f"Did you mean {near}? " if near else "") + "Else say what a pod gets: on.gpus, on.cpu, on.memory",
        )
    return found


def _check_devices(spec: AnySpec, counts: dict[str, int]) -> None:
    if spec.on.device == "cuda" and not counts["gpus"]:
        raise UserError(
            "on.device is cuda, but its pods get no GPU", remedy="Set on.gpus, or an on.instance that has some"
        )
    if counts["neuron"] and isinstance(spec, RunSpec):
        raise UserError(
            "our trainer does not run on Neuron devices yet",
            remedy="Run a script of your own there (script: train.py), or take a GPU instance",
        )


def _workers(on: On, offers: Instance | None, counts: dict[str, int]) -> int:
    gpus = counts["gpus"] if on.device != "cpu" else 0
    cores = counts["neuron"] * (offers.neuron_cores // offers.neuron if offers and offers.neuron else 2)
    if on.workers == "auto":
        return gpus or cores or 1
    if gpus and on.workers > gpus:
        raise UserError(
            f"on.workers is {on.workers}, but a pod has {gpus} GPU{'s' * (gpus != 1)}",
            remedy=f"Set on.workers={gpus}, or on.device=cpu",
        )
    if offers and not gpus and not cores and on.cpu is None and on.workers > offers.cores:
        raise UserError(
            f"on.workers is {on.workers}, but on.instance {on.instance} has {offers.cores} cores",
            remedy=f"Set on.workers={offers.cores} or less, or say with on.cpu what a pod is to have",
        )
    return on.workers


def _free_cores(offers: Instance) -> float:
    """What the kubelet and the pods of every node leave."""
    free = offers.cores - max(0.5, 0.04 * offers.cores)
    return float(int(free)) if free > 8 else free


def _free_memory(offers: Instance) -> int:
    return (int(offers.memory * 0.9) - GIB) // GIB * GIB


def _environment(has: list[str], run: str) -> dict[str, str]:
    folder = f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{run}"
    found = _merged("env", ["all", *has])
    return {name: value.replace("{run}", folder) for name, value in found.items()}


def _spot_labels(on: On, offers: Instance | None) -> tuple[tuple[str, str], ...]:
    return tuple(pair for cloud in _spot(on, offers) for pair in cloud["labels"].items())


def _spot(on: On, offers: Instance | None) -> list[dict[str, Any]]:
    """Of its cloud, or of all where the cloud is not known."""
    clouds = table()["spot"]
    if not on.spot:
        return []
    return [clouds[offers.cloud]] if offers else list(clouds.values())


def _tolerations(on: On, offers: Instance | None, has: list[str]) -> tuple[Taint, ...]:
    gone: list[Taint] = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": AWAY} for key in GONE
    ]
    keys = [key for name in has for key in table()["taints"].get(name, [])]
    keys += [key for cloud in _spot(on, offers) for key in cloud["taints"]]
    ours: list[Taint] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return (*gone, *ours, *map(_toleration, on.tolerations))


def _toleration(word: str) -> Taint:
    """`key`, `key=value`, `key:effect`, `key=value:effect`, as kubectl writes taints."""
    taint, _, effect = word.partition(":")
    key, equals, value = taint.partition("=")
    found: Taint = {"key": key, "operator": "Equal" if equals else "Exists"}
    return found | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})


def _merged(section: str, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        found |= table()[section].get(name, {})
    return found


def _or(said: int | None, otherwise: int) -> int:
    return otherwise if said is None else said
