"""What a cluster knows of a run in trouble: few requests, most of them at once, for a thousand pods as for one."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stoker.kube import Cluster, Forbidden, Object, connect
from stoker.launch.check_kube import CONTROLLERS
from stoker.launch.command_word import command_word
from stoker.launch.inventory import Machine, machine
from stoker.launch.jobs import JobKind, JobState, job_kind
from stoker.launch.standing import with_pods
from stoker.observe.claim_facts import claim_facts
from stoker.observe.facts import ControllerFact, EventFact, Facts, HookFact, PodFact, RecordFact, RunFact
from stoker.observe.job_facts import blame, first_pod, kueue, suspension, wanted
from stoker.observe.launch_words import lighter, words
from stoker.observe.link_facts import link_facts
from stoker.observe.pod_errors import first_cause, is_victim, read_errors
from stoker.observe.pod_facts import Newest, ended_at, newest, pod_fact
from stoker.observe.pods import seconds
from stoker.observe.queue_facts import queue_facts
from stoker.observe.remote_records import Asked
from stoker.observe.rules import findings
from stoker.rundir import PlaceRef, RunDir
from stoker.spec import contract

ENDED = ("done", "failed")
HURRY = 4.0  # seconds that the records may take where something is known without them
PATIENCE = 30.0  # the same where nothing is
LINGER = 3.0  # seconds that pods are watched, where one will end that has not yet
SHORT = re.compile(r"insufficient|overused")
HOOK = re.compile(r'failed calling webhook "([^"]+)": (.*)')
HOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
ADMISSION = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What the first round of requests brought."""

    job: Object | None
    pods: list[Object]
    events: list[Object]
    machines: dict[str, Machine] | None
    namespace: Object | None


def gather(run: RunDir, cluster: Cluster | None = None, *, brief: bool = False) -> Facts:
    """`brief`: what somebody has read of its records already will do, and nothing is waited for."""
    place = run.place_ref()
    assert place is not None, "a run that lives here has no cluster"
    cluster = cluster or connect(place.context, place.namespace)
    kind, on = job_kind(place.job), run.any_spec().on
    seen = _look(cluster, place)
    seen = replace(seen, pods=_within(seen.pods, kind, wanted(seen.job, on.nodes.most)))
    phases = {pod["status"].get("phase", "") for pod in seen.pods}
    state = with_pods(kind.state(seen.job), phases) if seen.job else None
    some = newest(seen.pods or _imagined(place, seen), kind.node)
    again = state is not None and state.state == "restarting" and not suspension(seen.job, "", "")[0]
    if again and not brief and not any(ended_at(pod, kind.CONTAINER) for pod in seen.pods):
        some = _with_an_ending(cluster, place, kind, some)
    fact = partial(pod_fact, container=kind.CONTAINER, now=time.time(), machines=seen.machines, on=on)
    pods = _judged(cluster, kind, fact, some)
    if not brief and any(pod.symptom for pod in pods) and any(not pod.ended for pod in pods):
        pods = _judged(cluster, kind, fact, _with_an_ending(cluster, place, kind, some))
    ended = state is None or state.state in ENDED
    read = _read_before(run) if ended and (brief or seen.job is None) else None
    asked = Asked(run, place, cluster, ended=ended) if not read and _has_run(seen, ended=ended) else None
    facts = _facts(run, place, cluster, seen, state, pods)
    if asked is None:
        return replace(facts, record=read)
    record, unread = asked.wait(HURRY if brief or findings(facts) else PATIENCE)
    known = replace(facts, record=record, unread=unread)
    return replace(known, links=link_facts(cluster, kind.CONTAINER, known)) if record and record.waits_for else known


def _within(pods: list[Object], kind: JobKind, number: int) -> list[Object]:
    """Without those that a job which has become smaller lets go."""
    return [pod for pod in pods if (kind.node(pod) or 0) < number]


def _read_before(run: RunDir) -> RecordFact | None:
    """How it ended, as `status` has read it."""
    view = (run.seen() or {}).get("view") or {}
    if view.get("state") not in ("done", "failed", "paused"):
        return None
    return RecordFact(reason=view["reason"], advice=view["remedy"]) if view["state"] == "failed" else RecordFact()


def _look(cluster: Cluster, place: PlaceRef) -> _Seen:
    kind = job_kind(place.job).KIND
    with ThreadPoolExecutor(8) as pool:
        job = pool.submit(cluster.get, kind, place.run)
        pods = pool.submit(lambda: list(map(_slim, cluster.list("Pod", labels={contract.LABEL_RUN: place.run}))))
        warned = pool.submit(_all, cluster, "Event", fields={"type": "Warning"})
        told = [
            pool.submit(_all, cluster, "Event", fields=one)
            for one in (
                {"involvedObject.name": place.run, "type": "Normal"},
                {"reason": "NotTriggerScaleUp"},
                {"involvedObject.kind": "PodGroup", "type": "Normal"},
            )
        ]
        nodes = pool.submit(_machines, cluster)
        namespace = pool.submit(_namespace, cluster, place.namespace)
        return _Seen(
            job=job.result(),
            pods=pods.result(),
            events=[*warned.result(), *(event for some in told for event in some.result())],
            machines=nodes.result(),
            namespace=namespace.result(),
        )


