"""`stoker top`: what each worker of a run uses of its machine, here or in a cluster."""

import argparse
import importlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from stoker.cli import output
from stoker.cli.places import runs_argument
from stoker.cli.watch import interval, watch_argument
from stoker.observe.chips import Gpu
from stoker.observe.runs import RunRow, find, row
from stoker.observe.top import GOES_ON, Top, Use
from stoker.rundir import RunDir
from stoker.spec import contract

SPAN = 0.5  # seconds that the CPU use of the first look is measured over


def top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    watch_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def top(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    seconds = None if args.watch is None else interval(args)
    if place := run.place_ref():
        module: Any = importlib.import_module("stoker.observe.cluster_top")  # its HTTP client is heavy
        frames = _cluster_frames(run, module.ClusterTop(run, place, seconds=seconds), as_json=args.json)
    else:
        frames = _frames(run, as_json=args.json)
    if seconds is None:
        print(next(frames))
    else:
        output.repeat(lambda: next(frames, None), seconds=seconds)
    return contract.EXIT_DONE


def _cluster_frames(run: RunDir, top: Any, *, as_json: bool) -> Iterator[str]:
    """While it runs, or may again, and once when it does not."""
    while True:
        seen = top.look()
        head = {"name": run.name, "state": seen.state, "step": seen.step, "steps": seen.steps}
        if as_json:
            asked = {"unread": seen.unread, "pods": seen.pods, "asked": seen.asked}
            yield json.dumps(head | {"workers": [asdict(one) for one in seen.used]} | asked)
        else:
            of = f" of {seen.steps}" if seen.steps else ""
            lines = [f"run {run.name}  {output.painted(seen.state)}  step {seen.step}{of}"]
            cells = [[one.pod, one.machine] for one in seen.used]
            lines += [_workers(seen.used, ("POD", "NODE"), cells)] if seen.used else ["no worker runs"]
            lines += [output.printable(f"{pod} does not tell: {why}") for pod, why in seen.unread.items()]
            lines += [f"a sample: {seen.asked} of {seen.pods} pods were asked"] if seen.asked < seen.pods else []
            yield "\n".join(lines)
        if not seen.used and seen.state not in GOES_ON:
            return


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
    return f"{head}\n{_workers(used, ('PID',), [[str(one.pid)] for one in used])}"


def _workers(used: Sequence[Use], titles: tuple[str, ...], cells: list[list[str]]) -> str:
    """`titles` and `cells`: what tells where each worker is."""
    names = ["RANK", *titles, "CPU", "MEMORY", "THREADS"]
    rows = [
        [str(one.rank), *where, f"{one.cpu:.0f}%", output.size(one.memory), str(one.threads)]
        for one, where in zip(used, cells, strict=True)
    ]
    if any(one.gpu for one in used):
        names += ["GPU", "GPU USE", "GPU MEMORY"]
        rows = [row + _gpu(one.gpu) for row, one in zip(rows, used, strict=True)]
    return output.table(names, rows)


def _gpu(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return ["-", "-", "-"]
    memory = "-" if gpu.memory is None else output.size(gpu.memory)
    of = f" of {output.size(gpu.memory_total)}" if gpu.memory_total else ""
    return [gpu.index, "-" if gpu.use is None else f"{gpu.use:.0f}%", f"{memory}{of}"]
