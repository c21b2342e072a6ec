"""What a node runs: pure, from a spec and the facts of the place."""

import sys
from pathlib import Path

from stoker.launch.backend import Facts, Submission
from stoker.launch.room import check_room
from stoker.spec.errors import MissingExtra, UserError
from stoker.spec.model import Model
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

SUPERVISOR = "stoker.supervise"
# glibc gives every large tensor's pages back and faults them in anew, step after step; kept, they are used again.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(64 * 2**20)}


def submission(spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
    if facts.torch is None:
        raise MissingExtra("torch", "train")
    device = _device(spec, facts)
    workers = _workers(spec, facts, device)
    if isinstance(spec, RunSpec):
        check_room(spec, facts, device=device, workers=workers, teacher=teacher)
    command = ("--", sys.executable, spec.script, *spec.args) if isinstance(spec, ScriptSpec) else ()
    pages = KEEP_PAGES if device == "cpu" and not command else {}  # what a script does with memory is its own affair
    return Submission(
        run=run,
        workers=workers,
        device=device,
        # -P: a file of the user's that is called like a module must not take its place
        argv=(sys.executable, "-P", "-m", SUPERVISOR, str(run), "--workers", str(workers), *command),
        env={"OMP_NUM_THREADS": str(max(1, facts.cores // workers))} | pages,
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
