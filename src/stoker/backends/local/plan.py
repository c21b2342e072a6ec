"""From a spec to the supervisor that runs it on this machine. Pure."""

import sys
from pathlib import Path

from stoker.backends.backend import Facts, Submission
from stoker.backends.local.memory import check_memory
from stoker.spec import contract
from stoker.spec.errors import MissingExtra, UserError
from stoker.spec.model import Model
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec


def plan(spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
    if facts.torch is None:
        raise MissingExtra("torch", "train")
    device = _device(spec, facts)
    workers = _workers(spec, facts, device)
    if isinstance(spec, RunSpec):
        check_memory(spec, facts, device=device, workers=workers, teacher=teacher)
    command = ("--", sys.executable, spec.script, *spec.args) if isinstance(spec, ScriptSpec) else ()
    malloc = contract.MALLOC_ENV if device == "cpu" and not command else {}  # a script keeps its own malloc settings
    return Submission(
        run=run,
        workers=workers,
        device=device,
        # -P: a file in the working directory must not shadow a module of the same name
        argv=(
            *(sys.executable, "-P", "-m", contract.SUPERVISOR_MODULE, str(run)),
            *("--workers", str(workers), *command),
        ),
        env={"OMP_NUM_THREADS": str(max(1, facts.cores // workers))} | malloc,
        secrets=dict(spec.secrets),
    )


def _device(spec: AnySpec, facts: Facts) -> str:
    if spec.on.device == "auto":
        return "cuda" if facts.gpus else "cpu"
    if spec.on.device == "cuda" and not facts.gpus:
        raise UserError(
            "on.device is cuda, but this machine has no GPU that torch can use",
            remedy="Set on.device=cpu, or see: stoker check",
        )
    return spec.on.device


def _workers(spec: AnySpec, facts: Facts, device: str) -> int:
    gpus = len(facts.gpus)
    if spec.on.workers == "auto":
        return gpus if device == "cuda" else 1
    if device == "cuda" and spec.on.workers > gpus:
        raise UserError(
            f"on.workers is {spec.on.workers}, but this machine has {gpus} GPU{'s' * (gpus != 1)}",
            remedy=f"Set on.workers={gpus}, or on.device=cpu",
        )
    return spec.on.workers
