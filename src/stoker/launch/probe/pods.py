"""Pods to look at the network from: of a run that lives, its own; else some that are made like its own, one a node."""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stoker.kube import Cluster, Forbidden, Object
from stoker.launch.jobs import job
from stoker.launch.kubernetes import is_elastic
from stoker.launch.needs import Needs, needs
from stoker.launch.pod import Task
from stoker.launch.probe.survey import Site
from stoker.launch.reader import WAIT, runs, trouble, unscheduled
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes
from stoker.spec.run import AnySpec

MOST = 256  # pods of a run that are asked at the same time
LIVES = 900  # seconds: whoever made them may be gone before he deletes them
KEPT = 60  # seconds that the job stays after that
PATIENCE = 180.0  # seconds for nodes to be found and the image to be pulled
NO_ROOM = 30.0  # seconds after which a pod that found no node will find none, where nobody adds nodes
HOSTNAME = "kubernetes.io/hostname"
CPU, MEMORY = 0.1, 128 << 20
PREFLIGHT_MEMORY = 2 << 30  # torch and a matrix or two


def manifest(spec: AnySpec, *, name: str, namespace: str, image: str, gpus: bool) -> list[Object]:
    """Pure. A run's own pods without its work, its volume and, but for a preflight, its GPUs; no two on one node."""
    task = Task(run=name, spec=spec, needs=_less(needs(spec, name), gpus), image=image, volume="-", namespace=namespace)
    service, owner = job.manifest(task)
    template = owner["spec"]["template"]
    pod, ours = template["spec"], {"matchLabels": {contract.LABEL_RUN: name}}
    apart = {"labelSelector": ours, "topologyKey": HOSTNAME}
    pod["affinity"] = pod.get("affinity", {}) | {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    }
    pod["volumes"] = [one for one in pod["volumes"] if one["name"] != "stoker"]
    for container in pod["containers"]:
        container["volumeMounts"] = [one for one in container.get("volumeMounts", []) if one["name"] != "stoker"]
        if container["name"] == contract.CONTAINER:
            container["command"] = list(WAIT)
            container.pop("envFrom", None)
    pod["terminationGracePeriodSeconds"] = 1
    owner["spec"] |= {"activeDeadlineSeconds": LIVES, "ttlSecondsAfterFinished": KEPT}
    return [service, owner]


@contextmanager
def made(cluster: Cluster, spec: AnySpec, *, name: str, image: str, gpus: bool) -> Iterator[list[Object]]:
    """The pods, once all of them run. They are gone afterwards."""
    unique = f"{name[: contract.LONGEST_RUN - 9].rstrip('-')}-net-{secrets.token_hex(2)}"
    service, owner = manifest(spec, name=unique, namespace=cluster.namespace, image=image, gpus=gpus)
    try:
        there = cluster.apply(owner)
        service["metadata"]["ownerReferences"] = [
            {"apiVersion": there["apiVersion"], "kind": there["kind"], "name": unique, "uid": there["metadata"]["uid"]}
        ]
        cluster.apply(service)
        yield _wait(cluster, unique, spec.on.nodes)
    finally:
        cluster.delete("Job", unique)


def sites(pods: Iterable[Object], services: Iterable[Object]) -> list[Site]:
    """Pure. Names that lead to a pod are its own below its subdomain, and those of headless services."""
    headless = [
        (one["metadata"]["name"], one["spec"].get("selector") or {})
        for one in services
        if one["spec"].get("clusterIP") == "None"
    ]
    found = []
    for pod in pods:
        spec, labels = pod["spec"], pod["metadata"].get("labels", {})
        names = [name for name, wanted in headless if wanted and wanted.items() <= labels.items()]
        if spec.get("hostname") and spec.get("subdomain"):
            names.insert(0, f"{spec['hostname']}.{spec['subdomain']}")
        found.append(
            Site(
                pod=pod["metadata"]["name"],
                machine=spec.get("nodeName", ""),
                address=pod["status"]["podIP"],
                names=tuple(names),
                wants=_network_devices(spec),
            )
        )
    return found


def evenly(pods: Sequence[Object], most: int = MOST) -> list[Object]:
    """Pure. All of them, or of more than can be asked as many, from the first to the last."""
    count = min(most, len(pods))
    return [pods[at * len(pods) // count] for at in range(count)]


def headless(cluster: Cluster) -> list[Object]:
    try:
        return list(cluster.list("Service"))
    except Forbidden:
        return []


def _network_devices(spec: Object) -> dict[str, int]:
    limits = [one.get("resources", {}).get("limits", {}) for one in spec["containers"]]
    return {
        name: int(count)
        for some in limits
        for name, count in some.items()
        if name.endswith("/efa") or name.startswith("rdma/")
    }


def _less(wanted: Needs, gpus: bool) -> Needs:
    devices = wanted.devices if gpus else {key: n for key, n in wanted.devices.items() if key.endswith("/efa")}
    memory = PREFLIGHT_MEMORY if gpus else MEMORY
    return replace(wanted, cpu=CPU, memory=memory, memory_limit=None, shm=None, devices=devices)


def _wait(cluster: Cluster, name: str, nodes: Nodes) -> list[Object]:
    began = time.monotonic()
    grows = is_elastic(cluster)
    while True:
        pods = list(cluster.list("Pod", labels={contract.LABEL_RUN: name}))
        up = [pod for pod in pods if runs(pod)]
        if len(up) >= nodes.most:
            return up
        for problem in filter(None, (trouble(pod, cluster.kubectl) for pod in pods)):
            raise problem
        why = next(filter(None, map(unscheduled, pods)), "")
        waited = time.monotonic() - began
        if waited > PATIENCE or (why and not grows and waited > NO_ROOM):
            raise UserError(
                f"{nodes.most - len(up)} of the {nodes.most} pods that are to look at the network did not start within "
                f"{waited:.0f} seconds ({why or 'it does not say why'})",
                remedy="Ask for fewer with --nodes, or make room: each takes a node of its own",
            )
        time.sleep(0.5)
