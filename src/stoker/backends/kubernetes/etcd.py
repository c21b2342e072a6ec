"""`stoker addon etcd`: an etcd server in the cluster, for runs with `on.rendezvous: etcd`."""

import re
import time
from collections.abc import Iterable
from typing import Any

from stoker.backends.kubernetes.pod import SECURITY
from stoker.backends.kubernetes.volume.reader import short, startup_error
from stoker.image.reference import parse, without_scheme
from stoker.kube import Cluster, Forbidden
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import KubernetesOn

Object = dict[str, Any]
NAME = "etcd"
CLIENT, SERVER = "etcd-client", "etcd-server"
CLIENT_PORT, PEER_PORT = 2379, 2380
DATA = "/var/lib/etcd"
LABELS = {"app": NAME, contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
POLL_S = 0.5
READY_TIMEOUT_S = 300.0  # its image has to be pulled
USER_ID = 65532  # not root, which its images default to
CANNOT_START = ("StartError", "ContainerCannotRun", "RunContainerError")
VERSION = re.compile(r"v?(\d+)\.(\d+)")


def objects(image: str, namespace: str) -> list[Object]:
    """Pure. Its data is used only while a run starts, and may be lost: the run then tries again."""
    reference = parse(image)
    if not reference.digest and reference.tag in (None, "latest"):
        raise UserError(
            f"image {image} has no fixed version, and may change",
            remedy=f"Name its version, such as {reference.name}:v3.5.21; torch needs the v2 API, which 3.6 has removed",
        )
    version = VERSION.match(reference.tag or "")
    if version and (int(version[1]), int(version[2])) >= (3, 6):
        raise UserError(
            f"image {image} has no v2 API, which torch needs: etcd 3.5 is the last version with it",
            remedy=f"Use that version, such as {reference.name}:v3.5.21",
        )
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"app": NAME}},
        "template": {"metadata": {"labels": LABELS}, "spec": _pod(without_scheme(image))},
    }
    return [
        _policy(namespace),
        _service(CLIENT, {"client": CLIENT_PORT}, namespace),
        _service(SERVER, {"client": CLIENT_PORT, "peer": PEER_PORT}, namespace),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(NAME, namespace), "spec": deployment},
    ]


def install(cluster: Cluster, image: str) -> list[Object]:
    """Returns when it is ready."""
    manifests = objects(image, cluster.namespace)
    for manifest in manifests:
        existing = cluster.get(manifest["kind"], manifest["metadata"]["name"])
        if existing and not _is_ours(existing):
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise UserError(
                f"namespace {cluster.namespace} has a {name} that Stoker did not create",
                remedy="Use it if it is etcd 3.5 with the v2 API: on.rendezvous=etcd; else use another --namespace",
            )
    for manifest in manifests:
        cluster.apply(manifest)
    end = time.monotonic() + READY_TIMEOUT_S
    while not _is_ready(cluster.get("Deployment", NAME)):
        if problem := permanent_error(cluster.list("Pod", labels=LABELS), without_scheme(image), cluster.kubectl):
            raise problem
        if time.monotonic() > end:
            raise UserError(
                f"etcd was not ready within {READY_TIMEOUT_S:.0f} s",
                remedy=f"See why: {cluster.kubectl} describe pods -l app={NAME}",
            )
        time.sleep(POLL_S)
    return manifests


def remove(cluster: Cluster) -> list[str]:
    """Deletes what Stoker created, and returns the names."""
    deleted = []
    for kind, name in (("Deployment", NAME), ("Service", SERVER), ("Service", CLIENT), ("NetworkPolicy", NAME)):
        existing = cluster.get(kind, name)
        if existing and _is_ours(existing) and cluster.delete(kind, name):
            deleted.append(f"{kind} {name}")
    return deleted


def permanent_error(pods: Iterable[Object], image: str, kubectl: str) -> UserError | None:
    """An error that waiting does not fix. Ignores pods of another image, and evicted pods, which are replaced. Pure."""
    for pod in pods:
        status = pod.get("status") or {}
        gone = "deletionTimestamp" in pod["metadata"] or status.get("phase") in ("Failed", "Succeeded")
        if gone or pod["spec"]["containers"][0]["image"] != image:
            continue
        for container in status.get("containerStatuses") or []:
            state, last = container.get("state") or {}, container.get("lastState") or {}
            terminated = state.get("terminated") or ("waiting" in state and last.get("terminated"))
            for failed in (state.get("waiting"), terminated):
                if failed and failed.get("reason") in CANNOT_START:
                    reason = short(failed.get("message") or failed["reason"])
                    return UserError(
                        f"image {image} cannot start etcd ({reason})", remedy="Name an --image of etcd 3.5"
                    )
            if terminated:
                return UserError(
                    f"etcd ends with code {terminated['exitCode']} as soon as it starts",
                    remedy=f"See why: {kubectl} logs deployment/{NAME}",
                )
        if error := startup_error(pod, kubectl):
            return UserError(
                f"etcd does not start: {error.problem}",
                remedy="Name another --image, or give the namespace's default service account the right to pull it",
            )
    return None


def check(cluster: Cluster, on: KubernetesOn) -> None:
    """Raises UserError if the Service that the run names does not exist in its namespace."""
    host = on.etcd.rpartition(":")[0]
    if on.rendezvous != "etcd" or "." in host or host.startswith("["):
        return
    try:
        service = cluster.get("Service", host)
    except Forbidden:
        return
    if service is None:
        raise UserError(
            f"on.rendezvous is etcd, and namespace {cluster.namespace} has no Service '{host}'",
            remedy="Create it: stoker addon etcd --image …; or name another server: on.etcd=HOST:PORT",
        )


def _is_ours(existing: Object) -> bool:
    labels = existing["metadata"].get("labels", {})
    return bool(labels.get(contract.LABEL_MANAGED_BY) == contract.MANAGED_BY)


def _is_ready(deployment: Object | None) -> bool:
    status = (deployment or {}).get("status", {})
    current = status.get("observedGeneration") == (deployment or {}).get("metadata", {}).get("generation")
    return bool(current and status.get("updatedReplicas") and status.get("availableReplicas"))


def _pod(image: str) -> Object:
    listen, advertise = (f"http://{host}:{CLIENT_PORT}" for host in ("0.0.0.0", CLIENT))
    command = ["etcd", "--enable-v2", "--data-dir", DATA]
    command += ["--listen-client-urls", listen, "--advertise-client-urls", advertise]
    container = {
        "name": NAME,
        "image": image,
        "command": command,
        "ports": [{"name": "client", "containerPort": CLIENT_PORT}, {"name": "peer", "containerPort": PEER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": CLIENT_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": SECURITY | {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # etcd would read the variables ETCD_… of its own Services as options
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }


def _policy(namespace: str) -> Object:
    """It has no password, so only pods of its own namespace may connect."""
    spec = {
        "podSelector": {"matchLabels": dict(LABELS)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": CLIENT_PORT}]}],
    }
    metadata = _metadata(NAME, namespace)
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _service(name: str, ports: dict[str, int], namespace: str) -> Object:
    listed = [{"name": port, "port": number} for port, number in ports.items()]
    spec = {"selector": {"app": NAME}, "ports": listed}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, namespace), "spec": spec}


def _metadata(name: str, namespace: str) -> Object:
    return {"name": name, "namespace": namespace, "labels": dict(LABELS)}
