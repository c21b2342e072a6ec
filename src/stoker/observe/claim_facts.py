"""The volume claims that a run's pods name: there, bound, or why not."""

from collections.abc import Iterable, Sequence

from stoker.kube import Cluster, Forbidden, Object
from stoker.observe.facts import ClaimFact
from stoker.rundir import PlaceRef

DEFAULT = "storageclass.kubernetes.io/is-default-class"


def claim_facts(cluster: Cluster, place: PlaceRef, pods: Sequence[Object]) -> tuple[ClaimFact, ...]:
    """Of those that are not bound."""
    names = dict.fromkeys([place.volume, *(name for pod in pods for name in _claims(pod))])
    found = {name: cluster.get("PersistentVolumeClaim", name) for name in names}
    if all(claim and claim.get("status", {}).get("phase") == "Bound" for claim in found.values()):
        return ()
    classes = _classes(cluster)
    return tuple(_fact(name, claim, classes) for name, claim in found.items())


def _fact(name: str, claim: Object | None, classes: list[Object] | None) -> ClaimFact:
    if claim is None:
        return ClaimFact(claim=name, state="missing")
    wanted = claim["spec"].get("storageClassName")
    known = None if classes is None else [one["metadata"]["name"] for one in classes]
    state = ""
    if not wanted:
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
