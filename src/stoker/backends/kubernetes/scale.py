"""More nodes or fewer for a run in a cluster, while it runs.

This may be interrupted at any moment: no supervisor waits for a pod that is not created, and scaling again does what is
left to do. A job that cannot be changed is stopped only after the dry run of its successor has passed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stoker.backends import secrets
from stoker.backends.backend import Message, Scaled
from stoker.backends.kubernetes.job_control import STOP_TIMEOUT_S, JobControl, has_not_ended
from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.needs import needs
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.backends.kubernetes.plan import plan
from stoker.backends.kubernetes.preflight import check_room
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.kubernetes.volume.staging import stage
from stoker.kube import Invalid, Object
from stoker.rundir import RunDir, consent
from stoker.rundir.commands import command_name
from stoker.rundir.events import Changed
from stoker.rundir.state import RunState
from stoker.rundir.view import RunView
from stoker.spec import contract
from stoker.spec.change import with_nodes
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError
from stoker.spec.on import Nodes, kubernetes_on
from stoker.spec.run import AnySpec
from stoker.spec.trust import trusting

POLL_S = 0.5  # while a job ends
Submit = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ScaleReply:
    """What contract.SCALE_MODULE prints in a pod."""

    was: str


def scale(run: RunDir, control: JobControl, nodes: Nodes, *, message: Message, committed: Callable[[], None]) -> Scaled:
    """Raises UserError, with nothing changed, if it is impossible. Calls `committed` before the first change."""
    place = place_of(run)
    consent.require_image(run, place.image)
    spec = run.any_spec()
    on = kubernetes_on(spec)
    wanted, same = with_nodes(spec, nodes), on.nodes == nodes
    job = _running_job(control, run, place, nodes)
    done = Scaled(was=on.nodes, nodes=nodes, how="unchanged", warnings=control.check_scaled(wanted, place))
    for text in done.warnings:
        message(f"warning: {text}")
    patch = scale_patch(place, job, spec, nodes)
    applied = patch is not None and is_applied(job, patch)
    if patch is None or not (applied or _accepts(control, place, patch)):
        if same:
            return done
        submit = _prepare_next_job(control, run, place, wanted)
        message(f"its {job_kind(place.job).KIND} cannot be resized while it runs: it saves, and resumes in another …")
        committed()
        _stop(run, control, place, nodes)
        _resume(run, control, place, wanted, submit)
        return replace(done, how="resubmitted")
    committed()
    was = _change(run, control, place, nodes, None if applied else patch)
    if same:
        return replace(done, was=was, how="unchanged" if applied and was == nodes else "live")
    _record(run, wanted)
    return replace(done, how="live")


def scale_patch(place: ClusterPlace, job: Object, spec: AnySpec, nodes: Nodes) -> Object | None:
    """The patch that sets the job's number of nodes; None: it must be recreated. Pure.

    Pods cannot be changed, and the pods of several nodes may need network devices that a single pod does not.
    """
    if needs(spec, place.run) != needs(with_nodes(spec, nodes), place.run):
        return None
    return job_kind(place.job).scale_patch(job, nodes)


def is_applied(current: Any, patch: Any) -> bool:
    """Whether the patch would change nothing. Pure."""
    if isinstance(patch, dict):
        return isinstance(current, dict) and all(is_applied(current.get(key), value) for key, value in patch.items())
    return bool(current == patch)


def in_order(nodes: Nodes, *, set_wanted: Callable[..., str], apply: Callable[[], None]) -> str:
    """A run that grows gets its pods before its supervisors expect them; a run that shrinks, the other way round.

    Returns the number of nodes that the supervisors expected before. It is read first, so that no pods are created for
    a run whose supervisors cannot be reached. The local spec does not count: an earlier scaling may have been
    interrupted before it was written.
    """
    was = set_wanted()
    grows = nodes.most > Nodes(was).most
    if not grows:
        set_wanted(nodes)
    apply()
    if grows:
        set_wanted(nodes)
    return was


def parse_nodes(text: str) -> Nodes:
    """Raises UserError."""
    try:
        return Nodes(text)
    except ValueError as e:
        problem, _, remedy = str(e).partition("; ")
        raise UserError(problem, remedy=remedy[:1].upper() + remedy[1:]) from e


def _running_job(control: JobControl, run: RunDir, place: ClusterPlace, nodes: Nodes) -> Object:
    kind = job_kind(place.job)
    job = control.cluster.get(kind.KIND, place.run)
    state = kind.state(job) if job else None
    if job and has_not_ended(state):
        return job
    seen = run.seen()
    raise _not_running(run, state.state if state else seen["view"]["state"] if seen else "stopped", nodes)


def _not_running(run: RunDir, state: str, nodes: Nodes) -> UserError:
    command = _launch_command(run, nodes)
    remedy = f"Start a new run like it: {command} --new" if state == "done" else f"Resume it at that size: {command}"
    return UserError(f"run '{run.name}' is not running ({state})", remedy=remedy)


def _launch_command(run: RunDir, nodes: Nodes) -> str:
    return f"stoker launch {command_name(run)} on.nodes={nodes}"


def _accepts(control: JobControl, place: ClusterPlace, patch: Object) -> bool:
    """Whether the API server accepts the change: a JobSet can be resized only with a feature gate of its operator.

    Other refusals, such as a missing right, are raised: they are no reason to stop a run.
    """
    try:
        control.cluster.patch(job_kind(place.job).KIND, place.run, patch, dry_run=True)
    except Invalid:
        return False
    return True


def _change(run: RunDir, control: JobControl, place: ClusterPlace, nodes: Nodes, patch: Object | None) -> str:
    """Returns the number of nodes that its supervisors expected before."""

    def apply() -> None:
        if patch is not None:
            control.cluster.patch(job_kind(place.job).KIND, place.run, patch)

    set_wanted = partial(_set_wanted, VolumeRun(run, place, cluster=control.cluster))
    return in_order(nodes, set_wanted=set_wanted, apply=apply)


def _set_wanted(remote: VolumeRun, *nodes: Nodes) -> str:
    """Writes the number to the run directory, where the supervisors read it. Returns what it was before."""
    reply = "".join(remote.program("scale", "-m", contract.SCALE_MODULE, remote.folder, *map(str, nodes)))
    return remote.parse_reply(ScaleReply, reply).was


def _stop(run: RunDir, control: JobControl, place: ClusterPlace, nodes: Nodes) -> None:
    control.delete(place)
    end = time.monotonic() + STOP_TIMEOUT_S
    while not control.ended(place):
        if time.monotonic() > end:
            raise RunFailed(
                f"run '{run.name}' has not saved and stopped in {STOP_TIMEOUT_S:.0f} seconds",
                remedy=f"When it has, resume it: {_launch_command(run, nodes)}",
            )
        time.sleep(POLL_S)


def _resume(run: RunDir, control: JobControl, place: ClusterPlace, wanted: AnySpec, submit: Submit) -> None:
    nodes = kubernetes_on(wanted).nodes
    try:
        state = _own_end(run, control, place)
        if not state.is_finished:
            _record(run, wanted)
            submit()
            return
    except StokerError as e:
        raise SavedForLater(
            f"run '{run.name}' has stopped to be scaled, and could not be resumed: {e.problem}",
            remedy=f"Resume it: {_launch_command(run, nodes)}",
        ) from e
    raise _not_running(run, state, nodes)


def _own_end(run: RunDir, control: JobControl, place: ClusterPlace) -> RunState:
    """How it ended: it may have finished, or failed, before it was asked to stop. Then it is not resumed."""
    job = control.state(place)
    if job and job.state.is_finished:
        return job.state
    remote = VolumeRun(run, place, cluster=control.cluster, moving=True)  # by the pod that uploads the spec next
    state = remote.parse_reply(RunView, "".join(remote.ask("view"))).state
    if state.is_finished:
        remote.close()
    return state


def _record(run: RunDir, wanted: AnySpec) -> None:
    with run.lock():
        was = kubernetes_on(run.any_spec()).nodes
        run.write_spec(wanted)
        run.add_event(Changed(changes={"on.nodes": [was, kubernetes_on(wanted).nodes]}))


def _prepare_next_job(control: JobControl, run: RunDir, place: ClusterPlace, spec: AnySpec) -> Submit:
    """Checks the next job while the present job still runs. Call the returned function when that job has ended.

    It keeps the run's image and data: changes on this machine since the launch are not included.
    """
    secrets.resolve(spec)
    on = kubernetes_on(spec)
    planned = spec.model_copy(update={"on": on.model_copy(update={"image": place.image, "job": place.job})})
    facts = control.discover()
    check_room(needs(planned, run.name), facts.inventory, nodes=on.nodes.least)
    submission = plan(planned, facts, run.path)
    control.check(planned, facts, submission, running=True)

    def submit() -> None:
        with trusting(True):  # the user was asked when scaling began
            stage(run, place, cluster=control.cluster, begun=True)
        run.forget_ending()
        control.submit(submission)

    return submit
