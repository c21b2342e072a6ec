"""Runs that live in a cluster: jobs and pods from its API server, steps and losses from the records on the volume."""

import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from stoker.kube import Cluster, connect
from stoker.launch.jobs import KINDS, JobState, job_kind
from stoker.launch.remote import Remote
from stoker.launch.standing import standing
from stoker.launch.transfer.frames import Cut
from stoker.observe.pod_errors import first_cause, read_errors
from stoker.observe.pods import PodRow, pod_rows, seconds
from stoker.observe.runs import RunRow, RunView, State
from stoker.rundir import PlaceRef, Record, RunDir
from stoker.rundir.records import is_event, parse_lines, typed, typed_value
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError

FRESH = 30.0  # seconds that what `ps` was told is good for: it costs a worker's pod some of its time
FINAL_READ_S = 15.0  # that `ps` waits for the last records of runs that have ended: a pod is made to read them, once
TRIED = 2  # live pods that are asked before it is given up
AT_ONCE = 8  # runs whose records are asked for at the same time
FINAL = ("done", "failed", "paused")
ENDED = ("done", "failed")  # as a job says it
EVENT_KINDS = {"Pod", "Service", "PodGroup", *(job_kind(name).KIND.partition(".")[0] for name in KINDS)}
Jobs = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterView(RunView):
    """All there is to say of a run in a cluster."""

    context: str | None
    namespace: str
    job: str
    """Kind and state of what carries its pods."""
    wanted: str
    """How many nodes it is to have."""
    image: str
    volume: str
    pods: list[PodRow]


def rows(runs: list[RunDir]) -> list[RunRow]:
    """One look at each cluster's jobs for all its runs."""
    by_cluster: dict[tuple[str | None, str], list[tuple[RunDir, PlaceRef]]] = {}
    for run in runs:
        if place := run.place_ref():
            by_cluster.setdefault((place.context, place.namespace), []).append((run, place))
    found: list[RunRow] = []
    for (context, namespace), some in by_cluster.items():
        try:
            cluster = connect(context, namespace)
            jobs = _jobs(cluster, {place.job for _, place in some})
        except StokerError as e:
            found += [_row(run, place, None, None, unknown=e.problem) for run, place in some]
            continue
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found += pool.map(partial(_row_of, cluster, jobs, time.monotonic() + FINAL_READ_S), some)
    return found


def view(run: RunDir, cluster: Cluster | None = None) -> ClusterView:
    """`cluster`: its own, where somebody is connected to it already."""
    place = _place(run)
    cluster = cluster or connect(place.context, place.namespace)
    kind = job_kind(place.job)
    job = cluster.get(kind.KIND, place.run)
    state = standing(cluster, place, job)
    ended = state is None or state.state in ENDED
    records, unread = _records(run, place, cluster, state, patient=ended)
    pods = pod_rows(
        cluster.list("Pod", labels={contract.LABEL_RUN: place.run}), kind.node, records.nodes, container=kind.CONTAINER
    )
    about = asdict(_view(run, place, state, records))
    if state and state.state == "waiting" and not about["reason"]:
        about["reason"] = next((f"{row.state}: {row.reason}" for row in pods if row.reason), "")
    if state and state.state == "failed" and records.state not in FINAL:
        about["reason"] = _last_words(cluster, pods, kind.CONTAINER) or about["reason"]
    about["restarts"] = max(about["restarts"], sum(row.restarts for row in pods))
    return ClusterView(
        **(about | {"unread": unread}),
        context=place.context,
        namespace=place.namespace,
        job=f"{kind.KIND} {place.run}: {state.state if state else 'gone'}",
        wanted=run.any_spec().on.nodes,
        image=place.image,
        volume=place.volume,
        pods=pods,
    )


def events(run: RunDir, cluster: Cluster) -> list[Record]:
    """What the cluster has to tell of its objects, in the form of the run's own events."""
    place = _place(run)
    found = [
        _event(one)
        for one in cluster.list("Event")
        if one["involvedObject"].get("kind") in EVENT_KINDS
        and (one["involvedObject"].get("name", "") + "-").startswith(f"{place.run}-")
    ]
    return sorted(found, key=lambda one: float(one["time"]))


