"""What a run in a cluster recorded: its own events with those of the cluster, and its metrics."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stoker.backends.kubernetes.job_control import JobControl
from stoker.backends.kubernetes.jobs import KINDS, JobState, job_kind
from stoker.backends.kubernetes.place import place_of
from stoker.backends.kubernetes.state import event_time, is_about
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.transfer import client
from stoker.kube import Cluster, Object
from stoker.rundir import Record, RunDir
from stoker.rundir.events import ClusterEvent, Event, Note, parse_event
from stoker.rundir.records import parse_lines
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import NotFound, StokerError

EVENTS_EVERY_S = 5.0  # each time, all events of the namespace are listed
EVENT_KINDS = {"Pod", "Service", "PodGroup", *(job_kind(name).KIND.partition(".")[0] for name in KINDS)}


def events(run: RunDir, control: JobControl, *, follow: bool) -> Iterator[Event]:
    """Its own events and those of the cluster, in the order of time."""
    shown: set[int] = set()
    warned = False
    while True:
        state = control.state(place_of(run))
        live = follow and state is not None and state.state.is_active
        new = cluster_events(run, control.cluster)
        try:
            new += own_events(run, control.cluster, state)
        except StokerError as e:
            if not warned:
                yield Note(time=time.time(), text=f"its own events cannot be read: {e}")
                warned = True
        for event in sorted(new, key=lambda event: event.time):
            key = hash(json.dumps(event.record(), sort_keys=True))
            if key not in shown:
                shown.add(key)
                yield event
        if not live:
            return
        time.sleep(EVENTS_EVERY_S)


def cluster_events(run: RunDir, cluster: Cluster) -> list[Event]:
    """Kubernetes events about the objects of the run."""
    place = place_of(run)
    events = [
        _event(event)
        for event in cluster.list("Event")
        if event["involvedObject"].get("kind") in EVENT_KINDS and is_about(event, place)
    ]
    return sorted(events, key=lambda event: event.time)


def own_events(run: RunDir, cluster: Cluster, state: JobState | None) -> list[Event]:
    """Those that the run has recorded itself. Raises StokerError where they cannot be read."""
    if state and state.state is RunState.WAITING and not run.seen():
        return []  # it has never run
    idle = state is None or state.state.is_terminal or state.state is RunState.WAITING
    remote = VolumeRun(run, place_of(run), cluster=cluster)
    lines = remote.ask_live("events", create_reader=idle)
    return list(parse_lines(lines, parse_event, run.skipped, contract.EVENTS_FILE))


def metrics(remote: VolumeRun) -> list[Record]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            client.download(remote, remote.path(contract.METRICS_FILE), Path(folder))
        except NotFound:
            return []  # no step was logged yet
        return RunDir(Path(folder)).metrics()


def _event(event: Object) -> ClusterEvent:
    subject = event["involvedObject"]
    return ClusterEvent(
        time=event_time(event),
        host=event.get("source", {}).get("host") or event.get("reportingInstance", ""),
        object=f"{subject.get('kind', '').lower()} {subject.get('name', '')}",
        reason=event.get("reason", ""),
        text=" ".join((event.get("message") or "").split()),
        warning=event.get("type") == "Warning",
        times=event.get("count") or (event.get("series") or {}).get("count") or 1,
    )
