"""The jobs of runs in a cluster: checked, created, watched, deleted."""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from stoker.backends import secrets
from stoker.backends.backend import Message, Submission
from stoker.backends.kubernetes import preflight
from stoker.backends.kubernetes.inventory import NOTHING_KNOWN, grouped
from stoker.backends.kubernetes.jobs import KINDS, JobState, job_kind, kind_name
from stoker.backends.kubernetes.needs import needs
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.backends.kubernetes.plan import ClusterFacts, planned_place
from stoker.backends.kubernetes.state import has_started, job_state
from stoker.kube import Cluster, Forbidden, NotSynced, Object, Refused, WebhookUnavailable, connect
from stoker.kube.errors import NOT_FOUND
from stoker.kube.kinds import key_of
from stoker.rundir import Record, RunDir
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import RunFailed, StokerError, UserError
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec
from stoker.spec.units import short_duration

UNSTARTED_GRACE_S = 1  # for a pod that has nothing to save
CONCURRENT_DELETES = 8
POLL_S = 0.2  # while an object is being deleted
SHARED = ("Queue",)  # kinds of objects that a run may create and does not own
WEBHOOK_TIMEOUT_S = 90.0  # for the webhook of an operator that was just installed
SYNC_TIMEOUT_S = 20.0  # for a webhook to see an object that was just created
STOP_TIMEOUT_S = 660.0  # a supervisor allows ten minutes for a save, then ends its workers
STOP_POLL_S = 1.0
STOP_MESSAGE_EVERY_S = 10.0
CLEANUP_TIMEOUT_S = 10.0  # a job of a few pods is gone a moment after them; one of thousands is left to the cluster


@dataclass(frozen=True, slots=True)
class ClusterRunning:
    """A submitted run, as its submitter sees it."""

    control: "JobControl"
    place: ClusterPlace
    where: str = "in the cluster"

    def poll(self) -> int | None:
        state = self.control.state(self.place)
        if state is None or state.state is RunState.FAILED:
            return contract.EXIT_FAILED
        return contract.EXIT_DONE if state.state is RunState.DONE else None

    def stop(self) -> None:
        self.control.delete(self.place)

    def has_started(self, run: RunDir) -> bool:
        return run.name == self.place.run

    def record(self) -> Record:
        return {"state": RunState.WAITING} | asdict(self.place)


