"""The pod of one node: pure, the same for every kind of job."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.launch.command import KEEP_PAGES, SUPERVISOR
from stoker.launch.needs import Needs
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, ScriptSpec

Object = dict[str, Any]
VOLUME = "stoker"
SECURITY: Object = {"allowPrivilegeEscalation": False}
KEYS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}
"""What tells the things of a list apart, where it is not their name."""
NODE = f"$({contract.ENV_NODE})"  # Kubernetes puts the variable's value there
OURS = (contract.ENV_NODE, contract.ENV_PORT)  # variables of the supervisor that no `env` of a run may change
STAYS = {  # a training pod that is moved loses the steps since its last checkpoint, and its peers wait
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "sidecar.istio.io/inject": "false",  # a proxy outlives the training, and breaks the collectives
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """All that the objects of a run are made from."""

    run: str
    """Its name, and its objects'."""
    spec: AnySpec
    needs: Needs
    image: str
    volume: str
    namespace: str
    cores: int | None = None
    """Of a node, where the spec does not say."""

    @property
    def labels(self) -> dict[str, str]:
        return {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_RUN: self.run}

    @property
    def metadata(self) -> Object:
        return {"name": self.run, "namespace": self.namespace, "labels": self.labels}

    @property
    def folder(self) -> str:
        return f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{self.run}"

    @property
    def secret(self) -> str | None:
        return f"{self.run}-env" if self.spec.secrets else None


def command(task: Task, *, node: str = NODE) -> tuple[str, ...]:
    spec, on = task.spec, task.spec.on
    own = ("--", "python3", _script(spec), *spec.args) if isinstance(spec, ScriptSpec) else ()
    ours = ("--workers", str(task.needs.workers), "--nodes", str(on.nodes), "--node", node, "--echo")
    words = ("python3", "-P", "-m", SUPERVISOR, task.folder, *ours)
    return (*words, *map(literal, own))


def template(task: Task, *, node: Object | None, argument: str = NODE, subdomain: str | None = None) -> Object:
    """`node`: where the variable of the node's index comes from; `argument`: what the supervisor is told it is."""
    on = task.spec.on
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(on.grace),
        "enableServiceLinks": False,  # a variable for every Service of the namespace
        "automountServiceAccountToken": on.service_account is not None,
        "serviceAccountName": on.service_account,
        "priorityClassName": on.priority,
        "imagePullSecrets": [{"name": name} for name in on.image_secrets],
        "subdomain": subdomain,
        "nodeSelector": task.needs.selectors,
        "affinity": _affinity(task.needs),
        "tolerations": [*task.needs.tolerations],
        "containers": [_container(task, node, argument)],
        "volumes": [
            {"name": VOLUME, "persistentVolumeClaim": {"claimName": task.volume}},
            {"name": "shm", "emptyDir": _filled({"medium": "Memory", "sizeLimit": _bytes(task.needs.shm)})},
        ],
    }
    made = {"metadata": {"labels": task.labels, "annotations": dict(STAYS)}, "spec": _filled(spec)}
    patched: Object = merged(made, on.pod)
    _check(patched, task)
    return patched


def literal(text: str) -> str:
    """Text that Kubernetes leaves as it is: it would put the value of a variable for $(NAME)."""
    return text.replace("$(", "$$(")


def secret(task: Task, values: dict[str, str]) -> Object:
    """What the workers get in their environment and nobody is shown."""
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": task.metadata | {"name": task.secret}}
    return head | {"type": "Opaque", "stringData": values}


def _script(spec: ScriptSpec) -> str:
    """Where it lies in the image: one that is built for the run has the script's folder, another has what it says."""
    return f"{contract.WORKDIR}/{Path(spec.script).name}" if spec.on.registry else spec.script


