"""`ps` and `status` of runs in a cluster: jobs and pods from the API server, steps and losses from their records."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from stoker.backends.backend import Details, Table
from stoker.backends.kubernetes.facts.pod_errors import first_cause, read_errors
from stoker.backends.kubernetes.jobs import JobState, job_kind
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.backends.kubernetes.state import PodRow, job_state, pod_rows
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.kube import Cluster, ClusterError, Object, connect
from stoker.rundir import Record, RunDir
from stoker.rundir.records import typed, typed_value
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow, RunView, unreadable, without_records
from stoker.spec import contract
from stoker.spec.errors import StokerError
from stoker.spec.on import kubernetes_on
from stoker.spec.units import short_duration

CACHE_S = 30.0  # `ps` shows records of this age: reading them takes CPU time from a worker's pod
FINAL_READ_S = 15.0  # `ps` waits so long for the last records of ended runs: a pod is created to read them, once
CONCURRENT_RUNS = 8  # whose records are read at the same time
REASON_WIDTH = 70  # characters; --json has all of it
MAX_PODS = 40  # in the table of `status`
POD_COLUMNS = ("NODE", "RANKS", "POD", "STATE", "ON", "RESTARTS", "SINCE", "WHY")
Jobs = dict[tuple[str, str], Object]
"""By kind and name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterView(RunView):
    """The status of a run in a cluster."""

    context: str | None
    namespace: str
    job: str
    """Kind, name and state of its job."""
    wanted: str
    """The number of nodes that it asks for."""
    image: str
    volume: str
    pods: list[PodRow]


def rows(runs: list[RunDir]) -> list[RunRow]:
    """Lists the jobs of each cluster once, for all its runs."""
    by_cluster: dict[tuple[str | None, str], list[tuple[RunDir, ClusterPlace]]] = {}
    rows: list[RunRow] = []
    for run in runs:
        try:
            place = place_of(run)
            job_kind(place.job)
        except StokerError as e:
            rows.append(unreadable(run, e))
        else:
            by_cluster.setdefault((place.context, place.namespace), []).append((run, place))
    for (context, namespace), group in by_cluster.items():
        try:
            cluster = connect(context, namespace)
            jobs = _jobs(cluster, {place.job for _, place in group})
        except ClusterError as e:
            rows += [_row_without_cluster(run, e.problem) for run, _ in group]
            continue
        with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
            rows += pool.map(partial(_row_of, cluster, jobs, time.monotonic() + FINAL_READ_S), group)
    return rows


def view(run: RunDir, cluster: Cluster) -> ClusterView:
    place = place_of(run)
    kind = job_kind(place.job)
    job = cluster.get(kind.KIND, place.run)
    state = job_state(cluster, place, job)
    ended = state is None or state.state.is_terminal
    records, unread = _records(run, place, cluster, state, create_reader=ended)
    pods = pod_rows(
        cluster.list("Pod", labels={contract.LABEL_RUN: place.run}), kind.node, records.nodes, container=kind.CONTAINER
    )
    values = asdict(_merged_view(run, place, state, records))
    if state and state.state is RunState.WAITING and not values["reason"]:
        values["reason"] = next((f"{row.state}: {row.reason}" for row in pods if row.reason), "")
    if state and state.state is RunState.FAILED and not records.state.is_terminal:
        values["reason"] = _reason_in_logs(cluster, pods, kind.CONTAINER) or values["reason"]
    values["restarts"] = max(values["restarts"], sum(row.restarts for row in pods))
    return ClusterView(
        **(values | {"unread": unread}),
        context=place.context,
        namespace=place.namespace,
        job=f"{kind.KIND} {place.run}: {state.state if state else 'gone'}",
        wanted=kubernetes_on(run.any_spec()).nodes,
        image=place.image,
        volume=place.volume,
        pods=pods,
    )


