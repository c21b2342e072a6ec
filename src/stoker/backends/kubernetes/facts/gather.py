"""Collects the facts about a run from its cluster: few requests, most of them concurrent, even for a thousand pods."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stoker.backends.kubernetes.check import CONTROLLERS
from stoker.backends.kubernetes.facts.claims import claim_facts
from stoker.backends.kubernetes.facts.jobs import failure, first_pod, kueue_queue, suspension, wanted_pods
from stoker.backends.kubernetes.facts.links import link_facts
from stoker.backends.kubernetes.facts.overrides import overrides
from stoker.backends.kubernetes.facts.pod_errors import first_cause, is_follow_up, read_errors
from stoker.backends.kubernetes.facts.pods import Newest, ended_at, newest, pod_fact
from stoker.backends.kubernetes.facts.queues import queue_facts
from stoker.backends.kubernetes.facts.records import RecordsRequest
from stoker.backends.kubernetes.inventory import Machine, machine
from stoker.backends.kubernetes.jobs import JobKind, JobState, job_kind
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.backends.kubernetes.state import event_time, is_about, with_pod_phases
from stoker.diagnose.facts import ControllerFact, DiagnosisFacts, EventFact, HookFact, PodFact, RecordFact, RunFact
from stoker.diagnose.overrides import smaller
from stoker.diagnose.rules import findings
from stoker.kube import Cluster, Forbidden, Object
from stoker.rundir import RunDir
from stoker.rundir.commands import command_name
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.on import kubernetes_on

RECORDS_TIMEOUT_S = 4.0  # to read the records, if a cause is known without them
ONLY_RECORDS_TIMEOUT_S = 30.0  # if not
WATCH_PODS_S = 3.0  # for another pod to fail
NO_ROOM = re.compile(r"insufficient|overused")
PULL_FAILED = re.compile(r"[Pp]ull image")  # the kubelet reports it with the reason Failed, as other failures
WEBHOOK_FAILED = re.compile(r'failed calling webhook "([^"]+)": (.*)')
WEBHOOK_KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
ADMISSION = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Snapshot:
    """The result of the first requests."""

    job: Object | None
    pods: list[Object]
    events: list[Object]
    machines: dict[str, Machine] | None
    namespace: Object | None


def gather(run: RunDir, cluster: Cluster, *, brief: bool = False) -> DiagnosisFacts:
    """`brief`: uses cached records, and does not wait for anything."""
    place = place_of(run)
    kind, on = job_kind(place.job), kubernetes_on(run.any_spec())
    snapshot = _snapshot(cluster, place)
    snapshot = replace(snapshot, pods=_expected(snapshot.pods, kind, wanted_pods(snapshot.job, on.nodes.most)))
    phases = {pod["status"].get("phase", "") for pod in snapshot.pods}
    state = with_pod_phases(kind.state(snapshot.job), phases) if snapshot.job else None
    groups = newest(snapshot.pods or _unscheduled_gang(place, snapshot), kind.node)
    restarting = state is not None and state.state is RunState.RESTARTING and not suspension(snapshot.job, "", "")[0]
    if restarting and not brief and not any(ended_at(pod, kind.CONTAINER) for pod in snapshot.pods):
        groups = _with_next_failure(cluster, place, kind, groups)
    fact = partial(pod_fact, container=kind.CONTAINER, now=time.time(), machines=snapshot.machines, on=on)
    pods = _with_causes(cluster, kind, fact, groups)
    if not brief and any(pod.symptom for pod in pods) and any(not pod.exit_reason for pod in pods):
        pods = _with_causes(cluster, kind, fact, _with_next_failure(cluster, place, kind, groups))
    ended = state is None or state.state.is_terminal
    cached = _cached_record(run) if ended and (brief or snapshot.job is None) else None
    readable = not cached and _has_run(snapshot, ended=ended)
    request = RecordsRequest(run, place, cluster, ended=ended) if readable else None
    facts = _facts(run, place, cluster, snapshot, state, pods)
    if request is None:
        return replace(facts, record=cached)
    record, unread = request.wait(RECORDS_TIMEOUT_S if brief or findings(facts) else ONLY_RECORDS_TIMEOUT_S)
    facts = replace(facts, record=record, unread=unread)
    if record and record.missing_nodes:
        return replace(facts, links=link_facts(cluster, kind.CONTAINER, facts))
    return facts


def _expected(pods: list[Object], kind: JobKind, number: int) -> list[Object]:
    """Without the pods that a smaller job no longer needs."""
    return [pod for pod in pods if (kind.node(pod) or 0) < number]


def _cached_record(run: RunDir) -> RecordFact | None:
    """How the run ended, from the records that `status` has cached."""
    view = (run.seen() or {}).get("view") or {}
    if view.get("state") not in ("done", "failed", "paused"):
        return None
    return RecordFact(reason=view["reason"], advice=view["remedy"]) if view["state"] == "failed" else RecordFact()


def _snapshot(cluster: Cluster, place: ClusterPlace) -> _Snapshot:
    kind = job_kind(place.job).KIND
    with ThreadPoolExecutor(8) as pool:
        job = pool.submit(cluster.get, kind, place.run)
        pods = pool.submit(
            lambda: list(map(_without_managed_fields, cluster.list("Pod", labels={contract.LABEL_RUN: place.run})))
        )
        warnings = pool.submit(_list, cluster, "Event", fields={"type": "Warning"})
        others = [
            pool.submit(_list, cluster, "Event", fields=fields)
            for fields in (
                {"involvedObject.name": place.run, "type": "Normal"},
                {"reason": "NotTriggerScaleUp"},
                {"involvedObject.kind": "PodGroup", "type": "Normal"},
            )
        ]
        nodes = pool.submit(_machines, cluster)
        namespace = pool.submit(_namespace, cluster, place.namespace)
        return _Snapshot(
            job=job.result(),
            pods=pods.result(),
            events=[*warnings.result(), *(event for events in others for event in events.result())],
            machines=nodes.result(),
            namespace=namespace.result(),
        )


def _facts(
    run: RunDir, place: ClusterPlace, cluster: Cluster, snapshot: _Snapshot, state: JobState | None, pods: list[PodFact]
) -> DiagnosisFacts:
    run_fact = _run_fact(run, place, cluster, snapshot, state)
    events = tuple(_events(snapshot.events, run_fact, place, pods))
    unscheduled = any(pod.unscheduled for pod in pods)
    return DiagnosisFacts(
        run=run_fact,
        pods=tuple(_with_events(pods, events)),
        events=events,
        claims=claim_facts(cluster, place, snapshot.pods, sorted(snapshot.events, key=event_time))
        if unscheduled
        else (),
        controllers=tuple(_controllers(cluster, place))
        if run_fact.missing or not all(pod.scheduler_saw for pod in pods)
        else (),
        queues=queue_facts(cluster, place, snapshot.job)
        if run_fact.suspended or run_fact.missing or unscheduled
        else (),
        hooks=tuple(_hooks(cluster, events)),
    )


def _run_fact(
    run: RunDir, place: ClusterPlace, cluster: Cluster, snapshot: _Snapshot, state: JobState | None
) -> RunFact:
    kind, name, on = job_kind(place.job), command_name(run), kubernetes_on(run.any_spec())
    run_state = state.state if state else _last_state(run)
    served = snapshot.job is not None or all(cluster.serves(needed) for needed in kind.NEEDS)
    alive = state is not None and not state.state.is_terminal
    never_started = state is not None and state.state is RunState.FAILED and not snapshot.pods
    reason, message = failure(snapshot.job)
    if state and state.state is RunState.FAILED:
        message = message or state.reason
    api_kind = cluster.kind(kind.KIND)
    object = f"{api_kind.plural}{f'.{api_kind.group}' if api_kind.group else ''}/{place.run}"
    suspended, resume = suspension(snapshot.job, cluster.kubectl, object)
    nodes = wanted_pods(snapshot.job, on.nodes.most)
    return RunFact(
        run=name,
        state=str(run_state),
        in_cluster=True,
        relaunch=f"stoker stop {name} && stoker launch {name}" if alive else f"stoker launch {name}",
        kubectl=cluster.kubectl,
        kubectl_cluster=cluster.kubectl_anywhere,
        namespace=place.namespace,
        namespace_deleting=bool(snapshot.namespace and snapshot.namespace["metadata"].get("deletionTimestamp")),
        kind=kind.KIND,
        object=object,
        kind_installed=served,
        install=kind.INSTALL,
        job_exists=snapshot.job is not None,
        deleting=state is not None and state.state is RunState.STOPPING and not suspended,
        suspended=suspended,
        resume=resume,
        queue=kueue_queue(snapshot.job),
        failure_reason=reason,
        failure_message=message,
        missing=max(0, nodes - len(newest(snapshot.pods, kind.node)))
        if (alive or never_started) and not suspended
        else 0,
        nodes=nodes,
        volume=place.volume,
        image=place.image,
        **overrides(on, nodes),
        **smaller(run.any_spec()),
    )


def _unscheduled_gang(place: ClusterPlace, snapshot: _Snapshot) -> list[Object]:
    """Volcano creates no pods until there is room for all: its message about the gang, as the first pod's condition."""
    events = [event for event in snapshot.events if event["involvedObject"].get("kind") == "PodGroup"]
    events = [event for event in events if is_about(event, place) and NO_ROOM.search(event.get("message") or "")]
    first = first_pod(snapshot.job) if snapshot.job else None
    if not events or snapshot.job is None or first is None:
        return []
    name, spec = first
    message = max(events, key=event_time).get("message") or ""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    metadata = {"name": name, "creationTimestamp": snapshot.job["metadata"]["creationTimestamp"]}
    status = {"phase": "Pending", "conditions": [condition]}
    return [{"metadata": metadata, "spec": spec, "status": status}]


