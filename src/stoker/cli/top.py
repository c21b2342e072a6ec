"""`stoker top`: what each worker of a run uses of this machine."""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict

from stoker.cli import output
from stoker.cli.places import runs_argument
from stoker.cli.watch import interval, watch_argument
from stoker.observe.runs import RunRow, find, row
from stoker.observe.top import Gpu, Top, Use
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

SPAN = 0.5  # seconds that the CPU use of the first look is measured over


def top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    watch_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def top(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if run.place_ref():
        raise UserError(
            f"run '{run.name}' lives in a cluster, and top looks at this machine alone",
            remedy=f"See its pods with: stoker status {args.run}",
        )
    frames = _frames(run, as_json=args.json)
    if args.watch is None:
        print(next(frames))
    else:
        output.repeat(lambda: next(frames, None), seconds=interval(args))
    return contract.EXIT_DONE


def _frames(run: RunDir, *, as_json: bool) -> Iterator[str]:
    """Again and again while it runs, and once when it does not."""
    top = Top(run)
    now = row(run)
    if now.state == "running":
        time.sleep(SPAN)
    while True:
        used = top.look()
        now = row(run)
        yield _json(now, used) if as_json else _text(now, used)
        if now.state != "running":
            return


def _json(now: RunRow, used: list[Use]) -> str:
    head = {"name": now.name, "state": now.state, "step": now.step, "steps": now.steps}
    return json.dumps(head | {"workers": [asdict(one) for one in used]})


def _text(now: RunRow, used: list[Use]) -> str:
    of = f" of {now.steps}" if now.steps else ""
    speed = f", {output.number(now.tokens_per_second)} tokens/s" if now.tokens_per_second and used else ""
    head = f"run {now.name}  {output.painted(now.state)}  step {now.step}{of}{speed}"
    if not used:
        return f"{head}\nno worker runs"
    names = ["RANK", "PID", "CPU", "MEMORY", "THREADS"]
    rows = [[str(one.rank), str(one.pid), f"{one.cpu:.0f}%", output.size(one.memory), str(one.threads)] for one in used]
    if any(one.gpu for one in used):
        names += ["GPU", "GPU USE", "GPU MEMORY"]
        rows = [cells + _gpu(one.gpu) for cells, one in zip(rows, used, strict=True)]
    return f"{head}\n{output.table(names, rows)}"


def _gpu(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return ["-", "-", "-"]
    memory = "-" if gpu.memory is None else output.size(gpu.memory)
    of = f" of {output.size(gpu.memory_total)}" if gpu.memory_total else ""
    return [gpu.index, "-" if gpu.use is None else f"{gpu.use:.0f}%", f"{memory}{of}"]
