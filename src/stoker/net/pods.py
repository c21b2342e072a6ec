"""The pods that the probe runs in: those of a running run, or temporary ones built like them, one per node."""

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from stoker.backends.kubernetes.job_control import is_elastic
from stoker.backends.kubernetes.jobs import job
from stoker.backends.kubernetes.needs import Needs, needs
from stoker.backends.kubernetes.pod import VOLUME, Task, find_named
from stoker.backends.kubernetes.state import is_up, unscheduled_reason
from stoker.backends.kubernetes.volume.reader import WAIT, startup_error
from stoker.kube import Cluster, Forbidden, Object
from stoker.net.survey import Site
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes, kubernetes_on
from stoker.spec.run import AnySpec

LIFETIME_S = 900  # in case the process that created them dies before it deletes them
KEPT_S = 60  # the job after that
START_TIMEOUT_S = 180.0  # for scheduling and pulling the image
UNSCHEDULABLE_AFTER_S = 30.0  # without an autoscaler, a pod that has no node by then will not get one
HOSTNAME = "kubernetes.io/hostname"
CPU, MEMORY = 0.1, 128 << 20
PREFLIGHT_MEMORY = 2 << 30  # torch and a matrix or two


def manifest(spec: AnySpec, *, name: str, namespace: str, image: str, gpus: bool) -> list[Object]:
    """Pure. Pods like the run's, at most one per node, without its command, its volume and (unless `gpus`) its GPUs."""
    task = Task(
        run=name, spec=spec, needs=_reduced(needs(spec, name), gpus), image=image, volume="-", namespace=namespace
    )
    service, owner = job.manifest(task)
    template = owner["spec"]["template"]
    pod = template["spec"]
    one_per_node = {"labelSelector": {"matchLabels": {contract.LABEL_RUN: name}}, "topologyKey": HOSTNAME}
    pod["affinity"] = pod.get("affinity", {}) | {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_per_node]}
    }
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != VOLUME]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        container["volumeMounts"] = [mount for mount in container.get("volumeMounts", []) if mount["name"] != VOLUME]
    container = find_named(pod["containers"], contract.CONTAINER)
    container["command"] = list(WAIT)
    container.pop("envFrom", None)
    pod["terminationGracePeriodSeconds"] = 1
    owner["spec"] |= {"activeDeadlineSeconds": LIFETIME_S, "ttlSecondsAfterFinished": KEPT_S}
    return [service, owner]


@contextmanager
def temporary_pods(cluster: Cluster, spec: AnySpec, *, name: str, image: str, gpus: bool) -> Iterator[list[Object]]:
    """Creates the pods, waits until all of them run, and deletes them afterwards."""
    unique = f"{name[: contract.MAX_RUN_NAME - 9].rstrip('-')}-net-{secrets.token_hex(2)}"
    service, owner = manifest(spec, name=unique, namespace=cluster.namespace, image=image, gpus=gpus)
    try:
        job_object = cluster.apply(owner)
        service["metadata"]["ownerReferences"] = [
            {
                "apiVersion": job_object["apiVersion"],
                "kind": job_object["kind"],
                "name": unique,
                "uid": job_object["metadata"]["uid"],
            }
        ]
        cluster.apply(service)
        yield _wait(cluster, unique, kubernetes_on(spec).nodes)
    finally:
        cluster.delete("Job", unique)


def sites(pods: Iterable[Object], services: Iterable[Object]) -> list[Site]:
    """Pure. The DNS names of a pod are its own in its subdomain, and those of the headless services that select it."""
    headless = [
        (service["metadata"]["name"], service["spec"].get("selector") or {})
        for service in services
        if service["spec"].get("clusterIP") == "None"
    ]
    sites = []
    for pod in pods:
        spec, labels = pod["spec"], pod["metadata"].get("labels", {})
        names = [name for name, selector in headless if selector and selector.items() <= labels.items()]
        if spec.get("hostname") and spec.get("subdomain"):
            names.insert(0, f"{spec['hostname']}.{spec['subdomain']}")
        sites.append(
            Site(
                pod=pod["metadata"]["name"],
                machine=spec.get("nodeName", ""),
                address=pod["status"]["podIP"],
                names=tuple(names),
                wants=_network_devices(spec),
            )
        )
    return sites


def services(cluster: Cluster) -> list[Object]:
    """Empty where the user may not list them."""
    try:
        return list(cluster.list("Service"))
    except Forbidden:
        return []


def _network_devices(spec: Object) -> dict[str, int]:
    return {
        name: int(count)
        for container in spec["containers"]
        for name, count in container.get("resources", {}).get("limits", {}).items()
        if name.endswith("/efa") or name.startswith("rdma/")
    }


def _reduced(wanted: Needs, gpus: bool) -> Needs:
    """Few resources, so that the pods fit beside others."""
    devices = wanted.devices if gpus else {key: n for key, n in wanted.devices.items() if key.endswith("/efa")}
    memory = PREFLIGHT_MEMORY if gpus else MEMORY
    return replace(wanted, cpu=CPU, memory=memory, memory_limit=None, shm=None, devices=devices)


def _wait(cluster: Cluster, name: str, nodes: Nodes) -> list[Object]:
    began = time.monotonic()
    autoscaled = is_elastic(cluster)
    while True:
        pods = list(cluster.list("Pod", labels={contract.LABEL_RUN: name}))
        up = [pod for pod in pods if is_up(pod)]
        if len(up) >= nodes.most:
            return up
        for problem in filter(None, (startup_error(pod, cluster.kubectl) for pod in pods)):
            raise problem
        reason = next(filter(None, map(unscheduled_reason, pods)), "")
        waited = time.monotonic() - began
        if waited > START_TIMEOUT_S or (reason and not autoscaled and waited > UNSCHEDULABLE_AFTER_S):
            raise UserError(
                f"{nodes.most - len(up)} of the {nodes.most} pods of the network probe did not start within "
                f"{waited:.0f} seconds ({reason or 'no reason is reported'})",
                remedy="Ask for fewer with --nodes, or free some nodes: each pod takes a node of its own",
            )
        time.sleep(0.5)
