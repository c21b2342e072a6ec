"""What a run that lives in a cluster has written down, for those who ask in Python."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stoker.launch.kubernetes import reach
from stoker.launch.remote import Remote
from stoker.launch.transfer import client
from stoker.observe.cluster import events as cluster_events
from stoker.observe.cluster import own_events
from stoker.observe.cluster_logs import cluster_logs
from stoker.rundir import Record, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError


def events(run: RunDir) -> list[Record]:
    """Its own and the cluster's, as one story."""
    backend, place = reach(run)
    found = cluster_events(run, backend.cluster) + own_events(run, backend.cluster, backend.state(place))
    return sorted(found, key=lambda one: float(one["time"]))


def metrics(run: RunDir) -> list[Record]:
    remote = _remote(run)
    with tempfile.TemporaryDirectory() as folder:
        try:
            there = f"{contract.VOLUME_RUNS}/{remote.ref.run}/{contract.METRICS_FILE}"
            client.download(remote, there, Path(folder))
        except UserError as e:
            if not e.problem.startswith("there is no "):
                raise
            return []  # no step has been logged yet
        return RunDir(Path(folder)).metrics()


def logs(run: RunDir, *, rank: int | None, tail: int | None) -> Iterator[str]:
    for one in cluster_logs(_remote(run), rank=rank, follow=False, tail=tail, since=None, now=time.time()):
        yield f"[{one.rank}] {one.line}" if rank is None else one.line


def _remote(run: RunDir) -> Remote:
    backend, place = reach(run)
    return Remote(run, place, cluster=backend.cluster)
