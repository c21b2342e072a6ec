"""The volume claims that a run's pods name: there, bound, or why not."""

from collections.abc import Iterable, Sequence

from stoker.kube import Cluster, Forbidden, Object
from stoker.observe.facts import UNKNOWN, ClaimFact
from stoker.rundir import PlaceRef

DEFAULT = "storageclass.kubernetes.io/is-default-class"


LATE = "WaitForFirstConsumer"


def claim_facts(
    cluster: Cluster, place: PlaceRef, pods: Sequence[Object], events: Sequence[Object]
) -> tuple[ClaimFact, ...]:
    """Of all, where one is not bound. `events`: the cluster's warnings, oldest first."""
    names = dict.fromkeys([place.volume, *(name for pod in pods for name in _claims(pod))])
    try:
        found = {name: cluster.get("PersistentVolumeClaim", name) for name in names}
    except Forbidden:
        return ()  # nobody may see them: what the scheduler says of the pods is all there is
    if all(claim and claim.get("status", {}).get("phase") == "Bound" for claim in found.values()):
        return ()
    classes = _classes(cluster)
    said = {
        one["involvedObject"].get("name", ""): " ".join((one.get("message") or "").split())
        for one in events
        if one["involvedObject"].get("kind") == "PersistentVolumeClaim"
    }
    return tuple(_fact(name, claim, classes, said.get(name, "")) for name, claim in found.items())


def _fact(name: str, claim: Object | None, classes: list[Object] | None, said: str) -> ClaimFact:
    if claim is None:
        return ClaimFact(claim=name, state="missing")
    wanted = claim["spec"].get("storageClassName")
    known = None if classes is None else [one["metadata"]["name"] for one in classes]
    state = UNKNOWN
    if wanted is None and classes is None:
        wanted = ""  # the cluster's own, if it has one
    elif not wanted:
        default = [one for one in classes or [] if (one["metadata"].get("annotations") or {}).get(DEFAULT) == "true"]
        wanted = default[0]["metadata"]["name"] if wanted is None and default else ""
        state = "there" if wanted else "none"
    elif known is not None:
        state = "there" if wanted in known else "missing"
    return ClaimFact(
        claim=name,
        state=claim.get("status", {}).get("phase", "Pending"),
        storage_class=wanted,
        class_state=state,
        classes=", ".join(known or []),
        late=any(one["metadata"]["name"] == wanted and one.get("volumeBindingMode") == LATE for one in classes or []),
        said=said,
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
