"""`stoker replay`: the documents of a step, and its loss computed anew."""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from stoker.api.replay import Replayed, Scratch, scratch
from stoker.cli import output
from stoker.cli.interrupts import Interrupts
from stoker.cli.places import runs_argument, trust_argument
from stoker.cli.progress import Display, display
from stoker.data.passages import Passage
from stoker.observe.batch import SampleView, StepBatch, batch, documents, line, reached, token_set
from stoker.observe.runs import find
from stoker.rundir import Record, RunDir
from stoker.rundir.elsewhere import refuse_elsewhere
from stoker.spec import contract
from stoker.spec.errors import UserError

SHOWN = 8  # samples in the table, unless told
WIDTH = 120  # columns, where there is no terminal that has a width
SHORTEST = 24  # columns of text, however narrow the terminal


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step to look into, counted from 1")
    parser.add_argument(
        "--samples", type=int, metavar="K", help=f"show only the first K samples ({SHOWN}; all of them with --json)"
    )
    parser.add_argument("--no-loss", action="store_true", help="show the documents and train nothing")
    parser.add_argument("--json", action="store_true", help="print it as JSON, with the whole text")
    runs_argument(parser)
    trust_argument(parser)


def replay(args: argparse.Namespace) -> int:
    for option, value in (("--step", args.step), ("--samples", args.samples)):
        if value is not None and value < 1:
            raise UserError(f"{option} is {value}", remedy=f"Give a number from 1, such as {option} 1")
    run = find(args.run, args.runs)
    refuse_elsewhere(run)
    run.spec()  # of a script nothing is known
    reached(run, line(run), args.step)
    tokens = token_set(run)
    found = batch(run, args.step, tokens)
    most = args.samples or (None if args.json else SHOWN)
    samples = documents(run, found, tokens, most=most)
    if not args.json:
        print(_text(run, found, samples), flush=True)
    result = None
    if not args.no_loss:
        result = _train(run, args.step, quiet=args.json)
        if result is None:
            return contract.EXIT_INTERRUPTED
    if args.json:
        print(json.dumps(_record(run, found, samples, result)))
    elif result:
        print(output.pairs(_loss(result)))
    unexplained = result is not None and result.equal is False and not result.reasons
    return contract.EXIT_FAILED if unexplained else contract.EXIT_DONE


def _train(run: RunDir, step: int, *, quiet: bool) -> Replayed | None:
    """None when it was interrupted."""
    with Interrupts() as interrupts, scratch(run, step) as copy:
        interrupts.hold()
        if quiet:
            return copy.train(lambda _: bool(interrupts.received))
        print(output.pairs([("again", _plan(copy))]), flush=True)
        with display(steps=step, step=copy.start) as screen:
            return copy.train(lambda records: _show(records, screen, interrupts))


def _show(records: list[Record], screen: Display, interrupts: Interrupts) -> bool:
    for record in records:
        screen.step(record, left=None)
    return bool(interrupts.received)


def _plan(copy: Scratch) -> str:
    steps = copy.step - copy.start
    first = f"step {copy.step}" if steps == 1 else f"steps {copy.start + 1} to {copy.step}"
    if copy.start:
        where = f"from the checkpoint of step {copy.start}"
    else:
        where = f"all {steps:,} of them, for there is no checkpoint before" if steps > 1 else "from the beginning"
    workers = [f"{leg.workers} worker{'s' * (leg.workers != 1)}" for leg in copy.legs]
    return f"{first}, {where}, with {', then '.join(workers)}"


def _text(run: RunDir, found: StepBatch, samples: list[SampleView]) -> str:
    count = sum(map(len, found.ranks))
    proof = [
        "the order of samples gives the same" if found.in_order else "the order of samples gives OTHERS",
        "the shards hold the very tokens" if found.in_shards else "the shards hold OTHER tokens",
    ]
    workers = f"{found.world} worker{'s' * (found.world != 1)}"
    rows = [
        ("run", str(run.path)),
        ("step", f"{found.step}: {count} sample{'s' * (count != 1)} over {workers}, in attempt {found.attempt}"),
        ("ledger", f"{proof[0]}, and {proof[1]}"),
    ]
    problems = dict.fromkeys((one.file, one.problem) for view in samples for one in view.documents if one.problem)
    notes = [("note", f"{f'{file}: ' if file else ''}{problem}; only the text is shown") for file, problem in problems]
    if count > len(samples):
        notes.append(("more", f"{count - len(samples)} more: --samples {count} shows them"))
    return "\n".join([output.pairs(rows), "", _table(samples), "", *([output.pairs(notes)] if notes else [])]).rstrip()


def _table(samples: list[SampleView]) -> str:
    mixed = any(view.source for view in samples)
    head = ("SAMPLE", "RANK", *(("SOURCE",) if mixed else ()), "TOKENS", "FILE", "PLACE", "TEXT")
    rows = []
    for view in samples:
        for number, one in enumerate(view.documents):
            who = (str(view.sample), str(view.rank), *((_file(view.source),) if mixed else ()))
            who = ("",) * len(who) if number else who
            rows.append((*who, str(one.tokens), _file(one.file), _place(one), _line(one.text)))
    taken = sum(2 + max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    most = max(SHORTEST, width - taken)
    return output.table(head, [(*row[:-1], _shortened(row[-1], most)) for row in rows])


def _file(file: str | None) -> str:
    if file is None:
        return "-"
    here = Path.cwd()
    return output.printable(os.path.relpath(file, here) if Path(file).is_relative_to(here) else file)


def _place(one: Passage) -> str:
    if one.place is None:
        return "-"
    return f"{one.counts} {one.place}" + (f", character {one.character}" if one.character else "")


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
        apart = result.difference
        by = f" by {apart:.3g}" if apart is not None else ""
        rows = [("loss", f"{loss} differs{by} from {then} in {contract.METRICS_FILE}")]
        unknown = "no reason is known: the machine, its number of cores or OMP_NUM_THREADS may be another"
        rows += [("because", reason) for reason in result.reasons or [unknown]]
    return [*rows, ("time", output.duration(result.seconds))]


def _record(run: RunDir, found: StepBatch, samples: list[SampleView], result: Replayed | None) -> Record:
    loss = asdict(result) | {"equal": result.equal, "difference": result.difference} if result else None
    return {
        "run": run.name,
        "folder": str(run.path),
        "step": found.step,
        "attempt": found.attempt,
        "workers": found.world,
        "in_order": found.in_order,
        "in_shards": found.in_shards,
        "samples": [asdict(view) for view in samples],
        "replayed": loss,
    }
