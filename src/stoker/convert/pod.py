"""Converts a pod template to `on`, `env` and `secrets`. Fields without an equivalent go into `on.pod` unchanged."""

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from stoker.convert.command import LauncherCommand, expanded, option_name, read_command
from stoker.convert.tracked import ConversionOutcome, Field
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import TOLERATION

Values = dict[str, Any]

DEVICES = {"nvidia.com/gpu": "gpus", "vpc.amazonaws.com/efa": "efa", "aws.amazon.com/neuron": "neuron"}
INSTANCE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
SPOT = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
}
SECRET = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS)(?:_ID)?$")
SAME_NAME = {
    "serviceAccountName": "service_account",
    "serviceAccount": "service_account",
    "priorityClassName": "priority",
}
LAUNCHER_FIELDS = {"nnodes": "on.nodes", "nproc_per_node": "on.workers", "max_restarts": "on.max_restarts"}
RENDEZVOUS = "the nodes find each other through the run's volume"
LOGS = "the output of every rank is kept in the run directory"
LAUNCHER_UNUSED = {
    **dict.fromkeys(
        ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
        RENDEZVOUS,
    ),
    **dict.fromkeys(("tee", "redirects", "log_dir"), LOGS),
    "node_rank": "every pod knows its own index",
    "standalone": "on decides where the run executes",
}
SHM = "/dev/shm"
UNITS = "kKMGTPEi"


@dataclass(kw_only=True, slots=True)
class ConvertedPod:
    launch: LauncherCommand
    working_dir: str | None = None
    """Of the container that trains."""
    on: Values = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)


def read_pod(template: Field) -> ConvertedPod:
    spec = template["spec"]
    container = _container(spec)
    pod = ConvertedPod(launch=_launch(container))
    if container["workingDir"]:
        pod.working_dir = str(container["workingDir"].value)
    patch: Values = {}
    container_patch: Values = {"name": contract.CONTAINER}
    container["name"].used(f"the container is called {contract.CONTAINER}")
    pod.on["image"] = container["image"].used("on.image")
    container_patch |= _environment(container, pod)
    container_patch |= _resources(container["resources"], pod.on)
    _volumes(spec, container, pod.on, container_patch, patch)
    _scheduling(spec, pod.on, patch)
    container["ports"].unused("Stoker opens the ports that it needs")
    for key, value in container.items():
        if key not in ("name", "image", "command", "args", "env", "resources", "volumeMounts", "ports"):
            container_patch[key] = value.used(f"on.pod.spec.containers.{key}")
    others = [
        other.used("on.pod.spec.containers, unchanged") for other in spec["containers"] if other.path != container.path
    ]
    containers = [*([container_patch] if len(container_patch) > 1 else []), *others]
    patch |= {"containers": containers} if containers else {}
    overrides = {"metadata": _metadata(template["metadata"]), "spec": patch}
    if any(overrides.values()):
        pod.on["pod"] = {key: value for key, value in overrides.items() if value}
    return pod


def _container(spec: Field) -> Field:
    containers = list(spec["containers"])
    if not containers:
        raise UserError("the pod template has no container", remedy="Add one, with an image and a command")
    return next((container for container in containers if container["name"].value == contract.CONTAINER), containers[0])


def _launch(container: Field) -> LauncherCommand:
    variables = _plain_variables(container)
    fields = [argument for part in ("command", "args") for argument in container[part]]
    texts = [expanded(str(argument.value), variables) for argument in fields]
    launch = read_command([text for text, _ in texts], f"container {container['name'].value}")
    option = None
    for number, argument in enumerate(fields):
        if unknown := texts[number][1]:
            argument.unused(_unexpanded(unknown))
        elif launch.script_index is None:
            argument.used("read as the launcher, its options, script and args")
        elif number == launch.script_index:
            argument.used("script")
        elif number > launch.script_index:
            argument.used("args")
        else:
            option = option_name(str(argument.value)) or option
            argument.record(_option_outcome(option))
    return launch


def _option_outcome(option: str | None) -> ConversionOutcome:
    if option is None or option == "m":
        return ConversionOutcome("Stoker's supervisor replaces the launcher")
    if option in LAUNCHER_FIELDS:
        return ConversionOutcome(LAUNCHER_FIELDS[option])
    reason = LAUNCHER_UNUSED.get(option, f"Stoker has no equivalent of the launcher's option {option}")
    return ConversionOutcome(reason, is_used=False)


def _plain_variables(container: Field) -> dict[str, str]:
    """Variables whose values are in the manifest and are not secret."""
    variables: dict[str, str] = {}
    for variable in container["env"]:
        name = str(variable["name"].value)
        if variable["value"] and not variable["valueFrom"] and not SECRET.search(name):
            variables[name], _ = expanded(str(variable["value"].value), variables)
    return variables


def _unexpanded(names: list[str]) -> str:
    """Stoker's pods do not expand variables in the arguments of a script."""
    return f"$({names[0]}) is not expanded: its value is known only in the pod, where the script can read {names[0]}"


