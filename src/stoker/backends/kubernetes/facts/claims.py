"""The volume claims of a run's pods: whether they exist and are bound, and why not."""

from collections.abc import Iterable, Sequence

from stoker.backends.kubernetes.check import is_default_class
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.diagnose.facts import UNKNOWN, ClaimFact
from stoker.kube import Cluster, Forbidden, Object

BOUND_LATE = "WaitForFirstConsumer"


def claim_facts(
    cluster: Cluster, place: ClusterPlace, pods: Sequence[Object], events: Sequence[Object]
) -> tuple[ClaimFact, ...]:
    """Facts about all claims, if any of them is not bound. `events`: the cluster's warnings, oldest first."""
    names = dict.fromkeys([place.volume, *(name for pod in pods for name in _claims(pod))])
    try:
        claims = {name: cluster.get("PersistentVolumeClaim", name) for name in names}
    except Forbidden:
        return ()  # the user may not read them; the scheduler's message remains
    if all(claim and claim.get("status", {}).get("phase") == "Bound" for claim in claims.values()):
        return ()
    classes = _classes(cluster)
    messages = {
        event["involvedObject"].get("name", ""): " ".join((event.get("message") or "").split())
        for event in events
        if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
    }
    return tuple(_fact(name, claim, classes, messages.get(name, "")) for name, claim in claims.items())


def _fact(name: str, claim: Object | None, classes: list[Object] | None, message: str) -> ClaimFact:
    if claim is None:
        return ClaimFact(claim=name, state="missing")
    class_name = claim["spec"].get("storageClassName")
    class_names = None if classes is None else [storage["metadata"]["name"] for storage in classes]
    state = UNKNOWN
    if class_name is None and classes is None:
        class_name = ""  # the default class, if any
    elif not class_name:
        default = [storage for storage in classes or [] if is_default_class(storage)]
        class_name = default[0]["metadata"]["name"] if class_name is None and default else ""
        state = "exists" if class_name else "none"
    elif class_names is not None:
        state = "exists" if class_name in class_names else "missing"
    return ClaimFact(
        claim=name,
        state=claim.get("status", {}).get("phase", "Pending"),
        storage_class=class_name,
        class_state=state,
        classes=", ".join(class_names or []),
        binds_late=any(
            storage["metadata"]["name"] == class_name and storage.get("volumeBindingMode") == BOUND_LATE
            for storage in classes or []
        ),
        message=message,
    )


def _claims(pod: Object) -> Iterable[str]:
    for volume in pod["spec"].get("volumes") or []:
        if source := volume.get("persistentVolumeClaim"):
            yield source["claimName"]


def _classes(cluster: Cluster) -> list[Object] | None:
    try:
        return list(cluster.list("StorageClass"))
    except Forbidden:
        return None
