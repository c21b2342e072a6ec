"""A step once more: its loss, computed anew by training a copy of the run from the nearest checkpoint before it.

The copy goes the way that the run went: attempt after attempt, each with its own number of workers and its own choices.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.api.borrow import borrow
from stoker.api.running import ending, follow, plan, start
from stoker.launch.backend import Running
from stoker.observe.batch import Stretch, line, reached, token_set
from stoker.observe.tail import Tail
from stoker.rundir import DataRef, Exit, Record, RunDir, Saved, consent
from stoker.rundir.records import is_metrics
from stoker.spec import contract
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.run import Checkpoint, Evaluate, Log, RunSpec, Until

NEVER = 10**12  # steps
KEPT = ("horizon", "warmup", "decay", "micro", "precision", "compile")  # of a `started` event: what a loss depends on

Look = Callable[[list[Record]], bool]  # is given new metrics now and then, and says whether to stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Leg:
    """Steps that are trained in one go, up to `stop`."""

    stop: int
    workers: int
    epochs: int | None
    """Set where the last step is short: the run ended there, having gone so often through its data."""
    choices: Record
    """How the run was laid out then, as its `started` event has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    step: int
    start: int
    """Trained from the checkpoint of this step; 0 is the beginning."""
    workers: int
    loss: float | None
    recorded: float | None
    """The loss in metrics.jsonl; of either, None is one that is not finite."""
    logged: bool
    """metrics.jsonl has the step."""
    seconds: float
    reasons: list[str]
    """Why the two may differ."""

    @property
    def equal(self) -> bool | None:
        """Bit for bit; None when there is nothing to compare with."""
        return self.loss == self.recorded if self.logged else None

    @property
    def difference(self) -> float | None:
        """Of two numbers."""
        return None if self.loss is None or self.recorded is None else abs(self.loss - self.recorded)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """A copy of a run, in a temporary folder, that stands at the nearest checkpoint before a step."""

    run: RunDir
    copy: RunDir
    step: int
    start: int
    legs: list[Leg]

    def train(self, look: Look) -> Replayed | None:
        """Up to the step; None when `look` has stopped it."""
        began = time.monotonic()
        metrics = Tail(self.copy.path / contract.METRICS_FILE)
        device = ""
        for leg in self.legs:
            spec = _spec(self.run.spec(), leg)
            self.copy.write_spec(spec)
            self.copy.clear_exit()
            submission = plan(spec, self.copy)
            device = submission.device
            end = self._follow(start(submission), look, metrics)
            if end is None:
                return None
            if end.state != "done" and self._again() is None:
                raise _failure(self.step, end)
        return self._result(device, seconds=time.monotonic() - began)

    def _follow(self, running: Running, look: Look, metrics: Tail) -> Exit | None:
        stopped = False

        def see() -> None:
            nonlocal stopped
            if look(list(metrics.records(is_metrics))):
                stopped = True
                running.stop()  # at each look: asked twice it ends without saving what nobody needs

        code = follow(running, see)
        return None if stopped else ending(self.copy, code)

    def _again(self) -> Record | None:
        return next((record for record in self.copy.metrics() if record["step"] == self.step), None)

    def _result(self, device: str, *, seconds: float) -> Replayed:
        again = self._again()
        assert again is not None
        before: Record = next((record for record in self.run.metrics() if record["step"] == self.step), {})
        now = next(event for event in reversed(self.copy.events()) if event["kind"] == "started")
        return Replayed(
            step=self.step,
            start=self.start,
            workers=self.legs[-1].workers,
            loss=again["loss"],
            recorded=before.get("loss"),
            logged="loss" in before,
            seconds=seconds,
            reasons=_reasons(self.legs[-1].choices, now, device, deterministic=self.run.spec().deterministic),
        )


