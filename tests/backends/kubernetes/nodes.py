"""Nodes of a cluster, and what the pods of a run need, for tests."""

from stoker.backends.kubernetes.inventory import Inventory, grouped
from stoker.backends.kubernetes.needs import Needs, needs
from stoker.spec.load import load

GIB = 2**30


def of(*overrides: str, script: bool = False) -> Needs:
    subject = ["script=x.py"] if script else ["data=x", "until.steps=1"]
    return needs(load(None, [*subject, "on.kind=kubernetes", *overrides]).spec, "demo-abcd")


def node(
    name: str, *, taints: tuple[str, ...] = (), labels: dict[str, str] | None = None, **offers: str
) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": {"taints": [{"key": key, "value": "", "effect": "NoSchedule"} for key in taints]},
        "status": {
            "allocatable": {key.replace("gpus", "nvidia.com/gpu"): value for key, value in offers.items()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def cluster(*nodes: dict[str, object], elastic: bool = False) -> Inventory:
    return grouped(nodes, elastic=elastic)
