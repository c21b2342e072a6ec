"""`stoker replay`: show the documents of a step, and compute its loss again."""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from stoker.api.replay import Replayed, Scratch, scratch
from stoker.cli import output
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.cli.interrupts import Interrupts
from stoker.cli.progress.training import TrainingDisplay, training_display
from stoker.data.passages import Passage
from stoker.observe.runs import find
from stoker.observe.step_batch import (
    SampleView,
    StepBatch,
    documents,
    step_batch,
    stretch_of,
    stretches_of,
    token_set,
)
from stoker.rundir import Record, RunDir
from stoker.rundir.commands import require_local
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import short_duration

SAMPLES_SHOWN = 8  # by default
WIDTH = 120  # columns, if the output is not a terminal
LEAST_TEXT = 24  # columns of text, even in a narrow terminal


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step to replay, counted from 1")
    parser.add_argument(
        "--samples", type=int, metavar="K", help=f"show only the first K samples ({SAMPLES_SHOWN}; all with --json)"
    )
    parser.add_argument("--no-loss", action="store_true", help="show the documents, and do not train")
    parser.add_argument("--json", action="store_true", help="print it as JSON, with the whole text")
    runs_argument(parser)
    trust_argument(parser)


def replay(args: argparse.Namespace) -> int:
    for option, value in (("--step", args.step), ("--samples", args.samples)):
        if value is not None and value < 1:
            raise UserError(f"{option} is {value}", remedy=f"Give a number from 1, such as {option} 1")
    run = find(args.run, args.runs)
    require_local(run)
    run.spec()  # raises UserError for the run of a script, whose samples are not recorded
    stretch_of(run, stretches_of(run), args.step)
    tokens = token_set(run)
    batch = step_batch(run, args.step, tokens)
    most = args.samples or (None if args.json else SAMPLES_SHOWN)
    samples = documents(run, batch, tokens, most=most)
    if not args.json:
        print(_text(run, batch, samples), flush=True)
    result = None
    if not args.no_loss:
        result = _train(run, args.step, quiet=args.json)
        if result is None:
            return contract.EXIT_INTERRUPTED
    if args.json:
        print(json.dumps(_record(run, batch, samples, result)))
    elif result:
        print(output.pairs(_loss(result)))
    unexplained = result is not None and result.equal is False and not result.reasons
    return contract.EXIT_FAILED if unexplained else contract.EXIT_DONE


def _train(run: RunDir, step: int, *, quiet: bool) -> Replayed | None:
    """None if it was interrupted."""
    with Interrupts() as interrupts, scratch(run, step) as copy:
        interrupts.hold()
        if quiet:
            return copy.train(lambda _: bool(interrupts.received))
        print(output.pairs([("training", _plan(copy))]), flush=True)
        with training_display(steps=step, step=copy.start) as display:
            return copy.train(lambda records: _show(records, display, interrupts))


def _show(records: list[Record], display: TrainingDisplay, interrupts: Interrupts) -> bool:
    for record in records:
        display.step(record, left=None)
    return bool(interrupts.received)


def _plan(copy: Scratch) -> str:
    steps = copy.step - copy.start
    first = f"step {copy.step}" if steps == 1 else f"steps {copy.start + 1} to {copy.step}"
    if copy.start:
        where = f"from the checkpoint of step {copy.start}"
    else:
        where = f"all {steps:,} of them, as there is no earlier checkpoint" if steps > 1 else "from the beginning"
    workers = [f"{leg.workers} worker{'s' * (leg.workers != 1)}" for leg in copy.legs]
    return f"{first}, {where}, with {', then '.join(workers)}"


def _text(run: RunDir, batch: StepBatch, samples: list[SampleView]) -> str:
    count = sum(map(len, batch.ranks))
    proof = [
        "the computed order gives the same samples" if batch.in_order else "the computed order gives OTHER samples",
        "the shards hold the same tokens" if batch.in_shards else "the shards hold OTHER tokens",
    ]
    workers = f"{batch.world} worker{'s' * (batch.world != 1)}"
    rows = [
        ("run", str(run.path)),
        ("step", f"{batch.step}: {count} sample{'s' * (count != 1)} over {workers}, in attempt {batch.attempt}"),
        ("ledger", f"{proof[0]}, and {proof[1]}"),
    ]
    problems = dict.fromkeys(
        (passage.file, passage.problem) for view in samples for passage in view.documents if passage.problem
    )
    notes = [("note", f"{f'{file}: ' if file else ''}{problem}; only the text is shown") for file, problem in problems]
    if count > len(samples):
        notes.append(("more", f"{count - len(samples)} more: --samples {count} shows them"))
    return "\n".join([output.pairs(rows), "", _table(samples), "", *([output.pairs(notes)] if notes else [])]).rstrip()


def _table(samples: list[SampleView]) -> str:
    mixed = any(view.source for view in samples)
    head = ("SAMPLE", "RANK", *(("SOURCE",) if mixed else ()), "TOKENS", "FILE", "PLACE", "TEXT")
    rows = []
    for view in samples:
        for number, passage in enumerate(view.documents):
            first = (str(view.sample), str(view.rank), *((_file(view.source),) if mixed else ()))
            cells = ("",) * len(first) if number else first
            rows.append((*cells, str(passage.tokens), _file(passage.file), _place(passage), _line(passage.text)))
    others = sum(2 + max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    most = max(LEAST_TEXT, width - others)
    return output.table(head, [(*row[:-1], _shortened(row[-1], most)) for row in rows])


def _file(file: str | None) -> str:
    if file is None:
        return "-"
    current = Path.cwd()
    return output.printable(os.path.relpath(file, current) if Path(file).is_relative_to(current) else file)


def _place(passage: Passage) -> str:
    if passage.place is None:
        return "-"
    return f"{passage.counts} {passage.place}" + (f", character {passage.character}" if passage.character else "")


def _line(text: str) -> str:
    return output.printable(text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r"))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _loss(result: Replayed) -> list[tuple[str, str]]:
    loss = "not finite" if result.loss is None else repr(result.loss)
    then = "not finite" if result.recorded is None else repr(result.recorded)
    if result.equal is None:
        rows = [("loss", f"{loss}; {contract.METRICS_FILE} has no line for step {result.step} to compare it with")]
    elif result.equal:
        rows = [("loss", f"{loss}: equal to {contract.METRICS_FILE}, bit for bit")]
    else:
        by = f" by {result.difference:.3g}" if result.difference is not None else ""
        rows = [("loss", f"{loss} differs{by} from {then} in {contract.METRICS_FILE}")]
        unknown = "not known: the machine, its number of cores or OMP_NUM_THREADS may have changed"
        rows += [("because", reason) for reason in result.reasons or [unknown]]
    return [*rows, ("time", short_duration(result.seconds))]


def _record(run: RunDir, batch: StepBatch, samples: list[SampleView], result: Replayed | None) -> Record:
    loss = asdict(result) | {"equal": result.equal, "difference": result.difference} if result else None
    return {
        "run": run.name,
        "folder": str(run.path),
        "step": batch.step,
        "attempt": batch.attempt,
        "workers": batch.world,
        "in_order": batch.in_order,
        "in_shards": batch.in_shards,
        "samples": [asdict(view) for view in samples],
        "replayed": loss,
    }
