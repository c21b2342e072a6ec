"""The Backend of a Kubernetes cluster: objects made by pure functions, applied, watched, deleted."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.kube import Cluster, Forbidden, Object, connect
from stoker.launch import etcd, pod, secrets
from stoker.launch.backend import Facts, Submission
from stoker.launch.fits import check_fits
from stoker.launch.image.reference import without_scheme
from stoker.launch.inventory import NOTHING_KNOWN, Inventory, grouped
from stoker.launch.jobs import JobState, job_kind
from stoker.launch.needs import Needs, needs
from stoker.launch.pod import Task
from stoker.launch.reader import claimed
from stoker.rundir import PlaceRef, RunDir
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError
from stoker.spec.on import LABEL, On, cluster_name
from stoker.spec.run import AnySpec

HIDDEN = "***"
ENDED = ("done", "failed")
POLL = 0.2  # seconds between two looks at an object that goes away
PATIENCE = 660.0  # seconds: a supervisor gives a save ten minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts(Facts):
    namespace: str
    inventory: Inventory = NOTHING_KNOWN
    claims: tuple[str, ...] = ()
    """Volume claims that are there, for the message when none is named."""


NO_CLUSTER = ClusterFacts(cores=0, gpus=(), torch=None, namespace="default")
"""What is planned without looking."""


@dataclass(frozen=True, slots=True)
class ClusterRunning:
    """A submitted run, as its submitter sees it."""

    backend: "Kubernetes"
    place: PlaceRef

    def poll(self) -> int | None:
        state = self.backend.state(self.place)
        if state is None or state.state == "failed":
            return contract.EXIT_FAILED
        return contract.EXIT_DONE if state.state == "done" else None

    def stop(self) -> None:
        self.backend.delete(self.place)

    def holds(self, run: RunDir) -> bool:
        return run.name == self.place.run


class Kubernetes:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    def of(cls, on: On) -> "Kubernetes":
        return cls(connect(on.context, on.namespace))

    @classmethod
    def at(cls, place: PlaceRef) -> "Kubernetes":
        return cls(connect(place.context, place.namespace))

    def discover(self) -> ClusterFacts:
        try:
            inventory = grouped(self.cluster.list("Node"), elastic=is_elastic(self.cluster))
        except Forbidden:
            inventory = NOTHING_KNOWN  # many users may not see nodes; the scheduler will say what does not fit
        claims = tuple(one["metadata"]["name"] for one in self.cluster.list("PersistentVolumeClaim", limit=10))
        return ClusterFacts(
            cores=0, gpus=(), torch=None, namespace=self.cluster.namespace, inventory=inventory, claims=claims
        )

    def plan(self, spec: AnySpec, facts: Facts, run: Path) -> Submission:
        return plan(spec, facts if isinstance(facts, ClusterFacts) else NO_CLUSTER, run)

    def check(self, spec: AnySpec, facts: ClusterFacts, submission: Submission) -> list[str]:
        """Refuses what cannot work before anything is made; what is only worth a word comes back."""
        self._check_namespace()
        self._check_kind(spec.on)
        self._check_claim(spec.on)
        self._check_named(spec.on)
        etcd.check(self.cluster, spec.on)
        warnings = check_fits(needs(spec, submission.run.name), facts.inventory, nodes=spec.on.nodes.most)
        *others, owner = submission.objects
        if self._last(owner):  # it gives way first: most of a job cannot be changed
            owner = owner | {"metadata": owner["metadata"] | {"name": f"{owner['metadata']['name']}-again"}}
        for one in (*others, owner):
            self.cluster.apply(one, dry_run=True)
        return warnings

    def submit(self, submission: Submission, *, detached: bool = True) -> ClusterRunning:  # noqa: ARG002 (it always is)
        *others, owner = self._filled(submission)
        place = place_of(submission)
        self._make_room(owner)
        try:
            for one in others:
                self.cluster.apply(one)
            belonging = {"metadata": {"ownerReferences": [_owner(self.cluster.apply(owner))]}}
            for one in others:
                self.cluster.patch(one["kind"], one["metadata"]["name"], belonging)
        except BaseException:  # all of it or nothing; an answer may be lost after its object was made
            for one in (owner, *others):
                with suppress(StokerError):
                    self.cluster.delete(one["kind"], one["metadata"]["name"])
            raise
        return ClusterRunning(self, place)

    def state(self, place: PlaceRef) -> JobState | None:
        """None when the job is gone."""
        kind = job_kind(place.job)
        job = self.cluster.get(kind.KIND, place.run)
        return kind.state(job) if job else None

    def stop(self, run: RunDir) -> bool:
        place = run.place_ref()
        return place is not None and self.delete(place)

    def delete(self, place: PlaceRef) -> bool:
        """In the foreground: the job stays until its pods have saved and are gone. False when none runs; idempotent.

        Its pods are told all at once: Kubernetes alone would tell a thousand of them over a minute. A job that has
        ended by itself is left for those who want to look at it.
        """
        state = self.state(place)
        if state is None or state.state in ENDED:
            return False
        there = self.cluster.delete(job_kind(place.job).KIND, place.run, foreground=True)
        if there:
            with suppress(Forbidden):
                self.cluster.delete_all("Pod", labels={contract.LABEL_RUN: place.run})
        return there

    def ended(self, place: PlaceRef) -> bool:
        """No pod of it runs any more; the cluster may still be tidying up."""
        if self.cluster.get(job_kind(place.job).KIND, place.run) is None:
            return True
        ours = {contract.LABEL_RUN: place.run}
        return not any(
            pod["spec"].get("nodeName")
            for phase in ("Running", "Pending")
            for pod in self.cluster.list("Pod", labels=ours, fields={"status.phase": phase})
        )

    def _filled(self, submission: Submission) -> list[Object]:
        """With the secrets' values, which stand nowhere else."""
        values = secrets.read(submission.secrets)
        return [one | {"stringData": values} if one["kind"] == "Secret" else one for one in submission.objects]

    def _make_room(self, owner: Object) -> None:
        """A run that goes on takes the place of its own job that has ended."""
        kind, name = owner["kind"], owner["metadata"]["name"]
        if not self._last(owner):
            return
        self.cluster.delete(kind, name, foreground=True)
        end = time.monotonic() + PATIENCE
        while self.cluster.get(kind, name) is not None:
            if time.monotonic() > end:
                raise UserError(
                    f"the last {kind} of run '{name}' does not go away", remedy=f"See: kubectl describe {kind} {name}"
                )
            time.sleep(POLL)

    def _last(self, owner: Object) -> bool:
        """Whether a job of this run is there that has ended. One that has not is refused."""
        kind, name = owner["kind"], owner["metadata"]["name"]
        there = self.cluster.get(kind, name)
        if there and has_not_ended(job_kind(kind.lower()).state(there)):
            raise runs_already(name, self.cluster)
        return there is not None

    def _check_namespace(self) -> None:
        name = self.cluster.namespace
        try:
            there = self.cluster.get("Namespace", name)
        except Forbidden:
            return  # it is told when the objects are tried
        if there is None:
            flag = f"--context {self.cluster.context} " if self.cluster.context else ""
            raise UserError(
                f"{self.cluster.who} has no namespace '{name}'",
                remedy=f"Set on.namespace, or make it: kubectl {flag}create namespace {name}",
            )

    def _check_kind(self, on: On) -> None:
        kind = job_kind(on.job)
        for name in kind.NEEDS:
            if not self.cluster.serves(name):
                raise UserError(
                    f"on.job is {on.job}, and {self.cluster.who} knows no {name}: its operator is not installed",
                    remedy=f"Set on.job=job, which needs none, or install it: {kind.INSTALL}",
                )

    def _check_claim(self, on: On) -> None:
        modes = claimed(self.cluster, str(on.volume))["spec"].get("accessModes", [])
        if on.nodes.most > 1 and "ReadWriteMany" not in modes:
            raise UserError(
                f"on.nodes is {on.nodes}, and volume claim '{on.volume}' may be used by one node only "
                f"({', '.join(modes)})",
                remedy="Set on.volume to a claim with ReadWriteMany (EFS, FSx, Filestore, NFS), or on.nodes=1",
            )

    def _check_named(self, on: On) -> None:
        """What the pods name and Kubernetes would only miss when it starts them."""
        named = [("ServiceAccount", "service_account", on.service_account), ("PriorityClass", "priority", on.priority)]
        named += [("Secret", "image_secrets", name) for name in on.image_secrets]
        for kind, key, name in named:
            try:
                if name is None or self.cluster.get(kind, name):
                    continue
                there = [one["metadata"]["name"] for one in self.cluster.list(kind, limit=10)]
            except Forbidden:
                continue
            raise UserError(
                f"on.{key} names {kind} '{name}', and {self.cluster.who} has none of that name",
                remedy=f"There are: {', '.join(there)}" if there else f"Make it first, or leave on.{key} out",
            )


