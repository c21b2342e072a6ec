"""More nodes or fewer for a run in a cluster, while it runs.

At every moment the run can go on should this end there: no supervisor waits for a pod that nobody makes. So a run that
grows has its pods first, and one that shrinks is told first. Doing it again does what is still to be done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from stoker.kube import Forbidden, HookSilent, Object, Refused
from stoker.launch import secrets
from stoker.launch.jobs import job_kind
from stoker.launch.kubernetes import ENDED, PATIENCE, Kubernetes, reach
from stoker.launch.needs import needs
from stoker.launch.remote import Remote
from stoker.rundir import PlaceRef, RunDir
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.on import Nodes
from stoker.spec.run import AnySpec

WANTED = "stoker.supervise.wanted"
POLL = 0.5  # seconds between two looks at a job that ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    was: str
    nodes: str
    how: Literal["unchanged", "live", "resubmitted"]
    """`unchanged`: it had as many; `resubmitted`: it has saved, and goes on in another job."""
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Told:
    """What is said in the pod where a new number was told."""

    was: str


def scale(
    run: RunDir,
    words: str,
    *,
    resubmit: Callable[[AnySpec], object],
    say: Callable[[str], None] = lambda _: None,
    committed: Callable[[], None] = lambda: None,
) -> Scaled:
    """Raises UserError for what cannot be; then nothing was changed. `committed` is called before anything is.

    `resubmit` goes on with a run that has saved and ended, where its kind of job cannot be changed.
    """
    nodes = _nodes(words)
    if run.place_ref() is None:
        raise UserError(
            f"run '{run.name}' lives on this machine, and has no nodes to add or to take",
            remedy=f"Give it other workers: stoker stop {run.name}, then stoker launch {run.name} on.workers=2",
        )
    backend, place = reach(run)
    spec = run.any_spec()
    wanted, same = with_nodes(spec, nodes), spec.on.nodes == nodes
    job = _running_job(backend, run, place, nodes)
    done = Scaled(was=spec.on.nodes, nodes=nodes, how="unchanged", warnings=backend.check_scaled(wanted, place))
    patch = patched(place, job, spec, nodes)
    held = patch is not None and holds(job, patch)
    if patch is None or not (held or _takes(backend, place, patch)):
        if same:
            return done
        secrets.resolve(spec)
        committed()
        say(f"its {job_kind(place.job).KIND} cannot be changed so while it runs: it saves, and goes on in another …")
        _end(run, backend, place, nodes)
        resubmit(wanted)
        return replace(done, how="resubmitted")
    committed()
    was = _change(backend, place, spec, nodes, None if held else patch)
    if same:
        return replace(done, was=was, how="unchanged" if held and was == nodes else "live")
    with run.lock():
        run.write_spec(wanted)
        run.add_event("changed", changes={"on.nodes": [spec.on.nodes, nodes]})
    return replace(done, how="live")


def with_nodes(spec: AnySpec, nodes: Nodes) -> AnySpec:
    return spec.model_copy(update={"on": spec.on.model_copy(update={"nodes": nodes})})


def patched(place: PlaceRef, job: Object, spec: AnySpec, nodes: Nodes) -> Object | None:
    """Pure. What gives the job so many nodes; None: it has to be made anew.

    Pods cannot be changed, and those of several nodes may need what one alone does not: network devices.
    """
    if needs(spec, place.run) != needs(with_nodes(spec, nodes), place.run):
        return None
    return job_kind(place.job).scaled(job, nodes)


def holds(there: Any, patch: Any) -> bool:
    """Pure. Whether an object is already what the patch makes of it."""
    if isinstance(patch, dict):
        return isinstance(there, dict) and all(holds(there.get(key), value) for key, value in patch.items())
    return bool(there == patch)


def _nodes(words: str) -> Nodes:
    try:
        return Nodes(words)
    except ValueError as e:
        problem, _, remedy = str(e).partition("; ")
        raise UserError(problem, remedy=remedy[:1].upper() + remedy[1:]) from e


def _running_job(backend: Kubernetes, run: RunDir, place: PlaceRef, nodes: Nodes) -> Object:
    kind = job_kind(place.job)
    job = backend.cluster.get(kind.KIND, place.run)
    state = kind.state(job).state if job else "stopped"
    if job and state not in (*ENDED, "stopping"):
        return job
    if state == "stopped" and (seen := run.seen()):
        state = seen["view"]["state"]
    again = f"stoker launch {run.name} on.nodes={nodes}"
    remedy = f"Start another like it: {again} --new" if state == "done" else f"Go on with it at that size: {again}"
    raise UserError(f"run '{run.name}' does not run ({state})", remedy=remedy)


def _takes(backend: Kubernetes, place: PlaceRef, patch: Object) -> bool:
    """Whether the cluster lets it be changed so: a JobSet only where its operator is told to, by a feature gate."""
    try:
        backend.cluster.patch(job_kind(place.job).KIND, place.run, patch, dry_run=True)
    except (Forbidden, HookSilent):
        raise
    except Refused:
        return False
    return True


def _change(backend: Kubernetes, place: PlaceRef, spec: AnySpec, nodes: Nodes, patch: Object | None) -> str:
    """How many nodes its supervisors looked for before."""
    tell = partial(_tell, Remote(place, spec, cluster=backend.cluster), nodes)
    grows = nodes.most > spec.on.nodes.most
    was = "" if grows else tell()
    if patch is not None:
        backend.cluster.patch(job_kind(place.job).KIND, place.run, patch)
    return tell() if grows else was


def _tell(remote: Remote, nodes: Nodes) -> str:
    """In the run directory, where the supervisors look for it. What it was before."""
    said = "".join(remote.program("scale", "-m", WANTED, remote.folder, str(nodes)))
    return remote.understood(Told, said).was


def _end(run: RunDir, backend: Kubernetes, place: PlaceRef, nodes: Nodes) -> None:
    backend.delete(place)
    end = time.monotonic() + PATIENCE
    while not backend.ended(place):
        if time.monotonic() > end:
            raise RunFailed(
                f"run '{run.name}' has not saved and ended in {PATIENCE:.0f} seconds",
                remedy=f"When it has, go on with it: stoker launch {run.name} on.nodes={nodes}",
            )
        time.sleep(POLL)