def _facts(
    run: RunDir, place: PlaceRef, cluster: Cluster, seen: _Seen, state: JobState | None, pods: list[PodFact]
) -> Facts:
    about = _about(run, place, cluster, seen, state)
    events = tuple(_events(seen.events, about, place, pods))
    waits = any(pod.unscheduled for pod in pods)
    return Facts(
        run=about,
        pods=tuple(_with_events(pods, events)),
        events=events,
        claims=claim_facts(cluster, place, seen.pods, sorted(seen.events, key=_moment)) if waits else (),
        controllers=tuple(_controllers(cluster, place)) if about.missing or not all(pod.seen for pod in pods) else (),
        queues=queue_facts(cluster, place, seen.job) if about.suspended or about.missing or waits else (),
        hooks=tuple(_hooks(cluster, events)),
    )


def _about(run: RunDir, place: PlaceRef, cluster: Cluster, seen: _Seen, state: JobState | None) -> RunFact:
    kind, word, on = job_kind(place.job), command_word(run), run.any_spec().on
    now = state.state if state else _last_known(run)
    served = seen.job is not None or all(cluster.serves(name) for name in kind.NEEDS)
    alive = state is not None and state.state not in ENDED
    never = state is not None and state.state == "failed" and not seen.pods  # it was given up before it had any
    reason, complaint = blame(seen.job)
    if state and state.state == "failed":
        complaint = complaint or state.reason
    there = cluster.kind(kind.KIND)
    object = f"{there.plural}{f'.{there.group}' if there.group else ''}/{place.run}"
    suspended, resume = suspension(seen.job, cluster.kubectl, object)
    nodes = wanted(seen.job, on.nodes.most)
    return RunFact(
        run=word,
        state=now,
        away=True,
        again=f"stoker stop {word} && stoker launch {word}" if alive else f"stoker launch {word}",
        kubectl=cluster.kubectl,
        anywhere=cluster.kubectl_anywhere,
        namespace=place.namespace,
        ending=bool(seen.namespace and seen.namespace["metadata"].get("deletionTimestamp")),
        kind=kind.KIND,
        object=object,
        served=served,
        install=kind.INSTALL,
        there=seen.job is not None,
        leaving=state is not None and state.state == "stopping" and not suspended,
        suspended=suspended,
        resume=resume,
        queue=kueue(seen.job),
        blamed=reason,
        complaint=complaint,
        missing=max(0, nodes - len(newest(seen.pods, kind.node))) if (alive or never) and not suspended else 0,
        nodes=nodes,
        volume=place.volume,
        image=place.image,
        **words(on, nodes),
        **lighter(run.any_spec()),
    )


def _imagined(place: PlaceRef, seen: _Seen) -> list[Object]:
    """Volcano makes no pod before there is room for all: what it says of them together is as good as of the first."""
    groups = [one for one in seen.events if one["involvedObject"].get("kind") == "PodGroup"]
    ours = [one for one in groups if one["involvedObject"].get("name", "").startswith(f"{place.run}-")]
    ours = [one for one in ours if SHORT.search(one.get("message") or "")]
    first = first_pod(seen.job) if seen.job else None
    if not ours or seen.job is None or first is None:
        return []
    name, spec = first
    said = max(ours, key=_moment).get("message") or ""
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    meta = {"name": name, "creationTimestamp": seen.job["metadata"]["creationTimestamp"]}
    status = {"phase": "Pending", "conditions": [condition]}
    return [{"metadata": meta, "spec": spec, "status": status}]


def _with_an_ending(cluster: Cluster, place: PlaceRef, kind: JobKind, some: Newest) -> Newest:
    """With one more that has ended: some kinds delete a pod that failed the moment they make another, and of several
    pods the one that failed by itself may end last."""
    known = {pod["metadata"]["name"] for now, old in some for pod in (now, *old) if ended_at(pod, kind.CONTAINER)}
    for _, pod in cluster.watch("Pod", labels={contract.LABEL_RUN: place.run}, seconds=LINGER):
        if ended_at(pod, kind.CONTAINER) and pod["metadata"]["name"] not in known:
            node = kind.node(pod)
            return [(one, [pod, *old] if kind.node(one) == node else old) for one, old in some] or [(pod, [])]
    return some


def _slim(pod: Object) -> Object:
    """Without what nobody asks of it: of a thousand that is most."""
    meta = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {"metadata": meta, "spec": pod["spec"], "status": pod.get("status") or {}}


def _last_known(run: RunDir) -> str:
    seen = run.seen()
    state = seen["view"]["state"] if seen else ""
    return state if state in ("done", "failed", "paused") else "interrupted"


