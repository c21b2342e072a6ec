"""The reader: a pod that mounts the volume of a run, created when no pod of the run is up. It ends by itself."""

import hashlib
import json
import re
import time
from collections.abc import Mapping

from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.needs import needs
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.pod import SECURITY, VOLUME, find_named, literal, merged, objects
from stoker.backends.kubernetes.state import is_up, seconds, unscheduled_reason
from stoker.backends.kubernetes.volume.execution import NO_STOKER, last_line
from stoker.backends.transfer.frames import PeerLost
from stoker.kube import Cluster, Object
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec

READER, MOVER, SHELL = "reader", "mover", "shell"
SHARED = "shared"  # the label of a reader that several runs use, instead of a run's name
DEADLINES_S = {READER: 3600, MOVER: 86_400, SHELL: 86_400}  # an idle pod ends after ten minutes
MIN_REMAINING_S = 60.0  # a reader that ends sooner is not used again
START_TIMEOUT_S = 300.0  # for scheduling and pulling the image
BIND_TIMEOUT_S = 60.0  # for a claim to be bound to a volume
WAIT = ("python3", "-P", "-m", "stoker.backends.transfer", "wait")
MAX_NAMES = 10  # of existing claims, in a remedy
MAX_TEXT = 200  # characters of a message of Kubernetes
IMAGE_PROBLEMS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
CREATE_PROBLEMS = {"CreateContainerConfigError", "CreateContainerError"}
RUN_PROBLEMS = {"RunContainerError", "StartError", "ContainerCannotRun"}  # the image has no such program
UNBOUND = re.compile("unbound immediate PersistentVolumeClaims")  # the scheduler gives no code for these
CLAIM_MISSING = re.compile("persistentvolumeclaim .*not found")
POD_FIELDS = ("securityContext", "tolerations", "imagePullSecrets", "serviceAccountName")
CONTAINER_FIELDS = ("securityContext", "imagePullPolicy")
HOST_PATH_FIELDS = ("nodeSelector", "affinity")  # a folder of a node may exist on some nodes only


class PodCannotStart(UserError):
    """A pod does not start, and waiting does not help."""


class NoVolumeClaim(PodCannotStart):
    """The volume claim that it mounts does not exist, or has lost its volume."""


def reader_pod(place: ClusterPlace, spec: AnySpec, *, name: str, kind: str) -> Object:
    """Requests little of its node, and tolerates what the run tolerates. Pure."""
    on, wanted = kubernetes_on(spec), needs(spec, place.run)
    container = job_kind(place.job).CONTAINER
    pod: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINES_S[kind],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": on.service_account is not None,
        "enableServiceLinks": False,
        "tolerations": list(wanted.tolerations),
        "containers": [
            {
                "name": container,
                "image": place.image,
                "command": list(WAIT),
                "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                "securityContext": dict(SECURITY),
                "terminationMessagePolicy": "FallbackToLogsOnError",  # shows why it cannot run Stoker
                "volumeMounts": [{"name": VOLUME, "mountPath": contract.MOUNT}],
            }
        ],
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": place.volume}}],
    }
    if kind != READER and spec.secrets:  # a bucket may need them; they do not exist yet when a run is uploaded
        pod["containers"][0]["envFrom"] = [{"secretRef": {"name": f"{place.run}-env", "optional": True}}]
    if on.service_account:
        pod["serviceAccountName"] = on.service_account
    if on.image_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in on.image_secrets]
    if wanted.selectors:
        pod["affinity"] = {"nodeAffinity": _prefer_other_nodes(wanted.selectors)}
    pod = merged(pod, run_settings(spec, container=container, mounted=VOLUME, secrets=kind != READER))
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_READER: place.run}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": place.namespace, "labels": labels},
        "spec": pod,
    }


def shared(pod: Object) -> Object:
    """The same pod for all runs of the namespace whose readers are equal: its name is a hash of its spec."""
    digest = hashlib.sha256(json.dumps(pod["spec"], sort_keys=True).encode()).hexdigest()[:10]
    labels = pod["metadata"]["labels"] | {contract.LABEL_READER: SHARED}
    return pod | {"metadata": pod["metadata"] | {"name": f"{contract.MANAGED_BY}-{READER}-{digest}", "labels": labels}}


