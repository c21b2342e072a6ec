"""Replays a step: computes its loss again by training a copy of the run from the nearest checkpoint before it.

The copy repeats the run's attempts one after the other, each with the number of workers and the settings that it had.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.api.checkpoint_link import link_checkpoint
from stoker.api.launch import follow
from stoker.api.source_models import teacher_shape
from stoker.backends import backend_for
from stoker.backends.backend import Running
from stoker.observe.step_batch import Stretch, stretch_of, stretches_of, token_set
from stoker.rundir import DataRef, Exit, Record, RunDir, Saved, consent
from stoker.rundir.events import Started
from stoker.rundir.records import Tail, parse_metrics
from stoker.rundir.state import RunState
from stoker.rundir.view import how_it_ended
from stoker.spec import contract
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.run import Checkpoint, Evaluation, Log, RunSpec, Until

NEVER = 10**12  # steps
LOSS_SETTINGS = ("horizon", "warmup", "decay", "micro", "precision", "compile")  # fields of a `started` event

Look = Callable[[list[Record]], bool]
"""Receives new metrics repeatedly; returns whether to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leg:
    """Steps that are trained without a restart, up to `stop`."""

    stop: int
    workers: int
    epochs: int | None
    """Set if the last step is smaller than a batch: the run ended there, after this number of epochs."""
    settings: Record
    """The fields of the attempt's `started` event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    step: int
    start: int
    """Step of the checkpoint that training started from; 0 if there was none."""
    workers: int
    loss: float | None
    recorded: float | None
    """The loss in metrics.jsonl. None stands for a loss that is not finite, here and in `loss`."""
    logged: bool
    """metrics.jsonl has the step."""
    seconds: float
    reasons: list[str]
    """Why the two may differ."""

    @property
    def equal(self) -> bool | None:
        """Bit for bit; None if metrics.jsonl does not have the step."""
        return self.loss == self.recorded if self.logged else None

    @property
    def difference(self) -> float | None:
        """None if either loss is not finite."""
        return None if self.loss is None or self.recorded is None else abs(self.loss - self.recorded)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """A copy of a run in a temporary folder, with the nearest checkpoint before a step."""

    run: RunDir
    copy: RunDir
    step: int
    start: int
    legs: list[Leg]

    def train(self, look: Look) -> Replayed | None:
        """Train up to the step. None if `look` stopped it."""
        began = time.monotonic()
        metrics = Tail(self.copy.path / contract.METRICS_FILE)
        device = ""
        for leg in self.legs:
            spec = _spec(self.run.spec(), leg)
            self.copy.write_spec(spec)
            self.copy.clear_exit()
            backend = backend_for(spec.on)
            submission = backend.plan(spec, backend.discover(), self.copy.path, teacher=teacher_shape(spec, self.copy))
            device = submission.device
            end = self._follow(backend.submit(submission, detached=False), look, metrics)
            if end is None:
                return None
            if end.state != RunState.DONE and self._replayed_record() is None:
                raise _failure(self.step, end)
        return self._result(device, seconds=time.monotonic() - began)

    def _follow(self, running: Running, look: Look, metrics: Tail) -> Exit | None:
        stopped = False

        def check() -> None:
            nonlocal stopped
            if look(list(metrics.records(parse_metrics))):
                stopped = True
                running.stop()  # repeatedly: the second time it ends without saving, as the copy is deleted anyway

        code = follow(running, check)
        return None if stopped else how_it_ended(self.copy, code)

    def _replayed_record(self) -> Record | None:
        return next((record for record in self.copy.metrics() if record["step"] == self.step), None)

    def _result(self, device: str, *, seconds: float) -> Replayed:
        replayed = self._replayed_record()
        assert replayed is not None
        recorded: Record = next((record for record in self.run.metrics() if record["step"] == self.step), {})
        now = next(event for event in reversed(self.copy.events()) if isinstance(event, Started))
        return Replayed(
            step=self.step,
            start=self.start,
            workers=self.legs[-1].workers,
            loss=replayed["loss"],
            recorded=recorded.get("loss"),
            logged="loss" in recorded,
            seconds=seconds,
            reasons=_reasons(self.legs[-1].settings, now.fields(), device, deterministic=self.run.spec().deterministic),
        )


@contextmanager
def scratch(run: RunDir, step: int) -> Iterator[Scratch]:
    """Changes nothing in the run. The copy is deleted afterwards."""
    spec = run.spec()
    consent.require(run, consent.training_code(spec))
    stretches = stretches_of(run)
    stretch_of(run, stretches, step)
    tokens = token_set(run)
    samples = tokens.train.samples(spec.batch.length)
    with tempfile.TemporaryDirectory(prefix="stoker-replay-", ignore_cleanup_errors=True) as folder:
        copy = RunDir(Path(folder) / run.name)
        copy.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))
        copy.write_origins(run.origins())
        (copy.path / contract.ORIGINS_DIR).symlink_to(run.path / contract.ORIGINS_DIR)
        if tokens.tokenizer.is_dir():  # HDF5 files may come without one
            shutil.copytree(tokens.tokenizer, copy.tokenizer)
        saved = _link_newest(run, copy, step)
        start = saved.step if saved else 0
        yield Scratch(
            run=run, copy=copy, step=step, start=start, legs=legs_between(run, stretches, start, step, samples)
        )


def legs_between(run: RunDir, stretches: list[Stretch], start: int, step: int, samples: int) -> list[Leg]:
    """From one step to another, as the run was trained. Attempts with equal settings are one leg: a resume is exact."""
    sequences = run.spec().batch.sequences
    started = {event.attempt: event.fields() for event in run.events() if isinstance(event, Started)}
    legs: list[Leg] = []
    for stretch in stretches:
        if stretch.stop <= start or stretch.start >= step:
            continue
        stop = min(stretch.stop, step)
        drawn = stretch.drawn + (stop - stretch.start - 1) * sequences + stretch.last
        short = stop == stretch.stop and stretch.last < sequences
        if short and drawn % samples:
            raise UserError(
                f"the ledger of run '{run.name}' has {stretch.last} samples at step {stop}, and no epoch ends there",
                remedy=f"See: stoker audit {run.path}",
            )
        leg = Leg(
            stop=stop,
            workers=stretch.ledger.world,
            epochs=drawn // samples if short else None,
            settings=started.get(stretch.ledger.attempt, {}),
        )
        if legs and legs[-1].epochs is None and _alike(legs[-1], leg):
            legs.pop()
        legs.append(leg)
    return legs


def _alike(leg: Leg, other: Leg) -> bool:
    same = all(leg.settings.get(key) == other.settings.get(key) for key in LOSS_SETTINGS)
    return same and leg.workers == other.workers


def _spec(spec: RunSpec, leg: Leg) -> RunSpec:
    """Settings that affect the loss are unchanged; evaluation, checkpoints, logs and callbacks are turned off."""
    kept = {key: leg.settings[key] for key in LOSS_SETTINGS if leg.settings.get(key) is not None}
    schedule: Record = {key: kept[key] for key in ("horizon", "warmup", "decay") if key in kept}
    if not schedule.get("horizon"):  # a run that only `until.time` ends has none
        schedule.pop("horizon", None)
    return spec.model_copy(
        update={
            "until": Until(steps=leg.stop, epochs=leg.epochs),
            "optim": spec.optim.model_copy(update=schedule),
            "batch": spec.batch.model_copy(update={"micro": kept.get("micro", spec.batch.micro)}),
            "precision": kept.get("precision", spec.precision),
            "compile": kept.get("compile", spec.compile),
            "eval": Evaluation(every=0, sequences=1),
            "checkpoint": Checkpoint(every=NEVER, best=False),
            "log": Log(every=1, tensorboard=False),
            "on": spec.on.model_copy(update={"workers": leg.workers}),
            "callbacks": [],
        }
    )


def _link_newest(run: RunDir, copy: RunDir, step: int) -> Saved | None:
    """The newest good checkpoint before a step. If the run deletes it meanwhile, the checkpoint before it."""
    unusable: set[int] = set()
    while candidates := [saved for saved in run.saved() if saved.step < step and saved.step not in unusable]:
        saved = candidates[-1]
        run.fetch(saved)
        if link_checkpoint(saved, copy.checkpoint(saved.step)):
            return saved
        unusable.add(saved.step)
    return None


def _failure(step: int, end: Exit) -> UserError | RunFailed:
    if end.code == contract.EXIT_USER:
        return UserError(f"step {step} cannot be trained again: {end.reason}", remedy=end.remedy)
    return RunFailed(
        f"training up to step {step} again failed: {end.reason}", remedy="Show the step's text alone with --no-loss"
    )


def _reasons(then: Record, now: Record, device: str, *, deterministic: bool) -> list[str]:
    """Why the loss may differ: `then` and `now` are fields of `started` events."""
    reasons = []
    for key, preposition in (("chip", "on"), ("torch", "with torch"), ("compile", "with compile:")):
        if key in then and then[key] != now.get(key):
            reasons.append(f"it was trained {preposition} {then[key]}, and now {preposition} {now.get(key)}")
    if device == "cuda" and not deterministic:
        reasons.append("without deterministic: true a GPU does not give the same bits each time")
    if now["precision"] != "fp32":
        reasons.append(f"{now['precision']} is only exact on the same machine and the same torch")
    return reasons