def _has_run(seen: _Seen, *, ended: bool) -> bool:
    """Some container has started, so that there may be records; or all of them are gone."""
    if seen.job is None or (seen.namespace and seen.namespace["metadata"].get("deletionTimestamp")):
        return False
    statuses = [one for pod in seen.pods for one in pod["status"].get("containerStatuses") or []]
    states = [part for one in statuses for part in (one.get("state") or {}, one.get("lastState") or {})]
    return (ended and not seen.pods) or any(
        "running" in one or (one.get("terminated") or {}).get("startedAt") for one in states
    )


def _events(found: Sequence[Object], about: RunFact, place: PlaceRef, pods: list[PodFact]) -> Iterator[EventFact]:
    """Those that still matter, newest first."""
    waiting = {pod.pod: pod.waiting for pod in pods if pod.phase == "Pending"}
    names = {pod.pod for pod in pods}
    for one in sorted(found, key=_moment, reverse=True):
        kind, name = one["involvedObject"].get("kind", ""), one["involvedObject"].get("name", "")
        ours = f"{name}-".startswith(f"{place.run}-")
        if not ours or (kind == "Pod" and name not in waiting) or (kind != "Pod" and name in names):
            continue
        if kind != "Pod" and not about.missing and not waiting:
            continue
        said = " ".join((one.get("message") or "").split())
        why = waiting.get(name, "") if kind == "Pod" else ""
        yield EventFact(about=kind, name=name, reason=one.get("reason") or "", said=said, waiting=why)


def _moment(event: Object) -> float:
    series = (event.get("series") or {}).get("lastObservedTime")
    stamp = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return seconds(stamp) or 0.0


def _with_events(pods: list[PodFact], events: Sequence[EventFact]) -> Iterator[PodFact]:
    """A container that waits to be pulled again says so, and no longer why."""
    why: dict[str, str] = {}
    for event in events:
        if event.about == "Pod" and event.reason == "Failed" and "ull image" in event.said:
            why.setdefault(event.name, event.said)
    for pod in pods:
        more = why.get(pod.pod, "") if pod.waiting in ("ImagePullBackOff", "ErrImagePull") else ""
        yield replace(pod, said=f"{pod.said} {more}".strip()) if more else pod


def _judged(cluster: Cluster, kind: JobKind, fact: Callable[..., PodFact], some: Newest) -> list[PodFact]:
    """Facts of the pods, with which of them is the reason and the error that it printed."""
    pods = [fact(one, old, node=kind.node(one)) for one, old in some]
    times = {one["metadata"]["name"]: ended_at(one, kind.CONTAINER) for now, old in some for one in (now, *old)}
    failed = sorted((pod for pod in pods if pod.ended and pod.code is not None), key=lambda pod: times[pod.fell] or "~")
    codes = {pod.fell: pod.code for pod in failed}
    errors = read_errors(cluster, list(codes), kind.CONTAINER)
    cause = first_cause(errors, codes)
    if cause is None:
        return pods
    symptom = is_victim(errors[cause], codes[cause])
    words = errors[cause].text or ("its log tells nothing" if symptom else "")
    return [replace(pod, first=True, words=words, symptom=symptom) if pod.fell == cause else pod for pod in pods]


def _controllers(cluster: Cluster, place: PlaceRef) -> Iterator[ControllerFact]:
    kinds = [place.job, "jobset"] if place.job == "trainjob" else [place.job]
    labels = [one for kind in kinds for one in CONTROLLERS.get(kind, [])]
    for one in [one for some in labels for one in _all(cluster, "Deployment", labels=some, everywhere=True)]:
        meta, ready = one["metadata"], one.get("status", {}).get("readyReplicas") or 0
        wanted = one["spec"].get("replicas", 1)
        yield ControllerFact(controller=meta["name"], home=meta["namespace"], wanted=wanted, ready=ready)


def _hooks(cluster: Cluster, events: Sequence[EventFact]) -> Iterator[HookFact]:
    for event in events:
        if found := HOOK.search(event.said):
            yield HookFact(hook=found[1], setting=_setting(cluster, found[1]), said=found[2])
            return


def _setting(cluster: Cluster, hook: str) -> str:
    """The object that names a webhook, as kubectl takes it."""
    for name in HOOKS:
        cluster.kind(name, ADMISSION)
        for one in _all(cluster, name):
            if any(each["name"] == hook for each in one.get("webhooks") or []):
                return f"{name.lower()}/{one['metadata']['name']}"
    return ""


def _all(cluster: Cluster, kind: str, **which: Any) -> list[Object]:
    """None of them where nobody may see them."""
    try:
        return list(cluster.list(kind, **which))
    except Forbidden:
        return []


def _machines(cluster: Cluster) -> dict[str, Machine] | None:
    try:
        return {one.name: one for one in map(machine, cluster.list("Node"))}
    except Forbidden:
        return None


def _namespace(cluster: Cluster, name: str) -> Object | None:
    try:
        return cluster.get("Namespace", name)
    except Forbidden:
        return None
