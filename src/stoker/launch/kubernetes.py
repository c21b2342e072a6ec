"""The Backend of a Kubernetes cluster: objects made by pure functions, applied, watched, deleted."""

import hashlib
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.kube import Cluster, Forbidden, HookSilent, Object, Refused, connect
from stoker.kube.kinds import key_of
from stoker.launch import pod, preconditions, secrets
from stoker.launch.backend import Facts, Submission
from stoker.launch.fits import check_fits, check_open
from stoker.launch.image.reference import without_scheme
from stoker.launch.inventory import NOTHING_KNOWN, Inventory, grouped
from stoker.launch.jobs import KINDS, JobState, job_kind, kind_name
from stoker.launch.jobs.auto import chosen
from stoker.launch.needs import Needs, needs
from stoker.launch.network import network_policy
from stoker.launch.pod import Task
from stoker.launch.standing import standing
from stoker.rundir import PlaceRef, RunDir
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError
from stoker.spec.on import LABEL, On, cluster_name
from stoker.spec.run import AnySpec

HIDDEN = "***"
ENDED = ("done", "failed")
HURRY_S = 1  # for a pod to end that has nothing to save
AT_ONCE = 8  # pods that are stopped at the same time
POLL = 0.2  # seconds between two looks at an object that goes away
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
SHARED = ("Queue",)  # kinds of objects that a run may make and does not own
HOOK_PATIENCE = 90.0  # seconds until the webhook of an operator that was just installed answers
LATE = (  # said of what was made a moment ago
    "must be created before the TrainJob",
    "unable to find job queue",
    "queue with state `Open`",
)
LATE_PATIENCE = 20.0
PATIENCE = 660.0  # seconds: a supervisor gives a save ten minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts(Facts):
    namespace: str
    inventory: Inventory = NOTHING_KNOWN
    claims: tuple[str, ...] = ()
    """Volume claims that are there, for the message when none is named."""
    jobs: tuple[str, ...] | None = None
    """Kinds of jobs whose operators are installed; None when nobody has looked."""
    kueue: bool = False


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
    def __init__(self, cluster: Cluster, say: Callable[[str], None] = lambda _: None) -> None:
        """`say` is told what is waited for."""
        self.cluster = cluster
        self._say = say

    @classmethod
    def of(cls, on: On, say: Callable[[str], None] = lambda _: None) -> "Kubernetes":
        return cls(connect(on.context, on.namespace), say)

    @classmethod
    def at(cls, place: PlaceRef) -> "Kubernetes":
        return cls(connect(place.context, place.namespace))

    def discover(self) -> ClusterFacts:
        try:
            inventory = grouped(self.cluster.list("Node"), elastic=is_elastic(self.cluster))
        except Forbidden:
            inventory = NOTHING_KNOWN  # many users may not see nodes; the scheduler will say what does not fit
        claims = tuple(one["metadata"]["name"] for one in self.cluster.list("PersistentVolumeClaim", limit=10))
        groups = self.cluster.groups()
        return ClusterFacts(
            cores=0,
            gpus=(),
            torch=None,
            namespace=self.cluster.namespace,
            inventory=inventory,
            claims=claims,
            jobs=tuple(name for name in KINDS if self._has(name, groups)),
            kueue=preconditions.KUEUE in groups,
        )

    def plan(self, spec: AnySpec, facts: Facts, run: Path) -> Submission:
        return plan(spec, facts if isinstance(facts, ClusterFacts) else NO_CLUSTER, run)

    def check(self, spec: AnySpec, facts: ClusterFacts, submission: Submission, *, running: bool = False) -> list[str]:
        """Refuses what cannot work before anything is made; what is only worth a word comes back.

        `running`: its job may still run, and gives way later.
        """
        owner = submission.objects[-1]
        name = kind_name(owner)
        preconditions.check(self.cluster, spec.on, name)
        wanted = needs(spec, submission.run.name)
        warnings = check_fits(wanted, facts.inventory, nodes=spec.on.nodes.most)
        if not running:
            warnings += check_open(wanted, facts.inventory, kubectl=self.cluster.kubectl_anywhere)
        last = running or self._last(owner)
        for one in job_kind(name).trials(submission.objects):
            if one["kind"] in SHARED and self._there(key_of(one), one["metadata"]["name"]):
                continue  # it is taken as it is, by those too who may make none
            if last and one["kind"] not in SHARED:  # it gives way first: most of a job cannot be changed
                one = one | {"metadata": one["metadata"] | {"name": _another(one["metadata"]["name"])}}
            self._apply(one, dry_run=True)
        return warnings

    def check_scaled(self, spec: AnySpec, place: PlaceRef) -> list[str]:
        """The same for a run that is there and gets other nodes."""
        preconditions.check(self.cluster, spec.on, place.job)
        return check_fits(needs(spec, place.run), self.discover().inventory, nodes=spec.on.nodes.most)

    def submit(self, submission: Submission, *, detached: bool = True) -> ClusterRunning:  # noqa: ARG002 (it always is)
        *others, owner = self._filled(submission)
        place = place_of(submission)
        shared = [one for one in others if one["kind"] in SHARED]
        others = [one for one in others if one["kind"] not in SHARED]
        self._make_room(owner, others)
        for one in shared:
            if not self._there(key_of(one), one["metadata"]["name"]):
                self._apply(one)
        try:
            for one in others:
                self._apply(one)
            belonging = {"metadata": {"ownerReferences": [_owner(self._apply(owner))]}}
            for one in others:
                self.cluster.patch(key_of(one), one["metadata"]["name"], belonging)
        except BaseException:  # all of it or nothing; an answer may be lost after its object was made
            for one in (owner, *others):
                with suppress(StokerError):
                    self.cluster.delete(key_of(one), one["metadata"]["name"])
            raise
        return ClusterRunning(self, place)

    def state(self, place: PlaceRef) -> JobState | None:
        """None when the job is gone."""
        return standing(self.cluster, place, self.cluster.get(job_kind(place.job).KIND, place.run))

    def stop(self, run: RunDir) -> bool:
        place = run.place_ref()
        return place is not None and self.delete(place)

    def delete(self, place: PlaceRef) -> bool:
        """In the foreground: the job stays until its pods have saved and are gone. False when none runs; idempotent.

        Its pods are told all at once: Kubernetes alone would tell a thousand of them over a minute. Those that have not
        started have nothing to save, and are given no time for it. A job that has ended by itself is left for those who
        want to look at it.
        """
        state = self.state(place)
        if state is None or state.state in ENDED:
            return False
        kind = job_kind(place.job)
        there = self.cluster.delete(kind.KIND, place.run, foreground=kind.LASTS)
        if there:
            with suppress(Forbidden):
                for inner, name in kind.inside(place.run):  # or it would replace the pods
                    self.cluster.delete(inner, name, foreground=True)
                self.cluster.delete_all("Pod", labels={contract.LABEL_RUN: place.run})
                self._hurry(place, kind.CONTAINER)
        return there

    def _hurry(self, place: PlaceRef, container: str) -> None:
        """Pods that were told to end and whose own container never started: an init container may not listen."""
        pods = self.cluster.list("Pod", labels={contract.LABEL_RUN: place.run})
        names = [one["metadata"]["name"] for one in pods if not has_started(one, container)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: self.cluster.delete("Pod", name, grace=HURRY_S), names))

    def ended(self, place: PlaceRef) -> bool:
        """No pod of it runs any more; the cluster may still be tidying up."""
        if self.state(place) is None:
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

    def _make_room(self, owner: Object, others: list[Object]) -> None:
        """A run that goes on takes the place of its own job that has ended, and of all that it owned.

        What it owned may outlive it for a moment and would be tidied away later, with what was written into it. It goes
        in the background, and so at once: not everybody may look whether it is gone.
        """
        job, run = job_kind(kind_name(owner)), owner["metadata"]["name"]
        going = [(job.KIND, run, job.LASTS)] if self._last(owner) else []
        going += [(key_of(one), one["metadata"]["name"], False) for one in others]
        going += [(kind, name, True) for kind, name in job.inside(run)]
        end = time.monotonic() + PATIENCE
        for kind, name, foreground in going:
            if not self.cluster.delete(kind, name, foreground=foreground):
                continue
            while self._there(kind, name):
                if time.monotonic() > end:
                    raise UserError(
                        f"the last {kind} of run '{run}' does not go away",
                        remedy=f"See: {self.cluster.kubectl} describe {kind} {name}",
                    )
                time.sleep(POLL)

    def _there(self, kind: str, name: str) -> bool:
        """False as well where nobody may look: what was deleted is taken for gone."""
        try:
            return self.cluster.get(kind, name) is not None
        except Forbidden:
            return False

    def _last(self, owner: Object) -> bool:
        """Whether a job of this run is there that has ended. One that has not is refused."""
        name = owner["metadata"]["name"]
        there = self.cluster.get(key_of(owner), name)
        if there and has_not_ended(job_kind(kind_name(owner)).state(there)):
            raise runs_already(name, self.cluster)
        return there is not None

    def _has(self, name: str, groups: set[str]) -> bool:
        """Whether the operator of that kind of job is installed."""
        wanted = [self.cluster.kind(one) for one in job_kind(name).NEEDS]
        return all(kind.group in groups and self.cluster.serves(kind.key) for kind in wanted)

    def _apply(self, one: Object, *, dry_run: bool = False) -> Object:
        """Operators are waited for: one that was just installed, or has not heard yet of what was just made."""
        began, told = time.monotonic(), False
        while True:
            try:
                return self.cluster.apply(one, dry_run=dry_run)
            except Refused as e:
                late = any(words in e.problem for words in LATE)
                patience = HOOK_PATIENCE if isinstance(e, HookSilent) else LATE_PATIENCE if late else 0.0
                if time.monotonic() - began >= patience:
                    raise
                if isinstance(e, HookSilent) and not told:
                    self._say(f"{e.problem}; it is waited for, at most {HOOK_PATIENCE:.0f} seconds …")
                    told = True
            time.sleep(POLL)


def has_started(pod: Object, container: str) -> bool:
    """Whether that container of it runs, or ever has. Pure."""
    for one in (pod.get("status") or {}).get("containerStatuses") or []:
        if one["name"] == container:
            states = (one.get("state") or {}, one.get("lastState") or {})
            return any("running" in state or "terminated" in state for state in states)
    return False


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
    job, _ = chosen(on, facts.jobs, kueue=facts.kueue)
    objects = job_kind(job).manifest(task)
    if on.queue and job != "vcjob":
        objects[-1]["metadata"]["labels"][LABEL_QUEUE] = on.queue
    if on.network_policy:
        objects.insert(0, network_policy(task))
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
    job = kind_name(owner)
    template = job_kind(job).template(submission.objects)
    container = next(one for one in template["spec"]["containers"] if one["name"] == job_kind(job).CONTAINER)
    volume = next(one for one in template["spec"]["volumes"] if one["name"] == "stoker")
    return PlaceRef(
        kind="kubernetes",
        context=context,
        namespace=owner["metadata"]["namespace"],
        job=job,
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


def _another(name: str) -> str:
    """For a trial beside what is there: short, as names of pods are made of it."""
    return f"again-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


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
