"""Summaries of a run: its plan, its goal, noteworthy events, how it ended."""

import shlex

from stoker.api.opening import OpenedTraining
from stoker.backends import secrets
from stoker.backends.backend import Submission
from stoker.cli import output
from stoker.cli.events import sentence
from stoker.rundir import Exit, RunDir, events
from stoker.rundir.state import RunState
from stoker.rundir.view import view
from stoker.spec import estimate
from stoker.spec.code import is_code
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.derive import micro_batches, short_schedule
from stoker.spec.model import Model
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.spec.units import short_duration, short_number

Rows = list[tuple[str, str]]
SHOWN_WHILE_TRAINING = (
    events.Note, events.Resumed, events.WaitingForData, events.WaitingForNodes, events.Fallback,
    events.CheckpointFailed, events.StepSkipped, events.Failed, events.NodeLost, events.NodeLeft, events.Regrouping,
    events.RunScaled,
)  # fmt: skip


def plan(spec: AnySpec, submission: Submission, run: RunDir) -> Rows:
    """What is known before the data is prepared."""
    if isinstance(spec, ScriptSpec):
        return [
            ("run", f"{run.shown} ({'exists: the script starts again' if run.exists() else 'new'})"),
            ("script", shlex.join([spec.script, *spec.args])),
            ("workers", f"{submission.workers} on {submission.device}"),
            *_warnings(spec),
        ]
    batch, model = spec.batch, spec.model
    count, each = 1, -(-batch.sequences // submission.workers)
    if batch.micro:
        count, each = micro_batches(batch.sequences, world=submission.workers, max_size=batch.micro)
    work = f"{count} × {each} sequences each" if count > 1 else f"{each} sequence{'s' * (each != 1)} each"
    vocab = model.vocab or (spec.data.tokenizer.train if isinstance(spec.data.tokenizer, TrainTokenizer) else None)
    return [
        ("run", f"{run.shown} ({_progress(run)})"),
        ("model", _model(model, vocab)),
        ("data", _data(spec.data)),
        ("batch", f"{batch.sequences} × {batch.length} = {batch.sequences * batch.length:,} tokens per step"),
        ("workers", f"{submission.workers} on {submission.device}, {work}"),
        *_warnings(spec),
    ]


def _warnings(spec: AnySpec) -> Rows:
    return [("warning", text) for text in secrets.warnings(spec)]


def _data(data: Data) -> str:
    if data.mix:
        total = sum(part.weight for part in data.mix)
        return ", ".join(f"{part.weight / total:.3g} of {' '.join(part.paths)}" for part in data.mix)
    return ", ".join(data.paths) + (" (a stream)" if data.stream else "")


def _model(model: Model, vocab: int | None) -> str:
    """The size of a model of the user's own is known only when it is built."""
    if is_code(model.family):
        return f"{model.family}, your own"
    size = f", {short_number(estimate.parameters(model, vocab))} parameters" if vocab else ""
    return f"{model.family}, {model.layers} layer{'s' * (model.layers != 1)} of width {model.width}{size}"


def _progress(run: RunDir) -> str:
    if not run.exists():
        return "new"
    saved = view(run).checkpoint
    return "started, no checkpoint yet" if saved is None else f"resumes from step {saved}"


def goal(opened: OpenedTraining) -> Rows:
    """What is known once the data is prepared: tokens, vocabulary, steps."""
    spec, tokens, derived = opened.spec, opened.tokens, opened.derived
    held_out = f", {short_number(tokens.validation.tokens)} held out" if tokens.validation.tokens else ""
    vocabulary = f"{tokens.vocab:,} tokens"
    if not is_code(spec.model.family):
        parameters = estimate.parameters(spec.model, spec.model.vocab or tokens.vocab)
        vocabulary += f", so the model has {short_number(parameters)} parameters"
    end = []
    if derived.steps and derived.positions:
        steps = f"{derived.steps:,} step{'s' * (derived.steps != 1)}"
        end.append(f"{steps} = {short_number(derived.positions * spec.batch.length)} tokens")
        if tokens.whole and not spec.data.mix:
            epochs = f"{derived.positions / tokens.train.samples(spec.batch.length):.3g}"
            end.append(f"{epochs} epoch{'s' * (epochs != '1')}")
    if spec.until.time:
        end.append(f"at most {short_duration(spec.until.time)}")
    return [
        ("tokens", f"{short_number(tokens.train.tokens)} to train on{'' if tokens.whole else ' so far'}{held_out}"),
        ("vocabulary", vocabulary),
        ("until", ", ".join(end)),
        *([("warning", str(short))] if (short := short_schedule(spec.optim, derived)) else []),
    ]


def shown_while_training(event: events.Event) -> str | None:
    """The sentence of an event that is printed while a run is followed; None for the others."""
    return sentence(event) if isinstance(event, SHOWN_WHILE_TRAINING) else None


def ending(run: RunDir, exit: Exit, *, seconds: float) -> Rows:
    now, metrics = view(run), run.metrics()
    losses = [record["loss"] for record in metrics if "loss" in record]
    script = isinstance(run.any_spec(), ScriptSpec)
    at = "" if script and not now.step else f" at step {now.step}"  # a script need not report its steps
    rows = [("state", f"{exit.state}{at}: {output.printable(exit.reason)}")]
    if losses:
        held_out = f"; {now.val_loss:.4f} on held-out text" if now.val_loss is not None else ""
        rows.append(("loss", f"{output.measured(losses[0])} -> {output.measured(losses[-1])}{held_out}"))
    speed = f", {short_number(now.tokens_per_second)} tokens/s" if now.tokens_per_second else ""
    rows.append(("time", f"{short_duration(seconds)}{speed}"))
    samples = [event.text for event in run.events() if isinstance(event, events.Sample)]
    if exit.state == RunState.DONE and samples:
        rows.append(("sample", output.printable(samples[-1]).strip().replace("\n", "\n" + " " * output.INDENT)))
    return [*rows, ("folder", str(run.path)), ("next", _next(run, exit, script=script))]


def _next(run: RunDir, exit: Exit, *, script: bool) -> str:
    if exit.state == RunState.PAUSED:
        return exit.remedy or "run the same command again to resume"
    path = shlex.quote(str(run.path))
    return f"stoker status {path}  ·  stoker {'logs' if script else 'audit'} {path}"


def already_done(run: RunDir, spec: AnySpec, exit: Exit) -> str:
    remedy = "Start" if isinstance(spec, ScriptSpec) else "Raise until to train further, or start"
    return f"run '{run.name}' is done: {exit.reason}. {remedy} another with --new"
