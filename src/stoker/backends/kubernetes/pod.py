"""The pod template of a run, the same for every kind of job, and the objects beside it: its Secret and its
NetworkPolicy. Pure."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.backends.kubernetes.needs import Needs
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec, ScriptSpec

Object = dict[str, Any]
VOLUME = "stoker"
SECURITY: Object = {"allowPrivilegeEscalation": False}
MERGE_KEYS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}
"""The field that identifies the entries of these lists; in others it is `name`."""
NODE = f"$({contract.ENV_NODE})"  # Kubernetes replaces it with the variable's value
RESERVED = (contract.ENV_NODE, contract.ENV_PORT)  # variables of the supervisor that the `env` of a run cannot change
ANNOTATIONS = {  # moving a training pod loses the steps since its last checkpoint, while its peers wait
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "sidecar.istio.io/inject": "false",  # a proxy outlives the training, and breaks the collectives
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What the objects of a run are built from."""

    run: str
    """Its name, which its objects share."""
    spec: AnySpec
    needs: Needs
    image: str
    volume: str
    namespace: str
    cores: int | None = None
    """Cores of the smallest node that fits, where the spec does not set on.cpu."""

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
    spec, on = task.spec, kubernetes_on(task.spec)
    script = ("--", "python3", _script(spec), *spec.args) if isinstance(spec, ScriptSpec) else ()
    options = ("--workers", str(task.needs.workers), "--nodes", str(on.nodes), "--node", node, "--echo")
    return ("python3", "-P", "-m", contract.SUPERVISOR_MODULE, task.folder, *options, *map(literal, script))


def template(task: Task, *, node: Object | None, argument: str = NODE, subdomain: str | None = None) -> Object:
    """`node`: the source of the variable with the node's index; `argument`: the index as the supervisor's argument."""
    on = kubernetes_on(task.spec)
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(on.grace),
        "enableServiceLinks": False,  # else every Service of the namespace adds variables
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
    template = {"metadata": {"labels": task.labels, "annotations": dict(ANNOTATIONS)}, "spec": _filled(spec)}
    patched: Object = merged(template, on.pod)
    _check(patched, task)
    return patched


def literal(text: str) -> str:
    """Escapes $(NAME), which Kubernetes would replace with the value of a variable."""
    return text.replace("$(", "$$(")


def secret(task: Task, values: dict[str, str]) -> Object:
    """The Secret that the workers get in their environment."""
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": task.metadata | {"name": task.secret}}
    return head | {"type": "Opaque", "stringData": values}


def network_policy(task: Task) -> Object:
    """Lets the pods of a run accept connections from each other only, on all ports: collectives use random ones.

    Operators, logs and commands come through the API server and the node, which a policy cannot block.
    """
    pods = {"matchLabels": {contract.LABEL_RUN: task.run}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": task.metadata,
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


def _script(spec: ScriptSpec) -> str:
    """Its path in the image. An image that is built for the run has the script's folder in its working directory."""
    return f"{contract.WORKDIR}/{Path(spec.script).name}" if kubernetes_on(spec).registry else spec.script


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
        plain |= contract.MALLOC_ENV
    # for the supervisor too: torch or Stoker itself may be on PYTHONPATH
    own = {name: literal(value) for name, value in task.spec.env.items() if name not in (*fields, *RESERVED)}
    return [
        *([{"name": contract.ENV_NODE} | node] if node else []),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in (plain | task.needs.env | own).items()),
    ]


def _resources(needs: Needs) -> Object:
    """Without a CPU limit: throttling one pod would slow down all the others."""
    devices = {name: str(count) for name, count in needs.devices.items()} | needs.resources
    requests = _filled({"cpu": _cores(needs.cpu), "memory": _bytes(needs.memory)}) | devices
    limits = _filled({"memory": _bytes(needs.memory_limit)}) | devices
    return _filled({"requests": requests, "limits": limits})


def _affinity(needs: Needs) -> Object | None:
    """One of the spot labels, and none of the nodes to avoid. `matchFields` takes one value per expression."""
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
    """`patch` merged into `base`: mappings by key, lists of named objects by name, others appended; null deletes.

    A list of plain values, such as a command, is replaced. Mounts are identified by their path.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        result = dict(base)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(base[key], value, key) if key in base else copy.deepcopy(value)
        return result
    name = MERGE_KEYS.get(field, "name")
    if isinstance(base, list) and isinstance(patch, list) and all(_has(entry, name) for entry in [*base, *patch]):
        by_name = {entry[name]: entry for entry in base}
        for entry in patch:
            old = by_name.get(entry[name])
            by_name[entry[name]] = copy.deepcopy(entry) if old is None else merged(old, entry)
        return list(by_name.values())
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(entry, dict) for entry in patch):
        return [*base, *copy.deepcopy(patch)]
    return copy.deepcopy(patch)


def _has(entry: Any, field: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(field), str)


def _check(template: Object, task: Task) -> None:
    """Raises UserError if on.pod has removed something that every run needs."""
    for field in ("containers", "initContainers"):
        if not all(_has(container, "name") for container in objects(_dig(template, "spec", field))):
            raise UserError(
                f"on.pod has an entry of spec.{field} without a name",
                remedy=f"Name it; the container that trains is name: {contract.CONTAINER}",
            )
    labels, spec = _dig(template, "metadata", "labels"), _dig(template, "spec")
    container = find_named(_dig(spec, "containers"), contract.CONTAINER)
    volume = find_named(_dig(spec, "volumes"), VOLUME)
    mounts = [
        mount.get("mountPath") for mount in objects(_dig(container, "volumeMounts")) if mount.get("name") == VOLUME
    ]
    claim, image = _dig(volume, "persistentVolumeClaim", "claimName"), _dig(container, "image")
    missing = {
        f"the container '{contract.CONTAINER}'": not container,
        f"an image of container '{contract.CONTAINER}'": not isinstance(image, str) or not image,
        f"the volume '{VOLUME}' of a claim": not isinstance(claim, str) or not claim,
        f"the volume '{VOLUME}' at {contract.MOUNT}": contract.MOUNT not in mounts,
        "Stoker's labels": any(_dig(labels, key) != value for key, value in task.labels.items()),
    }
    if removed := [part for part, is_missing in missing.items() if is_missing]:
        raise UserError(
            f"on.pod leaves the pods without {removed[0]}",
            remedy="Remove that part from on.pod: it is merged into Stoker's own pod, which has all that a run needs",
        )


def find_named(entries: Any, name: str) -> Object:
    """The object of that name in a list; {} if it is missing."""
    return next((entry for entry in objects(entries) if entry.get("name") == name), {})


def objects(value: Any) -> list[Object]:
    """The objects in what should be a list of objects."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _filled(values: Object) -> Object:
    """Drops values that are None or empty."""
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
