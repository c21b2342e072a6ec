"""`stoker launch` where `on.kind` is kubernetes."""

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from stoker.api.cluster import Planned, plan, plan_dry, send, with_image
from stoker.api.opening import OpenedTraining, begin
from stoker.cli import describe, launched, output
from stoker.cli.carrying import transferring
from stoker.cli.image import building
from stoker.cli.interrupts import Interrupts
from stoker.cli.progress import preparing
from stoker.data.prepare import ignore
from stoker.kube.kinds import key_of
from stoker.launch import manifest
from stoker.launch.jobs.auto import chosen
from stoker.launch.transfer.meter import ignore as unseen
from stoker.rundir import PlaceRef, RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec
from stoker.storage.mirror import run_dir


def launch(args: argparse.Namespace, spec: AnySpec, runs: Path) -> int:
    run = RunDir(runs / spec.name)
    planned = (plan_dry if args.dry_run else plan)(spec, run, say)
    if not args.json:  # objects that go into a pipe stay alone
        print(output.pairs(_rows(spec, planned, run)), flush=True, file=sys.stderr if args.dry_run else sys.stdout)
    if args.dry_run:
        print(_dry(run, planned, folder=args.output, as_json=args.json))
        return contract.EXIT_DONE
    with Interrupts() as interrupts, all_or_nothing(run):
        with nullcontext(ignore) if args.json else preparing() as progress:
            opened = begin(spec, runs=runs, progress=progress)
        if done := opened.done:
            print(launched.as_json(run, asdict(done)) if args.json else describe.already_done(run, spec, done))
            return contract.EXIT_DONE
        if isinstance(opened, OpenedTraining) and not args.json:
            print(output.pairs(describe.goal(opened)), flush=True)
        with nullcontext(_unseen) if args.json else building() as told:
            ready = with_image(opened.spec, told)
        with nullcontext(unseen) if args.json else transferring("uploading") as carried:
            # once there is a job, its name must be told
            place = send(planned, opened, ready, carried, committed=interrupts.hold)
        print(_started(run, place, as_json=args.json), flush=True)
        return contract.EXIT_DONE


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def all_or_nothing(run: RunDir) -> Iterator[None]:
    """A new run that comes to nothing, because its image cannot be pulled or somebody pressed Ctrl-C, leaves none."""
    new = not run.exists()
    try:
        yield
    except BaseException:
        if new and run.place_ref() is None:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _unseen(what: str, done: int, total: int) -> None:
    """Nobody looks."""


def _rows(spec: AnySpec, planned: Planned, run: RunDir) -> list[tuple[str, str]]:
    on, submission = spec.on, planned.submission
    owner = submission.objects[-1]
    where = f"namespace {owner['metadata']['namespace']}"
    if planned.backend:
        cluster = planned.backend.cluster
        where = f"{cluster.who}, {where}, Kubernetes {cluster.version}"
    each = submission.workers // on.nodes.most
    shape = f"{on.nodes} node{'s' * (on.nodes != '1')} × {each} worker{'s' * (each != 1)}"
    _, why = chosen(on, planned.facts.jobs, kueue=planned.facts.kueue)
    return [
        *describe.plan(spec, submission, run_dir(run.path)),
        ("cluster", where),
        ("job", f"{key_of(owner)} {owner['metadata']['name']}, {shape}{why and f' ({why})'}"),
        *(("warning", text) for text in planned.warnings),
    ]


def _dry(run: RunDir, planned: Planned, *, folder: Path | None, as_json: bool) -> str:
    objects = planned.submission.objects
    if folder is not None:
        files = [str(path) for path in manifest.write(objects, folder)]
        return launched.as_json(run, {"files": files}) if as_json else "\n".join(files)
    return launched.as_json(run, {"objects": list(objects)}) if as_json else manifest.text(objects).rstrip()


def _started(run: RunDir, place: PlaceRef, *, as_json: bool) -> str:
    if as_json:
        return launched.as_json(run, {"state": "waiting"} | asdict(place))
    watch = ("stoker status {}", "stoker events {} -f", "stoker ps --watch")
    return launched.started(run, "in the cluster", watch=watch)
