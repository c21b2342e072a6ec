"""Overrides for `stoker launch` that change one setting of a run, for remedies. Pure.

A list or mapping on the command line replaces the old one, so each override repeats what the run already has.
"""

from typing import Any

from stoker.backends.kubernetes.pod import merged
from stoker.diagnose.overrides import override
from stoker.spec.on import KubernetesOn

ARCH = "kubernetes.io/arch"
NOT_ROOT = {"spec": {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}}


def overrides(on: KubernetesOn, nodes: int) -> dict[str, str]:
    """By name in the rules; empty where the run already has that setting. `nodes`: the number that it asks for."""
    return {
        "add_image_secret": override("on.image_secrets", [*on.image_secrets, "NAME"]),
        "drop_pull_policy": override("on.pod", _without_policy(on.pod)),
        "run_as_user": override("on.pod", merged(on.pod, NOT_ROOT)),
        "select_arch": override("on.selectors", on.selectors | {ARCH: "ARCH"}),
        "fewer_nodes": "" if 1 in (on.nodes.least, nodes) else "on.nodes=N" if on.runtime else f"on.nodes=1..{nodes}",
        "ask_less": "on.nodes=N" if nodes > 1 else "on.gpus=N" if (on.gpus or 0) > 1 else "on.cpu=CORES",
    }


def _without_policy(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod.get("spec") or {}
    containers = [
        {key: value for key, value in container.items() if key != "imagePullPolicy"}
        for container in spec.get("containers") or []
    ]
    return pod | {"spec": spec | {"containers": containers}} if containers else pod
