"""The Volcano or Kueue queue that a run waits in."""

import re

from stoker.backends.kubernetes.facts.jobs import kueue_queue
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.diagnose.facts import QueueFact
from stoker.kube import Cluster, Forbidden, Object

KUEUE = "kueue.x-k8s.io"
MAX_NAMES = 10  # of existing queues
QUEUE_CLOSED = re.compile("inactive|stopped")  # Kueue gives the same reason, Pending, for a full queue


def queue_facts(cluster: Cluster, place: ClusterPlace, job: Object | None) -> tuple[QueueFact, ...]:
    if job is None:
        return ()
    try:
        if name := kueue_queue(job):
            return (_kueue_fact(cluster, place, name),)
        if name := job["spec"].get("queue"):
            return (_volcano_fact(cluster, name),)
    except Forbidden:
        pass  # the user may not read it; the scheduler's message remains
    return ()


def _volcano_fact(cluster: Cluster, name: str) -> QueueFact:
    if not cluster.serves("Queue"):
        return QueueFact(queue=name, state="none")
    queue = cluster.get("Queue", name)
    if queue is None:
        return QueueFact(queue=name, state="missing", queues=_names(cluster, "Queue"))
    return QueueFact(queue=name, state=(queue.get("status") or {}).get("state") or "Open")


def _kueue_fact(cluster: Cluster, place: ClusterPlace, name: str) -> QueueFact:
    version = cluster.preferred(KUEUE)
    if version is None:
        return QueueFact(queue=name, state="none")
    queues, workloads = (cluster.kind(kind, f"{KUEUE}/{version}").key for kind in ("LocalQueue", "Workload"))
    if cluster.get(queues, name) is None:
        return QueueFact(queue=name, state="missing", queues=_names(cluster, queues))
    for workload in cluster.list(workloads):
        owners = workload["metadata"].get("ownerReferences") or []
        if not any(owner["name"] == place.run for owner in owners):
            continue
        if workload["spec"].get("active") is False:
            return QueueFact(queue=name, state="Closed", message="its workload was deactivated")
        for condition in (workload.get("status") or {}).get("conditions") or []:
            if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                message = condition.get("message") or ""
                closed = QUEUE_CLOSED.search(message)
                return QueueFact(queue=name, state="Closed" if closed else "full", message=message)
    return QueueFact(queue=name, state="Open")


def _names(cluster: Cluster, kind: str) -> str:
    return ", ".join(queue["metadata"]["name"] for queue in cluster.list(kind, limit=MAX_NAMES))
