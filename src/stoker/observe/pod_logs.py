"""The workers' logs as the API server has them: for when nobody can look at the volume."""

import queue
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from stoker.kube import Cluster, Lost, Refused
from stoker.launch.jobs import job_kind
from stoker.observe.logs import LogLine
from stoker.rundir import PlaceRef
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError

AHEAD = 8  # pods whose logs are on their way while the first of them is shown
HELD = 500  # lines of each that are held meanwhile
MOST_FOLLOWED = 50  # pods at once
RANKED = re.compile(r"\[(\d+)\] ?(.*)", re.DOTALL)  # as a supervisor in a pod prints what its workers do


def pod_logs(
    cluster: Cluster,
    ref: PlaceRef,
    *,
    workers: int,
    rank: int | None,
    tail: int | None = None,
    since: float | None = None,
    follow: bool = False,
) -> Iterator[LogLine]:
    """One pod after the other, in the order of their nodes. `since`: of the last so many seconds.

    What the supervisor itself says is told as of its node's first rank.
    """
    pods = _pods(cluster, ref)
    chosen = [(node, name) for node, name in pods if rank is None or node == rank // workers]
    if rank is not None and pods and not chosen:
        raise UserError(f"run '{ref.run}' has no pod of rank {rank}", remedy=f"It has {len(pods)} with {workers} each")
    if follow and len(chosen) > MOST_FOLLOWED:
        raise UserError(
            f"{len(chosen)} pods are too many to follow by their own logs",
            remedy="Follow one rank with --rank N, or look without -f",
        )
    words = {"container": job_kind(ref.job).CONTAINER, "tail": tail, "since": since, "follow": follow}
    streams = [_Stream(cluster, name, node * workers, words) for node, name in chosen]
    lines = _as_they_come(streams) if follow else _in_order(streams)
    return (line for line in lines if rank is None or line.rank == rank)


def _pods(cluster: Cluster, ref: PlaceRef) -> list[tuple[int, str]]:
    """Only what is needed of each: of a thousand pods all the rest is megabytes."""
    node = job_kind(ref.job).node
    found = cluster.list("Pod", labels={contract.LABEL_RUN: ref.run})
    return sorted((node(pod) or 0, pod["metadata"]["name"]) for pod in found)


class _Stream:
    """The log of one pod, read ahead by a thread of its own."""

    def __init__(self, cluster: Cluster, pod: str, first: int, words: dict[str, Any]) -> None:
        self._cluster, self._pod, self._first, self._words = cluster, pod, first, words
        self.queue: queue.Queue[LogLine | StokerError | None] = queue.Queue(HELD)

    def start(self, into: "queue.Queue[LogLine | StokerError | None] | None" = None) -> None:
        threading.Thread(target=self._run, args=(into or self.queue,), daemon=True).start()

    def _run(self, into: "queue.Queue[LogLine | StokerError | None]") -> None:
        try:
            for line in self._cluster.logs(self._pod, timestamps=True, **self._words):
                into.put(self._parsed(line))
        except Lost:
            pass  # the pod is gone
        except Refused as e:
            if e.code not in (400, 404):  # it has not started, or is gone
                into.put(e)
        except StokerError as e:
            into.put(e)
        finally:
            into.put(None)

    def _parsed(self, line: str) -> LogLine:
        stamp, _, text = line.partition(" ")
        time = None
        with suppress(ValueError):
            time = datetime.fromisoformat(stamp).timestamp()
        found = RANKED.match(text)
        if not found:
            return LogLine(time=time, rank=self._first, line=text)
        return LogLine(time=time, rank=int(found[1]), line=found[2])


def _in_order(streams: list[_Stream]) -> Iterator[LogLine]:
    """A few are read ahead, so that a thousand pods do not take a thousand times as long as one."""
    waiting, running = deque(streams), deque[_Stream]()
    while waiting or running:
        while waiting and len(running) < AHEAD:
            running.append(waiting.popleft())
            running[-1].start()
        yield from _lines(running.popleft().queue, 1)


def _as_they_come(streams: list[_Stream]) -> Iterator[LogLine]:
    shared: queue.Queue[LogLine | StokerError | None] = queue.Queue(HELD)
    for stream in streams:
        stream.start(shared)
    yield from _lines(shared, len(streams))


def _lines(source: "queue.Queue[LogLine | StokerError | None]", writers: int) -> Iterator[LogLine]:
    while writers:
        one = source.get()
        if isinstance(one, StokerError):
            raise one
        if one is None:
            writers -= 1
        else:
            yield one