def _with_next_failure(cluster: Cluster, place: ClusterPlace, kind: JobKind, groups: Newest) -> Newest:
    """Watches for another pod that fails: some kinds delete a failed pod as soon as they replace it, and the pod that
    caused the failure may end last.
    """
    known = {pod["metadata"]["name"] for new, old in groups for pod in (new, *old) if ended_at(pod, kind.CONTAINER)}
    for _, pod in cluster.watch("Pod", labels={contract.LABEL_RUN: place.run}, seconds=WATCH_PODS_S):
        if ended_at(pod, kind.CONTAINER) and pod["metadata"]["name"] not in known:
            node = kind.node(pod)
            return [(new, [pod, *old] if kind.node(new) == node else old) for new, old in groups] or [(pod, [])]
    return groups


def _without_managed_fields(pod: Object) -> Object:
    """They are most of the memory of a thousand pods."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "spec": pod["spec"], "status": pod.get("status") or {}}


def _last_state(run: RunDir) -> str:
    cached = run.seen()
    state = cached["view"]["state"] if cached else ""
    return state if state in ("done", "failed", "paused") else "interrupted"


def _has_run(snapshot: _Snapshot, *, ended: bool) -> bool:
    """A container has started, so that there may be records; or all pods are gone."""
    if snapshot.job is None or (snapshot.namespace and snapshot.namespace["metadata"].get("deletionTimestamp")):
        return False
    statuses = [status for pod in snapshot.pods for status in pod["status"].get("containerStatuses") or []]
    states = [state for status in statuses for state in (status.get("state") or {}, status.get("lastState") or {})]
    return (ended and not snapshot.pods) or any(
        "running" in state or (state.get("terminated") or {}).get("startedAt") for state in states
    )


def _events(
    events: Sequence[Object], run_fact: RunFact, place: ClusterPlace, pods: list[PodFact]
) -> Iterator[EventFact]:
    """The events that still matter, newest first."""
    waiting = {pod.pod: pod.waiting for pod in pods if pod.phase == "Pending"}
    names = {pod.pod for pod in pods}
    for event in sorted(events, key=event_time, reverse=True):
        kind, name = event["involvedObject"].get("kind", ""), event["involvedObject"].get("name", "")
        if not is_about(event, place) or (kind == "Pod" and name not in waiting) or (kind != "Pod" and name in names):
            continue
        if kind != "Pod" and not run_fact.missing and not waiting:
            continue
        message = " ".join((event.get("message") or "").split())
        reason = waiting.get(name, "") if kind == "Pod" else ""
        yield EventFact(object_kind=kind, name=name, reason=event.get("reason") or "", message=message, waiting=reason)


def _with_events(pods: list[PodFact], events: Sequence[EventFact]) -> Iterator[PodFact]:
    """Adds the reason from its event to a pod that waits for its image: while it backs off, its status has none."""
    reasons: dict[str, str] = {}
    for event in events:
        if event.object_kind == "Pod" and event.reason == "Failed" and PULL_FAILED.search(event.message):
            reasons.setdefault(event.name, event.message)
    for pod in pods:
        more = reasons.get(pod.pod, "") if pod.waiting in ("ImagePullBackOff", "ErrImagePull") else ""
        yield replace(pod, message=f"{pod.message} {more}".strip()) if more else pod


def _with_causes(cluster: Cluster, kind: JobKind, fact: Callable[..., PodFact], groups: Newest) -> list[PodFact]:
    """Facts about the pods, with the one that caused the failure and the error that it printed."""
    pods = [fact(pod, old, node=kind.node(pod)) for pod, old in groups]
    times = {pod["metadata"]["name"]: ended_at(pod, kind.CONTAINER) for new, old in groups for pod in (new, *old)}
    failed = sorted(
        (pod for pod in pods if pod.exit_reason and pod.exit_code is not None),
        key=lambda pod: times[pod.failed_pod] or "~",
    )
    codes = {pod.failed_pod: pod.exit_code for pod in failed}
    errors = read_errors(cluster, list(codes), kind.CONTAINER)
    cause = first_cause(errors, codes)
    if cause is None:
        return pods
    symptom = is_follow_up(errors[cause], codes[cause])
    text = errors[cause].text or ("its log shows no error" if symptom else "")
    return [
        replace(pod, failed_first=True, error=text, symptom=symptom) if pod.failed_pod == cause else pod for pod in pods
    ]


def _controllers(cluster: Cluster, place: ClusterPlace) -> Iterator[ControllerFact]:
    kinds = [place.job, "jobset"] if place.job == "trainjob" else [place.job]
    for labels in [labels for kind in kinds for labels in CONTROLLERS.get(kind, [])]:
        for deployment in _list(cluster, "Deployment", labels=labels, everywhere=True):
            metadata, ready = deployment["metadata"], deployment.get("status", {}).get("readyReplicas") or 0
            wanted = deployment["spec"].get("replicas", 1)
            yield ControllerFact(
                controller=metadata["name"], controller_namespace=metadata["namespace"], wanted=wanted, ready=ready
            )


def _hooks(cluster: Cluster, events: Sequence[EventFact]) -> Iterator[HookFact]:
    for event in events:
        if match := WEBHOOK_FAILED.search(event.message):
            yield HookFact(webhook=match[1], configuration=_webhook_configuration(cluster, match[1]), message=match[2])
            return


def _webhook_configuration(cluster: Cluster, webhook: str) -> str:
    """The object that configures a webhook, as kubectl takes it."""
    for name in WEBHOOK_KINDS:
        cluster.kind(name, ADMISSION)
        for configuration in _list(cluster, name):
            if any(entry["name"] == webhook for entry in configuration.get("webhooks") or []):
                return f"{name.lower()}/{configuration['metadata']['name']}"
    return ""


def _list(cluster: Cluster, kind: str, **options: Any) -> list[Object]:
    """Empty where the user may not list them."""
    try:
        return list(cluster.list(kind, **options))
    except Forbidden:
        return []


def _machines(cluster: Cluster) -> dict[str, Machine] | None:
    try:
        return {node.name: node for node in map(machine, cluster.list("Node"))}
    except Forbidden:
        return None


def _namespace(cluster: Cluster, name: str) -> Object | None:
    try:
        return cluster.get("Namespace", name)
    except Forbidden:
        return None
