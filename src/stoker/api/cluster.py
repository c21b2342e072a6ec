"""A run that lives in a cluster: checked, given its image, uploaded, applied, in that order."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stoker.api.opening import Opened, begin
from stoker.api.staging import stage
from stoker.data.prepare import Progress, ignore
from stoker.kube import LoggedOut, Unreachable, namespace_of
from stoker.launch import secrets
from stoker.launch.backend import Submission
from stoker.launch.fits import check_room
from stoker.launch.image.base import Progress as Building
from stoker.launch.image.build import ensure_image
from stoker.launch.kubernetes import NO_CLUSTER, ClusterFacts, Kubernetes, check_ended, has_not_ended, place_of, reach
from stoker.launch.kubernetes import plan as plan_objects
from stoker.launch.needs import needs
from stoker.launch.transfer.meter import Progress as Carried
from stoker.observe.cluster import view
from stoker.rundir import Exit, PlaceRef, RunDir, consent
from stoker.spec import contract
from stoker.spec.code import is_code
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.spec.trust import trusting

POLL = 2.0  # seconds between two looks at a job: each is a request
ENDED: dict[str, tuple[Literal["done", "paused", "failed"], int]] = {
    "done": ("done", contract.EXIT_DONE),
    "paused": ("paused", contract.EXIT_SAVED),
    "failed": ("failed", contract.EXIT_FAILED),
    "interrupted": ("failed", contract.EXIT_FAILED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Nothing has been made."""

    backend: Kubernetes | None
    """None: no cluster could be looked at."""
    facts: ClusterFacts
    submission: Submission
    warnings: list[str]


def plan(spec: AnySpec, run: RunDir, say: Callable[[str], None] = lambda _: None) -> Planned:
    """Raises UserError for all that can be known to fail. `say` is told what is waited for, now and by `send`."""
    secrets.resolve(spec)
    check_ended(run)
    backend = Kubernetes.of(spec.on, say)
    facts = backend.discover()
    submission = backend.plan(spec, facts, run.path)
    warnings = [*left_behind(run, place_of(submission)), *from_image(spec), *backend.check(spec, facts, submission)]
    return Planned(backend=backend, facts=facts, submission=submission, warnings=warnings)


def left_behind(run: RunDir, place: PlaceRef) -> list[str]:
    """A warning, where a run goes on at another volume than the one that it has trained on, as far as is known here."""
    old, step = run.place_ref(), ((run.seen() or {}).get("view") or {}).get("step")
    if old is None or not step or (old.namespace, old.volume) == (place.namespace, place.volume):
        return []
    return [
        f"it came to step {step} on volume {old.volume} of namespace {old.namespace}, and its checkpoints stay there: "
        f"on volume {place.volume} of namespace {place.namespace} it begins at step 0, unless "
        f"{contract.VOLUME_RUNS}/{place.run} was copied to it"
    ]


def from_image(spec: AnySpec) -> list[str]:
    """A warning, where code that is on this machine too is taken from the image: nothing brings it there."""
    if spec.on.registry:
        return []
    if isinstance(spec, ScriptSpec):
        here = [f"script {spec.script}"] if Path(spec.script).exists() else []
    else:
        here = [word for word in (spec.model.family, *spec.callbacks) if is_code(word)]
    return [f"{what} must be in the image: without on.registry nothing brings your code there" for what in here]


def plan_dry(spec: AnySpec, run: RunDir, say: Callable[[str], None] = lambda _: None) -> Planned:
    """As `plan`; without a cluster as well, unchecked."""
    try:
        return plan(spec, run, say)
    except (Unreachable, LoggedOut) as e:
        warning = f"not checked: {e.problem}"
        facts = replace(NO_CLUSTER, namespace=namespace_of(spec.on.context))
        submission = plan_objects(spec, facts, run.path)
        return Planned(backend=None, facts=facts, submission=submission, warnings=[warning, *from_image(spec)])


def with_image(spec: AnySpec, progress: Building = lambda *_: None) -> AnySpec:
    """`on.image` as it is, or, where there is a place to push to, with the user's code and Stoker laid over it."""
    on = spec.on
    if on.registry is None or on.image is None:
        return spec
    image = ensure_image(spec, base=on.image, repository=on.registry, progress=progress)
    return spec.model_copy(update={"on": on.model_copy(update={"image": str(image)})})


def bring(
    planned: Planned,
    opened: Opened,
    spec: AnySpec,
    progress: Callable[[Carried], None] = lambda _: None,
    committed: Callable[[], None] = lambda: None,
) -> tuple[Submission, PlaceRef]:
    """All that the run needs is brought there but its job, which is about to be made: then `committed` is called.

    The run directory is ready here; `spec` is the run's, with its image.
    """
    assert planned.backend is not None
    submission = planned.backend.plan(spec, planned.facts, opened.run.path)
    place = place_of(submission, context=planned.backend.cluster.context)
    consent.record_place(opened.run, place)
    with trusting(True):  # who launches it has been asked
        stage(opened.run, place, progress, cluster=planned.backend.cluster)
    committed()
    opened.run.forget_ending()
    opened.run.write_place(place)  # before anything is made: whatever happens now, it is known where to look
    return submission, place


def send(
    planned: Planned,
    opened: Opened,
    spec: AnySpec,
    progress: Callable[[Carried], None] = lambda _: None,
    committed: Callable[[], None] = lambda: None,
) -> PlaceRef:
    """Afterwards the run is the cluster's."""
    submission, place = bring(planned, opened, spec, progress, committed)
    assert planned.backend is not None
    planned.backend.submit(submission)
    return place


def go_on(spec: AnySpec, *, runs: Path, progress: Callable[[Progress], None] = ignore) -> None:
    """Start the run of that name, or go on with it."""
    planned = plan(spec, RunDir(runs / spec.name))
    opened = begin(spec, runs=runs, progress=progress)
    if not opened.done:
        send(planned, opened, with_image(opened.spec))


def anew(spec: AnySpec, run: RunDir) -> Callable[[], None]:
    """Go on with a run in another job. All that can be tried is, while the one that it has still runs.

    To be called when that has ended. The image is the one that it has, and its data is there: what has changed here
    since it was launched does not come in.
    """
    secrets.resolve(spec)
    backend, place = reach(run)
    made = spec.model_copy(update={"on": spec.on.model_copy(update={"image": place.image, "job": place.job})})
    facts = backend.discover()
    check_room(needs(made, run.name), facts.inventory, nodes=spec.on.nodes.least)
    submission = backend.plan(made, facts, run.path)
    backend.check(made, facts, submission, running=True)

    def send() -> None:
        with trusting(True):  # who scales it has been asked
            stage(run, place, cluster=backend.cluster, begun=True)
        run.forget_ending()
        backend.submit(submission)

    return send


def stop(run: RunDir) -> bool:
    """Ask it to save and end. False when it does not run; idempotent."""
    backend, place = reach(run)
    return backend.delete(place)


def wait(run: RunDir, *, seconds: float | None = None) -> Exit:
    """How it ended, once its job has. Raises TimeoutError."""
    end = None if seconds is None else time.monotonic() + seconds
    backend, place = reach(run)
    while has_not_ended(backend.state(place)):
        if end is not None and time.monotonic() > end:
            raise TimeoutError(f"run '{run.name}' has not ended in {seconds} s")
        time.sleep(POLL)
    now = view(run, backend.cluster)
    state, code = ENDED.get(now.state, ENDED["failed"])
    return Exit(state=state, code=code, step=now.step, reason=now.reason, remedy=now.remedy)
