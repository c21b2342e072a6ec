"""What `torchx run … stoker.launch.torchx:app` does: check, prepare, build, upload, and leave the job to TorchX."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from torchx.runner import config, get_runner
from torchx.schedulers import get_default_scheduler_name
from torchx.specs import AppDef

from stoker.api.cluster import bring, plan, plan_dry, with_image
from stoker.api.opening import begin
from stoker.api.origins import as_asked
from stoker.api.run import unique_name
from stoker.cli import output
from stoker.cli.carrying import transferring
from stoker.cli.image import building
from stoker.cli.launch_cluster import all_or_nothing, say
from stoker.cli.main import complain
from stoker.cli.progress import preparing
from stoker.launch.app_def import SCHEDULER, app_def
from stoker.rundir import RunDir
from stoker.spec.errors import StokerError, UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec

RUNS = Path("runs")
NAMESPACE = "default"  # TorchX's, whatever the kubeconfig says


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What `torchx run` was told beside the component."""

    dry: bool
    scheduler: str
    namespace: str
    queue: str | None


def component(file: str, words: Sequence[str]) -> AppDef:
    """With `--dryrun` nothing is made. Python's callers get errors as they are, TorchX's one line."""
    call = _call(sys.argv)
    if call is None:
        return _app(file, words, Call(dry=False, scheduler=SCHEDULER, namespace=NAMESPACE, queue=None))
    try:
        return _app(file, words, call)
    except StokerError as e:
        raise SystemExit(complain(e)) from e


def _app(file: str, words: Sequence[str], call: Call) -> AppDef:
    if call.scheduler != SCHEDULER:
        raise UserError(f"TorchX's scheduler is {call.scheduler}", remedy=f"Use -s {SCHEDULER}, or: stoker train")
    spec = as_asked(unique_name(_spec(Path(file), words, call), RUNS), runs=RUNS)
    run = RunDir(RUNS / spec.name)
    planned = (plan_dry if call.dry else plan)(spec, run, say)
    if others := planned.submission.objects[:-1]:
        raise UserError(
            f"TorchX sends one object, and this run needs a {others[0]['kind']} too",
            remedy="Start it with: stoker launch",
        )
    if call.dry:
        return app_def(spec, planned.submission)
    with all_or_nothing(run), redirect_stdout(sys.stderr):  # what TorchX prints there is the app's handle alone
        with preparing() as progress:
            opened = begin(spec, runs=RUNS, progress=progress)
        with building() as told:
            ready = with_image(opened.spec, told)
        with transferring("uploading") as carried:
            submission, _ = bring(planned, opened, ready, carried)
    rows = [("run", spec.name), ("watch", f"stoker status {spec.name}"), ("stop", f"stoker stop {spec.name}")]
    print(output.pairs(rows), file=sys.stderr, flush=True)
    return app_def(ready, submission)


def _spec(file: Path, words: Sequence[str], call: Call) -> AnySpec:
    ours = ["on.kind=kubernetes", "on.job=vcjob", *([f"on.queue={call.queue}"] if call.queue else [])]
    spec = load(file, [*words, *ours]).launchable
    said = spec.on.namespace or call.namespace
    if said != call.namespace:
        raise UserError(
            f"on.namespace is {said}, and TorchX sends the job to {call.namespace}",
            remedy=f"Say it to both: -cfg queue=…,namespace={said}",
        )
    if spec.on.context is not None:
        raise UserError(
            "on.context is set, and TorchX uses the kubeconfig's current one",
            remedy=f"Take it out, and run: kubectl config use-context {spec.on.context}",
        )
    return spec.model_copy(update={"on": spec.on.model_copy(update={"namespace": said})})


def _call(argv: Sequence[str]) -> Call | None:
    """None where no `torchx run` is at work, but Python itself."""
    program = Path(argv[0])
    if "run" not in argv or (program.name != "torchx" and program.parts[-3:] != ("torchx", "cli", "main.py")):
        return None
    asked = _parser().parse_args(argv[argv.index("run") + 1 :])
    with get_runner() as runner:
        cfg = runner.scheduler_run_opts(asked.scheduler).cfg_from_str(asked.scheduler_args)
    config.apply(scheduler=asked.scheduler, cfg=cfg)
    return Call(
        dry=asked.dryrun,
        scheduler=asked.scheduler,
        namespace=cfg.get("namespace") or NAMESPACE,
        queue=cfg.get("queue"),
    )


def _parser() -> argparse.ArgumentParser:
    """Of what TorchX has read already: its own parser cannot be asked twice."""
    scheduler = config.get_config(prefix="cli", name="run", key="scheduler") or get_default_scheduler_name()
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", "--scheduler", default=scheduler)
    parser.add_argument("-cfg", "--scheduler_args")
    for flag in ("--dryrun", "--wait", "--log"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--workspace", "--buck-target")
    parser.add_argument("--parent_run_id")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser
