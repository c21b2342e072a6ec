"""`stoker train`: prepare, start, follow, and tell how it ended."""

import argparse
import signal
import time
from pathlib import Path

from stoker import api
from stoker.cli import output
from stoker.cli.interrupts import Interrupts
from stoker.cli.progress import Display, display, preparing
from stoker.launch.backend import Running, Submission
from stoker.observe.logs import last_lines
from stoker.observe.runs import seconds_left, view
from stoker.observe.tail import Tail
from stoker.rundir import Exit, Record, RunDir
from stoker.spec import contract, sizes
from stoker.spec.derive import micro_batches
from stoker.spec.errors import RunFailed, SavedForLater, UserError
from stoker.spec.load import load
from stoker.spec.run import RunSpec, TrainTokenizer

POLL = 0.2  # seconds between two looks at the run
LOG_LINES = 15


def train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN.yaml key=value", help="the run file, and values that overrule it"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (./runs)")
    parser.add_argument(
        "--new", action="store_true", help="start another run instead of going on with the one there is"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")


def train(args: argparse.Namespace) -> int:
    file, words = _file_and_words(args.words)
    spec = load(file, words).spec
    if args.new:
        spec = api.free_name(spec, args.runs)
    run = RunDir(args.runs / spec.name)
    submission = api.plan(spec, run)
    print(output.pairs(_plan(spec, submission, run)), flush=True)
    if args.dry_run:
        print(output.pairs([("command", " ".join(submission.argv))]))
        return contract.EXIT_DONE
    with Interrupts() as interrupts:
        with preparing() as progress:
            opened = api.open_run(spec, runs=args.runs, progress=progress)
        if opened.done:
            print(f"run '{run.name}' is done: {opened.done.reason}. Raise until to go on, or start another with --new")
            return contract.EXIT_DONE
        print(output.pairs(_goal(opened)), flush=True)
        interrupts.hold()
        if interrupts.received:
            raise SavedForLater("stopped before training began", remedy="The same command goes on")
        began = time.monotonic()
        code = _follow(opened, interrupts)
        return _end(opened, code, interrupts, seconds=time.monotonic() - began)


def _file_and_words(words: list[str]) -> tuple[Path | None, list[str]]:
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise UserError(f"{files[1]} is a second run file", remedy="Give one, and the rest as key=value")
    if not words:
        raise UserError("train what?", remedy="Write: stoker train RUN.yaml, or let stoker init DATA write one")
    return Path(files[0]) if files else None, [word for word in words if word not in files]


def _plan(spec: RunSpec, submission: Submission, run: RunDir) -> list[tuple[str, str]]:
    batch, model = spec.batch, spec.model
    vocab = model.vocab or (spec.data.tokenizer.train if isinstance(spec.data.tokenizer, TrainTokenizer) else None)
    parameters = f", {output.number(sizes.parameters(model, vocab))} parameters" if vocab else ""
    share = -(-batch.sequences // submission.workers)
    each = f"{share} sequences each"
    if batch.micro:
        count, width = micro_batches(batch.sequences, world=submission.workers, most=batch.micro)
        each = f"{count} micro-batch{'es' * (count != 1)} of {width} each"
    saved = view(run).checkpoint if run.exists() else None
    fate = (
        f"goes on from step {saved}"
        if saved is not None
        else "is there, without a checkpoint"
        if run.exists()
        else "new"
    )
    paths = spec.data.path if isinstance(spec.data.path, list) else [spec.data.path]
    return [
        ("run", f"{run.path} ({fate})"),
        ("model", f"{model.family}, {model.layers} layers of width {model.width}{parameters}"),
        ("data", ", ".join(paths)),
        ("batch", f"{batch.sequences} × {batch.length} = {batch.sequences * batch.length:,} tokens a step"),
        ("workers", f"{submission.workers} on {submission.device}, {each}"),
    ]


def _goal(opened: api.Opened) -> list[tuple[str, str]]:
    spec, tokens, steps = opened.spec, opened.tokens, opened.derived.steps
    parameters = output.number(sizes.parameters(spec.model, spec.model.vocab or tokens.vocab))
    held_out = f", and {output.number(tokens.validation.tokens)} held out" if tokens.validation.tokens else ""
    end = [f"{steps:,} steps = {output.number(steps * opened.derived.tokens_per_step)} tokens"] if steps else []
    if steps:
        epochs = steps * spec.batch.sequences / tokens.train.samples(spec.batch.length)
        end.append(f"{epochs:.3g} times through the data")
    if spec.until.time:
        end.append(f"at most {output.duration(spec.until.time)}")
    return [
        ("tokens", f"{output.number(tokens.train.tokens)} to train on{held_out}; {tokens.vocab:,} in the tokenizer"),
        ("size", f"{parameters} parameters"),
        ("until", ", ".join(end)),
    ]


def _follow(opened: api.Opened, interrupts: Interrupts) -> int:
    """Show what the run writes down until it has ended; returns the supervisor's exit code."""
    run = opened.run
    events = Tail.from_now(run.path / contract.EVENTS_FILE)
    metrics = Tail.from_now(run.path / contract.METRICS_FILE)
    running = api.submit(opened)
    passed_on = 0
    started: Record = {}
    with display(steps=opened.derived.steps, step=view(run).checkpoint or 0) as screen:
        while True:
            code = running.poll()  # before reading: all that was written before the end is read
            for event in events.records():
                started = event if event["kind"] == "started" else started
                _tell(event, screen)
            for record in metrics.records():
                screen.step(record, left=seconds_left(started, record, record["step"]))
            if code is not None:
                return code
            if len(interrupts.received) > passed_on:
                passed_on = _pass_on(interrupts, running, screen)
            time.sleep(POLL)


def _pass_on(interrupts: Interrupts, running: Running, screen: Display) -> int:
    first = len(interrupts.received) == 1
    screen.note("saving … (again to stop at once)" if first else "stopping at once")
    running.stop()
    return len(interrupts.received)


def _tell(event: Record, screen: Display) -> None:
    """The events worth a line."""
    kind, step = event["kind"], event.get("step")
    if kind == "note":
        screen.note(event["text"])
    elif kind == "resumed":
        screen.note(f"resumed at step {step}")
    elif kind == "fallback":
        screen.note(f"the checkpoint of step {step} is damaged ({event['reason']}); the one before it is used")
    elif kind == "checkpoint failed":
        screen.note(f"the checkpoint of step {step} could not be saved ({event['reason']}); training goes on")
    elif kind == "skipped":
        screen.note(f"step {step} was skipped: its gradients were not finite")
    elif kind == "failed":
        how = f"was killed by {event['signal']}" if event["signal"] else f"ended with code {event['code']}"
        screen.note(f"worker {event['rank']} {how}" + ("; starting again from the last checkpoint" * event["again"]))


def _end(opened: api.Opened, code: int, interrupts: Interrupts, *, seconds: float) -> int:
    run = opened.run
    if interrupts.received and run.exit() is None:
        exit = Exit(state="paused", code=contract.EXIT_SAVED, step=None, reason="stopped before training began")
    else:
        exit = api.ending(run, code)
    if exit.state == "failed":
        raise _failure(run, exit)
    _summary(opened, exit, seconds)
    if exit.state == "done" or exit.code == contract.EXIT_DONE:
        return contract.EXIT_DONE
    if interrupts.received:
        return contract.EXIT_INTERRUPTED if interrupts.received[0] == signal.SIGINT else contract.EXIT_SAVED
    if _was_asked(run):
        return contract.EXIT_DONE
    raise SavedForLater(exit.reason, remedy=exit.remedy or "The same command goes on")


def _failure(run: RunDir, exit: Exit) -> UserError | RunFailed:
    if exit.code == contract.EXIT_USER:
        return UserError(exit.reason, remedy=exit.remedy)
    if exit.rank is not None:
        print(f"the end of the log of worker {exit.rank}:")
        for line in last_lines(run.log(exit.rank), LOG_LINES):
            print(f"  | {line}")
    return RunFailed(f"run '{run.name}' failed: {exit.reason}", remedy=exit.remedy)


def _was_asked(run: RunDir) -> bool:
    """By `stoker stop`: the supervisor was told to, and not by this command."""
    kinds = [event["kind"] for event in run.events()]
    return "stopping" in kinds[len(kinds) - 1 - kinds[::-1].index("world") :] if "world" in kinds else False


def _summary(opened: api.Opened, exit: Exit, seconds: float) -> None:
    run, now = opened.run, view(opened.run)
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    rows = [("state", f"{exit.state} at step {now.step}: {exit.reason}")]
    if losses:
        validation = f"; {now.val_loss:.4f} on held-out text" if now.val_loss is not None else ""
        rows.append(("loss", f"{losses[0]:.4f} -> {losses[-1]:.4f}{validation}"))
    speed = f", {output.number(now.tokens_per_second)} tokens/s" if now.tokens_per_second else ""
    rows.append(("time", f"{output.duration(seconds)}{speed}"))
    rows.append(("folder", str(run.path)))
    samples = [event["text"] for event in run.events() if event["kind"] == "sample"]
    if exit.state == "done" and samples:
        rows.append(("sample", samples[-1].strip().replace("\n", "\n" + " " * 13)))
    rows.append(("next", f"stoker status {run.path}  ·  stoker audit {run.path}"))
    print(output.pairs(rows), flush=True)
