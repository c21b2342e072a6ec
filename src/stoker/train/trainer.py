"""The training loop: synchronise, step, evaluate, log, save. It knows no model and no backend by name."""

import math
import time
from contextlib import suppress
from dataclasses import asdict, replace

import torch
from tokenizers import Tokenizer

from stoker.data import order
from stoker.data.any_set import AnySet
from stoker.data.ledger import Ledger
from stoker.data.sets import open_set
from stoker.data.stream.feeder import feeder_of
from stoker.models import model_spec
from stoker.models.generate import Settings
from stoker.rundir import Exit, Record, RunDir, Saved, events
from stoker.rundir.checkpoint import TrainingProgress
from stoker.rundir.state import RunState
from stoker.spec import contract, estimate, hardware
from stoker.spec.derive import ShortSchedule, derive, micro_batches, share, short_schedule
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError, first_line
from stoker.train import origins
from stoker.train.batches import Batches, TrainingBatch, held_out
from stoker.train.callbacks import Callbacks
from stoker.train.checkpoint import Checkpoints
from stoker.train.choices import Choices, agreed, choose, vocabulary
from stoker.train.data_check import DataCheck
from stoker.train.devices import Device
from stoker.train.engine import Engine
from stoker.train.metrics import Board, StepMeter
from stoker.train.nonfinite import NonFiniteGuard
from stoker.train.objectives import losses, plain
from stoker.train.optim import learning_rate
from stoker.train.process_group import Ranks, StepStatus, all_reduce_status, all_reduce_sums, broadcast_from_first
from stoker.train.stopping import StopSignals, launch_limits

SAMPLE = Settings(tokens=80, past_end=True)


