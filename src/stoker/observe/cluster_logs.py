"""The logs of a run that lives in a cluster: from the volume, through a pod that sees it; else from its pods."""

from collections import Counter, deque
from collections.abc import Iterator
from datetime import UTC, datetime

from stoker.kube import Lost
from stoker.launch.remote import Remote, Unseen
from stoker.observe.logs import LogLine
from stoker.observe.pod_logs import pod_logs
from stoker.spec.errors import UserError

OVERLAP = 2.0  # seconds of lines that are asked for again: those of many ranks do not come in the order of time
FOLLOWING = ("--follow", "--while-heard")
TRIES = 5  # connections in a row that broke before a line came


def cluster_logs(
    remote: Remote, *, rank: int | None, follow: bool, tail: int | None, since: float | None, now: float
) -> Iterator[LogLine]:
    """`since`: seconds since 1970. Also of pods that are gone: what they printed is on the volume."""
    told = False
    try:
        for line in _from_the_volume(remote, rank=rank, follow=follow, tail=tail, since=since):
            told = True
            yield line
        return
    except UserError as e:
        if told or not _is_empty(e):
            raise
        empty = e
    ago = None if since is None else max(1.0, now - since)
    for line in pod_logs(
        remote.cluster, remote.ref, workers=remote.workers, rank=rank, tail=tail, since=ago, follow=follow
    ):
        told = True
        yield line
    if not told:
        raise empty


def _is_empty(error: UserError) -> bool:
    """Nothing is on the volume yet, or nobody can look: the pods may tell more."""
    return isinstance(error, Unseen) or "has no logs yet" in error.problem or "there is no run" in error.problem


def _from_the_volume(
    remote: Remote, *, rank: int | None, follow: bool, tail: int | None, since: float | None
) -> Iterator[LogLine]:
    """When the pod that is looked through goes away, another is; no line is told twice."""
    words = ["--json", *(["--all"] if rank is None else ["--rank", str(rank)]), *(FOLLOWING if follow else [])]
    recent: deque[LogLine] = deque()
    failures = 0
    while True:
        told = Counter(recent)
        start = since if not recent else recent[0].time
        more = [] if start is None else ["--since", datetime.fromtimestamp(start, UTC).isoformat()]
        more += ["--tail", str(tail)] if tail is not None and not recent else []
        try:
            for text in remote.ask("logs", *words, *more):
                line = remote.understood(LogLine, text)
                if told[line]:
                    told[line] -= 1
                    continue
                failures = 0
                recent.append(line)
                while (recent[0].time or 0) < (line.time or 0) - OVERLAP:
                    recent.popleft()
                yield line
            return
        except Lost:
            failures += 1
            if not follow or failures == TRIES:
                raise