def own_events(run: RunDir, cluster: Cluster, state: JobState | None) -> list[Record]:
    """Those that the run has written down itself. Raises StokerError where nobody can read them."""
    if state and state.state == "waiting" and not run.seen():
        return []  # nobody has run yet, so nothing is written
    waits = state is None or state.state in ("done", "failed", "waiting")
    lines = _ask(run, _place(run), cluster, "events", "--json", patient=waits)
    return list(parse_lines(lines, is_event, run.skipped, contract.EVENTS_FILE))


def _last_words(cluster: Cluster, pods: list[PodRow], container: str) -> str:
    """Of the pod that failed by itself: where no records tell, its log may."""
    failed = {row.pod: row for row in pods if row.state == "Failed"}
    errors = read_errors(cluster, list(failed), container)
    cause = first_cause(errors, {pod: row.code for pod, row in failed.items()})
    if cause is None:
        return ""
    text = errors[cause].text
    return f"pod {cause}: {failed[cause].reason}" + (f": {text}" if text else "")


def _row_of(cluster: Cluster, jobs: Jobs, deadline: float, one: tuple[RunDir, PlaceRef]) -> RunRow:
    run, place = one
    job = jobs.get((job_kind(place.job).KIND, place.run))
    state = standing(cluster, place, job) if job else None
    seen = _seen(run)
    fresh = seen is not None and time.time() - seen.asked < FRESH
    if state is None or state.state not in ENDED:
        if seen and (fresh or state is None):
            return _row(run, place, state, seen.view)
        records, _ = _records(run, place, cluster, state, patient=False)
        return _row(run, place, state, records)
    if seen and (seen.ended or (fresh and seen.unread)):
        records, unread = seen.view, seen.unread
    else:
        records, unread = _last_records(run, place, cluster, state, deadline)
    return replace(_row(run, place, state, records), unread=unread)


def _last_records(
    run: RunDir, place: PlaceRef, cluster: Cluster, state: JobState, deadline: float
) -> tuple[RunView, str]:
    """Of a run that has ended: what it came to is read once, and known from then on. And why not, if it is not."""
    answers: queue.SimpleQueue[tuple[RunView, str]] = queue.SimpleQueue()
    reading = threading.Thread(
        target=lambda: answers.put(_records(run, place, cluster, state, patient=True)), daemon=True
    )
    reading.start()
    try:
        records, unread = answers.get(timeout=max(0.1, deadline - time.monotonic()))
    except queue.Empty:
        seen = _seen(run)
        records, unread = seen.view if seen else _nothing(run), "it takes too long"
    if unread:
        run.write_seen({"asked": time.time(), "view": asdict(records), "unread": unread})
    return records, unread


def _jobs(cluster: Cluster, names: Iterable[str]) -> Jobs:
    """Only what is said of their state is kept."""
    ours = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    found: Jobs = {}
    for name in names:
        kind = job_kind(name).KIND
        for job in cluster.list(kind, labels=ours):
            slim = {"metadata": {"deletionTimestamp": job["metadata"].get("deletionTimestamp")}}
            found[kind, job["metadata"]["name"]] = slim | {"status": job.get("status", {})}
    return found


def _records(
    run: RunDir, place: PlaceRef, cluster: Cluster, state: JobState | None, *, patient: bool
) -> tuple[RunView, str]:
    """What the run has written down, and why not. `patient`: a pod may be made to read them."""
    seen = _seen(run)
    known = seen.view if seen else None
    if known and known.state in FINAL and (state is None or state.state in ENDED):
        return known, ""
    if state is not None and state.state == "waiting":  # no pod is up: what is known of earlier ones is all
        return known or _nothing(run), ""
    try:
        told = typed(RunView, "".join(_ask(run, place, cluster, "status", "--json", patient=patient)))
        records = replace(told, reason=_here(told.reason, run, place), remedy=_here(told.remedy, run, place))
    except (StokerError, ValueError) as e:
        why = str(e) if isinstance(e, StokerError) else f"another version of Stoker wrote them ({e})"
        return known or _nothing(run), why
    ended = state is None or state.state in ENDED  # then there will be no other
    run.write_seen({"asked": time.time(), "view": asdict(records), "ended": ended})
    return records, ""