def _container(task: Task, node: Object | None, argument: str) -> Object:
    needs = task.needs
    security = dict(SECURITY)
    if needs.capabilities:
        security["capabilities"] = {"add": list(needs.capabilities)}
    return _filled(
        {
            "name": contract.CONTAINER,
            "image": task.image,
            "command": list(command(task, node=argument)),
            "env": _environment(task, node),
            "envFrom": [{"secretRef": {"name": task.secret}}] if task.secret else None,
            "ports": [{"name": "nodes", "containerPort": contract.NODES_PORT}],
            "resources": _resources(needs),
            "securityContext": security,
            "volumeMounts": [
                {"name": VOLUME, "mountPath": contract.MOUNT},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }
    )


def _environment(task: Task, node: Object | None) -> list[Object]:
    fields = {
        contract.ENV_ADDRESS: "status.podIP",
        contract.ENV_POD: "metadata.name",
        contract.ENV_K8S_NODE: "spec.nodeName",
    }
    cores = int(task.needs.cpu) if task.needs.cpu else task.cores
    plain = {contract.ENV_PORT: str(contract.NODES_PORT), "PYTHONUNBUFFERED": "1"}
    if cores:
        plain["OMP_NUM_THREADS"] = str(max(1, cores // task.needs.workers))
    if task.needs.device == "cpu" and not isinstance(task.spec, ScriptSpec):
        plain |= KEEP_PAGES
    # the supervisor too: torch or Stoker itself may lie where a variable says
    given = {name: literal(value) for name, value in task.spec.env.items() if name not in (*fields, *OURS)}
    return [
        *([{"name": contract.ENV_NODE} | node] if node else []),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in (plain | task.needs.env | given).items()),
    ]


def _resources(needs: Needs) -> Object:
    """No limit on cores: throttling would slow all nodes to the pace of the slowest."""
    devices = {name: str(count) for name, count in needs.devices.items()} | needs.resources
    requests = _filled({"cpu": _cores(needs.cpu), "memory": _bytes(needs.memory)}) | devices
    limits = _filled({"memory": _bytes(needs.memory_limit)}) | devices
    return _filled({"requests": requests, "limits": limits})


def _affinity(needs: Needs) -> Object | None:
    """One of the spot labels, and none of the nodes to avoid: a field takes one value, so each has its own line."""
    terms: list[Object] = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in needs.spot
    ]
    if needs.avoid:
        away = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in needs.avoid]
        terms = [term | {"matchFields": away} for term in terms or [{}]]
    if not terms:
        return None
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """`patch` over `base`: mappings by key, lists of named things by name, others added; null takes a key away.

    A list of plain words, such as a command, is replaced. Mounts have their path for a name: a volume may have several.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        found = dict(base)
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merged(base[key], value, key) if key in base else copy.deepcopy(value)
        return found
    name = KEYS.get(field, "name")
    if isinstance(base, list) and isinstance(patch, list) and all(_named(one, name) for one in [*base, *patch]):
        by_name = {one[name]: one for one in base}
        for one in patch:
            by_name[one[name]] = merged(by_name[one[name]], one) if one[name] in by_name else copy.deepcopy(one)
        return list(by_name.values())
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(one, dict) for one in patch):
        return [*base, *copy.deepcopy(patch)]
    return copy.deepcopy(patch)


def _named(one: Any, name: str) -> bool:
    return isinstance(one, dict) and isinstance(one.get(name), str)


def _check(template: Object, task: Task) -> None:
    """What every run needs of its pods is there after the patch."""
    for field in ("containers", "initContainers"):
        if not all(_named(one, "name") for one in _things(_dig(template, "spec", field))):
            raise UserError(
                f"on.pod has one of spec.{field} without a name",
                remedy=f"Give it one; that of the training is name: {contract.CONTAINER}",
            )
    labels, spec = _dig(template, "metadata", "labels"), _dig(template, "spec")
    ours = one_named(_dig(spec, "containers"), contract.CONTAINER)
    volume = one_named(_dig(spec, "volumes"), VOLUME)
    mounts = [_dig(one, "mountPath") for one in _things(_dig(ours, "volumeMounts")) if one.get("name") == VOLUME]
    claim, image = _dig(volume, "persistentVolumeClaim", "claimName"), _dig(ours, "image")
    lacks = {
        f"the container '{contract.CONTAINER}'": not ours,
        f"an image of container '{contract.CONTAINER}'": not isinstance(image, str) or not image,
        f"the volume '{VOLUME}' of a claim": not isinstance(claim, str) or not claim,
        f"the volume '{VOLUME}' at {contract.MOUNT}": contract.MOUNT not in mounts,
        "Stoker's labels as they are": any(_dig(labels, key) != value for key, value in task.labels.items()),
    }
    if lacking := [what for what, lack in lacks.items() if lack]:
        raise UserError(
            f"on.pod leaves the pods without {lacking[0]}",
            remedy="Take that part out of on.pod: it is laid over Stoker's own pod, which has all that a run needs",
        )


def one_named(things: Any, name: str) -> Object:
    """The one of that name; nothing where there is none."""
    return next((one for one in _things(things) if one.get("name") == name), {})


def _things(value: Any) -> list[Object]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _filled(values: Object) -> Object:
    """Without what is None or empty."""
    return {key: value for key, value in values.items() if value not in (None, {}, [])}


def _cores(number: float | None) -> str | None:
    return None if number is None else str(int(number)) if number == int(number) else f"{round(number * 1000)}m"


def _bytes(number: int | None) -> str | None:
    """As `kubectl` would write it, where that is exact."""
    if number is None:
        return None
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if number % size == 0:
            return f"{number // size}{unit}"
    return f"{number // 2**20}Mi" if number > 2**30 else str(number)