class JobControl:
    """Creates, watches and deletes the jobs of runs in one namespace of a cluster."""

    def __init__(self, cluster: Cluster, message: Callable[[str], None] = lambda _: None) -> None:
        """`message` is given a line when something has to be waited for."""
        self.cluster = cluster
        self._message = message

    def discover(self) -> ClusterFacts:
        try:
            inventory = grouped(self.cluster.list("Node"), elastic=is_elastic(self.cluster))
        except Forbidden:
            inventory = NOTHING_KNOWN  # many users may not list nodes; the scheduler reports what does not fit
        claims = self.cluster.list("PersistentVolumeClaim", limit=preflight.MAX_NAMES)
        groups = self.cluster.groups()
        return ClusterFacts(
            cores=0,
            gpus=(),
            torch=None,
            namespace=self.cluster.namespace,
            inventory=inventory,
            claims=tuple(claim["metadata"]["name"] for claim in claims),
            jobs=tuple(name for name in KINDS if self._has_operator(name, groups)),
            kueue=preflight.KUEUE in groups,
        )

    def check(self, spec: AnySpec, facts: ClusterFacts, submission: Submission, *, running: bool = False) -> list[str]:
        """Warnings. Raises UserError for what cannot work, before anything is created.

        `running`: a job of this run may still run, and is deleted later.
        """
        owner = submission.objects[-1]
        name = kind_name(owner)
        preflight.check_objects(self.cluster, kubernetes_on(spec), name)
        wanted = needs(spec, submission.run.name)
        warnings = preflight.check_fits(wanted, facts.inventory, nodes=kubernetes_on(spec).nodes.most)
        if not running:
            warnings += preflight.check_schedulable(wanted, facts.inventory, kubectl=self.cluster.kubectl_anywhere)
        exists = running or self._has_ended_job(owner)
        self._check_names(submission.objects)
        for manifest in job_kind(name).dry_run_objects(submission.objects):
            if manifest["kind"] in SHARED and self._exists(key_of(manifest), manifest["metadata"]["name"]):
                continue  # it is used as it is; the user may have no right to create one
            if exists and manifest["kind"] not in SHARED:  # most fields of an existing job cannot be changed
                renamed = manifest["metadata"] | {"name": _other_name(manifest["metadata"]["name"])}
                manifest = manifest | {"metadata": renamed}
            self._apply(manifest, dry_run=True)
        return warnings

    def check_scaled(self, spec: AnySpec, place: ClusterPlace) -> list[str]:
        """The same for a run whose job gets another number of nodes."""
        preflight.check_objects(self.cluster, kubernetes_on(spec), place.job)
        inventory = self.discover().inventory
        return preflight.check_fits(needs(spec, place.run), inventory, nodes=kubernetes_on(spec).nodes.most)

    def submit(self, submission: Submission) -> ClusterRunning:
        *others, owner = self._with_secrets(submission)
        place = planned_place(submission)
        shared = [manifest for manifest in others if manifest["kind"] in SHARED]
        owned = [manifest for manifest in others if manifest["kind"] not in SHARED]
        self._delete_last(owner, owned)
        for manifest in shared:
            if not self._exists(key_of(manifest), manifest["metadata"]["name"]):
                self._apply(manifest)
        try:
            for manifest in owned:
                self._apply(manifest)
            ownership = {"metadata": {"ownerReferences": [_owner_reference(self._apply(owner))]}}
            for manifest in owned:
                self.cluster.patch(key_of(manifest), manifest["metadata"]["name"], ownership)
        except BaseException:  # all or nothing; the answer may be lost after an object was created
            for manifest in (owner, *owned):
                with suppress(StokerError):
                    self.cluster.delete(key_of(manifest), manifest["metadata"]["name"])
            raise
        return ClusterRunning(self, place)

    def state(self, place: ClusterPlace) -> JobState | None:
        """None when the job is gone."""
        return job_state(self.cluster, place, self.cluster.get(job_kind(place.job).KIND, place.run))

    def delete(self, place: ClusterPlace) -> bool:
        """In the foreground: the job stays until its pods have saved and are gone. False when none runs; idempotent.

        All pods are deleted with one request: Kubernetes alone would take a minute for a thousand of them. Pods that
        have not started have nothing to save, and get no time for it. A job that has ended by itself is kept, so that
        users can look at it.
        """
        state = self.state(place)
        if state is None or state.state.is_terminal:
            return False
        kind = job_kind(place.job)
        deleted = self.cluster.delete(kind.KIND, place.run, foreground=kind.FOREGROUND)
        if deleted:
            with suppress(Forbidden):
                for inner, name in kind.inner_objects(place.run):  # or it would replace the pods
                    self.cluster.delete(inner, name, foreground=True)
                self.cluster.delete_all("Pod", labels={contract.LABEL_RUN: place.run})
                self._delete_unstarted(place, kind.CONTAINER)
        return deleted

    def _delete_unstarted(self, place: ClusterPlace, container: str) -> None:
        """Without the grace period: an init container may ignore SIGTERM."""
        pods = self.cluster.list("Pod", labels={contract.LABEL_RUN: place.run})
        names = [pod["metadata"]["name"] for pod in pods if not has_started(pod, container)]
        with ThreadPoolExecutor(CONCURRENT_DELETES) as pool:
            list(pool.map(lambda name: self.cluster.delete("Pod", name, grace=UNSTARTED_GRACE_S), names))

    def ended(self, place: ClusterPlace) -> bool:
        """No pod of it runs any more; the cluster may still be deleting its objects."""
        if self.state(place) is None:
            return True
        labels = {contract.LABEL_RUN: place.run}
        return not any(
            pod["spec"].get("nodeName")
            for phase in ("Running", "Pending")
            for pod in self.cluster.list("Pod", labels=labels, fields={"status.phase": phase})
        )

    def await_stopped(self, run: RunDir, place: ClusterPlace, message: Message) -> None:
        """Waits for a run that was asked to stop. Raises RunFailed when that takes too long."""
        began, last = time.monotonic(), 0.0
        while not self.ended(place):
            waited = time.monotonic() - began
            if waited > STOP_TIMEOUT_S:
                raise RunFailed(
                    f"run '{run.name}' has not stopped in {short_duration(waited)}",
                    remedy=f"See its pods: {self.cluster.kubectl} get pods -l {contract.LABEL_RUN}={run.name}",
                )
            if waited - last >= STOP_MESSAGE_EVERY_S:
                last = waited
                message(f"waiting for its pods to save and end ({short_duration(waited)})")
            time.sleep(STOP_POLL_S)
        end = time.monotonic() + CLEANUP_TIMEOUT_S
        while self.state(place) is not None and time.monotonic() < end:
            time.sleep(STOP_POLL_S / 4)

    def _with_secrets(self, submission: Submission) -> list[Object]:
        """The objects with the values of the secrets, which are written nowhere else."""
        values = secrets.read(submission.secrets)
        return [
            manifest | {"stringData": values} if manifest["kind"] == "Secret" else manifest
            for manifest in submission.objects
        ]

    def _delete_last(self, owner: Object, owned: list[Object]) -> None:
        """A run that resumes replaces its own job that has ended, and all that the job owned.

        Owned objects may outlive their job for a moment, and would be garbage-collected later with what was written
        into them. They are deleted in the background, which is immediate: the user may have no right to read them.
        """
        job, run = job_kind(kind_name(owner)), owner["metadata"]["name"]
        old = [(job.KIND, run, job.FOREGROUND)] if self._has_ended_job(owner) else []
        self._check_names([*owned, owner])
        old += [(key_of(manifest), manifest["metadata"]["name"], False) for manifest in owned]
        old += [(kind, name, True) for kind, name in job.inner_objects(run)]
        end = time.monotonic() + STOP_TIMEOUT_S
        for kind, name, foreground in old:
            if not self.cluster.delete(kind, name, foreground=foreground):
                continue
            while self._exists(kind, name):
                if time.monotonic() > end:
                    raise UserError(
                        f"the last {kind} of run '{run}' is not deleted",
                        remedy=f"See: {self.cluster.kubectl} describe {kind} {name}",
                    )
                time.sleep(POLL_S)

    def _exists(self, kind: str, name: str) -> bool:
        """False as well without the right to read it: a deleted object is taken to be gone."""
        try:
            return self.cluster.get(kind, name) is not None
        except Forbidden:
            return False

    def _check_names(self, manifests: Sequence[Object]) -> None:
        """Raises UserError if an object that would be deleted or changed is not one of this run's."""
        *others, owner = manifests
        run = owner["metadata"]["name"]
        for manifest in others:
            if manifest["kind"] not in SHARED:
                kind, name = key_of(manifest), manifest["metadata"]["name"]
                self._check_own(kind, name, self._read_by_patch(kind, name), run)
        for kind, name in job_kind(kind_name(owner)).inner_objects(run):
            with suppress(Forbidden):
                self._check_own(kind, name, self.cluster.get(kind, name), run)

    def _check_own(self, kind: str, name: str, existing: Object | None, run: str) -> None:
        metadata = (existing or {}).get("metadata") or {}
        labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
        if existing is None or labels.get(contract.LABEL_RUN) == run or any(owner["name"] == run for owner in owners):
            return
        raise UserError(
            f"namespace {self.cluster.namespace} has a {kind} '{name}' that does not belong to this run, and launching "
            "the run would replace it",
            remedy="Give the run another name: name=…; or use another namespace: on.namespace=…",
        )

    def _read_by_patch(self, kind: str, name: str) -> Object | None:
        """An empty patch returns the object, and needs no right to read it."""
        try:
            return self._when_ready(lambda: self.cluster.patch(kind, name, {}, dry_run=True))
        except Refused as e:
            if e.code == NOT_FOUND or isinstance(e, Forbidden):
                return None
            raise

    def _has_ended_job(self, owner: Object) -> bool:
        """Whether the last job of this run still exists. Raises UserError if it has not ended."""
        name = owner["metadata"]["name"]
        job = self.cluster.get(key_of(owner), name)
        self._check_own(key_of(owner), name, job, name)
        if job and has_not_ended(job_kind(kind_name(owner)).state(job)):
            raise already_running(name, self.cluster)
        return job is not None

    def _has_operator(self, name: str, groups: set[str]) -> bool:
        """Whether the operator of that kind of job is installed."""
        kinds = [self.cluster.kind(needed) for needed in job_kind(name).NEEDS]
        return all(kind.group in groups and self.cluster.serves(kind.key) for kind in kinds)

    def _apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        return self._when_ready(lambda: self.cluster.apply(manifest, dry_run=dry_run))

    def _when_ready(self, request: Callable[[], Object]) -> Object:
        """Retries while the webhook of an operator is starting, or has not seen what was just created."""
        began, warned = time.monotonic(), False
        while True:
            try:
                return request()
            except NotSynced:
                if time.monotonic() - began >= SYNC_TIMEOUT_S:
                    raise
            except WebhookUnavailable as e:
                if time.monotonic() - began >= WEBHOOK_TIMEOUT_S:
                    raise
                if not warned:
                    self._message(f"{e.problem}; waiting for it, at most {WEBHOOK_TIMEOUT_S:.0f} seconds …")
                    warned = True
            time.sleep(POLL_S)


