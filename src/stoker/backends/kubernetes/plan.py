"""From a spec to the Kubernetes objects of its job. Pure: the same objects for the same spec, facts and run."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.backends.backend import Facts, Submission
from stoker.backends.kubernetes import pod
from stoker.backends.kubernetes.inventory import NOTHING_KNOWN, Inventory
from stoker.backends.kubernetes.jobs import job_kind, kind_name
from stoker.backends.kubernetes.jobs.auto import choose_job
from stoker.backends.kubernetes.needs import Needs, needs
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.pod import Task
from stoker.image.reference import without_scheme
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import LABEL, cluster_name, kubernetes_on
from stoker.spec.run import AnySpec

HIDDEN = "***"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts(Facts):
    namespace: str
    inventory: Inventory = NOTHING_KNOWN
    claims: tuple[str, ...] = ()
    """Existing volume claims, for the error when none is named."""
    jobs: tuple[str, ...] | None = None
    """Kinds of jobs whose operators are installed; None where that is unknown."""
    kueue: bool = False
    assumed: bool = False
    """The cluster was not asked."""


NO_CLUSTER = ClusterFacts(cores=0, gpus=(), torch=None, namespace="default", assumed=True)
"""For a plan without a cluster."""


def plan(spec: AnySpec, facts: ClusterFacts, run: Path) -> Submission:
    on, name = kubernetes_on(spec), run.name
    _check_name(name)
    if on.image is None:
        raise UserError(
            "on.image is missing",
            remedy="Name an image with torch, and where to push it with your code added: on.image=… on.registry=…",
        )
    if on.volume is None:
        existing = f"; there are: {', '.join(facts.claims)}" if facts.claims else ""
        raise UserError(
            "on.volume is missing: the pods share the run directory on a volume",
            remedy=f"Name a claim with ReadWriteMany access: on.volume=…{existing}",
        )
    wanted = needs(spec, name)
    task = Task(
        run=name,
        spec=spec,
        needs=wanted,
        image=without_scheme(on.image),
        volume=on.volume,
        namespace=facts.namespace if on.namespace is None else on.namespace,
        cores=_cores(wanted, facts.inventory),
    )
    job, _ = choose_job(on, facts.jobs, kueue=facts.kueue)
    objects = job_kind(job).manifest(task)
    if on.queue and job != "vcjob":
        objects[-1]["metadata"]["labels"][LABEL_QUEUE] = on.queue
    if on.network_policy:
        objects.insert(0, pod.network_policy(task))
    if task.secret:
        objects.insert(0, pod.secret(task, dict.fromkeys(spec.secrets, HIDDEN)))
    return Submission(
        run=run,
        workers=wanted.workers * on.nodes.most,
        device=wanted.device,
        argv=pod.command(task),
        env=wanted.env,
        secrets=dict(spec.secrets),
        objects=tuple(objects),
    )


def with_image(submission: Submission, image: str, *, base: str) -> Submission:
    """The same job with the image that was built on `base`. Pure. An image from on.pod stays."""
    container = job_kind(kind_name(submission.objects[-1])).CONTAINER
    objects = [
        _with_image(manifest, without_scheme(base), without_scheme(image), container) for manifest in submission.objects
    ]
    return replace(submission, objects=tuple(objects))


def _with_image(value: Any, base: str, image: str, container: str) -> Any:
    """Only in the container with the supervisor: other containers keep their images."""
    if isinstance(value, list):
        return [_with_image(item, base, image, container) for item in value]
    if not isinstance(value, dict):
        return value
    is_own = value.get("image") == base and value.get("name", container) == container
    changed = {key: _with_image(item, base, image, container) for key, item in value.items()}
    return changed | {"image": image} if is_own else changed


def planned_place(submission: Submission, *, context: str | None = None) -> ClusterPlace:
    """Where a planned run will be."""
    owner = submission.objects[-1]
    job = kind_name(owner)
    template = job_kind(job).template(submission.objects)
    container = pod.find_named(template["spec"]["containers"], job_kind(job).CONTAINER)
    volume = pod.find_named(template["spec"]["volumes"], pod.VOLUME)
    return ClusterPlace(
        context=context,
        namespace=owner["metadata"]["namespace"],
        job=job,
        run=owner["metadata"]["name"],
        volume=volume["persistentVolumeClaim"]["claimName"],
        image=container["image"],
    )


def _check_name(name: str) -> None:
    if not re.fullmatch(LABEL, name) or name[0].isdigit() or len(name) > contract.MAX_RUN_NAME:
        raise UserError(
            f"'{name}' is not a valid name for a run in a cluster",
            remedy=f"Use lower-case letters, digits and -, at most {contract.MAX_RUN_NAME}: {cluster_name(name)}",
        )


def _cores(wanted: Needs, inventory: Inventory) -> int | None:
    """Of the smallest node that its pods may run on."""
    cores = [int(machine.offers.get("cpu", 0)) for machine, _ in inventory.fitting(wanted)]
    return min(cores, default=0) or None
