"""Checkpoints: written beside training, whole only when their manifest is there, read back at any number of workers."""

import hashlib
import shutil
import time
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
from stoker.spec.run import Checkpoint
from stoker.train.dist import Ranks, from_first

Tensors = dict[str, Any]  # nested dicts of tensors, as torch.distributed.checkpoint takes them

SHARE_OF_TIME = 0.01  # what `every: auto` may cost
SHORTEST_INTERVAL_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a save went, the same on every worker."""

    seconds: float
    problem: str | None


class Checkpoints:
    def __init__(self, run: RunDir, me: Ranks, plan: Checkpoint) -> None:
        self.run, self.me, self.plan = run, me, plan
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
        return isinstance(every, float) and time.monotonic() - self._last_time >= every

    def save(self, step: int, tensors: Tensors, state: Record) -> None:
        """Copy now, write beside training. Every worker calls this at the same step."""
        self.settle(wait=True)
        if step == self._newest:
            return
        self._newest = step
        began = time.monotonic()
        staged = _copy(tensors)
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
        return outcome.problem

    def load(self, tensors: Tensors) -> Saved | None:
        """Fill the tensors from the newest checkpoint that is whole and undamaged."""
        step = from_first(self._choose() if self.me.first else None)
        if step is None:
            return None
        saved = next(s for s in self.run.saved() if s.step == step)
        self._newest = saved.step
        load(tensors, checkpoint_id=saved.path, process_group=self._group)
        return saved

    def _choose(self) -> int | None:
        whole = self.run.saved()
        for path in self.run.checkpoints.glob("step-*"):
            if path not in {s.path for s in whole}:
                shutil.rmtree(path, ignore_errors=True)  # a save that was cut off
        for saved in reversed(whole):
            damage = _damage(saved)
            if damage is None:
                return saved.step
            saved.path.rename(saved.path.with_name(f"damaged-{saved.path.name}-{time.time_ns()}"))
            self.run.add_event("fallback", rank=0, step=saved.step, reason=damage)
        return None

    def _write(self, step: int, tensors: Tensors, manifest: Record) -> Outcome:
        began = time.monotonic()
        problem = None
        try:
            self._write_files(self.run.checkpoint(step), tensors, manifest)
        except (OSError, CheckpointException) as e:
            problem = _reason(e)
        problems: list[str | None] = [None] * self.me.world
        dist.all_gather_object(problems, problem, group=self._group)  # one worker's trouble is everybody's
        return Outcome(seconds=time.monotonic() - began, problem=next(filter(None, problems), None))

    def _write_files(self, path: Path, tensors: Tensors, manifest: Record) -> None:
        save(tensors, storage_writer=FileSystemWriter(path), process_group=self._group)
        if self.me.first:
            files = sorted(p for p in path.iterdir() if p.is_file())
            manifest["files"] = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in files}
            write_json(path / contract.MANIFEST_FILE, manifest)

    def _prune(self) -> None:
        whole = self.run.saved()
        best = whole[-1].manifest["state"]["progress"]["best_step"] if whole else None
        for saved in whole[: -self.plan.keep]:
            kept_for_good = self.plan.keep_every and saved.step % self.plan.keep_every == 0
            if kept_for_good or (self.plan.best and saved.step == best) or (self.plan.first and saved.step == 0):
                continue
            (saved.path / contract.MANIFEST_FILE).unlink()  # first: what is half deleted must not look whole
            shutil.rmtree(saved.path, ignore_errors=True)


def _copy(tensors: Tensors) -> Tensors:
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else _copy(value)
        for name, value in tensors.items()
    }


def _damage(saved: Saved) -> str | None:
    for name, facts in saved.manifest["files"].items():
        path = saved.path / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {facts['bytes']}"
        if _sha256(path) != facts["sha256"]:
            return f"{name} has changed since it was written"
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: BaseException) -> str:
    """The first line that says what happened, out of all the workers' tracebacks."""
    if isinstance(error, CheckpointException):
        causes = {str(failure[0]) for failure in error.failures.values()}
        return "; ".join(sorted(causes))
    return str(error).splitlines()[0] if str(error) else type(error).__name__
