"""Checkpoints: written beside training, whole only when their manifest is there, read back at any number of workers."""

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from stoker.data.ledger import Mark, attempt_name, combined
from stoker.rundir import Record, RunDir, Saved, look_anew, write_json
from stoker.rundir.checkpoint import Files, damage, file_facts, other_shape, sealed
from stoker.rundir.progress import lost, saved_step
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import Checkpoint
from stoker.train.dist import Ranks, from_first
from stoker.train.reader import TABLE, Untrusted, read_tensors

Tensors = dict[str, Any]  # nested dicts of tensors, as torch.distributed.checkpoint takes them

SHARE_OF_TIME = 0.01  # what `every: auto` may cost
SHORTEST_INTERVAL_S = 60.0
# A network file system may take a minute to show one machine what another has just written.
TRIES, PAUSE_S = 16, 5.0
INCOMPLETE = "incomplete"
KEPT_INCOMPLETE = 2  # of checkpoints set aside because their manifest was missing: kills must not fill the disk
PRUNED = ".pruned"


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
        self._ledger: Record = {}
        """Of the attempts before this one, as the checkpoint has it that was loaded."""
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

    def save(self, step: int, tensors: Tensors, state: Record, *, ledger: Mark | None = None) -> None:
        """Copy now, write beside training. Every worker calls this at the same step, with its own ledger up to it."""
        self.settle(wait=True)
        if step == self._newest:
            return
        self._newest = step
        began = time.monotonic()
        staged = _copy(tensors)
        state = state | {"resume": self.plan.resume}
        manifest = {"step": step, "time": time.time(), "world": self.me.world, "state": state}
        self._pending = step, self._writer.submit(self._write, step, staged, manifest, ledger)
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
                _delete(self.run.checkpoint(step))
                self.run.add_event("checkpoint failed", rank=0, step=step, reason=outcome.problem)
        elif self.me.first:
            self.run.add_event(
                "checkpoint", rank=0, step=step, seconds=round(outcome.seconds, 3), resume=self.plan.resume
            )
            self._prune()
            self._saved(step)
        return outcome.problem

    def load(self, tensors: Tensors, model: Model | None = None) -> Saved | None:
        """Fill the tensors from the newest checkpoint that is whole and undamaged, and of that model."""
        saved = from_first(self._choose() if self.me.first else None)
        if saved is None:
            return None
        assert isinstance(saved, Saved)
        if model and (difference := other_shape(saved.manifest, model)):
            raise UserError(
                f"{self.run.path / contract.SPEC_FILE} has been changed: {difference}",
                remedy="Restore it as the run wrote it",
            )
        self._newest = saved.step
        self._ledger = {name: mark.model_dump() for name, mark in (saved.manifest.ledger or {}).items()}
        for left in reversed(range(TRIES)):
            try:
                read_tensors(tensors, self.run.checkpoint(saved.step), group=self._group)
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
        """The newest that is complete and undamaged. Newer ones are set aside, unless there would be nothing left."""
        self.run.checkpoints.mkdir(exist_ok=True)
        look_anew(self.run.checkpoints)
        if self.plan.resume != "auto":
            self._go_back(self.plan.resume)
        listed = sorted(self.run.checkpoints.glob(contract.CHECKPOINT_GLOB), reverse=True)
        folders = [path for path in listed if path.is_dir()]
        # Listed, not looked for: what was not there once may be missing in a network file system's memory alone.
        incomplete = [path for path in folders if contract.MANIFEST_FILE not in os.listdir(path)]
        damaged = {path: "it is not a folder" for path in listed if path not in folders}
        good: Path | None = None
        for path in (path for path in folders if path not in incomplete):
            problem = damage(path)
            if problem is None:
                good = path
                break
            damaged[path] = problem
        if good is None:
            self._refuse_loss(damaged, incomplete)
        for path, problem in damaged.items():
            self._pass_over(path, "damaged", problem)
        self._clear_incomplete(incomplete, keep=good is None)
        return next(saved for saved in self.run.saved() if saved.path == good) if good else None

    def _refuse_loss(self, damaged: dict[Path, str], incomplete: list[Path]) -> None:
        """Training starts from step 0 when nothing was ever saved, or when it was sent there; else nothing changes."""
        resume = self.plan.resume
        step = saved_step(self.run, resume)
        problems = damaged | dict.fromkeys(incomplete, f"{contract.MANIFEST_FILE} is missing")
        if damaged and resume != 0:
            step = max(step, *map(_step_of, damaged))
        if not step:
            return
        newest = max(problems, default=None)
        detail = (
            f"step {_step_of(newest)}: {problems[newest]}" if newest else f"there is none in {self.run.checkpoints}"
        )
        raise lost(self.run, step, detail, resume)

    def _clear_incomplete(self, incomplete: list[Path], *, keep: bool) -> None:
        """A save that was cut off is deleted; one that was complete once, or is all that there is, is set aside."""
        complete = {event.get("step") for event in self.run.events() if event["kind"] == "checkpoint"}
        for path in incomplete:
            if _step_of(path) in complete or (keep and (path / TABLE).exists()):
                self._pass_over(path, INCOMPLETE, f"{contract.MANIFEST_FILE} is missing")
            else:
                _delete(path)
        kept = sorted(self.run.checkpoints.glob(f"{INCOMPLETE}-step-*"), key=lambda path: path.name.rpartition("-")[2])
        for path in [*kept[:-KEPT_INCOMPLETE], *self.run.checkpoints.glob(f"{PRUNED}-step-*")]:
            _delete(path)

    def _pass_over(self, path: Path, why: str, problem: str) -> None:
        step = _step_of(path)
        _set_aside(path, why)
        self.run.add_event("fallback", rank=0, step=step, reason=problem)

    def _go_back(self, step: int) -> None:
        """Once: what is saved from then on carries the step that it was sent back to, and is gone on from."""
        whole = self.run.saved()
        if whole and whole[-1].manifest.state.resume == step:
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

    def _write(self, step: int, tensors: Tensors, manifest: Record, ledger: Mark | None) -> Outcome:
        """Each worker tells of the files that it wrote: no machine need read or even see those of another yet."""
        began, path = time.monotonic(), self.run.checkpoint(step)
        problem, mine = None, {}
        try:
            save(tensors, storage_writer=FileSystemWriter(path), process_group=self._group)
            mine = _files(path, rank=self.me.rank)
        except (OSError, CheckpointException) as e:
            problem = _reason(e)
        problem, files, marks = self._all_told(problem, mine, ledger)
        if marks:
            manifest["ledger"] = self._ledger | {attempt_name(self.me.attempt): asdict(combined(marks))}
        problem = problem or self._confirm(self._group)
        if self.me.first and problem is None:
            try:
                _write_manifest(path, manifest, files)
            except OSError as e:
                problem = _reason(e)
        problem, _, _ = self._all_told(problem, {}, None)
        return Outcome(seconds=time.monotonic() - began, problem=problem)

    def _all_told(self, problem: str | None, files: Files, ledger: Mark | None) -> tuple[str | None, Files, list[Mark]]:
        """One worker's trouble is everybody's. The ledgers are in the order of their ranks."""
        told: list[tuple[str | None, Files, Mark | None]] = [(None, {}, None)] * self.me.world
        dist.all_gather_object(told, (problem, files, ledger), group=self._group)
        found = {name: facts for _, files, _ in told for name, facts in files.items()}
        return next((problem for problem, _, _ in told if problem), None), found, [mark for *_, mark in told if mark]

    def _prune(self) -> None:
        whole = self.run.saved()
        best = whole[-1].manifest.state.progress.best_step if whole else None
        stay = self.plan.kept([saved.step for saved in whole], best=best)
        for saved in whole:
            if saved.step in stay:
                continue
            # Out of sight first: what is half deleted must look neither complete nor like a loss.
            shutil.rmtree(_set_aside(saved.path, PRUNED), ignore_errors=True)


