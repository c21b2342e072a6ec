"""`stoker top`: CPU, memory and GPU of each worker of a run."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.backends.backend import Usage
from stoker.backends.local.accelerator import Accelerator
from stoker.backends.local.top import Use
from stoker.cli import output
from stoker.cli.arguments import runs_argument
from stoker.cli.ps import interval, watch_argument
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.units import short_number


def top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    watch_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def top(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    every_s = None if args.watch is None else interval(args)
    frames = (_frame(run, usage, as_json=args.json) for usage in backend_of(run).top(run, every_s=every_s))
    if every_s is None:
        print(next(frames))
    else:
        output.repeat(lambda: next(frames, None), seconds=every_s)
    return contract.EXIT_DONE


def _frame(run: RunDir, usage: Usage, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"name": run.name} | asdict(usage))
    of = f" of {usage.steps}" if usage.steps else ""
    speed = f", {short_number(usage.tokens_per_second)} tokens/s" if usage.tokens_per_second and usage.workers else ""
    lines = [f"run {run.name}  {output.painted(usage.state)}  step {usage.step}{of}{speed}"]
    lines.append(_table(usage.workers) if usage.workers else "no worker is running")
    lines += [output.printable(f"{pod} does not answer: {reason}") for pod, reason in usage.unread.items()]
    if usage.asked < usage.pods:
        lines.append(f"a sample: {usage.asked} of {usage.pods} pods were asked")
    return "\n".join(lines)


def _table(workers: Sequence[Use]) -> str:
    if any(worker.pod for worker in workers):
        return _workers(workers, ("POD", "NODE"), [[worker.pod, worker.machine] for worker in workers])
    return _workers(workers, ("PID",), [[str(worker.pid)] for worker in workers])


def _workers(workers: Sequence[Use], titles: tuple[str, ...], cells: list[list[str]]) -> str:
    """`titles` and `cells`: the columns that identify a worker."""
    names = ["RANK", *titles, "CPU", "MEMORY", "THREADS"]
    rows = [
        [str(worker.rank), *location, f"{worker.cpu:.0f}%", output.size(worker.memory), str(worker.threads)]
        for worker, location in zip(workers, cells, strict=True)
    ]
    if any(worker.gpu for worker in workers):
        names += ["GPU", "GPU USE", "GPU MEMORY"]
        rows = [row + _gpu(worker.gpu) for row, worker in zip(rows, workers, strict=True)]
    return output.table(names, rows)


def _gpu(gpu: Accelerator | None) -> list[str]:
    if gpu is None:
        return ["-", "-", "-"]
    memory = "-" if gpu.memory is None else output.size(gpu.memory)
    of = f" of {output.size(gpu.memory_total)}" if gpu.memory_total else ""
    return [gpu.index, "-" if gpu.use is None else f"{gpu.use:.0f}%", f"{memory}{of}"]
