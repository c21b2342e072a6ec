"""The logs of a run in a cluster: from its volume, read by a pod that mounts it; else from its pods."""

import queue
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from datetime import datetime
from typing import TypedDict

from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.remote import NoPodAnswers, VolumeRun
from stoker.kube import Cluster, ClusterError, ConnectionLost, Refused
from stoker.rundir.logs import LogLine
from stoker.spec import contract
from stoker.spec.errors import NotFound, UserError

OVERLAP_S = 2.0  # lines of this time are requested again: those of many ranks do not come in the order of time
MAX_FAILURES = 5  # connections in a row that broke before a line came
READ_AHEAD = 8  # pods whose logs are read while the first of them is shown
BUFFERED_LINES = 500  # of each of them
MAX_FOLLOWED = 50  # pods at once
RANKED = re.compile(r"\[([0-9]{1,6})\] ?")  # a supervisor in a pod prints the lines of its workers so
NOT_STARTED, GONE = 400, 404


class LogOptions(TypedDict):
    container: str
    tail: int | None
    since: float | None
    follow: bool


def logs(
    remote: VolumeRun, *, rank: int | None, follow: bool, tail: int | None, since: float | None, now: float
) -> Iterator[LogLine]:
    """`since`: seconds since 1970. Includes pods that are gone: their lines are on the volume."""
    shown = False
    try:
        for line in _from_volume(remote, rank=rank, follow=follow, tail=tail, since=since):
            shown = True
            yield line
        return
    except (NoPodAnswers, NotFound) as e:  # nothing is on the volume yet, or no pod can read it: ask the API server
        if shown:
            raise
        error = e
    seconds = None if since is None else max(1.0, now - since)
    for line in pod_logs(
        remote.cluster, remote.place, workers=remote.workers, rank=rank, tail=tail, since=seconds, follow=follow
    ):
        shown = True
        yield line
    if not shown:
        raise error


def _from_volume(
    remote: VolumeRun, *, rank: int | None, follow: bool, tail: int | None, since: float | None
) -> Iterator[LogLine]:
    """When the pod that reads the volume is lost, another continues; no line is repeated."""
    recent: deque[LogLine] = deque()
    failures = 0
    while True:
        shown = Counter(recent)
        start = since if not recent else recent[0].time
        last = None if recent else tail
        try:
            for text in remote.ask("logs", rank=rank, tail=last, since=start, follow=follow):
                line = remote.parse_reply(LogLine, text)
                if shown[line]:
                    shown[line] -= 1
                    continue
                failures = 0
                recent.append(line)
                while (recent[0].time or 0) < (line.time or 0) - OVERLAP_S:
                    recent.popleft()
                yield line
            return
        except ConnectionLost:
            failures += 1
            if not follow or failures == MAX_FAILURES:
                raise


def pod_logs(
    cluster: Cluster,
    place: ClusterPlace,
    *,
    workers: int,
    rank: int | None,
    tail: int | None = None,
    since: float | None = None,
    follow: bool = False,
) -> Iterator[LogLine]:
    """From the API server, one pod after the other in the order of their nodes. `since`: seconds back from now.

    Lines of the supervisor itself get the first rank of its node.
    """
    pods = _pods(cluster, place)
    chosen = [(node, name) for node, name in pods if rank is None or node == rank // workers]
    if rank is not None and pods and not chosen:
        raise UserError(
            f"run '{place.run}' has no pod of rank {rank}", remedy=f"It has {len(pods)} pods with {workers} ranks each"
        )
    if follow and len(chosen) > MAX_FOLLOWED:
        raise UserError(
            f"the logs of {len(chosen)} pods are too many to follow through the API server",
            remedy="Follow one rank with --rank N, or leave -f out",
        )
    options = LogOptions(container=job_kind(place.job).CONTAINER, tail=tail, since=since, follow=follow)
    streams = [_PodLog(cluster, name, node * workers, options) for node, name in chosen]
    lines = _interleaved(streams) if follow else _in_order(streams)
    return (line for line in lines if rank is None or line.rank == rank)


def _pods(cluster: Cluster, place: ClusterPlace) -> list[tuple[int, str]]:
    """Only node and name are kept: the objects of a thousand pods are megabytes."""
    node = job_kind(place.job).node
    pods = cluster.list("Pod", labels={contract.LABEL_RUN: place.run})
    return sorted((node(pod) or 0, pod["metadata"]["name"]) for pod in pods)


Lines = queue.Queue[LogLine | ClusterError | None]
"""Ends with None."""


class _PodLog:
    """The log of one pod, read ahead by its own thread."""

    def __init__(self, cluster: Cluster, pod: str, first_rank: int, options: LogOptions) -> None:
        self._cluster, self._pod, self._first_rank, self._options = cluster, pod, first_rank, options
        self.queue: Lines = queue.Queue(BUFFERED_LINES)

    def start(self, into: Lines | None = None) -> None:
        threading.Thread(target=self._run, args=(into or self.queue,), daemon=True).start()

    def _run(self, into: Lines) -> None:
        try:
            for line in self._cluster.logs(self._pod, timestamps=True, **self._options):
                into.put(self._parsed(line))
        except ConnectionLost:
            pass  # the pod is gone
        except ClusterError as e:
            if not isinstance(e, Refused) or e.code not in (NOT_STARTED, GONE):
                into.put(e)
        finally:
            into.put(None)

    def _parsed(self, line: str) -> LogLine:
        stamp, _, text = line.partition(" ")
        try:
            time = datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            time, text = None, line
        match = RANKED.match(text)
        if not match:
            return LogLine(time=time, rank=self._first_rank, line=text)
        return LogLine(time=time, rank=int(match[1]), line=text[match.end() :])


def _in_order(streams: list[_PodLog]) -> Iterator[LogLine]:
    """A few are read ahead, so that a thousand pods do not take a thousand times as long as one."""
    waiting, running = deque(streams), deque[_PodLog]()
    while waiting or running:
        while waiting and len(running) < READ_AHEAD:
            running.append(waiting.popleft())
            running[-1].start()
        yield from _lines(running.popleft().queue, 1)


def _interleaved(streams: list[_PodLog]) -> Iterator[LogLine]:
    """As the lines arrive."""
    shared: Lines = queue.Queue(BUFFERED_LINES)
    for stream in streams:
        stream.start(shared)
    yield from _lines(shared, len(streams))


def _lines(source: Lines, writers: int) -> Iterator[LogLine]:
    while writers:
        line = source.get()
        if isinstance(line, ClusterError):
            raise line
        if line is None:
            writers -= 1
        else:
            yield line
