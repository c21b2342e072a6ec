"""A run in words: what it will do, what happens to it, how it ended."""

import shlex

from stoker import api
from stoker.cli import output
from stoker.launch.backend import Submission
from stoker.observe.runs import view
from stoker.rundir import Exit, Record, RunDir
from stoker.spec import sizes
from stoker.spec.derive import micro_batches
from stoker.spec.run import RunSpec, TrainTokenizer

Rows = list[tuple[str, str]]


def plan(spec: RunSpec, submission: Submission, run: RunDir) -> Rows:
    """What is known before the data is looked at."""
    batch, model = spec.batch, spec.model
    paths = spec.data.path if isinstance(spec.data.path, list) else [spec.data.path]
    count, each = 1, -(-batch.sequences // submission.workers)
    if batch.micro:
        count, each = micro_batches(batch.sequences, world=submission.workers, most=batch.micro)
    work = f"{count} × {each} sequences each" if count > 1 else f"{each} sequence{'s' * (each != 1)} each"
    vocab = model.vocab or (spec.data.tokenizer.train if isinstance(spec.data.tokenizer, TrainTokenizer) else None)
    size = f", {output.number(sizes.parameters(model, vocab))} parameters" if vocab else ""
    return [
        ("run", f"{run.path} ({_fate(run)})"),
        ("model", f"{model.family}, {model.layers} layer{'s' * (model.layers != 1)} of width {model.width}{size}"),
        ("data", ", ".join(paths)),
        ("batch", f"{batch.sequences} × {batch.length} = {batch.sequences * batch.length:,} tokens a step"),
        ("workers", f"{submission.workers} on {submission.device}, {work}"),
    ]


def _fate(run: RunDir) -> str:
    if not run.exists():
        return "new"
    saved = view(run).checkpoint
    return "begun, without a checkpoint yet" if saved is None else f"goes on from step {saved}"


def goal(opened: api.Opened) -> Rows:
    """What the data adds to the plan."""
    spec, tokens, derived = opened.spec, opened.tokens, opened.derived
    held_out = f", {output.number(tokens.validation.tokens)} held out" if tokens.validation.tokens else ""
    parameters = output.number(sizes.parameters(spec.model, spec.model.vocab or tokens.vocab))
    end = []
    if derived.steps and derived.positions:
        epochs = f"{derived.positions / tokens.train.samples(spec.batch.length):.3g}"
        steps = f"{derived.steps:,} step{'s' * (derived.steps != 1)}"
        end.append(f"{steps} = {output.number(derived.positions * spec.batch.length)} tokens")
        end.append(f"{epochs} time{'s' * (epochs != '1')} through the data")
    if spec.until.time:
        end.append(f"at most {output.duration(spec.until.time)}")
    return [
        ("tokens", f"{output.number(tokens.train.tokens)} to train on{held_out}"),
        ("vocabulary", f"{tokens.vocab:,} tokens, so the model has {parameters} parameters"),
        ("until", ", ".join(end)),
    ]


def event(record: Record) -> str | None:
    """One line for an event that is worth one."""
    kind, step = record["kind"], record.get("step")
    if kind == "note":
        return output.printable(str(record["text"]))
    if kind == "resumed":
        return f"resumed at step {step}"
    if kind == "fallback":
        return f"the checkpoint of step {step} is damaged ({record['reason']}); the one before it is used"
    if kind == "checkpoint failed":
        return f"the checkpoint of step {step} could not be saved ({record['reason']}); training goes on"
    if kind == "skipped":
        return f"step {step} was skipped: its gradients were not finite"
    if kind == "failed":
        how = f"was killed by {record['signal']}" if record["signal"] else f"ended with code {record['code']}"
        next_thing = "; starting again from the last checkpoint" if record["again"] else ""
        return f"worker {record['rank']} {how}{next_thing}"
    return None


def ending(run: RunDir, exit: Exit, *, seconds: float) -> Rows:
    now, metrics = view(run), run.metrics()
    losses = [record["loss"] for record in metrics if "loss" in record]
    rows = [("state", f"{exit.state} at step {now.step}: {output.printable(exit.reason)}")]
    if losses:
        held_out = f"; {now.val_loss:.4f} on held-out text" if now.val_loss is not None else ""
        rows.append(("loss", f"{output.measured(losses[0])} -> {output.measured(losses[-1])}{held_out}"))
    speed = f", {output.number(now.tokens_per_second)} tokens/s" if now.tokens_per_second else ""
    rows.append(("time", f"{output.duration(seconds)}{speed}"))
    samples = [record["text"] for record in run.events() if record["kind"] == "sample"]
    if exit.state == "done" and samples:
        rows.append(("sample", output.printable(samples[-1]).strip().replace("\n", "\n" + " " * output.INDENT)))
    return [*rows, ("folder", str(run.path)), ("next", _next(run, exit))]


def _next(run: RunDir, exit: Exit) -> str:
    if exit.state == "paused":
        return exit.remedy or "run the same command again: it goes on"
    path = shlex.quote(str(run.path))
    return f"stoker status {path}  ·  stoker audit {path}"