def run_settings(spec: AnySpec, *, container: str, mounted: str, secrets: bool) -> Object:
    """A patch for a reader's pod spec: the run's variables, and what `on.pod` adds to its pods. Pure.

    An image may get torch or Stoker from a volume that `on.pod` mounts and `env` names; a reader needs both then.
    `container`: the name of its container; `mounted`: the volume that it already has; without `secrets` it gets no
    volume and no variable from a Secret.
    """
    patch = kubernetes_on(spec).pod.get("spec") or {}
    own = find_named(patch.get("containers"), contract.CONTAINER)
    volumes = [volume for volume in objects(patch.get("volumes")) if secrets or not _is_secret(volume)]
    names = {volume.get("name") for volume in volumes} - {mounted}
    mounts = [mount for mount in objects(own.get("volumeMounts")) if mount.get("name") in {*names, mounted}]
    settings: Object = {key: patch[key] for key in POD_FIELDS if patch.get(key)}
    if any("hostPath" in volume for volume in volumes):
        settings |= {key: patch[key] for key in HOST_PATH_FIELDS if patch.get(key)}
    settings["volumes"] = [volume for volume in volumes if volume.get("name") in names]
    settings["initContainers"] = [
        init
        for init in objects(patch.get("initContainers"))  # those that fill such a volume
        if names & {mount.get("name") for mount in objects(init.get("volumeMounts"))}
    ]
    env = [{"name": name, "value": literal(value)} for name, value in spec.env.items()]
    env += [entry for entry in objects(own.get("env")) if secrets or not _is_secret(entry.get("valueFrom") or {})]
    fields = {key: own[key] for key in CONTAINER_FIELDS if own.get(key)}
    fields |= {"env": list({entry.get("name"): entry for entry in env}.values()), "volumeMounts": mounts}
    filled = {key: value for key, value in fields.items() if value}
    return {key: value for key, value in settings.items() if value} | {"containers": [{"name": container} | filled]}


def _is_secret(source: Object) -> bool:
    """`source`: a volume, or the source of a variable."""
    return "secret" in source or "secretKeyRef" in source


