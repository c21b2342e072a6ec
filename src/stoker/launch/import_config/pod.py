"""A pod template as the fields of `on`, `env` and `secrets`; what has no field goes into `on.pod` as it is."""

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from stoker.launch.import_config.fields import UNUSED, Field
from stoker.launch.import_config.words import Launch, expanded, option_name, read_command
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
MEETING = "the nodes find each other through the run's volume"
KEPT = "every rank's lines are kept in the run directory"
LAUNCHER_UNUSED = {
    **dict.fromkeys(("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port"), MEETING),
    **dict.fromkeys(("tee", "redirects", "log_dir"), KEPT),
    "local_addr": MEETING,
    "node_rank": "every pod knows its own index",
    "standalone": "where it runs is said by on",
}
SHM = "/dev/shm"
UNITS = "kKMGTPEi"


@dataclass(kw_only=True, slots=True)
class Pod:
    launch: Launch
    on: Values = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)


def read_pod(template: Field) -> Pod:
    spec = template["spec"]
    container = _container(spec)
    found = Pod(launch=_launch(container))
    patch: Values = {}
    ours: Values = {"name": contract.CONTAINER}
    container["name"].used(f"the container is called {contract.CONTAINER}")
    found.on["image"] = container["image"].used("on.image")
    ours |= _environment(container, found)
    ours |= _resources(container["resources"], found.on)
    _volumes(spec, container, found.on, ours, patch)
    _placing(spec, found.on, patch)
    container["ports"].unused("Stoker opens the ports that it needs")
    for key, value in container.items():
        if key not in ("name", "image", "command", "args", "env", "resources", "volumeMounts", "ports"):
            ours[key] = value.used(f"on.pod.spec.containers.{key}")
    others = [one.used("on.pod.spec.containers, as it is") for one in spec["containers"] if one.path != container.path]
    patch |= {"containers": [*([ours] if len(ours) > 1 else []), *others]} if len(ours) > 1 or others else {}
    whole = {"metadata": _metadata(template["metadata"]), "spec": patch}
    if any(whole.values()):
        found.on["pod"] = {key: value for key, value in whole.items() if value}
    return found


def _container(spec: Field) -> Field:
    containers = list(spec["containers"])
    if not containers:
        raise UserError("the pod template has no container", remedy="Name one, with an image and a command")
    return next((one for one in containers if one["name"].value == contract.CONTAINER), containers[0])


def _launch(container: Field) -> Launch:
    known = _known(container)
    fields = [word for part in ("command", "args") for word in container[part]]
    words = [expanded(str(word.value), known) for word in fields]
    launch = read_command([text for text, _ in words], f"container {container['name'].value}")
    option = None
    for number, word in enumerate(fields):
        if unknown := words[number][1]:
            word.unused(_unexpanded(unknown))
        elif launch.at is None:
            word.used("read as the launcher, its options, script and args")
        elif number == launch.at:
            word.used("script")
        elif number > launch.at:
            word.used("args")
        else:
            option = option_name(str(word.value)) or option
            word.used(_option_outcome(option))
    return launch


def _option_outcome(option: str | None) -> str:
    if option is None or option == "m":
        return "Stoker's supervisor is in the launcher's place"
    if option in LAUNCHER_FIELDS:
        return LAUNCHER_FIELDS[option]
    why = LAUNCHER_UNUSED.get(option, f"the launcher's option {option} has no counterpart")
    return UNUSED + why


def _known(container: Field) -> dict[str, str]:
    """Variables whose values may be written down."""
    known: dict[str, str] = {}
    for one in container["env"]:
        name = str(one["name"].value)
        if one["value"] and not one["valueFrom"] and not SECRET.search(name):
            known[name], _ = expanded(str(one["value"].value), known)
    return known


def _unexpanded(names: list[str]) -> str:
    """Stoker's pods do not expand: a script's words stay as they are."""
    return f"its $({names[0]}) stays as it is, its value being known in the pod alone; the script can read {names[0]}"