def details(view: ClusterView) -> Details:
    """What `status` shows of the cluster: where the run is, and its pods. Pure but for the clock."""
    states = Counter(pod.state for pod in view.pods)
    machines = len({pod.machine for pod in view.pods if pod.machine})
    images = sorted({pod.image for pod in view.pods if pod.image}) or [view.image]
    context = f"context {view.context}" if view.context else "this pod's own cluster"
    rows = [
        ("cluster", f"{context}, namespace {view.namespace}"),
        ("job", view.job),
        ("nodes", view.wanted),
        ("pods", ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none"),
        ("on", f"{machines} node{'s' * (machines != 1)} of the cluster"),
        ("image", ", ".join(images)),
        ("volume", view.volume),
    ]
    if view.unread:
        rows.append(("records", f"not read: {view.unread}"))
    shown = sorted(view.pods, key=lambda pod: pod.state in ("Running", "Succeeded"))[:MAX_PODS]  # problems first
    more = len(view.pods) - len(shown)
    table = Table(
        head=POD_COLUMNS,
        rows=[_cells(pod) for pod in sorted(shown, key=lambda pod: (pod.node is None, pod.node or 0, pod.pod))],
        note=f"{more} more pods; --json has all of them" if more else "",
    )
    return Details(rows=rows, table=table if shown else None)


def _cells(pod: PodRow) -> tuple[str, ...]:
    return (
        "-" if pod.node is None else str(pod.node),
        pod.ranks or "-",
        pod.pod,
        pod.state,
        pod.machine or "-",
        str(pod.restarts),
        short_duration(max(0.0, time.time() - pod.since)) if pod.since else "-",
        pod.reason if len(pod.reason) <= REASON_WIDTH else f"{pod.reason[: REASON_WIDTH - 1]}…",
    )


def _reason_in_logs(cluster: Cluster, pods: list[PodRow], container: str) -> str:
    """The error in the log of the pod that failed first, for a run without records."""
    failed = {row.pod: row for row in pods if row.state == "Failed"}
    errors = read_errors(cluster, list(failed), container)
    cause = first_cause(errors, {pod: row.code for pod, row in failed.items()})
    if cause is None:
        return ""
    text = errors[cause].text
    return f"pod {cause}: {failed[cause].reason}" + (f": {text}" if text else "")


def _row_of(cluster: Cluster, jobs: Jobs, deadline: float, placed_run: tuple[RunDir, ClusterPlace]) -> RunRow:
    run, place = placed_run
    try:
        return _row_with_cluster(cluster, jobs, deadline, run, place)
    except ClusterError as e:
        return _row_without_cluster(run, e.problem)


def _row_with_cluster(cluster: Cluster, jobs: Jobs, deadline: float, run: RunDir, place: ClusterPlace) -> RunRow:
    job = jobs.get((job_kind(place.job).KIND, place.run))
    state = job_state(cluster, place, job) if job else None
    cached = _cached(run)
    fresh = cached is not None and time.time() - cached.asked < CACHE_S
    if state is None or not state.state.is_terminal:
        if cached and (fresh or state is None):
            return _row(run, place, state, cached.view)
        records, _ = _records(run, place, cluster, state, create_reader=False)
        return _row(run, place, state, records)
    if cached and (cached.ended or (fresh and cached.unread)):
        records, unread = cached.view, cached.unread
    else:
        records, unread = _last_records(run, place, cluster, state, deadline)
    return replace(_row(run, place, state, records), unread=unread)


def _last_records(
    run: RunDir, place: ClusterPlace, cluster: Cluster, state: JobState, deadline: float
) -> tuple[RunView, str]:
    """The records of a run that has ended, or why they cannot be read. They are read once and cached."""
    answers: queue.SimpleQueue[tuple[RunView, str]] = queue.SimpleQueue()
    reading = threading.Thread(
        target=lambda: answers.put(_records(run, place, cluster, state, create_reader=True)), daemon=True
    )
    reading.start()
    try:
        records, unread = answers.get(timeout=max(0.1, deadline - time.monotonic()))
    except queue.Empty:
        cached = _cached(run)
        records, unread = cached.view if cached else without_records(run), "it takes too long"
    if unread:
        _cache(run, {"view": asdict(records), "unread": unread})
    return records, unread


def _jobs(cluster: Cluster, names: Iterable[str]) -> Jobs:
    """All jobs of Stoker, reduced to what their state is computed from."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    jobs: Jobs = {}
    for name in names:
        kind = job_kind(name).KIND
        for job in cluster.list(kind, labels=labels):
            metadata = {"deletionTimestamp": job["metadata"].get("deletionTimestamp")}
            jobs[kind, job["metadata"]["name"]] = {"metadata": metadata, "status": job.get("status", {})}
    return jobs


def _records(
    run: RunDir, place: ClusterPlace, cluster: Cluster, state: JobState | None, *, create_reader: bool
) -> tuple[RunView, str]:
    """The run's own records, or the cached ones and why they cannot be read. `create_reader`: a pod may be created."""
    cached = _cached(run)
    known = cached.view if cached else None
    if known and known.state.is_terminal and (state is None or state.state.is_terminal):
        return known, ""
    if state is not None and state.state is RunState.WAITING:  # no pod is up: nothing new was written
        return known or without_records(run), ""
    try:
        remote = VolumeRun(run, place, cluster=cluster)
        read = typed(RunView, "".join(remote.ask_live("view", create_reader=create_reader)))
    except (StokerError, ValueError) as e:
        reason = str(e) if isinstance(e, StokerError) else f"another version of Stoker wrote them ({e})"
        return known or without_records(run), reason
    records = replace(read, reason=remote.localized(read.reason), remedy=remote.localized(read.remedy))
    ended = state is None or state.state.is_terminal  # these are its last records
    _cache(run, {"view": asdict(records), "ended": ended})
    return records, ""


def _row(run: RunDir, place: ClusterPlace, state: JobState | None, records: RunView) -> RunRow:
    return RunRow(**_row_fields(_merged_view(run, place, state, records)))


def _row_without_cluster(run: RunDir, problem: str) -> RunRow:
    """From the cached records alone. They are final if the run had ended."""
    cached = _cached(run)
    known = cached.view if cached else without_records(run)
    values = _row_fields(known) | {"name": run.name, "folder": str(run.path)}
    if not (cached and known.state.is_terminal):
        values |= {"state": RunState.UNKNOWN, "reason": problem}
    return RunRow(**values)


def _merged_view(run: RunDir, place: ClusterPlace, state: JobState | None, records: RunView) -> RunView:
    """Steps and losses from the records; whether it runs, from the cluster."""
    merged, reason = _merged_state(place, state, records)
    values: dict[str, Any] = {"name": run.name, "folder": str(run.path), "state": merged, "reason": reason}
    if not merged.is_terminal:
        values["remedy"] = ""
    if merged is not RunState.RUNNING:
        values["seconds_left"] = None
    return RunView(**(asdict(records) | values))


def _merged_state(place: ClusterPlace, state: JobState | None, records: RunView) -> tuple[RunState, str]:
    recorded_end = records.state.is_terminal
    if state is None:
        gone = f"its {job_kind(place.job).KIND} is not in the cluster"
        return (records.state, records.reason) if recorded_end else (RunState.INTERRUPTED, gone)
    if state.state in (RunState.DONE, RunState.FAILED) and recorded_end:
        return records.state, records.reason
    return state.state, state.reason


@dataclass(frozen=True, kw_only=True, slots=True)
class _CachedView:
    """The records as they were last read, from seen.json."""

    asked: float
    view: RunView
    ended: bool
    """The run had ended, so they are final."""
    unread: str
    """Why they could not be read."""


def _cached(run: RunDir) -> _CachedView | None:
    seen = run.seen()
    if seen is None:
        return None
    try:
        view = typed_value(RunView, seen["view"])
    except ValueError:
        return None  # another version wrote it
    return _CachedView(asked=seen["asked"], view=view, ended=seen["ended"], unread=seen["unread"])


def _cache(run: RunDir, record: Record) -> None:
    """The disk may be full, or the runs may be another user's."""
    with suppress(OSError):
        run.write_seen({"asked": time.time()} | record)


def _row_fields(view: RunView) -> Record:
    return {field.name: getattr(view, field.name) for field in fields(RunRow)}
