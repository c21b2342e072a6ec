"""Checkpoints: written beside training, whole only when their manifest is there, read back at any number of workers."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stoker.rundir import Record, RunDir, Saved, write_json
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import Checkpoint
from stoker.train.dist import Ranks, from_first
from stoker.train.reader import TABLE, CheckpointReader

Tensors = dict[str, Any]  # nested dicts of tensors, as torch.distributed.checkpoint takes them

Files = dict[str, dict[str, Any]]  # name -> bytes and sha256

SHARE_OF_TIME = 0.01  # what `every: auto` may cost
SHORTEST_INTERVAL_S = 60.0
# A network file system may take a minute to show one machine what another has just written.
TRIES, PAUSE_S = 16, 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a save went, the same on every worker."""

    seconds: float
    problem: str | None


class Checkpoints:
    def __init__(
        self,
        run: RunDir,
        me: Ranks,
        plan: Checkpoint,
        *,
        saved: Callable[[int], None] = lambda _step: None,
        confirm: Callable[[dist.ProcessGroup], str | None] = lambda _group: None,
    ) -> None:
        """`saved` is told, on the first worker, each step whose checkpoint has become whole.

        `confirm` is called by every worker, in the thread that saves and with its group, before a checkpoint counts: it
        gives the reason when it must not.
        """
        self.run, self.me, self.plan, self._saved, self._confirm = run, me, plan, saved, confirm
        # torch's collectives of one group must not be used by two threads at once: saving has a group of its own.
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[Outcome]] | None = None
        self._newest: int | None = None
        """The step last saved or loaded. Kept here, not read from the disk: all workers must decide alike."""
        self._last_time = time.monotonic()
        self._cost_s = 0.0

    def due(self, step: int) -> bool:
        """By the number of steps."""
        every = self.plan.every
        if isinstance(every, int):
            return step % every == 0
        if isinstance(every, list):
            interval = next((n for n, until in every if step <= until), every[-1][0])
            return step % interval == 0
        return False

    def overdue(self) -> bool:
        """By the clock; the first worker's counts for all."""
        every = self.plan.every
        if every == "auto":
            every = max(SHORTEST_INTERVAL_S, self._cost_s / SHARE_OF_TIME)  # what training waited for the last save
        saving = self._pending is not None and not self._pending[1].done()  # training would wait for it
        return isinstance(every, float) and not saving and time.monotonic() - self._last_time >= every

    def save(self, step: int, tensors: Tensors, state: Record) -> None:
        """Copy now, write beside training. Every worker calls this at the same step."""
        self.settle(wait=True)
        if step == self._newest:
            return
        self._newest = step
        began = time.monotonic()
        staged = _copy(tensors)
        state = state | {"resume": self.plan.resume}
        manifest = {"step": step, "time": time.time(), "world": self.me.world, "state": state}
        self._pending = step, self._writer.submit(self._write, step, staged, manifest)
        self._last_time = time.monotonic()
        self._cost_s = self._last_time - began

    def settle(self, *, wait: bool) -> str | None:
        """Note how the last save ended, if it has, and return what went wrong. A failed one leaves nothing behind."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return None
        (step, future), self._pending = self._pending, None
        began = time.monotonic()
        outcome = future.result()
        self._cost_s += time.monotonic() - began
        if outcome.problem:
            self._newest = None
            if self.me.first:
                shutil.rmtree(self.run.checkpoint(step), ignore_errors=True)
                self.run.add_event("checkpoint failed", rank=0, step=step, reason=outcome.problem)
        elif self.me.first:
            self.run.add_event("checkpoint", rank=0, step=step, seconds=round(outcome.seconds, 3))
            self._prune()
            self._saved(step)
        return outcome.problem

    def load(self, tensors: Tensors) -> Saved | None:
        """Fill the tensors from the newest checkpoint that is whole and undamaged."""
        saved = from_first(self._choose() if self.me.first else None)
        if saved is None:
            return None
        assert isinstance(saved, Saved)
        self._newest = saved.step
        for left in reversed(range(TRIES)):
            try:
                reader = CheckpointReader(self.run.checkpoint(saved.step))
                load(tensors, storage_reader=reader, process_group=self._group)
                break
            except CheckpointException as e:  # the same on every worker
                if not _has_failed_with(FileNotFoundError, e) or not left:  # the first has seen every file
                    raise _refusal(saved, e) from e
            time.sleep(PAUSE_S)
        return saved

    def close(self) -> None:
        """Let a save that is under way come to its end: the collectives that it uses are about to go."""
        self._writer.shutdown(wait=True)

    def _choose(self) -> Saved | None:
        for path in self.run.checkpoints.glob(contract.CHECKPOINT_GLOB):
            # Listed, not looked for: what was not there once may be missing in a network file system's memory alone.
            if path.is_dir() and contract.MANIFEST_FILE not in os.listdir(path):
                shutil.rmtree(path, ignore_errors=True)  # a save that was cut off
        if self.plan.resume != "auto":
            self._go_back(self.plan.resume)
        whole = [
            p for p in self.run.checkpoints.glob(contract.CHECKPOINT_GLOB) if (p / contract.MANIFEST_FILE).exists()
        ]
        for path in sorted(whole, reverse=True):
            step, problem = int(path.name.removeprefix("step-")), damage(path)
            if problem is None:
                return next(saved for saved in self.run.saved() if saved.step == step)
            _set_aside(path, "damaged")
            self.run.add_event("fallback", rank=0, step=step, reason=problem)
        return None

    def _go_back(self, step: int) -> None:
        """Once: what is saved from then on carries the step that it was sent back to, and is gone on from."""
        whole = self.run.saved()
        if whole and whole[-1].manifest.get("state", {}).get("resume") == step:
            return
        there = [saved.step for saved in whole]
        if step and step not in there:
            steps = ", ".join(map(str, there)) or "none"
            raise UserError(
                f"checkpoint.resume is {step}, and there is no checkpoint of that step",
                remedy=f"Set it to auto or to a step that was saved ({steps})",
            )
        for saved in whole:
            if saved.step > step:
                _set_aside(saved.path, "left")

    def _write(self, step: int, tensors: Tensors, manifest: Record) -> Outcome:
        """Each worker tells of the files that it wrote: no machine need read or even see those of another yet."""
        began, path = time.monotonic(), self.run.checkpoint(step)
        problem, mine = None, {}
        try:
            save(tensors, storage_writer=FileSystemWriter(path), process_group=self._group)
            mine = _files(path, rank=self.me.rank)
        except (OSError, CheckpointException) as e:
            problem = _reason(e)
        problem, files = self._all_told(problem, mine)
        problem = problem or self._confirm(self._group)
        if self.me.first and problem is None:
            try:
                _write_manifest(path, manifest, files)
            except OSError as e:
                problem = _reason(e)
        problem, _ = self._all_told(problem, {})
        return Outcome(seconds=time.monotonic() - began, problem=problem)

    def _all_told(self, problem: str | None, files: Files) -> tuple[str | None, Files]:
        """One worker's trouble is everybody's."""
        told: list[tuple[str | None, Files]] = [(None, {})] * self.me.world
        dist.all_gather_object(told, (problem, files), group=self._group)
        found = {name: facts for _, files in told for name, facts in files.items()}
        return next((problem for problem, _ in told if problem), None), found

    def _prune(self) -> None:
        whole = self.run.saved()
        best = whole[-1].manifest["state"]["progress"]["best_step"] if whole else None
        stay = self.plan.kept([saved.step for saved in whole], best=best)
        for saved in whole:
            if saved.step in stay:
                continue
            (saved.path / contract.MANIFEST_FILE).unlink()  # first: what is half deleted must not look whole
            shutil.rmtree(saved.path, ignore_errors=True)


def write_checkpoint(path: Path, tensors: Tensors, manifest: Record) -> None:
    """By one process alone."""
    save(tensors, storage_writer=FileSystemWriter(path), no_dist=True)
    _write_manifest(path, manifest, _files(path, rank=0))


def _write_manifest(path: Path, manifest: Record, files: Files) -> None:
    """Only now is it whole."""
    manifest["files"] = dict(sorted(files.items()))
    write_json(path / contract.MANIFEST_FILE, manifest | {"seal": _seal(manifest)})


def _files(path: Path, *, rank: int) -> Files:
    """Those that a worker wrote; the first has written the table of contents too."""
    mine = [*path.glob(f"__{rank}_*"), *([path / TABLE] if rank == 0 else [])]
    return {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in mine}


def _copy(tensors: Tensors) -> Tensors:
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else _copy(value)
        for name, value in tensors.items()
    }


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint that has a manifest, or None when it is as it was written."""
    manifest = _read_manifest(path / contract.MANIFEST_FILE)
    if manifest is None:
        return f"{contract.MANIFEST_FILE} has changed since it was written"
    for name, facts in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != facts["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}"
        if _sha256(file) != facts["sha256"]:
            return f"{name} has changed since it was written"
    return None


def _read_manifest(path: Path) -> Record | None:
    """None when it is not what was written: it is replaced in one go, so no kill leaves it torn."""
    try:
        manifest = json.loads(path.read_text())
        seal = manifest.pop("seal")
    except (ValueError, AttributeError, KeyError):
        return None
    return manifest if seal == _seal(manifest) else None


def _seal(manifest: Record) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _set_aside(path: Path, why: str) -> None:
    path.rename(path.with_name(f"{why}-{path.name}-{time.time_ns()}"))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_failed_with(kind: type[BaseException], error: CheckpointException) -> bool:
    return any(isinstance(failure[0], kind) for failure in error.failures.values())


def _refusal(saved: Saved, error: CheckpointException) -> BaseException:
    if _has_failed_with(OSError, error):
        return error
    return UserError(
        f"the checkpoint of step {saved.step} does not fit the model: {_reason(error)}",
        remedy="Bring back the code that it was trained with, or start another run with --new",
    )


def _reason(error: BaseException) -> str:
    """What happened, in a line, out of all the workers' tracebacks."""
    errors = [failure[0] for failure in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    plain = [e for e in errors if isinstance(e, OSError) and e.strerror] or errors
    return "; ".join(sorted({_in_words(e) for e in plain}))


def _in_words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = (str(error).splitlines() or [type(error).__name__])[0]
    # torch's writer tells where in its own source it stopped, and not that the disk did
    return "a file could not be written whole; the disk may be full" if "inline_container" in line else line