def write_checkpoint(path: Path, tensors: Tensors, manifest: Record) -> None:
    """By one process alone."""
    save(tensors, storage_writer=FileSystemWriter(path), no_dist=True)
    _write_manifest(path, manifest, _files(path, rank=0))


def _write_manifest(path: Path, manifest: Record, files: Files) -> None:
    """Only now is it whole."""
    write_json(path / contract.MANIFEST_FILE, sealed(manifest, files))


def _delete(path: Path) -> None:
    """A pipe or socket of that name, which rmtree would wait for, stays."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def _files(path: Path, *, rank: int) -> Files:
    """Those that a worker wrote; the first has written the table of contents too."""
    mine = [*path.glob(f"__{rank}_*"), *([path / TABLE] if rank == 0 else [])]
    return {p.name: file_facts(p) for p in mine}


def _copy(tensors: Tensors) -> Tensors:
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else _copy(value)
        for name, value in tensors.items()
    }


def _set_aside(path: Path, why: str) -> Path:
    return path.rename(path.with_name(f"{why}-{path.name}-{time.time_ns()}"))


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _has_failed_with(kind: type[BaseException], error: CheckpointException) -> bool:
    return any(isinstance(failure[0], kind) for failure in error.failures.values())


def _refusal(saved: Saved, error: CheckpointException) -> BaseException:
    if _has_failed_with(OSError, error):
        return error
    if _has_failed_with(Untrusted, error):
        return UserError(
            f"the checkpoint of step {saved.step} cannot be read: {_reason(error)}",
            remedy="Restore it as the run wrote it, or start another run with --new",
        )
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