def _environment(container: Field, pod: ConvertedPod) -> Values:
    kept = []
    variables: dict[str, str] = {}
    for variable in container["env"]:
        name, value, source = str(variable["name"].value), variable["value"], variable["valueFrom"]
        if key := source["secretKeyRef"]:
            pod.secrets[name] = f"env:{name}"
            variable.used(f"secrets.{name}, read from your environment when the run is launched")
            key.unused(f"the value was in the cluster's secret {key['name'].value}; set {name} where you launch")
        elif source:
            kept.append(variable.used("on.pod.spec.containers.env, unchanged"))
        elif SECRET.search(name):
            pod.secrets[name] = f"env:{name}"
            variable.used(f"secrets.{name}")
            value.unused(f"a secret in plain text; set {name} in your environment where you launch")
        else:
            text, unknown = expanded(str("" if value.value is None else value.value), variables)
            pod.env[name] = variables[name] = text
            variable.used(f"env.{name}")
            if unknown:
                value.unused(_unexpanded(unknown))
    return {"env": kept} if kept else {}


def _resources(resources: Field, on: Values) -> Values:
    rest: Values = {}
    for kind in ("limits", "requests"):
        for name, amount in resources[kind].items():
            key = DEVICES.get(name, name)
            value = _amount(name, amount.value) if key in (*DEVICES.values(), "cpu", "memory") else None
            if value is None:
                rest.setdefault(kind, {})[name] = amount.used(f"on.pod.spec.containers.resources.{kind}")
            elif on.setdefault(key, value) == value:
                amount.used(f"on.{key}")
            else:
                amount.unused(f"Stoker uses one number for requests and limits, on.{key}: {on[key]}")
    return {"resources": rest} if rest else {}


def _amount(name: str, value: Any) -> Any:
    """A Kubernetes quantity in the notation of a run file."""
    text = str(value).strip()
    try:
        if name == "cpu":
            cores = Decimal(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
            return int(cores) if cores == int(cores) else float(cores)
        if name != "memory":
            return int(text)
        number = text.rstrip(UNITS)
        amount = int(Decimal(number))
        return amount if number == text else f"{text}B"
    except (InvalidOperation, ValueError, OverflowError):
        raise UserError(
            f"'{text}' is not an amount of {name}", remedy="Write it as Kubernetes does, such as 500m or 16Gi"
        ) from None


def _volumes(spec: Field, container: Field, on: Values, container_patch: Values, patch: Values) -> None:
    mounts = list(container["volumeMounts"])
    shared = {str(mount["name"].value): mount for mount in mounts if mount["mountPath"].value == SHM}
    kept = []
    for volume in spec["volumes"]:
        if mount := shared.get(str(volume["name"].value)):
            if size := volume["emptyDir"]["sizeLimit"]:
                on["shm"] = _amount("memory", size.value)
            volume.used("on.shm" if "shm" in on else "every pod has a /dev/shm; on.shm sets its size")
            mount.used("on.shm")
            continue
        if (claim := volume["persistentVolumeClaim"]["claimName"]) and "volume" not in on:
            on["volume"] = claim.used("on.volume, which holds the run; and on.pod.spec.volumes")
        kept.append(volume.used("on.pod.spec.volumes"))
    others = [mount.used("on.pod.spec.containers.volumeMounts") for mount in mounts if mount["mountPath"].value != SHM]
    patch |= {"volumes": kept} if kept else {}
    container_patch |= {"volumeMounts": others} if others else {}


def _scheduling(spec: Field, on: Values, patch: Values) -> None:
    """Nodes, tolerations, service account, priority, pull secrets; the rest of the pod spec as it is."""
    for name, label in spec["nodeSelector"].items():
        value = str(label.value).lower() if isinstance(label.value, bool) else str(label.value)
        if name in INSTANCE:
            on["instance"] = value
            label.used("on.instance")
        elif SPOT.get(name) == value:
            on["spot"] = True
            label.used("on.spot")
        else:
            on.setdefault("selectors", {})[name] = value
            label.used("on.selectors")
    _tolerations(spec["tolerations"], on, patch)
    if grace := spec["terminationGracePeriodSeconds"]:
        on["grace"] = f"{grace.used('on.grace')}s"
    for name, key in SAME_NAME.items():
        if spec[name]:
            on[key] = str(spec[name].used(f"on.{key}"))
    if names := [str(secret["name"].used("on.image_secrets")) for secret in spec["imagePullSecrets"]]:
        on["image_secrets"] = names
    spec["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    handled = {
        "containers", "volumes", "nodeSelector", "tolerations", "terminationGracePeriodSeconds", "imagePullSecrets",
        "restartPolicy", *SAME_NAME,
    }  # fmt: skip
    for key, rest in spec.items():
        if key not in handled:
            patch[key] = rest.used(f"on.pod.spec.{key}")


def _tolerations(tolerations: Field, on: Values, patch: Values) -> None:
    for toleration in tolerations:
        text = _toleration(toleration.value)
        if text:
            on.setdefault("tolerations", []).append(text)
            toleration.used("on.tolerations")
        else:
            patch.setdefault("tolerations", []).append(toleration.used("on.pod.spec.tolerations"))


def _toleration(value: Any) -> str | None:
    """In kubectl's notation of a taint; None for one that this notation cannot express."""
    if not isinstance(value, dict) or not value.get("key") or "tolerationSeconds" in value:
        return None
    equals = value.get("operator", "Equal") == "Equal"
    text = str(value["key"]) + (f"={value.get('value', '')}" if equals else "")
    text += f":{value['effect']}" if value.get("effect") else ""
    return text if re.fullmatch(TOLERATION, text) else None


def _metadata(metadata: Field) -> Values:
    kept = {}
    for key, value in metadata.items():
        if key in ("labels", "annotations"):
            kept[key] = value.used(f"on.pod.metadata.{key}")
        else:
            value.unused("Stoker names the pods")
    return kept
