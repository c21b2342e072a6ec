"""A Kubernetes cluster: a run is a job there, and its directory is on a volume."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from stoker.backends.backend import (
    Backend,
    Details,
    Facts,
    Listener,
    Message,
    Rows,
    Scaled,
    Submission,
    Unavailable,
    Usage,
)
from stoker.backends.kubernetes import environment, logs, records, scale, top
from stoker.backends.kubernetes import view as views
from stoker.backends.kubernetes.facts.gather import gather
from stoker.backends.kubernetes.job_control import ClusterRunning, JobControl, check_ended
from stoker.backends.kubernetes.jobs.auto import choose_job
from stoker.backends.kubernetes.place import place_of
from stoker.backends.kubernetes.plan import NO_CLUSTER, ClusterFacts, plan, planned_place, with_image
from stoker.backends.kubernetes.preflight import local_code_warnings, other_volume_warnings
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.kubernetes.volume.staging import stage
from stoker.backends.local.environment import WorkerEnvironment
from stoker.diagnose.facts import DiagnosisFacts
from stoker.image.build import ensure_image
from stoker.kube import Cluster, NotLoggedIn, Unreachable, connect, namespace_of
from stoker.kube.kinds import key_of
from stoker.rundir import Exit, Record, RunDir, consent
from stoker.rundir.events import Event
from stoker.rundir.logs import LogLine
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow, RunView
from stoker.spec import contract
from stoker.spec.model import Model
from stoker.spec.on import KubernetesOn, On, kubernetes_on
from stoker.spec.run import AnySpec
from stoker.spec.trust import trusting

POLL_S = 2.0  # each time is a request


def backend_for(on: On, message: Message) -> Backend:
    if not isinstance(on, KubernetesOn):
        raise TypeError(f"not a section of a cluster: {on.kind}")
    return Kubernetes(on.context, on.namespace, message)


def backend_of(run: RunDir) -> Backend:
    place = place_of(run)
    return Kubernetes(place.context, place.namespace)


def rows(runs: list[RunDir]) -> list[RunRow]:
    return views.rows(runs)


class Kubernetes:
    def __init__(self, context: str | None, namespace: str | None, message: Message = lambda _: None) -> None:
        self._context, self._namespace, self._message = context, namespace, message

    @cached_property
    def cluster(self) -> Cluster:
        return connect(self._context, self._namespace)

    @property
    def control(self) -> JobControl:
        return JobControl(self.cluster, self._message)

    def discover(self) -> ClusterFacts:
        try:
            return self.control.discover()
        except (Unreachable, NotLoggedIn) as e:
            raise Unavailable(e.problem, remedy=e.remedy) from e

    def assumed(self) -> ClusterFacts:
        return replace(NO_CLUSTER, namespace=self._namespace or namespace_of(self._context))

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:  # noqa: ARG002
        assert isinstance(facts, ClusterFacts)
        return plan(spec, facts, run)

    def check(self, spec: AnySpec, facts: Facts, submission: Submission) -> list[str]:
        assert isinstance(facts, ClusterFacts)
        if facts.assumed:
            return local_code_warnings(spec)
        run = RunDir(submission.run)
        check_ended(run)
        warnings = [*other_volume_warnings(run, planned_place(submission)), *local_code_warnings(spec)]
        return [*warnings, *self.control.check(spec, facts, submission)]

    def describe(self, spec: AnySpec, facts: Facts, submission: Submission) -> Rows:
        assert isinstance(facts, ClusterFacts)
        on, owner = kubernetes_on(spec), submission.objects[-1]
        where = f"namespace {owner['metadata']['namespace']}"
        if not facts.assumed:
            where = f"{self.cluster.display_name}, {where}, Kubernetes {self.cluster.version}"
        workers = submission.workers // on.nodes.most
        shape = f"{on.nodes} node{'s' * (on.nodes != '1')} × {workers} worker{'s' * (workers != 1)}"
        _, why = choose_job(on, facts.jobs, kueue=facts.kueue)
        job = f"{key_of(owner)} {owner['metadata']['name']}, {shape}{why and f' ({why})'}"
        return [("cluster", where), ("job", job)]

    def stage(self, submission: Submission, spec: AnySpec, facts: Facts, listener: Listener) -> Submission:  # noqa: ARG002
        run, on = RunDir(submission.run), kubernetes_on(spec)
        if on.registry is not None and on.image is not None:
            image = ensure_image(spec, base=on.image, repository=on.registry, progress=listener.building)
            submission = with_image(submission, str(image), base=on.image)
        place = planned_place(submission, context=self.cluster.context)
        consent.record_image(run, place.image)
        with trusting(True):  # the user was asked before the run was created
            stage(run, place, listener.uploading, cluster=self.cluster)
        listener.committed()
        run.forget_ending()
        place.write(run)  # before anything is created, so that the run can always be found
        return submission

    def submit(self, submission: Submission, *, detached: bool) -> ClusterRunning:  # noqa: ARG002 (always detached)
        return self.control.submit(submission)

    def view(self, run: RunDir) -> RunView:
        return views.view(run, self.cluster)

    def details(self, view: RunView) -> Details:
        assert isinstance(view, views.ClusterView)
        return views.details(view)

    def events(self, run: RunDir, *, follow: bool) -> Iterator[Event]:
        return records.events(run, self.control, follow=follow)

    def metrics(self, run: RunDir) -> list[Record]:
        return records.metrics(self._remote(run))

    def logs(
        self,
        run: RunDir,
        *,
        rank: int | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        pause: Callable[[], bool],  # noqa: ARG002 (the program in the pod pauses)
    ) -> Iterator[LogLine]:
        return logs.logs(self._remote(run), rank=rank, follow=follow, tail=tail, since=since, now=time.time())

    def facts(self, run: RunDir, *, brief: bool) -> DiagnosisFacts:
        return gather(run, self.cluster, brief=brief)

    def top(self, run: RunDir, *, every_s: float | None) -> Iterator[Usage]:
        return top.usage(run, self._remote(run), every_s=every_s)

    def environment(self, run: RunDir, rank: int) -> WorkerEnvironment:
        return environment.of_rank(self._remote(run), rank)

    def stop(self, run: RunDir) -> bool:
        return self.control.delete(place_of(run))

    def wait(self, run: RunDir, *, timeout_s: float | None = None, code: int | None = None) -> Exit:  # noqa: ARG002 (the cluster records it)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        place = place_of(run)
        while (state := self.control.state(place)) is not None and state.state.is_active:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run '{run.name}' has not ended in {timeout_s} s")
            time.sleep(POLL_S)
        now = self.view(run)
        ended = now.state if now.state.is_terminal else RunState.FAILED
        return Exit(state=ended, code=EXIT_CODES[ended], step=now.step, reason=now.reason, remedy=now.remedy)

    def await_stopped(self, run: RunDir, message: Message) -> None:
        self.control.await_stopped(run, place_of(run), message)

    def scale(self, run: RunDir, nodes: str, *, message: Message, committed: Callable[[], None]) -> Scaled:
        wanted = scale.parse_nodes(nodes)
        return scale.scale(run, self.control, wanted, message=message, committed=committed)

    def files(self, run: RunDir, *, moving: bool = False) -> VolumeRun:
        return self._remote(run, moving=moving)

    def _remote(self, run: RunDir, *, moving: bool = False) -> VolumeRun:
        return VolumeRun(run, place_of(run), cluster=self.cluster, moving=moving)


EXIT_CODES = {
    RunState.DONE: contract.EXIT_DONE,
    RunState.PAUSED: contract.EXIT_SAVED,
    RunState.FAILED: contract.EXIT_FAILED,
}