class Trainer:
    def __init__(self, run: RunDir, worker: Ranks, device: Device, signals: StopSignals) -> None:
        self.run, self.worker, self.device, self.signals = run, worker, device, signals
        self._reported_waiting = False
        self.spec = spec = run.spec()
        self.tokens = _open(run)
        self.data_check = DataCheck(self.tokens, worker)
        self.feeder = feeder_of(self.tokens) if worker.first else None
        self.callbacks = Callbacks(spec.callbacks if worker.first else ())
        teacher = origins.load_teacher(run, device.torch)
        kind = model_spec(spec.model.family).objective
        objective = plain(kind, self.tokens, spec.objective, seed=spec.seed, device=device.torch)
        self.engine = Engine(spec, worker, device, objective, teacher=teacher)
        confirm = self.data_check.confirm
        self.checkpoints = Checkpoints(run, worker, spec.checkpoint, saved=self._on_saved, confirm=confirm)
        self._start()
        self.guard = NonFiniteGuard(spec.optim.nonfinite, self.engine.loss_scale)
        self.batches = Batches(
            self.tokens.train,
            part=self.engine.parallel.batch_share(worker.rank),
            parts=self.engine.parallel.batch_shares,
            seed=spec.seed,
            sequences=spec.batch.sequences,
            length=spec.batch.length,
            rows=self.engine.accumulation * self.engine.micro,
            positions=self.derived.positions,
            since=(self.progress.step, self.progress.drawn),
        )
        self.ledger = Ledger(
            run.ledger, attempt=worker.attempt, rank=worker.rank, world=worker.world, start=self.progress.step
        )
        peak = hardware.peak_flops(device.chip, self.choices.precision)
        self.meter = StepMeter(
            flops_per_token=self._flops_per_token(),
            peak_flops=peak * worker.world if peak else None,
        )
        board = worker.first and spec.log.tensorboard
        self.tensorboard = Board(run.tensorboard, failed=self._note) if board else None

    def _flops_per_token(self) -> float:
        length, vocab, teacher = self.spec.batch.length, vocabulary(self.spec), self.engine.teacher
        flops = estimate.flops_per_token(self.spec.model, vocab, length, counted=self.engine.size)
        if teacher:  # a forward pass is a third of a step
            flops += estimate.flops_per_token(teacher.shape, vocab, length, counted=self.engine.teacher_size) // 3
        return flops

    def train(self) -> Exit:
        try:
            end = self._train()
        except StokerError as e:
            state = RunState.PAUSED if isinstance(e, SavedForLater) else RunState.FAILED
            self.callbacks.notify("ended", state, self.progress.step, e.problem)
            raise
        self.callbacks.notify("ended", end.state, self.progress.step, end.reason)
        self._check_callbacks()
        return end

    def _train(self) -> Exit:
        self._limits = launch_limits(self.run, self.worker, self.spec.until, step=self.progress.step)
        self._announce()
        if self.progress.step == 0 and self.spec.checkpoint.first:
            self._save()
        self.data_check.await_small()
        while not self._finished():
            batch = self.batches.get(self.progress.step + 1, give_up=self._gives_up_waiting)
            status = all_reduce_status(self._status(batch))
            if status.stop or status.pause or batch is None:
                return self._pause(status)
            if status.save:
                self._save()
            best = self._step(batch, status)
            if self.checkpoints.due(batch.step) or (best and self.spec.checkpoint.best):
                self._save()
            self.checkpoints.finish_save(wait=False)
        self._save_now()
        self._check_callbacks()
        if self.progress.step and not self.progress.updates:
            raise RunFailed(
                "every step was skipped: no gradient was finite", remedy="Lower optim.lr, or set precision: bf16"
            )
        self._finish()
        return Exit(state=RunState.DONE, code=contract.EXIT_DONE, step=self.progress.step, reason=self._why_done())

    def close(self) -> None:
        self.batches.close()
        if self.feeder:
            self.feeder.close()
        self.checkpoints.close()
        self.data_check.close()
        self.ledger.close()
        if self.tensorboard:
            self.tensorboard.close()

    # start

    def _start(self) -> None:
        """From the newest good checkpoint, from other weights, or from scratch.

        The checkpoint's manifest is read first: the model gets memory once precision and micro-batch are known, and
        then the tensors are read into it.
        """
        spec, saved = self.spec, self.checkpoints.find(self.spec.model)
        self._resumed = saved.manifest.state if saved else None
        self.progress = self._resumed.progress if self._resumed else TrainingProgress()
        self.derived = derive(
            spec,
            samples=self.tokens.train.samples(spec.batch.length),
            horizon=self._resumed.horizon if self._resumed else None,
            step=self.progress.step,
            drawn=self.progress.drawn,
        )
        self._choose(saved)
        self._note_missing_evaluation()
        shares = self.engine.parallel.batch_shares
        accumulation, micro = micro_batches(spec.batch.sequences, world=shares, max_size=self.choices.micro)
        from_scratch = saved is None and spec.init.path is None
        self.engine.materialise(self.choices, accumulation=accumulation, micro=micro, draw=from_scratch)
        if saved:
            self.checkpoints.read(saved, self.engine.tensors())
        elif spec.init.path:
            origins.load_initial_weights(self.engine.model, spec, self.run)
        if self._resumed and self._resumed.loss_scale:
            self.engine.loss_scale.restore(self._resumed.loss_scale.model_dump())

    def _choose(self, saved: Saved | None) -> None:
        """Precision, compile and micro-batch: those of the run so far, as far as every worker supports them."""
        self.choices, self.notes = choose(
            self.spec,
            self.device,
            self.engine.parallel,
            steps=self.derived.steps,
            parameters=self.engine.size,
            teacher=self.engine.teacher_size,
        )
        if saved and (before := saved.manifest.state.choices):
            same_world = saved.manifest.world == self.worker.world
            named = self.spec.batch.micro or saved.manifest.state.named_micro
            self.choices = self.choices.keep(Choices(**before.model_dump()), micro=same_world and named is None)
        self.choices = agreed(self.choices)

    def _note_missing_evaluation(self) -> None:
        split = self.tokens.validation
        if self.spec.data.validation and split.samples(self.spec.batch.length) == 0:
            self.notes.append(
                f"no evaluation: {split.tokens} tokens are held out, less than one sequence; raise data.validation"
            )

    def _announce(self) -> None:
        if not self.worker.first:
            return
        for note in self.notes:
            self.run.add_event(events.Note(text=note), rank=0)
        if (short := self._short_schedule()) and not self._finished():
            self.run.add_event(events.ScheduleEnds(**asdict(short)), rank=0)
            print(f"warning: {short}", flush=True)
        started = events.Started(
            attempt=self.worker.attempt,
            step=self.progress.step,
            world=self.worker.world,
            chip=self.device.chip,
            torch=torch.__version__,
            accumulation=self.engine.accumulation,
            parameters=self.engine.size,
            **asdict(self.derived),
            **asdict(replace(self.choices, micro=self.engine.micro)),
        )
        self.run.add_event(started, rank=0)
        if self._resumed:
            self.run.add_event(events.Resumed(step=self.progress.step, attempt=self.worker.attempt), rank=0)
        self.callbacks.notify("started", self.run.path, self.spec.model_dump(mode="json"), self.progress.step)

    def _short_schedule(self) -> ShortSchedule | None:
        return short_schedule(self.spec.optim, self.derived, updates=self.progress.updates)

    def _note_schedule_end(self) -> None:
        """For a run that only a time ends: its end is not known when it starts."""
        short = self._short_schedule() if self.derived.steps is None else None
        if short and short.end == self.progress.updates:
            self._note(str(short))

    # a step

    def _status(self, batch: TrainingBatch | None) -> StepStatus:
        counts = self.engine.count(batch) if batch else None
        return StepStatus(
            targets=counts.targets if counts else (0,) * len(self.engine.objective.parts),
            tokens=counts.tokens if counts else 0,
            sequences=batch.live if batch else 0,
            stop=self.signals.received,
            pause=batch is None or self._limits.steps_are_done(self.progress.step) or self._must_pause(),
            save=self.worker.first and self.checkpoints.overdue(),
        )

    def _gives_up_waiting(self) -> bool:
        """Called while the data of a step is awaited; True ends the wait."""
        if self.worker.first and not self._reported_waiting:
            self._reported_waiting = True
            self.run.add_event(events.WaitingForData(step=self.progress.step + 1), rank=0)
        return self.signals.received or self._limits.time_is_up() or self.tokens.problem() is not None

    def _step(self, batch: TrainingBatch, status: StepStatus) -> bool:
        """Train on one batch; True when its evaluation is the best so far."""
        spec, step = self.spec, batch.step
        self.ledger.record(step, batch.samples, batch.rows[: batch.live].numpy())
        rate = learning_rate(spec.optim, self.derived, self.progress.updates + 1)
        sums, norm = self.engine.backward(batch, status.targets)
        applied = self.guard.check(step, finite=math.isfinite(norm))
        if applied:
            self.engine.apply(norm=norm, rate=rate)
        elif self.worker.first:
            self.run.add_event(events.StepSkipped(step=step, loss_scale=self.engine.loss_scale.scale), rank=0)
        self.engine.loss_scale.update(finite=applied)
        self.progress = self.progress.model_copy(
            update={
                "step": step,
                "updates": self.progress.updates + applied,
                "skipped": self.progress.skipped + (not applied),
                "tokens": self.progress.tokens + status.tokens,
                "drawn": self.progress.drawn + status.sequences,
            }
        )
        if applied and self.worker.first:
            self._note_schedule_end()
        self.meter.step(tokens=status.tokens, sequences=status.sequences)
        last = self._finished()
        scheduled = spec.eval.every > 0 and step % spec.eval.every == 0
        evaluate = last or scheduled
        if not (step == 1 or step % spec.log.every == 0 or evaluate):
            return False
        record: Record = {"step": step, "time": time.time()}
        record |= losses(self.engine.objective, all_reduce_sums(sums.tolist()), status.targets) | {"lr": rate}
        record |= {"grad_norm": norm, "tokens": self.progress.tokens, **self.meter.read(waited_s=self.batches.waited_s)}
        best = self._evaluate(record, scheduled=scheduled) if evaluate else False
        self._log(record, batch)
        self.meter.restart(waited_s=self.batches.waited_s)
        return best

    def _log(self, record: Record, batch: TrainingBatch) -> None:
        """Statistics are computed by all workers, since each may hold a part of the model; the first writes them."""
        if self.spec.log.attention:
            rows = max(1, min(batch.live, self.engine.micro))  # a worker without samples computes on padding
            record["attention"] = self.engine.attention_extremes(batch.rows[:rows])
        if self.spec.log.parameters:
            record["parameters"] = self.engine.parameter_statistics()
        if not self.worker.first:
            return
        record |= {"memory_gib": self.device.peak_memory() / 2**30, "world": self.worker.world}
        record["skipped"] = self.progress.skipped
        if self.engine.loss_scale.active:
            record["loss_scale"] = self.engine.loss_scale.scale
        self.run.add_metrics(record)
        if self.tensorboard:
            self.tensorboard.add(record)
        self.callbacks.notify("step", record)

    def _evaluate(self, record: Record, *, scheduled: bool) -> bool:
        """Add the loss on held-out sequences, the same each time; True when it is the best so far.

        An evaluation off the schedule, at the end of a run, does not count against `until.patience`.
        """
        length = self.spec.batch.length
        available = self.tokens.validation.samples(length)
        if available == 0:
            return False
        ids = order.spread(available, self.spec.eval.sequences)
        parallel = self.engine.parallel
        own = share(len(ids), rank=parallel.batch_share(self.worker.rank), world=parallel.batch_shares)
        chosen = ids[own.start : own.stop]
        batch = held_out(torch.from_numpy(self.tokens.validation.read(chosen, length)), chosen)
        objective = self.engine.plain
        sums = all_reduce_sums([*self.engine.evaluate(batch), *objective.count(batch).targets])
        loss = losses(objective, sums[: len(objective.parts)], sums[len(objective.parts) :])["loss"]
        if not math.isfinite(loss):
            raise RunFailed(
                f"the validation loss is {loss} after step {self.progress.step}",
                remedy="Lower optim.lr or lengthen optim.warmup, and start again with --new",
            )
        record["val_loss"] = loss
        best = self.progress.best_loss is None or loss < self.progress.best_loss
        if best:
            gained = {"best_loss": loss, "best_step": self.progress.step, "evaluations_without_gain": 0}
            self.progress = self.progress.model_copy(update=gained)
        elif scheduled:
            without_gain = self.progress.evaluations_without_gain + 1
            self.progress = self.progress.model_copy(update={"evaluations_without_gain": without_gain})
        self.callbacks.notify("evaluated", self.progress.step, loss, best)
        return best

    # saving and ending

    def _save(self) -> None:
        self.run.check_present()
        self.ledger.sync()
        state = {
            "progress": self.progress.model_dump(),
            "choices": asdict(self.choices),
            "named_micro": self.spec.batch.micro,
            "horizon": self.derived.horizon,
            "loss_scale": self.engine.loss_scale.state(),
            "model": self.spec.model.model_dump(mode="json"),
        }
        self.checkpoints.save(self.progress.step, self.engine.tensors(), state, ledger=self.ledger.mark())

    def _save_now(self) -> None:
        """Save and wait: a run must not end without the checkpoint that it reports."""
        self._save()
        problem = self.checkpoints.finish_save(wait=True)
        if problem:
            self.data_check.refuse()
            saved = self.run.saved()
            last = f"the checkpoint of step {saved[-1].step} is complete" if saved else "no checkpoint is complete"
            raise SavedForLater(
                f"step {self.progress.step} could not be saved ({problem}); {last}",
                remedy="Make room on the disk, then run the same command again",
            )

    def _check_callbacks(self) -> None:
        """Called after a save: an error in a callback ends the run, and nothing is lost."""
        if self.callbacks.problem:
            raise RunFailed(
                self.callbacks.problem,
                remedy=f"Fix it and run the same command again: the run resumes from step {self.progress.step}",
            )

    def _on_saved(self, step: int) -> None:
        self.callbacks.notify("saved", step, self.run.checkpoint(step))

    def _pause(self, status: StepStatus) -> Exit:
        self.data_check.refuse()
        self._save_now()
        self._check_callbacks()
        problem = self.tokens.problem() or self.batches.problem
        if problem and not status.stop:
            raise problem
        reason = "stopped as asked" if status.stop else f"{self._limits.reached(self.progress.step)} is reached"
        code = contract.EXIT_SAVED if status.stop else contract.EXIT_DONE
        if self.worker.first:
            self.run.add_event(events.Paused(step=self.progress.step, reason=reason), rank=0)
        return Exit(state=RunState.PAUSED, code=code, step=self.progress.step, reason=reason)

    def _finish(self) -> None:
        """The run is saved: only weights that are not finite can still fail it."""
        if not self.spec.model.masked:
            self._write_sample()
        if self.worker.first:
            with suppress(OSError):
                self.run.add_event(events.Finished(step=self.progress.step, reason=self._why_done()), rank=0)

    def _write_sample(self) -> None:
        """A sample of generated text. Optional: the tokenizer may be missing, or the memory too small.

        All workers compute it, since each may hold a part of the model; the first reads the tokenizer for all of them,
        and writes the sample.
        """
        try:
            tokenizer = broadcast_from_first(self._read_tokenizer() if self.worker.first else None)
            if not isinstance(tokenizer, str):
                return
            text = self.engine.sample(Tokenizer.from_str(tokenizer), self.tokens.end, SAMPLE)
            if self.worker.first:
                self.run.add_event(events.Sample(step=self.progress.step, text=text), rank=0)
        except StokerError:  # its weights are not finite
            raise
        except Exception as e:  # the tokenizers library raises nothing narrower
            self._note_no_sample(e)

    def _read_tokenizer(self) -> str | None:
        try:
            return Tokenizer.from_file(str(self.run.tokenizer / "tokenizer.json")).to_str()
        except Exception as e:  # the tokenizers library raises nothing narrower
            self._note_no_sample(e)
            return None

    def _note_no_sample(self, error: Exception) -> None:
        if self.worker.first:
            self._note(f"no sample of what the model writes: {first_line(error)}")

    def _note(self, text: str) -> None:
        with suppress(OSError):
            self.run.add_event(events.Note(text=text), rank=0)

    def _finished(self) -> bool:
        steps, patience = self.derived.steps, self.spec.until.patience
        if steps is not None and self.progress.step >= steps:
            return True
        return patience is not None and self.progress.evaluations_without_gain >= patience

    def _why_done(self) -> str:
        if self.derived.steps is not None and self.progress.step >= self.derived.steps:
            return f"all {self.derived.steps} steps are done"
        return f"no better validation loss in {self.progress.evaluations_without_gain} evaluations"

    def _must_pause(self) -> bool:
        if self.data_check.problem:
            return True
        return self.worker.first and (self._limits.time_is_up() or self.callbacks.problem is not None)


def _open(run: RunDir) -> AnySet:
    ref = run.data()
    tokens = open_set(run.path / ref.shards)
    if tokens.key != ref.key:
        raise UserError(f"{tokens.path} holds other data than this run started with", remedy="Restore it, or use --new")
    return tokens
