"""The environment of a worker in a pod: `stoker env`, asked in its pod."""

from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.local.environment import WorkerEnvironment
from stoker.backends.transfer.frames import PeerLost
from stoker.spec.errors import UserError

MAX_ASKED = 16  # pods that are asked for a rank, the likeliest first
MAX_PODS = 10_000


def of_rank(remote: VolumeRun, rank: int) -> WorkerEnvironment:
    pods = remote.live(MAX_PODS)
    if not pods:
        name, namespace = remote.place.run, remote.place.namespace
        raise UserError(
            f"run '{name}' has no running pod in namespace {namespace} of {remote.cluster.display_name}",
            remedy=f"See whether its pods are still waiting: stoker status {name}; or resume it: stoker launch {name}",
        )
    first = min(rank // remote.workers, len(pods) - 1)
    lost = ""
    for pod in (pods[first:] + pods[:first])[:MAX_ASKED]:
        try:
            lines = "".join(remote.ask_pod(pod, "environment", rank=rank))
        except PeerLost as e:
            lost = f" ({e})"
            continue
        environment = remote.parse_reply(WorkerEnvironment, lines)
        if environment.pid is not None:
            return environment
    raise UserError(
        f"no worker of run '{remote.place.run}' has rank {rank} now{lost}", remedy="See its ranks with: stoker status"
    )
