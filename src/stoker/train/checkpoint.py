"""Checkpoints: written in the background, complete only with their manifest, read back at any number of workers."""

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
from stoker.models.checkpoint_reader import TABLE, Untrusted, read_tensors
from stoker.rundir import Record, RunDir, Saved, events, refresh_folder, write_json
from stoker.rundir.checkpoint import Files, damage, file_facts, other_shape, sealed
from stoker.rundir.resume_point import checkpoints_lost, last_saved_step
from stoker.spec import contract
from stoker.spec.errors import UserError, first_line
from stoker.spec.model import Model
from stoker.spec.run import Checkpoint
from stoker.train.process_group import Ranks, broadcast_from_first

Tensors = dict[str, Any]  # nested dicts of tensors, as torch.distributed.checkpoint takes them

MAX_COST = 0.01  # share of the time that saving may take with `every: auto`
MIN_INTERVAL_S = 60.0
# On a network file system it may take a minute until a machine sees what another has just written.
READ_TRIES, READ_PAUSE_S = 16, 5.0
INCOMPLETE = "incomplete"
KEPT_INCOMPLETE = 2  # checkpoints kept that have no manifest: killed runs must not fill the disk
PRUNED = ".pruned"


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveOutcome:
    """The result of a save, the same on every worker."""

    seconds: float
    problem: str | None