def check_ended(run: RunDir) -> None:
    """Raises UserError if a job of this run has not ended, in any cluster: two would write to one run directory."""
    if run.location().is_here:
        return
    place = place_of(run)
    control = JobControl(connect(place.context, place.namespace))
    if has_not_ended(control.state(place)):
        raise already_running(run.name, control.cluster)


def has_not_ended(state: JobState | None) -> bool:
    return state is not None and state.state.is_active and state.state is not RunState.STOPPING


def already_running(name: str, cluster: Cluster) -> UserError:
    return UserError(
        f"run '{name}' is already running in namespace {cluster.namespace} of {cluster.display_name}",
        remedy=f"Watch it with: stoker status {name}, or stop it first with: stoker stop {name}",
    )


def is_elastic(cluster: Cluster) -> bool:
    """An autoscaler adds nodes: Karpenter, or the cluster autoscaler, which reports in a ConfigMap."""
    try:
        return (
            cluster.serves("NodePool")
            or cluster.get("ConfigMap", "cluster-autoscaler-status", namespace="kube-system") is not None
        )
    except Forbidden:
        return True  # unknown: what does not fit now may fit later


def _other_name(name: str) -> str:
    """For a dry run beside an existing object; short, because names of pods are built from it."""
    return f"again-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _owner_reference(job: Object) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "blockOwnerDeletion": False,
        "controller": False,
    }