def plan(spec: AnySpec, facts: ClusterFacts, run: Path) -> Submission:
    """Pure: the same objects for the same spec, facts and run."""
    on, name = spec.on, run.name
    _check_name(name)
    if on.image is None:
        raise UserError(
            "on.image is missing",
            remedy="Name one with torch, and where your code over it is pushed: on.image=… on.registry=…",
        )
    if on.volume is None:
        there = f": there are {', '.join(facts.claims)}" if facts.claims else ""
        raise UserError(
            "on.volume is missing: the pods share the run directory on a volume",
            remedy=f"Name a claim with ReadWriteMany access: on.volume=…{there}",
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
    objects = job_kind(on.job).manifest(task)
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


def reach(run: RunDir) -> tuple[Kubernetes, PlaceRef]:
    """Its cluster, connected, and where it is there."""
    place = run.place_ref()
    assert place is not None, "a run that lives here has no cluster"
    return Kubernetes.at(place), place


def check_ended(run: RunDir) -> None:
    """That the job which carries it now, wherever that is, has ended: two would write to one run directory."""
    if run.place_ref() is None:
        return
    backend, place = reach(run)
    if has_not_ended(backend.state(place)):
        raise runs_already(run.name, backend.cluster)


def has_not_ended(state: JobState | None) -> bool:
    return state is not None and state.state not in (*ENDED, "stopping")


def runs_already(name: str, cluster: Cluster) -> UserError:
    return UserError(
        f"run '{name}' runs already in namespace {cluster.namespace} of {cluster.who}",
        remedy=f"Watch it with: stoker status {name}, or stop it first with: stoker stop {name}",
    )


def place_of(submission: Submission, *, context: str | None = None) -> PlaceRef:
    """Where a planned run will be."""
    owner = submission.objects[-1]
    specs = owner["spec"].get("pytorchReplicaSpecs")
    template = next(iter(specs.values()))["template"] if specs else owner["spec"]["template"]
    container = next(one for one in template["spec"]["containers"] if one["name"] == contract.CONTAINER)
    volume = next(one for one in template["spec"]["volumes"] if one["name"] == "stoker")
    return PlaceRef(
        kind="kubernetes",
        context=context,
        namespace=owner["metadata"]["namespace"],
        job=owner["kind"].lower(),
        run=owner["metadata"]["name"],
        volume=volume["persistentVolumeClaim"]["claimName"],
        image=container["image"],
    )


def is_elastic(cluster: Cluster) -> bool:
    """Something adds nodes: Karpenter, or the cluster autoscaler, which tells how it fares in a ConfigMap."""
    try:
        return (
            cluster.serves("NodePool")
            or cluster.get("ConfigMap", "cluster-autoscaler-status", namespace="kube-system") is not None
        )
    except Forbidden:
        return True  # nobody knows: what does not fit now may fit later


def _check_name(name: str) -> None:
    if not re.fullmatch(LABEL, name) or name[0].isdigit() or len(name) > contract.LONGEST_RUN:
        raise UserError(
            f"'{name}' cannot be a run's name in a cluster",
            remedy=f"Take small letters, digits and -, at most {contract.LONGEST_RUN}, such as {cluster_name(name)}",
        )


def _cores(wanted: Needs, inventory: Inventory) -> int | None:
    """Of the smallest node that its pods may run on."""
    there = [int(machine.offers.get("cpu", 0)) for machine, _ in inventory.fitting(wanted)]
    return min(there, default=0) or None


def _owner(job: Object) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "blockOwnerDeletion": False,
        "controller": False,
    }
