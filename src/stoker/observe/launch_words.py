"""Words for `stoker launch` that change one thing of a run: a list or a mapping on the command line takes the place of
the one before, so what it has already stands in them too. Pure."""

import json
import shlex
from typing import Any

import yaml

from stoker.launch.pod import merged
from stoker.spec.on import On
from stoker.spec.run import AnySpec, ScriptSpec

ARCH = "kubernetes.io/arch"
NOT_ROOT = {"spec": {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}}


def word(key: str, value: object) -> str:
    """Quoted for a shell."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False).strip()
    if "'" in text:
        text = json.dumps(value)  # with quotes that a shell leaves alone there
    return shlex.quote(f"{key}={text}")


def words(on: On, nodes: int) -> dict[str, str]:
    """By the names that the rules know them by. `nodes`: as many as it asks for now.

    Empty where the run is so already.
    """
    return {
        "opened": word("on.image_secrets", [*on.image_secrets, "NAME"]),
        "pulled": word("on.pod", _without_policy(on.pod)),
        "demoted": word("on.pod", merged(on.pod, NOT_ROOT)),
        "processors": word("on.selectors", on.selectors | {ARCH: "ARCH"}),
        "fewer": "" if 1 in (on.nodes.least, nodes) else "on.nodes=N" if on.runtime else f"on.nodes=1..{nodes}",
        "less": "on.nodes=N" if nodes > 1 else "on.gpus=N" if (on.gpus or 0) > 1 else "on.cpu=CORES",
    }


def lighter(spec: AnySpec) -> dict[str, Any]:
    """The same, of what the trainer does; a script has settings of its own."""
    if isinstance(spec, ScriptSpec):
        return {}
    return {
        "micro": "" if spec.batch.micro == 1 else "batch.micro=1",
        "kept": "" if spec.checkpoint.keep == 1 else "checkpoint.keep=1",
    }


def _without_policy(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod.get("spec") or {}
    containers = [{key: one[key] for key in one if key != "imagePullPolicy"} for one in spec.get("containers") or []]
    return pod | {"spec": spec | {"containers": containers}} if containers else pod
