"""An etcd server in the cluster, for runs that ask for `on.rendezvous: etcd`."""

import re
import time
from collections.abc import Iterable
from typing import Any

from stoker.kube import Cluster, Forbidden
from stoker.launch.image.reference import parse, without_scheme
from stoker.launch.pod import SECURITY
from stoker.launch.reader import short, trouble
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import On

Object = dict[str, Any]
NAME = "etcd"
CLIENT, SERVER = "etcd-client", "etcd-server"
CLIENT_PORT, PEER_PORT = 2379, 2380
DATA = "/var/lib/etcd"
LABELS = {"app": NAME, contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
POLL = 0.5
PATIENCE = 300.0  # seconds: its image is pulled
NOBODY = 65532  # the user that it runs as: its images have root for one
CANNOT_START = ("StartError", "ContainerCannotRun", "RunContainerError")
VERSION = re.compile(r"v?(\d+)\.(\d+)")


def objects(image: str, namespace: str) -> list[Object]:
    """Pure. What it holds is of use while a run starts and may be lost: then the run's next attempt begins anew."""
    reference = parse(image)
    if not reference.digest and reference.tag in (None, "latest"):
        raise UserError(
            f"image {image} may be another one tomorrow",
            remedy=f"Name its version, such as {reference.name}:v3.5.21; torch needs the v2 API, which 3.6 has no more",
        )
    version = VERSION.match(reference.tag or "")
    if version and (int(version[1]), int(version[2])) >= (3, 6):
        raise UserError(
            f"image {image} has no v2 API, which torch needs: etcd 3.5 is the last that has it",
            remedy=f"Name that, such as {reference.name}:v3.5.21",
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
    """Returns when it answers."""
    made = objects(image, cluster.namespace)
    for one in made:
        there = cluster.get(one["kind"], one["metadata"]["name"])
        if there and there["metadata"].get("labels", {}).get(contract.LABEL_MANAGED_BY) != contract.MANAGED_BY:
            raise UserError(
                f"namespace {cluster.namespace} has a {one['kind']} {one['metadata']['name']} that is not Stoker's",
                remedy="Use it if it is etcd 3.5 with the v2 API: on.rendezvous=etcd; else take another --namespace",
            )
    for one in made:
        cluster.apply(one)
    end = time.monotonic() + PATIENCE
    while not _answers(cluster.get("Deployment", NAME)):
        if problem := stuck(cluster.list("Pod", labels=LABELS), without_scheme(image), cluster.kubectl):
            raise problem
        if time.monotonic() > end:
            raise UserError(
                f"etcd has not answered in {PATIENCE:.0f} s",
                remedy=f"See why: {cluster.kubectl} describe pods -l app={NAME}",
            )
        time.sleep(POLL)
    return made


def remove(cluster: Cluster) -> list[str]:
    """What was taken away, Stoker's own alone."""
    gone = []
    for kind, name in (("Deployment", NAME), ("Service", SERVER), ("Service", CLIENT), ("NetworkPolicy", NAME)):
        there = cluster.get(kind, name)
        ours = there and there["metadata"].get("labels", {}).get(contract.LABEL_MANAGED_BY) == contract.MANAGED_BY
        if ours and cluster.delete(kind, name):
            gone.append(f"{kind} {name}")
    return gone


def stuck(pods: Iterable[Object], image: str, kubectl: str) -> UserError | None:
    """Pure. What no waiting mends; not of a pod of another image, or one that was evicted: another takes its place."""
    for pod in pods:
        status = pod.get("status") or {}
        gone = "deletionTimestamp" in pod["metadata"] or status.get("phase") in ("Failed", "Succeeded")
        if gone or pod["spec"]["containers"][0]["image"] != image:
            continue
        for one in status.get("containerStatuses") or []:
            state, last = one.get("state") or {}, one.get("lastState") or {}
            ended = state.get("terminated") or ("waiting" in state and last.get("terminated"))
            for end in (state.get("waiting"), ended):
                if end and end.get("reason") in CANNOT_START:
                    said = short(end.get("message") or end["reason"])
                    return UserError(f"image {image} cannot start etcd ({said})", remedy="Name an --image of etcd 3.5")
            if ended:
                return UserError(
                    f"etcd ends with code {ended['exitCode']} as soon as it starts",
                    remedy=f"See why: {kubectl} logs deployment/{NAME}",
                )
        if found := trouble(pod, kubectl):
            return UserError(
                f"etcd does not start: {found.problem}",
                remedy="Name another --image, or let the namespace's default service account pull it; then try again",
            )
    return None


def check(cluster: Cluster, on: On) -> None:
    """A server that is named as a Service of the run's namespace is there."""
    host = on.etcd.rpartition(":")[0]
    if on.rendezvous != "etcd" or "." in host or host.startswith("["):
        return
    try:
        there = cluster.get("Service", host)
    except Forbidden:
        return
    if there is None:
        raise UserError(
            f"on.rendezvous is etcd, and namespace {cluster.namespace} has no Service '{host}'",
            remedy="Make one: stoker addon etcd --image …; or say where one is: on.etcd=HOST:PORT",
        )


def _answers(deployment: Object | None) -> bool:
    status = (deployment or {}).get("status", {})
    current = status.get("observedGeneration") == (deployment or {}).get("metadata", {}).get("generation")
    return bool(current and status.get("updatedReplicas") and status.get("availableReplicas"))


def _pod(image: str) -> Object:
    everywhere, here = (f"http://{host}:{CLIENT_PORT}" for host in ("0.0.0.0", CLIENT))
    words = ["etcd", "--enable-v2", "--data-dir", DATA]
    words += ["--listen-client-urls", everywhere, "--advertise-client-urls", here]
    container = {
        "name": NAME,
        "image": image,
        "command": words,
        "ports": [{"name": "client", "containerPort": CLIENT_PORT}, {"name": "peer", "containerPort": PEER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": CLIENT_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": SECURITY | {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # etcd would take ETCD_… of its own Services for options
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }


def _policy(namespace: str) -> Object:
    """It has no password: whoever reaches it may write. So only pods of its own namespace do."""
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