def _ask(run: RunDir, place: PlaceRef, cluster: Cluster, verb: str, *words: str, patient: bool) -> list[str]:
    """What the same verb prints in a pod that has the volume: a live one, or when `patient` one made for it."""
    there = Remote(run, place, cluster=cluster)
    live = there.live()
    if not live and patient:
        return list(there.ask(verb, *words))
    for pod in live[:TRIED]:
        try:
            return list(there.ask_pod(pod, verb, *words))
        except Cut:
            continue
    raise UserError("none of its pods answers" if live else "none of its pods is up", remedy="")


def _row(run: RunDir, place: PlaceRef, state: JobState | None, records: RunView | None, *, unknown: str = "") -> RunRow:
    seen = _seen(run)
    known = records or (seen.view if seen else None) or _nothing(run)
    if unknown:
        final = seen is not None and seen.view.state in FINAL
        about = {"state": known.state, "reason": known.reason} if final else {"state": "unknown", "reason": unknown}
        return RunRow(**(_common(known) | about | {"name": run.name, "folder": str(run.path)}))
    return RunRow(**_common(_view(run, place, state, known)))


def _view(run: RunDir, place: PlaceRef, state: JobState | None, records: RunView) -> RunView:
    """The records' word on what they know, the cluster's on whether it runs."""
    now, reason = _both(place, state, records)
    about: dict[str, Any] = {"name": run.name, "folder": str(run.path), "state": now, "reason": reason}
    if now not in FINAL:
        about["remedy"] = ""
    if now != "running":
        about["seconds_left"] = None
    return RunView(**(asdict(records) | about))


def _both(place: PlaceRef, state: JobState | None, records: RunView) -> tuple[State, str]:
    said = records.state in FINAL
    if state is None:
        gone = f"its {job_kind(place.job).KIND} is not in the cluster"
        return (records.state, records.reason) if said else ("interrupted", gone)
    if state.state in ("done", "failed"):
        if said:
            return records.state, records.reason
        return ("done" if state.state == "done" else "failed"), state.reason
    return state.state, state.reason


def _here(words: str, run: RunDir, place: PlaceRef) -> str:
    """In a pod the run's folder has another name."""
    return words.replace(f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{place.run}", run.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What the records of a run last said."""

    asked: float
    view: RunView
    ended: bool
    """The run had ended: they will say nothing else."""
    unread: str
    """Why they could not be read."""


def _seen(run: RunDir) -> _Seen | None:
    seen = run.seen()
    if seen is None:
        return None
    try:
        view = typed_value(RunView, seen["view"])
    except ValueError:
        return None  # another version wrote it
    return _Seen(asked=seen["asked"], view=view, ended=seen["ended"], unread=seen["unread"])


def _common(view: RunView) -> Record:
    return {field.name: getattr(view, field.name) for field in fields(RunRow)}


def _nothing(run: RunDir) -> RunView:
    """A run of which nothing is written yet, as far as anybody here knows."""
    return RunView(
        name=run.name,
        folder=str(run.path),
        state="interrupted",
        reason="",
        remedy="",
        step=0,
        steps=None,
        loss=None,
        tokens=None,
        tokens_per_second=None,
        seconds_left=None,
        workers=None,
        updated=None,
        val_loss=None,
        checkpoint=None,
        restarts=0,
        nodes=[],
    )


def _event(one: Record) -> Record:
    about = one["involvedObject"]
    stamp = one.get("lastTimestamp") or one.get("eventTime") or one["metadata"]["creationTimestamp"]
    times = one.get("count") or (one.get("series") or {}).get("count") or 1
    return {
        "time": seconds(stamp) or 0.0,
        "kind": "cluster",
        "rank": None,
        "host": one.get("source", {}).get("host") or one.get("reportingInstance", ""),
        "object": f"{about.get('kind', '').lower()} {about.get('name', '')}",
        "reason": one.get("reason", ""),
        "text": " ".join((one.get("message") or "").split()),
        "warning": one.get("type") == "Warning",
        "times": times,
    }


def _place(run: RunDir) -> PlaceRef:
    place = run.place_ref()
    assert place is not None, "a run that lives here has no cluster"
    return place
