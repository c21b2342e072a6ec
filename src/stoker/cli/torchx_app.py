"""What `torchx run … stoker.cli.torchx:app` does: check, prepare, build and upload; TorchX creates the job."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from torchx.runner import config, get_runner
from torchx.schedulers import get_default_scheduler_name
from torchx.specs import AppDef

from stoker.api.launch import launch, plan
from stoker.api.run import unique_name
from stoker.backends.kubernetes.torchx import SCHEDULER, app_def
from stoker.cli import output
from stoker.cli.interrupts import Interrupts
from stoker.cli.launch_display import ProgressListener
from stoker.cli.main import report_error
from stoker.rundir.commands import default_runs
from stoker.spec.errors import StokerError, UserError
from stoker.spec.load import load
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec
from stoker.storage.mirror import place

NAMESPACE = "default"  # TorchX does not use the kubeconfig's


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchxOptions:
    """Options of `torchx run` itself."""

    dry: bool
    scheduler: str
    namespace: str
    queue: str | None


def component(file: str, overrides: Sequence[str]) -> AppDef:
    """With `--dryrun` nothing is created. Called from Python it raises errors; from `torchx run` it prints one line."""
    options = _options(sys.argv)
    if options is None:
        default = TorchxOptions(dry=False, scheduler=SCHEDULER, namespace=NAMESPACE, queue=None)
        return _app(file, overrides, default)
    try:
        return _app(file, overrides, options)
    except StokerError as e:
        raise SystemExit(report_error(e)) from e


def _app(file: str, overrides: Sequence[str], options: TorchxOptions) -> AppDef:
    if options.scheduler != SCHEDULER:
        raise UserError(f"TorchX's scheduler is {options.scheduler}", remedy=f"Use -s {SCHEDULER}, or: stoker train")
    runs = place(default_runs())
    spec = unique_name(_spec(Path(file), overrides, options), runs)
    planned = plan(spec, runs=runs, message=_message, offline=options.dry)
    if others := planned.submission.objects[:-1]:
        raise UserError(
            f"TorchX creates one object, and this run also needs a {others[0]['kind']}",
            remedy="Start it with: stoker launch",
        )
    if options.dry:
        return app_def(planned.spec, planned.submission)
    name = planned.spec.name
    with redirect_stdout(sys.stderr), Interrupts() as interrupts:  # TorchX prints only the app's handle on stdout
        with ProgressListener(interrupts) as listener:
            launched = launch(planned, listener=listener, submit=False)
        print(output.pairs([("run", name), ("watch", f"stoker status {name}"), ("stop", f"stoker stop {name}")]))
    return app_def(launched.spec, launched.submission)


def _message(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _spec(file: Path, overrides: Sequence[str], options: TorchxOptions) -> AnySpec:
    fixed = ["on.kind=kubernetes", "on.job=vcjob", *([f"on.queue={options.queue}"] if options.queue else [])]
    spec = load(file, [*overrides, *fixed]).launchable
    on = kubernetes_on(spec)
    namespace = on.namespace or options.namespace
    if namespace != options.namespace:
        raise UserError(
            f"on.namespace is {namespace}, and TorchX creates the job in {options.namespace}",
            remedy=f"Give TorchX the same: -cfg queue=…,namespace={namespace}",
        )
    if on.context is not None:
        raise UserError(
            "on.context is set, and TorchX uses the current context of the kubeconfig",
            remedy=f"Remove it, and run: kubectl config use-context {on.context}",
        )
    return spec.model_copy(update={"on": on.model_copy(update={"namespace": namespace})})


def _options(argv: Sequence[str]) -> TorchxOptions | None:
    """None if this process is not `torchx run`."""
    program = Path(argv[0])
    if "run" not in argv or (program.name != "torchx" and program.parts[-3:] != ("torchx", "cli", "main.py")):
        return None
    args = _parser().parse_args(argv[argv.index("run") + 1 :])
    with get_runner() as runner:
        cfg = runner.scheduler_run_opts(args.scheduler).cfg_from_str(args.scheduler_args)
    config.apply(scheduler=args.scheduler, cfg=cfg)
    return TorchxOptions(
        dry=args.dryrun,
        scheduler=args.scheduler,
        namespace=cfg.get("namespace") or NAMESPACE,
        queue=cfg.get("queue"),
    )


def _parser() -> argparse.ArgumentParser:
    """Parses again what TorchX has parsed: its parser has no public interface."""
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
