"""A pod of ours that sees the volume of a run: made when no pod of the run lives, gone by itself after a while."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from stoker.kube import Cluster, Object
from stoker.launch.execution import NO_STOKER, last_line
from stoker.launch.jobs import job_kind
from stoker.launch.lent import lent
from stoker.launch.needs import needs
from stoker.launch.pod import SECURITY, VOLUME, merged
from stoker.launch.transfer.frames import Cut
from stoker.rundir import PlaceRef
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec

READER, MOVER, SHELL = "reader", "mover", "shell"
SHARED = "shared"  # what the label of a reader says, in place of a run
DEADLINES = {READER: 3600, MOVER: 86_400, SHELL: 86_400}  # seconds; one that nobody uses ends after ten minutes
LEAST_LEFT = 60.0  # seconds that a reader must have left to be used again
PATIENCE = 300.0  # seconds for a node to be found, and the image to be pulled
BINDING = 60.0  # seconds that a claim may take to be bound to a volume
WAIT = ("python3", "-P", "-m", "stoker.launch.transfer", "wait")
IMAGE_PROBLEMS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
START_PROBLEMS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


def reader_pod(ref: PlaceRef, run: AnySpec, *, name: str, kind: str) -> Object:
    """Pure. Needs next to nothing of a node, and tolerates what the run does."""
    on, wanted = run.on, needs(run, ref.run)
    container = job_kind(ref.job).CONTAINER
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINES[kind],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": on.service_account is not None,
        "enableServiceLinks": False,
        "tolerations": list(wanted.tolerations),
        "containers": [
            {
                "name": container,
                "image": ref.image,
                "command": list(WAIT),
                "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                "securityContext": dict(SECURITY),
                "terminationMessagePolicy": "FallbackToLogsOnError",  # why it cannot run Stoker
                "volumeMounts": [{"name": VOLUME, "mountPath": contract.MOUNT}],
            }
        ],
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": ref.volume}}],
    }
    if kind != READER and run.secrets:  # a bucket may want them; not there yet when a run is uploaded
        spec["containers"][0]["envFrom"] = [{"secretRef": {"name": f"{ref.run}-env", "optional": True}}]
    if on.service_account:
        spec["serviceAccountName"] = on.service_account
    if on.image_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in on.image_secrets]
    if wanted.selectors:
        spec["affinity"] = {"nodeAffinity": _elsewhere(wanted.selectors)}
    spec = merged(spec, lent(run, container=container, mounted=VOLUME, secrets=kind != READER))
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_READER: ref.run}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": ref.namespace, "labels": labels},
        "spec": spec,
    }


def shared(pod: Object) -> Object:
    """The same pod for all runs of the namespace that would make one like it: its name says what it is made of."""
    made = hashlib.sha256(json.dumps(pod["spec"], sort_keys=True).encode()).hexdigest()[:10]
    labels = pod["metadata"]["labels"] | {contract.LABEL_READER: SHARED}
    return pod | {"metadata": pod["metadata"] | {"name": f"{contract.MANAGED_BY}-{READER}-{made}", "labels": labels}}


def _elsewhere(selectors: Mapping[str, str]) -> dict[str, Any]:
    """Rather not on the machines that the run asks for: they are rented for its workers."""
    others = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in selectors.items()]
    terms = [{"weight": 100, "preference": {"matchExpressions": [one]}} for one in others]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def ensure(cluster: Cluster, pod: Object) -> str:
    """Its name, once it runs. One that is there is used again while it lives. Raises Cut when somebody deletes it."""
    name = pod["metadata"]["name"]
    claimed(cluster, pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"])
    end = time.monotonic() + PATIENCE
    while (there := cluster.get("Pod", name)) is not None and not _is_good(there):
        cluster.delete("Pod", name, grace=0)
        if time.monotonic() > end:
            raise UserError(f"pod {name} does not go away", remedy=f"Run: {cluster.kubectl} delete pod {name} --force")
        time.sleep(0.2)
    if there is None:
        _sweep(cluster)
        cluster.apply(pod)
    return _wait(cluster, name, end)


def _sweep(cluster: Cluster) -> None:
    """Pods like these that have ended are of no more use; Kubernetes would keep them."""
    ours = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY, contract.LABEL_READER: None}
    for phase in ("Succeeded", "Failed"):
        for pod in list(cluster.list("Pod", labels=ours, fields={"status.phase": phase})):
            cluster.delete("Pod", pod["metadata"]["name"], grace=0)


def claimed(cluster: Cluster, name: str) -> Object:
    """The volume claim of that name."""
    there = cluster.get("PersistentVolumeClaim", name)
    if there is None:
        names = [one["metadata"]["name"] for one in cluster.list("PersistentVolumeClaim", limit=10)]
        others = f"There are: {', '.join(names)}" if names else "There is none: make one with ReadWriteMany access"
        raise UserError(
            f"namespace {cluster.namespace} of {cluster.who} has no volume claim '{name}'",
            remedy=f"{others}. Set on.volume",
        )
    if (there.get("status") or {}).get("phase") == "Lost":
        raise UserError(f"the volume of claim '{name}' is gone", remedy="Make another claim, and name it in on.volume")
    return there


def runs(pod: Object) -> bool:
    """It is up, and not on its way out."""
    status = pod.get("status") or {}
    states = [one.get("state") or {} for one in status.get("containerStatuses") or []]
    alive = status.get("phase") == "Running" and all("running" in state for state in states)
    return alive and "deletionTimestamp" not in pod["metadata"]


def _is_good(pod: Object) -> bool:
    """It runs, or will, and for long enough."""
    if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return False
    started = pod["status"].get("startTime")
    if not started:
        return True
    age = time.time() - _seconds(started)
    return bool(pod["spec"]["activeDeadlineSeconds"] - age > LEAST_LEFT)


def _wait(cluster: Cluster, name: str, end: float) -> str:
    seen: Object = {}
    gone = Cut(f"pod {name} was deleted before it ran")
    while (left := end - time.monotonic()) > 0:
        if seen and cluster.get("Pod", name) is None:
            raise gone
        for kind, pod in cluster.watch("Pod", fields={"metadata.name": name}, seconds=min(left, BINDING)):
            if kind == "DELETED":
                raise gone
            seen = pod
            if runs(pod):
                return name
            if problem := trouble(pod, cluster.kubectl):
                cluster.delete("Pod", name, grace=0)
                raise problem
    cluster.delete("Pod", name, grace=0)
    why = unscheduled(seen) or "it does not say why"
    raise UserError(
        f"pod {name}, which is to read the volume, did not start within {PATIENCE:.0f} seconds ({why})",
        remedy=f"See: {cluster.kubectl} get events",
    )


def trouble(pod: Object, kubectl: str) -> UserError | None:
    """What no waiting fixes."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if problem := _broken_init(pod):
        return problem
    for one in status.get("containerStatuses") or []:
        image, state = _image(pod, one.get("name")), one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in IMAGE_PROBLEMS:
            return _unpulled(image, waiting)
        if waiting.get("reason") in START_PROBLEMS or ended.get("reason") in ("StartError", "ContainerCannotRun"):
            said = short((waiting or ended).get("message") or "")
            if "executable file not found" in said:
                return UserError(f"the image {image} has no python3", remedy="Use one with Python and Stoker")
            return UserError(f"pod {name} cannot start ({said})", remedy="Mend it, then try again")
        if ended:
            why = f", {short(last_line(ended['message']))}" if ended.get("message") else ""
            return UserError(
                f"the image {image} cannot run Stoker: it ended with code {ended.get('exitCode')}{why}",
                remedy=NO_STOKER,
            )
    why = unscheduled(pod)
    unbound = "unbound immediate PersistentVolumeClaims" in why and _age(pod) > BINDING
    if unbound or ("persistentvolumeclaim" in why and "not found" in why):
        volumes = [one.get("persistentVolumeClaim") or {} for one in pod["spec"].get("volumes", [])]
        claim = next((one["claimName"] for one in volumes if one), "")
        return UserError(
            f"the volume claim '{claim}' is not bound to a volume ({short(why)})",
            remedy=f"See why: {kubectl} describe pvc {claim}",
        )
    return None


