"""The queue that a run waits in: Volcano's, or Kueue's."""

from stoker.kube import Cluster, Forbidden, Object
from stoker.observe.facts import QueueFact
from stoker.observe.job_facts import kueue
from stoker.rundir import PlaceRef

KUEUE = "kueue.x-k8s.io"


def queue_facts(cluster: Cluster, place: PlaceRef, job: Object | None) -> tuple[QueueFact, ...]:
    if job is None:
        return ()
    try:
        if name := kueue(job):
            return (_of_kueue(cluster, place, name),)
        if name := job["spec"].get("queue"):
            return (_of_volcano(cluster, name),)
    except Forbidden:
        pass  # nobody may see it: what the scheduler says of the pods is all there is
    return ()


def _of_volcano(cluster: Cluster, name: str) -> QueueFact:
    if not cluster.serves("Queue"):
        return QueueFact(queue=name, state="none")
    found = cluster.get("Queue", name)
    if found is None:
        known = ", ".join(one["metadata"]["name"] for one in cluster.list("Queue", limit=10))
        return QueueFact(queue=name, state="missing", known=known)
    return QueueFact(queue=name, state=(found.get("status") or {}).get("state") or "Open")


def _of_kueue(cluster: Cluster, place: PlaceRef, name: str) -> QueueFact:
    version = cluster.preferred(KUEUE)
    if version is None:
        return QueueFact(queue=name, state="none")
    queues, workloads = (cluster.kind(kind, f"{KUEUE}/{version}").key for kind in ("LocalQueue", "Workload"))
    if cluster.get(queues, name) is None:
        known = ", ".join(one["metadata"]["name"] for one in cluster.list(queues, limit=10))
        return QueueFact(queue=name, state="missing", known=known)
    for workload in cluster.list(workloads):
        owners = workload["metadata"].get("ownerReferences") or []
        if not any(owner["name"] == place.run for owner in owners):
            continue
        if workload["spec"].get("active") is False:
            return QueueFact(queue=name, state="Closed", said="its workload was made inactive")
        for one in (workload.get("status") or {}).get("conditions") or []:
            if one["type"] == "QuotaReserved" and one["status"] == "False":
                said = one.get("message") or ""
                stopped = "inactive" in said or "stopped" in said
                return QueueFact(queue=name, state="Closed" if stopped else "full", said=said)
    return QueueFact(queue=name, state="Open")