class Checkpoints:
    def __init__(
        self,
        run: RunDir,
        worker: Ranks,
        plan: Checkpoint,
        *,
        saved: Callable[[int], None] = lambda _step: None,
        confirm: Callable[[dist.ProcessGroup], str | None] = lambda _group: None,
    ) -> None:
        """`saved` is called on the first worker with each step whose checkpoint is complete.

        `confirm` is called on every worker, in the thread that saves and with its group, before a checkpoint becomes
        valid: it returns the reason why it must not.
        """
        self.run, self.worker, self.plan, self._saved, self._confirm = run, worker, plan, saved, confirm
        # Two threads must not use the collectives of one group at once: saving has its own group.
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[SaveOutcome]] | None = None
        self._newest: int | None = None
        """The step last saved or loaded. Not read from the disk, so that all workers decide the same."""
        self._ledger: Record = {}
        """Of earlier attempts, from the loaded checkpoint."""
        self._last_time = time.monotonic()
        self._cost_s = 0.0
        """How long training waited for the last save."""

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
        """By the clock; the first worker decides for all."""
        every = self.plan.every
        if every == "auto":
            every = max(MIN_INTERVAL_S, self._cost_s / MAX_COST)
        saving = self._pending is not None and not self._pending[1].done()  # training would wait for it
        return isinstance(every, float) and not saving and time.monotonic() - self._last_time >= every

    def save(self, step: int, tensors: Tensors, state: Record, *, ledger: Mark | None = None) -> None:
        """Copy now, write in the background. Every worker calls this at the same step, with its own ledger."""
        self.finish_save(wait=True)
        if step == self._newest:
            return
        self._newest = step
        began = time.monotonic()
        staged = _copy(tensors)
        state = state | {"resume": self.plan.resume}
        manifest = {"step": step, "time": time.time(), "world": self.worker.world, "state": state}
        self._pending = step, self._writer.submit(self._write, step, staged, manifest, ledger)
        self._last_time = time.monotonic()
        self._cost_s = self._last_time - began

    def finish_save(self, *, wait: bool) -> str | None:
        """Record the result of the last save, if it has ended; return its problem. A failed save leaves no files."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return None
        (step, future), self._pending = self._pending, None
        began = time.monotonic()
        outcome = future.result()
        self._cost_s += time.monotonic() - began
        if outcome.problem:
            self._newest = None
            if self.worker.first:
                _delete(self.run.checkpoint(step))
                self.run.add_event(events.CheckpointFailed(step=step, reason=outcome.problem), rank=0)
        elif self.worker.first:
            saved = events.CheckpointSaved(step=step, seconds=round(outcome.seconds, 3), resume=self.plan.resume)
            self.run.add_event(saved, rank=0)
            self._prune()
            self._saved(step)
        return outcome.problem

    def find(self, model: Model | None = None) -> Saved | None:
        """The newest checkpoint that is complete and undamaged, the same on every worker; it must be of this model."""
        saved = broadcast_from_first(self._choose() if self.worker.first else None)
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
        return saved

    def read(self, saved: Saved, tensors: Tensors) -> None:
        """Fill the tensors from a checkpoint that `find` returned."""
        for left in reversed(range(READ_TRIES)):
            try:
                read_tensors(tensors, self.run.checkpoint(saved.step), group=self._group)
                return
            except CheckpointException as e:  # the same on every worker
                if not _has_failed_with(FileNotFoundError, e) or not left:  # the first worker has seen every file
                    raise _refusal(saved, e) from e
            time.sleep(READ_PAUSE_S)

    def close(self) -> None:
        """Wait for a save that is under way: its collectives are about to be destroyed."""
        self._writer.shutdown(wait=True)

    def _choose(self) -> Saved | None:
        """The newest complete and undamaged checkpoint. Newer damaged checkpoints are renamed, unless none is good."""
        self.run.checkpoints.mkdir(exist_ok=True)
        refresh_folder(self.run.checkpoints)
        if self.plan.resume != "auto":
            self._rewind(self.plan.resume)
        listed = sorted(self.run.checkpoints.glob(contract.CHECKPOINT_GLOB), reverse=True)
        folders = [path for path in listed if path.is_dir()]
        # Listed, not stat-ed: a network file system may remember that a file was missing.
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
            self._refuse_restart(damaged, incomplete)
        for path, problem in damaged.items():
            self._fall_back_from(path, "damaged", problem)
        self._clear_incomplete(incomplete, keep=good is None)
        return next(saved for saved in self.run.saved() if saved.path == good) if good else None

    def _refuse_restart(self, damaged: dict[Path, str], incomplete: list[Path]) -> None:
        """Training starts from scratch only when nothing was ever saved, or with `checkpoint.resume: 0`."""
        resume = self.plan.resume
        step = last_saved_step(self.run, resume)
        problems = damaged | dict.fromkeys(incomplete, f"{contract.MANIFEST_FILE} is missing")
        if damaged and resume != 0:
            step = max(step, *map(_step_of, damaged))
        if not step:
            return
        newest = max(problems, default=None)
        detail = (
            f"step {_step_of(newest)}: {problems[newest]}" if newest else f"there is none in {self.run.checkpoints}"
        )
        raise checkpoints_lost(self.run, step, detail, resume)

    def _clear_incomplete(self, incomplete: list[Path], *, keep: bool) -> None:
        """Delete interrupted saves; rename those that were once complete, or all if no checkpoint is good."""
        complete = {event.step for event in self.run.events() if isinstance(event, events.CheckpointSaved)}
        for path in incomplete:
            if _step_of(path) in complete or (keep and (path / TABLE).exists()):
                self._fall_back_from(path, INCOMPLETE, f"{contract.MANIFEST_FILE} is missing")
            else:
                _delete(path)
        kept = sorted(self.run.checkpoints.glob(f"{INCOMPLETE}-step-*"), key=lambda path: path.name.rpartition("-")[2])
        for path in [*kept[:-KEPT_INCOMPLETE], *self.run.checkpoints.glob(f"{PRUNED}-step-*")]:
            _delete(path)

    def _fall_back_from(self, path: Path, label: str, problem: str) -> None:
        step = _step_of(path)
        _rename(path, label)
        self.run.add_event(events.Fallback(step=step, reason=problem), rank=0)

    def _rewind(self, step: int) -> None:
        """Back to `step`, once: later checkpoints record it in `resume`, and the run resumes from them."""
        complete = self.run.saved()
        if complete and complete[-1].manifest.state.resume == step:
            return
        saved_steps = [saved.step for saved in complete]
        if step and step not in saved_steps:
            steps = ", ".join(map(str, saved_steps)) or "none"
            raise UserError(
                f"checkpoint.resume is {step}, and there is no checkpoint of that step",
                remedy=f"Set it to auto or to a step that was saved ({steps})",
            )
        for saved in complete:
            if saved.step > step:
                _rename(saved.path, "left")

    def _write(self, step: int, tensors: Tensors, manifest: Record, ledger: Mark | None) -> SaveOutcome:
        """Each worker reports the files that it wrote: no machine has to see the files of another yet."""
        began, path = time.monotonic(), self.run.checkpoint(step)
        problem, own_files = None, {}
        try:
            save(tensors, storage_writer=FileSystemWriter(path), process_group=self._group)
            own_files = _files(path, rank=self.worker.rank)
        except (OSError, CheckpointException) as e:
            problem = _reason(e)
        problem, files, marks = self._gather(problem, own_files, ledger)
        if marks:
            manifest["ledger"] = self._ledger | {attempt_name(self.worker.attempt): asdict(combined(marks))}
        problem = problem or self._confirm(self._group)
        if self.worker.first and problem is None:
            try:
                _write_manifest(path, manifest, files)
            except OSError as e:
                problem = _reason(e)
        problem, _, _ = self._gather(problem, {}, None)
        return SaveOutcome(seconds=time.monotonic() - began, problem=problem)

    def _gather(self, problem: str | None, files: Files, ledger: Mark | None) -> tuple[str | None, Files, list[Mark]]:
        """The first problem of any worker, all files, and the ledgers in the order of ranks."""
        reports: list[tuple[str | None, Files, Mark | None]] = [(None, {}, None)] * self.worker.world
        dist.all_gather_object(reports, (problem, files, ledger), group=self._group)
        all_files = {name: facts for _, files, _ in reports for name, facts in files.items()}
        first_problem = next((problem for problem, _, _ in reports if problem), None)
        return first_problem, all_files, [mark for *_, mark in reports if mark]

    def _prune(self) -> None:
        complete = self.run.saved()
        best = complete[-1].manifest.state.progress.best_step if complete else None
        kept = self.plan.kept([saved.step for saved in complete], best=best)
        for saved in complete:
            if saved.step in kept:
                continue
            # Renamed first: a partly deleted checkpoint must not look complete or damaged.
            shutil.rmtree(_rename(saved.path, PRUNED), ignore_errors=True)


def write_checkpoint(path: Path, tensors: Tensors, manifest: Record) -> None:
    """Written by a single process."""
    save(tensors, storage_writer=FileSystemWriter(path), no_dist=True)
    _write_manifest(path, manifest, _files(path, rank=0))


def _write_manifest(path: Path, manifest: Record, files: Files) -> None:
    """Written last: it makes the checkpoint complete."""
    write_json(path / contract.MANIFEST_FILE, sealed(manifest, files))


def _delete(path: Path) -> None:
    """A pipe or socket of that name is kept: rmtree would wait for it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def _files(path: Path, *, rank: int) -> Files:
    """The files that a worker wrote; the first writes the table of contents too."""
    files = [*path.glob(f"__{rank}_*"), *([path / TABLE] if rank == 0 else [])]
    return {p.name: file_facts(p) for p in files}


def _copy(tensors: Tensors) -> Tensors:
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else _copy(value)
        for name, value in tensors.items()
    }


def _rename(path: Path, label: str) -> Path:
    """Hides a checkpoint from readers, and keeps it."""
    return path.rename(path.with_name(f"{label}-{path.name}-{time.time_ns()}"))


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
        remedy="Restore the code that it was trained with, or start another run with --new",
    )


def _reason(error: BaseException) -> str:
    """The cause in one line, from the errors of all workers."""
    errors = [failure[0] for failure in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    plain = [e for e in errors if isinstance(e, OSError) and e.strerror] or errors
    return "; ".join(sorted({_message(e) for e in plain}))


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = first_line(error)
    # torch's writer names a line of its own source, and not the full disk
    return "a file could not be written completely; the disk may be full" if "inline_container" in line else line
