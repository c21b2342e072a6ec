"""What one pod of a run needs of its node, from the `on` section and the instance type. Pure."""

from dataclasses import dataclass
from typing import Any

from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.hardware import InstanceType, instance_table, instance_type, nearest_instance_type
from stoker.spec.on import KubernetesOn, kubernetes_on
from stoker.spec.run import AnySpec, RunSpec

GIB, MIB = 2**30, 2**20
UNREACHABLE_TOLERATION_S = 30  # a pod is replaced so long after its node was lost; the default is 300
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TYPE_LABEL = "node.kubernetes.io/instance-type"

Taint = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Of each pod of a run."""

    workers: int
    device: str
    cpu: float | None
    """Cores that it requests; None: no request."""
    memory: int | None
    memory_limit: int | None
    shm: int | None
    devices: dict[str, int]
    """Resource name -> how many."""
    resources: dict[str, str]
    """Other resources, such as huge pages -> quantity."""
    capabilities: tuple[str, ...]
    env: dict[str, str]
    selectors: dict[str, str]
    spot: tuple[tuple[str, str], ...]
    """The node must have one of these labels."""
    tolerations: tuple[Taint, ...]
    avoid: tuple[str, ...] = ()
    """Names of nodes that it must not run on."""

    @property
    def gpus(self) -> int:
        return self.devices.get(instance_table()["devices"]["gpus"], 0)


def needs(spec: AnySpec, run: str) -> Needs:
    on = kubernetes_on(spec)
    instance = _instance(on)
    counts = {
        "gpus": _or(on.gpus, instance.gpus if instance else 0),
        "efa": _or(on.efa, instance.efa if instance and instance.rdma and on.nodes.most > 1 else 0),
        "neuron": _or(on.neuron, instance.neuron if instance else 0),
    }
    has = [name for name, count in counts.items() if count]
    if instance and instance.rdma and counts["efa"]:
        has.append("rdma")
    _check_devices(spec, counts)
    memory = on.memory or (_free_memory(instance) if instance else None)
    workers = _workers(on, instance, counts)
    cpu, resources = on.cpu or (_free_cores(instance) if instance else None), _merged("resources", has)
    if resources and not cpu and not memory:
        raise UserError(
            "EFA needs huge pages, and Kubernetes requires a pod with huge pages to request cores or memory too",
            remedy="Set on.cpu or on.memory, or on.instance, which sets both",
        )
    return Needs(
        workers=workers,
        device="cuda" if counts["gpus"] and on.device != "cpu" else "cpu",
        cpu=cpu,
        memory=memory,
        memory_limit=on.memory,
        shm=on.shm or (memory // 2 // MIB * MIB if memory else None),
        devices={instance_table()["devices"][name]: count for name, count in counts.items() if count},
        resources=resources,
        capabilities=tuple(added for name in has for added in instance_table()["capabilities"].get(name, [])),
        env=_environment(has, run),
        selectors=({TYPE_LABEL: on.instance} if on.instance else {}) | on.selectors,
        spot=_spot_labels(on, instance),
        tolerations=_tolerations(on, instance, has),
        avoid=tuple(on.avoid),
    )


def _instance(on: KubernetesOn) -> InstanceType | None:
    if on.instance is None:
        return None
    known = instance_type(on.instance)
    if known is None and not (on.cpu or on.memory or on.gpus or on.neuron):
        near = nearest_instance_type(on.instance)
        raise UserError(
            f"on.instance {on.instance} is unknown",
            remedy=(f"Did you mean {near}? " if near else "") + "Or set what a pod gets: on.gpus, on.cpu, on.memory",
        )
    return known


def _check_devices(spec: AnySpec, counts: dict[str, int]) -> None:
    if kubernetes_on(spec).device == "cuda" and not counts["gpus"]:
        raise UserError(
            "on.device is cuda, but its pods get no GPU", remedy="Set on.gpus, or an on.instance that has some"
        )
    if counts["neuron"] and isinstance(spec, RunSpec):
        raise UserError(
            "Stoker's trainer does not run on Neuron devices yet",
            remedy="Run your own script there (script: train.py), or use a GPU instance",
        )


def _workers(on: KubernetesOn, instance: InstanceType | None, counts: dict[str, int]) -> int:
    gpus = counts["gpus"] if on.device != "cpu" else 0
    cores = counts["neuron"] * (instance.neuron_cores // instance.neuron if instance and instance.neuron else 2)
    if on.workers == "auto":
        return gpus or cores or 1
    if gpus and on.workers > gpus:
        raise UserError(
            f"on.workers is {on.workers}, but a pod has {gpus} GPU{'s' * (gpus != 1)}",
            remedy=f"Set on.workers={gpus}, or on.device=cpu",
        )
    if instance and not gpus and not cores and on.cpu is None and on.workers > instance.cores:
        raise UserError(
            f"on.workers is {on.workers}, but on.instance {on.instance} has {instance.cores} cores",
            remedy=f"Set on.workers={instance.cores} or less, or request cores with on.cpu",
        )
    return on.workers


def _free_cores(instance: InstanceType) -> float:
    """What the kubelet and the daemon sets leave to a pod."""
    free = instance.cores - max(0.5, 0.04 * instance.cores)
    return float(int(free)) if free > 8 else free


def _free_memory(instance: InstanceType) -> int:
    return (int(instance.memory * 0.9) - GIB) // GIB * GIB


def _environment(has: list[str], run: str) -> dict[str, str]:
    folder = f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{run}"
    variables = _merged("env", ["all", *has])
    return {name: value.replace("{run}", folder) for name, value in variables.items()}


def _spot_labels(on: KubernetesOn, instance: InstanceType | None) -> tuple[tuple[str, str], ...]:
    return tuple(pair for cloud in _spot(on, instance) for pair in cloud["labels"].items())


def _spot(on: KubernetesOn, instance: InstanceType | None) -> list[dict[str, Any]]:
    """The spot settings of its cloud, or of all clouds where it is not known."""
    clouds = instance_table()["spot"]
    if not on.spot:
        return []
    return [clouds[instance.cloud]] if instance else list(clouds.values())


def _tolerations(on: KubernetesOn, instance: InstanceType | None, has: list[str]) -> tuple[Taint, ...]:
    lost: list[Taint] = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_TOLERATION_S}
        for key in LOST_NODE_TAINTS
    ]
    keys = [key for name in has for key in instance_table()["taints"].get(name, [])]
    keys += [key for cloud in _spot(on, instance) for key in cloud["taints"]]
    own: list[Taint] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return (*lost, *own, *map(_toleration, on.tolerations))


def _toleration(text: str) -> Taint:
    """`key`, `key=value`, `key:effect`, `key=value:effect`, as kubectl writes taints."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    toleration: Taint = {"key": key, "operator": "Equal" if equals else "Exists"}
    return toleration | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})


def _merged(section: str, names: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name in names:
        values |= instance_table()[section].get(name, {})
    return values


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