@contextmanager
def scratch(run: RunDir, step: int) -> Iterator[Scratch]:
    """Nothing of the run is touched, and nothing is left behind."""
    spec = run.spec()
    consent.require(run, consent.training_code(spec))
    stretches = line(run)
    reached(run, stretches, step)
    tokens = token_set(run)
    samples = tokens.train.samples(spec.batch.length)
    with tempfile.TemporaryDirectory(prefix="stoker-replay-", ignore_cleanup_errors=True) as folder:
        copy = RunDir(Path(folder) / run.name)
        copy.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))
        copy.write_origins(run.origins())
        (copy.path / contract.HELD_DIR).symlink_to(run.path / contract.HELD_DIR)
        if tokens.tokenizer.is_dir():  # HDF5 files may come without one
            shutil.copytree(tokens.tokenizer, copy.tokenizer)
        saved = _borrow(run, copy, step)
        start = saved.step if saved else 0
        yield Scratch(run=run, copy=copy, step=step, start=start, legs=legs(run, stretches, start, step, samples))


def legs(run: RunDir, stretches: list[Stretch], start: int, step: int, samples: int) -> list[Leg]:
    """From one step to another, the way that the run went. Attempts alike are one leg: a resume changes no bit."""
    sequences = run.spec().batch.sequences
    started = {event.get("attempt"): event for event in run.events() if event["kind"] == "started"}
    found: list[Leg] = []
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
            choices=started.get(stretch.ledger.attempt, {}),
        )
        if found and found[-1].epochs is None and _alike(found[-1], leg):
            found.pop()
        found.append(leg)
    return found


def _alike(one: Leg, other: Leg) -> bool:
    same = all(one.choices.get(key) == other.choices.get(key) for key in KEPT)
    return same and one.workers == other.workers


def _spec(spec: RunSpec, leg: Leg) -> RunSpec:
    """What decides a loss stays as it was then; what only watches, saves or ends is cut down."""
    kept = {key: leg.choices[key] for key in KEPT if key in leg.choices}
    layout: Record = {key: kept[key] for key in ("horizon", "warmup", "decay") if key in kept}
    if not layout.get("horizon"):  # a run that only a time ends has none
        layout.pop("horizon", None)
    return spec.model_copy(
        update={
            "until": Until(steps=leg.stop, epochs=leg.epochs),
            "optim": spec.optim.model_copy(update=layout),
            "batch": spec.batch.model_copy(update={"micro": kept.get("micro", spec.batch.micro)}),
            "precision": kept.get("precision", spec.precision),
            "compile": kept.get("compile", spec.compile),
            "eval": Evaluate(every=0, sequences=1),
            "checkpoint": Checkpoint(every=NEVER, best=False),
            "log": Log(every=1, tensorboard=False),
            "on": spec.on.model_copy(update={"workers": leg.workers}),
            "callbacks": [],
        }
    )


def _borrow(run: RunDir, copy: RunDir, step: int) -> Saved | None:
    """The newest good checkpoint before a step. The run may delete one while it is being taken: then another."""
    refused: set[int] = set()
    while there := [saved for saved in run.saved() if saved.step < step and saved.step not in refused]:
        saved = there[-1]
        run.fetch(saved)
        if borrow(saved, copy.checkpoint(saved.step)):
            return saved
        refused.add(saved.step)
    return None


def _failure(step: int, end: Exit) -> UserError | RunFailed:
    if end.code == contract.EXIT_USER:
        return UserError(f"step {step} cannot be trained again: {end.reason}", remedy=end.remedy)
    return RunFailed(f"training up to step {step} again failed: {end.reason}", remedy="See its text with --no-loss")


def _reasons(then: Record, now: Record, device: str, *, deterministic: bool) -> list[str]:
    found = []
    for key, what in (("chip", "on"), ("torch", "with torch"), ("compile", "with compile:")):
        if key in then and then[key] != now.get(key):
            found.append(f"it was trained {what} {then[key]}, and now {what} {now.get(key)}")
    if device == "cuda" and not deterministic:
        found.append("without deterministic: true a GPU does not give the same bits each time")
    if now["precision"] != "fp32":
        found.append(f"{now['precision']} is only exact on the same machine and the same torch")
    return found