def _broken_init(pod: Object) -> UserError | None:
    """Of the containers that `on.pod` has run first."""
    for one in (pod.get("status") or {}).get("initContainerStatuses") or []:
        state = one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in IMAGE_PROBLEMS:
            return _unpulled(_image(pod, one["name"]), waiting)
        if ended.get("exitCode"):
            return UserError(
                f"init container {one['name']} of pod {pod['metadata']['name']} ended with code {ended['exitCode']}",
                remedy="Fix it in on.pod: the pods that read the volume run it too, as it fills a volume of theirs",
            )
    return None


def _unpulled(image: str, waiting: Object) -> UserError:
    return UserError(
        f"the image {image} cannot be pulled ({short(waiting.get('message') or waiting['reason'])})",
        remedy="Check its name, or name what opens its registry in on.image_secrets",
    )


def _image(pod: Object, container: str | None) -> str:
    containers: list[Object] = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    return str(next((one["image"] for one in containers if one.get("name") == container), containers[0]["image"]))


def unscheduled(pod: Object) -> str:
    conditions: Sequence[Any] = (pod.get("status") or {}).get("conditions") or []
    return next((one.get("message") or "" for one in conditions if one.get("reason") == "Unschedulable"), "")


def short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 200 else words[:199] + "…"


def _age(pod: Object) -> float:
    return time.time() - _seconds(pod["metadata"]["creationTimestamp"])


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