def _prefer_other_nodes(selectors: Mapping[str, str]) -> Object:
    """Not the nodes that the run asks for, if possible: they are meant for its workers."""
    others = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in selectors.items()]
    terms = [{"weight": 100, "preference": {"matchExpressions": [expression]}} for expression in others]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def ensure(cluster: Cluster, pod: Object) -> str:
    """The pod's name, once it runs. An existing pod is used again. Raises PeerLost if it is deleted meanwhile."""
    name = pod["metadata"]["name"]
    volume_claim(cluster, pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"])
    end = time.monotonic() + START_TIMEOUT_S
    while (existing := cluster.get("Pod", name)) is not None and not _is_usable(existing):
        cluster.delete("Pod", name, grace=0)
        if time.monotonic() > end:
            raise PodCannotStart(
                f"pod {name} is not deleted", remedy=f"Run: {cluster.kubectl} delete pod {name} --force"
            )
        time.sleep(0.2)
    if existing is None:
        _delete_ended(cluster)
        cluster.apply(pod)
    return _wait(cluster, name, end)


def _delete_ended(cluster: Cluster) -> None:
    """Deletes readers that have ended, which Kubernetes would keep."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_READER: None}
    for phase in ("Succeeded", "Failed"):
        for pod in list(cluster.list("Pod", labels=labels, fields={"status.phase": phase})):
            cluster.delete("Pod", pod["metadata"]["name"], grace=0)


def volume_claim(cluster: Cluster, name: str) -> Object:
    """The volume claim of that name. Raises NoVolumeClaim if it does not exist."""
    claim = cluster.get("PersistentVolumeClaim", name)
    if claim is None:
        names = [other["metadata"]["name"] for other in cluster.list("PersistentVolumeClaim", limit=MAX_NAMES)]
        others = f"There are: {', '.join(names)}" if names else "There is none: create one with ReadWriteMany access"
        raise NoVolumeClaim(
            f"namespace {cluster.namespace} of {cluster.display_name} has no volume claim '{name}'",
            remedy=f"{others}. Set on.volume",
        )
    if (claim.get("status") or {}).get("phase") == "Lost":
        raise NoVolumeClaim(
            f"the volume of claim '{name}' is gone", remedy="Create another claim, and name it in on.volume"
        )
    return claim


def _is_usable(pod: Object) -> bool:
    """It runs, or will, for long enough."""
    if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return False
    started = seconds(pod["status"].get("startTime"))
    if started is None:
        return True
    return bool(pod["spec"]["activeDeadlineSeconds"] - (time.time() - started) > MIN_REMAINING_S)


def _wait(cluster: Cluster, name: str, end: float) -> str:
    seen: Object = {}
    deleted = PeerLost(f"pod {name} was deleted before it ran")
    while (left := end - time.monotonic()) > 0:
        if seen and cluster.get("Pod", name) is None:
            raise deleted
        for kind, pod in cluster.watch("Pod", fields={"metadata.name": name}, seconds=min(left, BIND_TIMEOUT_S)):
            if kind == "DELETED":
                raise deleted
            seen = pod
            if is_up(pod):
                return name
            if error := startup_error(pod, cluster.kubectl):
                cluster.delete("Pod", name, grace=0)
                raise error
    cluster.delete("Pod", name, grace=0)
    reason = unscheduled_reason(seen) or "Kubernetes gives no reason"
    raise PodCannotStart(
        f"pod {name}, which reads the volume, did not start within {START_TIMEOUT_S:.0f} seconds ({reason})",
        remedy=f"See: {cluster.kubectl} get events",
    )


def startup_error(pod: Object, kubectl: str) -> PodCannotStart | None:
    """What keeps a pod from starting and does not go away by waiting. Pure but for the clock."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if error := _init_error(pod):
        return error
    for container in status.get("containerStatuses") or []:
        image, state = _image(pod, container.get("name")), container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        reasons = {waiting.get("reason"), terminated.get("reason")}
        message = short((waiting or terminated).get("message") or "")
        if waiting.get("reason") in IMAGE_PROBLEMS:
            return _pull_error(image, waiting)
        if reasons & RUN_PROBLEMS:
            return PodCannotStart(
                f"the image {image} cannot start python3 ({message})", remedy="Use an image with Python and Stoker"
            )
        if reasons & CREATE_PROBLEMS:
            return PodCannotStart(
                f"pod {name} cannot start ({message})", remedy=f"Fix it, then try again: {kubectl} describe pod {name}"
            )
        if terminated:
            last = f", {short(last_line(terminated['message']))}" if terminated.get("message") else ""
            return PodCannotStart(
                f"the image {image} cannot run Stoker: it ended with code {terminated.get('exitCode')}{last}",
                remedy=NO_STOKER,
            )
    reason = unscheduled_reason(pod)
    age = time.time() - (seconds(pod["metadata"].get("creationTimestamp")) or time.time())
    if CLAIM_MISSING.search(reason) or (UNBOUND.search(reason) and age > BIND_TIMEOUT_S):
        claims = [volume.get("persistentVolumeClaim") or {} for volume in pod["spec"].get("volumes", [])]
        name = next((claim["claimName"] for claim in claims if claim), "")
        return PodCannotStart(
            f"the volume claim '{name}' is not bound to a volume ({short(reason)})",
            remedy=f"See why: {kubectl} describe pvc {name}",
        )
    return None


def _init_error(pod: Object) -> PodCannotStart | None:
    """Of the init containers from `on.pod`."""
    for init in (pod.get("status") or {}).get("initContainerStatuses") or []:
        state = init.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in IMAGE_PROBLEMS:
            return _pull_error(_image(pod, init["name"]), waiting)
        if terminated.get("exitCode"):
            pod_name, code = pod["metadata"]["name"], terminated["exitCode"]
            return PodCannotStart(
                f"init container {init['name']} of pod {pod_name} ended with code {code}",
                remedy="Fix it in on.pod: the pods that read the volume run it too, to fill one of their volumes",
            )
    return None


def _pull_error(image: str, waiting: Object) -> PodCannotStart:
    return PodCannotStart(
        f"the image {image} cannot be pulled ({short(waiting.get('message') or waiting['reason'])})",
        remedy="Check its name, or name the pull secret of its registry in on.image_secrets",
    )


def _image(pod: Object, container: str | None) -> str:
    containers: list[Object] = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    images = (spec["image"] for spec in containers if spec.get("name") == container)
    return str(next(images, containers[0]["image"]))


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