def _environment(container: Field, found: Pod) -> Values:
    kept = []
    known: dict[str, str] = {}
    for one in container["env"]:
        name, value, source = str(one["name"].value), one["value"], one["valueFrom"]
        if key := source["secretKeyRef"]:
            found.secrets[name] = f"env:{name}"
            one.used(f"secrets.{name}, taken from your environment when it is launched")
            key.unused(f"the value was in the cluster's secret {key['name'].value}; set {name} where you launch")
        elif source:
            kept.append(one.used("on.pod.spec.containers.env, as it is"))
        elif SECRET.search(name):
            found.secrets[name] = f"env:{name}"
            one.used(f"secrets.{name}")
            value.unused(f"a secret in plain text; set {name} in your environment where you launch")
        else:
            text, unknown = expanded(str("" if value.value is None else value.value), known)
            found.env[name] = known[name] = text
            one.used(f"env.{name}")
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
                amount.unused(f"requests and limits are one number with Stoker, on.{key}: {on[key]}")
    return {"resources": rest} if rest else {}


def _amount(name: str, value: Any) -> Any:
    """Kubernetes' quantities as a run file writes them."""
    text = str(value).strip()
    try:
        if name == "cpu":
            cores = Decimal(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
            return int(cores) if cores == int(cores) else float(cores)
        if name != "memory":
            return int(text)
        number = text.rstrip(UNITS)
        bytes = int(Decimal(number))
        return bytes if number == text else f"{text}B"
    except (InvalidOperation, ValueError, OverflowError):
        raise UserError(
            f"'{text}' is no amount of {name}", remedy="Write it as Kubernetes does, such as 500m or 16Gi"
        ) from None


def _volumes(spec: Field, container: Field, on: Values, ours: Values, patch: Values) -> None:
    mounts = list(container["volumeMounts"])
    shared = {str(one["name"].value): one for one in mounts if one["mountPath"].value == SHM}
    kept = []
    for volume in spec["volumes"]:
        if mount := shared.get(str(volume["name"].value)):
            if size := volume["emptyDir"]["sizeLimit"]:
                on["shm"] = _amount("memory", size.value)
            volume.used("on.shm" if "shm" in on else "every pod is given a /dev/shm: on.shm says how large")
            mount.used("on.shm")
            continue
        if (claim := volume["persistentVolumeClaim"]["claimName"]) and "volume" not in on:
            on["volume"] = claim.used("on.volume, which holds the run; and on.pod.spec.volumes")
        kept.append(volume.used("on.pod.spec.volumes"))
    shown = [one.used("on.pod.spec.containers.volumeMounts") for one in mounts if one["mountPath"].value != SHM]
    patch |= {"volumes": kept} if kept else {}
    ours |= {"volumeMounts": shown} if shown else {}


def _placing(spec: Field, on: Values, patch: Values) -> None:
    """What decides where the pods go and who they are."""
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
    for theirs, ours in SAME_NAME.items():
        if spec[theirs]:
            on[ours] = str(spec[theirs].used(f"on.{ours}"))
    if names := [str(secret["name"].used("on.image_secrets")) for secret in spec["imagePullSecrets"]]:
        on["image_secrets"] = names
    spec["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    known = {
        "containers", "volumes", "nodeSelector", "tolerations", "terminationGracePeriodSeconds", "imagePullSecrets",
        "restartPolicy", *SAME_NAME,
    }  # fmt: skip
    for key, rest in spec.items():
        if key not in known:
            patch[key] = rest.used(f"on.pod.spec.{key}")


def _tolerations(tolerations: Field, on: Values, patch: Values) -> None:
    for one in tolerations:
        word = _toleration(one.value)
        if word:
            on.setdefault("tolerations", []).append(word)
            one.used("on.tolerations")
        else:
            patch.setdefault("tolerations", []).append(one.used("on.pod.spec.tolerations"))


def _toleration(value: Any) -> str | None:
    """As kubectl writes a taint; None for one that cannot be written so."""
    if not isinstance(value, dict) or not value.get("key") or "tolerationSeconds" in value:
        return None
    equals = value.get("operator", "Equal") == "Equal"
    word = str(value["key"]) + (f"={value.get('value', '')}" if equals else "")
    word += f":{value['effect']}" if value.get("effect") else ""
    return word if re.match(TOLERATION, word) else None


def _metadata(metadata: Field) -> Values:
    kept = {}
    for key, value in metadata.items():
        if key in ("labels", "annotations"):
            kept[key] = value.used(f"on.pod.metadata.{key}")
        else:
            value.unused("Stoker names the pods")
    return kept
