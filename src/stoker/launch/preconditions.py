"""What a run names in a cluster and must be there before anything is made."""

from stoker.kube import Cluster, Forbidden
from stoker.launch import etcd
from stoker.launch.jobs import job_kind
from stoker.launch.jobs.vcjob import DEFAULT_QUEUE
from stoker.launch.reader import claimed
from stoker.spec.errors import UserError
from stoker.spec.on import On

KUEUE = "kueue.x-k8s.io"  # its kinds are asked for in the version that the cluster prefers


def check(cluster: Cluster, on: On, job: str) -> None:
    """`job`: the kind of job that it takes."""
    _namespace(cluster)
    _operator(cluster, job)
    _claim(cluster, on)
    _named(cluster, on)
    etcd.check(cluster, on)
    if job == "vcjob":
        _volcano_queue(cluster, on)
    elif on.queue:
        _kueue_queue(cluster, on.queue)


def _namespace(cluster: Cluster) -> None:
    name = cluster.namespace
    try:
        there = cluster.get("Namespace", name)
    except Forbidden:
        return  # it is told when the objects are tried
    if there is None:
        raise UserError(
            f"{cluster.who} has no namespace '{name}'",
            remedy=f"Set on.namespace, or make it: {cluster.kubectl_anywhere} create namespace {name}",
        )


def _operator(cluster: Cluster, job: str) -> None:
    kind = job_kind(job)
    for name in kind.NEEDS:
        if not cluster.serves(name):
            raise UserError(
                f"on.job is {job}, and {cluster.who} knows no {name}: its operator is not installed",
                remedy=f"Set on.job=job, which needs none, or install it: {kind.INSTALL}",
            )


def _claim(cluster: Cluster, on: On) -> None:
    modes = claimed(cluster, str(on.volume))["spec"].get("accessModes", [])
    if on.nodes.most > 1 and "ReadWriteMany" not in modes:
        raise UserError(
            f"on.nodes is {on.nodes}, and volume claim '{on.volume}' may be used by one node only ({', '.join(modes)})",
            remedy="Set on.volume to a claim with ReadWriteMany (EFS, FSx, Filestore, NFS), or on.nodes=1",
        )


def _named(cluster: Cluster, on: On) -> None:
    """What the pods name and Kubernetes would only miss when it starts them."""
    named = [("ServiceAccount", "service_account", on.service_account), ("PriorityClass", "priority", on.priority)]
    named += [("Secret", "image_secrets", name) for name in on.image_secrets]
    named += [("ClusterTrainingRuntime", "runtime", on.runtime)]
    for kind, key, name in named:
        if name is not None:
            _there(cluster, kind, key, name)


def _there(cluster: Cluster, kind: str, key: str, name: str) -> None:
    try:
        if cluster.get(kind, name):
            return
        there = [one["metadata"]["name"] for one in cluster.list(kind, limit=10)]
    except Forbidden:
        return
    raise UserError(
        f"on.{key} names {kind} '{name}', and {cluster.who} has none of that name",
        remedy=f"There are: {', '.join(there)}" if there else f"Make it first, or leave on.{key} out",
    )


def _volcano_queue(cluster: Cluster, on: On) -> None:
    name = on.queue or DEFAULT_QUEUE
    try:
        queue = cluster.get("Queue", name)
        there = [] if queue else [one["metadata"]["name"] for one in cluster.list("Queue", limit=10)]
    except Forbidden:
        return
    if queue is None and on.queue is None:
        raise UserError(
            f"on.queue is not set, and {cluster.who} has no queue '{name}' of Volcano's, which is taken then",
            remedy=f"Name one: on.queue=…; there are: {', '.join(there) or 'none'}",
        )
    if queue is None and on.queue_make is None:
        raise UserError(
            f"on.queue names Volcano's queue '{name}', and {cluster.who} has none of that name",
            remedy=f"There are: {', '.join(there) or 'none'}; or have it made: 'on.queue_make={{weight: 1}}'",
        )
    state = (queue or {}).get("status", {}).get("state", "Open")
    if state != "Open":
        raise UserError(
            f"Volcano's queue '{name}' is {state.lower()} and takes no new run",
            remedy=f"Open it: vcctl queue operate --action open --name {name}; or take another: on.queue",
        )


def _kueue_queue(cluster: Cluster, name: str) -> None:
    version = cluster.preferred(KUEUE)
    if version is None:
        raise UserError(
            f"on.queue is {name}, and {cluster.who} has no Kueue",
            remedy="Leave on.queue out, or take a queue of Volcano's: on.job=vcjob",
        )
    _there(cluster, cluster.kind("LocalQueue", f"{KUEUE}/{version}").key, "queue", name)
