"""More nodes or fewer for a run in a cluster, while it runs.

While a job is changed, the run can go on should this end there at any moment: no supervisor waits for a pod that nobody
makes. Doing it again does what is still to be done. A job that cannot be changed is ended only after all that can be
tried of the next one was.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from stoker.kube import Object, Refused
from stoker.launch.command_word import command_word
from stoker.launch.jobs import job_kind
from stoker.launch.kubernetes import ENDED, PATIENCE, Kubernetes, has_not_ended, reach
from stoker.launch.needs import needs
from stoker.launch.remote import Remote
from stoker.rundir import PlaceRef, RunDir, consent
from stoker.spec.change import with_nodes
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError
from stoker.spec.on import Nodes
from stoker.spec.run import AnySpec

WANTED = "stoker.supervise.wanted"
POLL = 0.5  # seconds between two looks at a job that ends
INVALID = 422
Send = Callable[[], None]


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
    anew: Callable[[AnySpec, RunDir], Send],
    say: Callable[[str], None] = lambda _: None,
    committed: Callable[[], None] = lambda: None,
) -> Scaled:
    """Raises UserError for what cannot be; then nothing was changed. `committed` is called before anything is.

    `anew` tries all of a job that takes the place of one which cannot be changed; what it gives sends it, after that
    has ended.
    """
    nodes = _nodes(words)
    if run.place_ref() is None:
        word = command_word(run)
        raise UserError(
            f"run '{run.name}' lives on this machine, and has no nodes to add or to take",
            remedy=f"Give it other workers: stoker stop {word}, then stoker launch {word} on.workers=2",
        )
    backend, place = reach(run)
    consent.require_pods(run, place)
    spec = run.any_spec()
    wanted, same = with_nodes(spec, nodes), spec.on.nodes == nodes
    job = _running_job(backend, run, place, nodes)
    done = Scaled(was=spec.on.nodes, nodes=nodes, how="unchanged", warnings=backend.check_scaled(wanted, place))
    for text in done.warnings:
        say(f"warning: {text}")
    patch = patched(place, job, spec, nodes)
    held = patch is not None and holds(job, patch)
    if patch is None or not (held or _takes(backend, place, patch)):
        if same:
            return done
        send = anew(wanted, run)
        say(f"its {job_kind(place.job).KIND} cannot be changed so while it runs: it saves, and goes on in another …")
        committed()
        _end(run, backend, place, nodes)
        _go_on(run, backend, place, wanted, send)
        return replace(done, how="resubmitted")
    committed()
    was = _change(run, backend, place, nodes, None if held else patch)
    if same:
        return replace(done, was=was, how="unchanged" if held and was == nodes else "live")
    _write_down(run, wanted)
    return replace(done, how="live")


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


def in_turn(nodes: Nodes, *, tell: Callable[..., str], give: Callable[[], None]) -> str:
    """A run that grows is given its pods before it is told, one that shrinks is told first. How many it looked for.

    That is asked before anything: no pods are bought for a run that cannot be told. The spec here does not count: who
    scaled it last may have been cut off before it was written.
    """
    was = tell()
    grows = nodes.most > Nodes(was).most
    if not grows:
        tell(nodes)
    give()
    if grows:
        tell(nodes)
    return was


def _nodes(words: str) -> Nodes:
    try:
        return Nodes(words)
    except ValueError as e:
        problem, _, remedy = str(e).partition("; ")
        raise UserError(problem, remedy=remedy[:1].upper() + remedy[1:]) from e


def _running_job(backend: Kubernetes, run: RunDir, place: PlaceRef, nodes: Nodes) -> Object:
    kind = job_kind(place.job)
    job = backend.cluster.get(kind.KIND, place.run)
    said = kind.state(job) if job else None
    if job and has_not_ended(said):
        return job
    seen = run.seen()
    state = said.state if said else seen["view"]["state"] if seen else "stopped"
    raise _does_not_run(run, state, nodes)


def _does_not_run(run: RunDir, state: str, nodes: Nodes) -> UserError:
    again = _again(run, nodes)
    remedy = f"Start another like it: {again} --new" if state == "done" else f"Go on with it at that size: {again}"
    return UserError(f"run '{run.name}' does not run ({state})", remedy=remedy)


def _again(run: RunDir, nodes: Nodes) -> str:
    return f"stoker launch {command_word(run)} on.nodes={nodes}"


def _takes(backend: Kubernetes, place: PlaceRef, patch: Object) -> bool:
    """Whether the cluster lets it be changed so: a JobSet only where its operator is told to, by a feature gate."""
    try:
        backend.cluster.patch(job_kind(place.job).KIND, place.run, patch, dry_run=True)
    except Refused as e:  # a right, a rule of the cluster's or a server in trouble is no reason to end a run
        if e.code != INVALID and "immutable" not in e.problem:
            raise
        return False
    return True


def _change(run: RunDir, backend: Kubernetes, place: PlaceRef, nodes: Nodes, patch: Object | None) -> str:
    """How many nodes its supervisors looked for before."""

    def give() -> None:
        if patch is not None:
            backend.cluster.patch(job_kind(place.job).KIND, place.run, patch)

    return in_turn(nodes, tell=partial(_tell, Remote(run, place, cluster=backend.cluster)), give=give)


def _tell(remote: Remote, *nodes: Nodes) -> str:
    """In the run directory, where the supervisors look for it. What it was before."""
    said = "".join(remote.program("scale", "-m", WANTED, remote.folder, *map(str, nodes)))
    return remote.understood(Told, said).was


def _end(run: RunDir, backend: Kubernetes, place: PlaceRef, nodes: Nodes) -> None:
    backend.delete(place)
    end = time.monotonic() + PATIENCE
    while not backend.ended(place):
        if time.monotonic() > end:
            raise RunFailed(
                f"run '{run.name}' has not saved and ended in {PATIENCE:.0f} seconds",
                remedy=f"When it has, go on with it: {_again(run, nodes)}",
            )
        time.sleep(POLL)


def _go_on(run: RunDir, backend: Kubernetes, place: PlaceRef, wanted: AnySpec, send: Send) -> None:
    nodes = wanted.on.nodes
    try:
        state = _own_end(run, backend, place)
        if state not in ENDED:
            _write_down(run, wanted)
            send()
            return
    except StokerError as e:
        raise SavedForLater(
            f"run '{run.name}' has ended to be scaled, and does not go on by itself: {e.problem}",
            remedy=f"Go on with it: {_again(run, nodes)}",
        ) from e
    raise _does_not_run(run, state, nodes)


def _own_end(run: RunDir, backend: Kubernetes, place: PlaceRef) -> str:
    """How it ended: it may have been done, or have failed, before it was told to save. That is not begun again."""
    job = backend.state(place)
    if job and job.state in ENDED:
        return job.state
    remote = Remote(run, place, cluster=backend.cluster, moving=True)  # in the pod that the spec is sent through next
    told: dict[str, Any] = remote.understood(dict, "".join(remote.ask("status", "--json")))
    state = str(told.get("state"))
    if state in ENDED:
        remote.remove()
    return state


def _write_down(run: RunDir, wanted: AnySpec) -> None:
    with run.lock():
        was = run.any_spec().on.nodes
        run.write_spec(wanted)
        run.add_event("changed", changes={"on.nodes": [was, wanted.on.nodes]})
