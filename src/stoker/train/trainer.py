"""The loop: agree, step, evaluate, log, save. It names no model and no place."""

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import torch
from tokenizers import Tokenizer

from stoker.data import order
from stoker.data.ledger import Ledger
from stoker.data.pairs import AnySet
from stoker.data.sets import open_set
from stoker.data.stream.feeder import feeder_of
from stoker.rundir import Exit, Record, RunDir
from stoker.spec import chips, contract, sizes
from stoker.spec.derive import ShortSchedule, derive, micro_batches, share, short_schedule
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError
from stoker.train import origins
from stoker.train.batches import Batch, Batches, held_out
from stoker.train.callbacks import Callbacks
from stoker.train.checkpoint import Checkpoints
from stoker.train.choices import Choices, agreed, choose, vocabulary
from stoker.train.data_check import DataCheck
from stoker.train.devices import Device
from stoker.train.dist import Ranks, Word, agree, totals
from stoker.train.engine import Engine
from stoker.train.generate import Settings, generate
from stoker.train.guard import FiniteGuard, Signals
from stoker.train.launch import launch_of
from stoker.train.metrics import Board, Meter, in_a_line
from stoker.train.models import model_spec
from stoker.train.objectives import losses, plain
from stoker.train.optim import learning_rate

SAMPLE = Settings(tokens=80, past_end=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What a checkpoint keeps beside the tensors. Order of samples, dropout and learning rate all follow from it."""

    step: int = 0
    updates: int = 0
    """Steps applied: what the learning rate counts."""
    skipped: int = 0
    tokens: int = 0
    drawn: int = 0
    """Samples used: what the order of samples counts. The last step of an epoch-bound run may be short."""
    best_loss: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0


class Trainer:
    def __init__(self, run: RunDir, me: Ranks, device: Device, signals: Signals) -> None:
        self.run, self.me, self.device, self.signals = run, me, device, signals
        self._told_of_waiting = False
        self.spec = spec = run.spec()
        self.tokens = _open(run)
        self.data_check = DataCheck(self.tokens, me)
        self.feeder = feeder_of(self.tokens) if me.first else None
        self.callbacks = Callbacks(spec.callbacks if me.first else ())
        teacher = origins.teacher(run, device.torch)
        learnt = model_spec(spec.model.family).objective
        judged = plain(learnt, self.tokens, spec.objective, seed=spec.seed, device=device.torch)
        self.engine = Engine(spec, me, device, judged, teacher=teacher)
        confirm = self.data_check.confirm
        self.checkpoints = Checkpoints(run, me, spec.checkpoint, saved=self._tell_saved, confirm=confirm)
        self._begin()
        accumulation, micro = micro_batches(spec.batch.sequences, world=me.world, most=self.choices.micro)
        self.engine.settle(self.choices, accumulation=accumulation, micro=micro)
        if self._resumed and self._resumed["loss_scale"]:
            self.engine.loss_scale.restore(self._resumed["loss_scale"])
        self.guard = FiniteGuard(spec.optim.nonfinite, self.engine.loss_scale)
        self.batches = Batches(
            self.tokens.train,
            me,
            seed=spec.seed,
            sequences=spec.batch.sequences,
            length=spec.batch.length,
            rows=accumulation * micro,
            positions=self.derived.positions,
            since=(self.state.step, self.state.drawn),
        )
        self.ledger = Ledger(run.ledger, attempt=me.attempt, rank=me.rank, world=me.world, start=self.state.step)
        peak = chips.peak_flops(device.chip, self.choices.precision)
        self.meter = Meter(
            flops_per_token=self._flops_per_token(),
            peak_flops=peak * me.world if peak else None,
        )
        board = me.first and spec.log.tensorboard
        self.tensorboard = Board(run.tensorboard, failed=self._note) if board else None

    def _flops_per_token(self) -> float:
        length, vocab, teacher = self.spec.batch.length, vocabulary(self.spec), self.engine.teacher
        flops = sizes.flops_per_token(self.spec.model, vocab, length, counted=self.engine.size)
        if teacher:  # a forward is a third of a step
            flops += sizes.flops_per_token(teacher.shape, vocab, length, counted=self.engine.teacher_size) // 3
        return flops

    def train(self) -> Exit:
        try:
            end = self._train()
        except StokerError as e:
            state = "paused" if isinstance(e, SavedForLater) else "failed"
            self.callbacks.tell("ended", state, self.state.step, e.problem)
            raise
        self.callbacks.tell("ended", end.state, self.state.step, end.reason)
        self._heed_callbacks()
        return end

    def _train(self) -> Exit:
        self._launch = launch_of(self.run, self.me, self.spec.until, step=self.state.step)
        self._announce()
        if self.state.step == 0 and self.spec.checkpoint.first:
            self._save()
        self.data_check.await_small()
        while not self._finished():
            batch = self.batches.get(self.state.step + 1, late=self._is_late)
            word = agree(self._word(batch))
            if word.stop or word.pause or batch is None:
                return self._pause(word)
            if word.save:
                self._save()
            best = self._step(batch, word)
            if self.checkpoints.due(batch.step) or (best and self.spec.checkpoint.best):
                self._save()
            self.checkpoints.settle(wait=False)
        self._save_now()
        self._heed_callbacks()
        if self.state.step and not self.state.updates:
            raise RunFailed(
                "every step was skipped: no gradient was finite", remedy="Lower optim.lr, or set precision: bf16"
            )
        if self.me.first:
            self._finish()
        return Exit(state="done", code=contract.EXIT_DONE, step=self.state.step, reason=self._why_done())

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

    def _begin(self) -> None:
        """From the newest good checkpoint, or from nothing."""
        saved = self.checkpoints.load(self.engine.tensors(), self.spec.model)
        if saved is None and self.spec.init.path:
            origins.start(self.engine.model, self.spec, self.run)
        samples = self.tokens.train.samples(self.spec.batch.length)
        self._resumed: Record | None = saved.manifest.state.model_dump() if saved else None
        kept = self._resumed or {}
        self.state = State(**kept.get("progress", {}))
        self.derived = derive(
            self.spec,
            samples=samples,
            horizon=kept.get("horizon"),
            step=self.state.step,
            drawn=self.state.drawn,
        )
        self.choices, self.notes = choose(
            self.spec,
            self.device,
            steps=self.derived.steps,
            parameters=self.engine.size,
            held=self.engine.teacher_size,
        )
        if saved and kept["choices"]:
            same_world = saved.manifest.world == self.me.world
            named = self.spec.batch.micro or kept["named_micro"]
            self.choices = self.choices.keep(Choices(**kept["choices"]), micro=same_world and named is None)
        self.choices = agreed(self.choices)
        self._note_what_will_not_happen()

    def _note_what_will_not_happen(self) -> None:
        held_out = self.tokens.validation
        if self.spec.data.validation and held_out.samples(self.spec.batch.length) == 0:
            self.notes.append(
                f"no evaluation: {held_out.tokens} tokens are held out, less than one sequence; raise data.validation"
            )

    def _announce(self) -> None:
        if not self.me.first:
            return
        for note in self.notes:
            self.run.add_event("note", rank=0, text=note)
        if (short := self._short_schedule()) and not self._finished():
            self.run.add_event("short schedule", rank=0, **asdict(short))
            print(f"warning: {short}", flush=True)
        self.run.add_event(
            "started",
            rank=0,
            attempt=self.me.attempt,
            step=self.state.step,
            world=self.me.world,
            chip=self.device.chip,
            torch=torch.__version__,
            accumulation=self.engine.accumulation,
            parameters=self.engine.size,
            **asdict(self.derived),
            **asdict(replace(self.choices, micro=self.engine.micro)),
        )
        if self._resumed:
            self.run.add_event("resumed", rank=0, step=self.state.step, attempt=self.me.attempt)
        self.callbacks.tell("started", self.run.path, self.spec.model_dump(mode="json"), self.state.step)

    def _short_schedule(self) -> ShortSchedule | None:
        return short_schedule(self.spec.optim, self.derived, updates=self.state.updates)

    def _note_schedule_end(self) -> None:
        """Of a run that only a time ends: nobody could know at its start."""
        short = self._short_schedule() if self.derived.steps is None else None
        if short and short.end == self.state.updates:
            self._note(str(short))

    # one step

    def _word(self, batch: Batch | None) -> Word:
        counts = self.engine.count(batch) if batch else None
        return Word(
            targets=counts.targets if counts else (0,) * len(self.engine.objective.parts),
            tokens=counts.tokens if counts else 0,
            sequences=batch.live if batch else 0,
            stop=self.signals.asked,
            pause=batch is None or self._launch.has_enough(self.state.step) or self._must_pause(),
            save=self.me.first and self.checkpoints.overdue(),
        )

    def _is_late(self) -> bool:
        """Asked while a step's data is not there; True ends the waiting."""
        if self.me.first and not self._told_of_waiting:
            self._told_of_waiting = True
            self.run.add_event("waiting", rank=0, step=self.state.step + 1)
        return self.signals.asked or self._launch.time_is_up() or self.tokens.problem() is not None

    def _step(self, batch: Batch, word: Word) -> bool:
        """Train on one batch; True when its evaluation was the best so far."""
        spec, step = self.spec, batch.step
        self.ledger.record(step, batch.samples, batch.rows[: batch.live].numpy())
        rate = learning_rate(spec.optim, self.derived, self.state.updates + 1)
        sums, norm = self.engine.backward(batch, word.targets)
        applied = self.guard.check(step, finite=math.isfinite(norm))
        if applied:
            self.engine.apply(norm=norm, rate=rate)
        elif self.me.first:
            self.run.add_event("skipped", rank=0, step=step, loss_scale=self.engine.loss_scale.scale)
        self.engine.loss_scale.update(finite=applied)
        self.state = replace(
            self.state,
            step=step,
            updates=self.state.updates + applied,
            skipped=self.state.skipped + (not applied),
            tokens=self.state.tokens + word.tokens,
            drawn=self.state.drawn + word.sequences,
        )
        if applied and self.me.first:
            self._note_schedule_end()
        self.meter.step(tokens=word.tokens, sequences=word.sequences)
        last = self._finished()
        scheduled = spec.eval.every > 0 and step % spec.eval.every == 0
        evaluate = last or scheduled
        if not (step == 1 or step % spec.log.every == 0 or evaluate):
            return False
        record: Record = {"step": step, "time": time.time()}
        record |= losses(self.engine.objective, totals(sums.tolist()), word.targets) | {"lr": rate}
        record |= {"grad_norm": norm, "tokens": self.state.tokens, **self.meter.read(waited_s=self.batches.waited_s)}
        best = self._evaluate(record, scheduled=scheduled) if evaluate else False
        self._log(record, batch)
        self.meter.restart(waited_s=self.batches.waited_s)
        return best

    def _log(self, record: Record, batch: Batch) -> None:
        if not self.me.first:
            return
        record |= {"memory_gib": self.device.peak_memory() / 2**30, "world": self.me.world}
        record["skipped"] = self.state.skipped
        if self.engine.loss_scale.active:
            record["loss_scale"] = self.engine.loss_scale.scale
        if self.spec.log.attention:
            record["attention"] = self.engine.attention_extremes(batch.rows[: min(batch.live, self.engine.micro)])
        if self.spec.log.parameters:
            record["parameters"] = self.engine.parameter_statistics()
        self.run.add_metrics(record)
        if self.tensorboard:
            self.tensorboard.add(record)
        self.callbacks.tell("step", record)

    def _evaluate(self, record: Record, *, scheduled: bool) -> bool:
        """Add the loss on the same held-out sequences each time; True when it is the best so far.

        The one at the end of a run is beside the schedule: it tries nobody's patience, should the run go on.
        """
        length = self.spec.batch.length
        there = self.tokens.validation.samples(length)
        if there == 0:
            return False
        ids = order.spread(there, self.spec.eval.sequences)
        mine = share(len(ids), rank=self.me.rank, world=self.me.world)
        chosen = ids[mine.start : mine.stop]
        batch = held_out(torch.from_numpy(self.tokens.validation.read(chosen, length)), chosen)
        judged = self.engine.judged
        sums = totals([*self.engine.judge(batch), *judged.count(batch).targets])
        loss = losses(judged, sums[: len(judged.parts)], sums[len(judged.parts) :])["loss"]
        if not math.isfinite(loss):
            raise RunFailed(
                f"the validation loss is {loss} after step {self.state.step}",
                remedy="Lower optim.lr or lengthen optim.warmup, and start again with --new",
            )
        record["val_loss"] = loss
        best = self.state.best_loss is None or loss < self.state.best_loss
        if best:
            self.state = replace(self.state, best_loss=loss, best_step=self.state.step, evaluations_without_gain=0)
        elif scheduled:
            self.state = replace(self.state, evaluations_without_gain=self.state.evaluations_without_gain + 1)
        self.callbacks.tell("evaluated", self.state.step, loss, best)
        return best

    # saving and ending

    def _save(self) -> None:
        self.run.check_present()
        self.ledger.sync()
        state = {
            "progress": asdict(self.state),
            "choices": asdict(self.choices),
            "named_micro": self.spec.batch.micro,
            "horizon": self.derived.horizon,
            "loss_scale": self.engine.loss_scale.state(),
            "model": self.spec.model.model_dump(mode="json"),
        }
        self.checkpoints.save(self.state.step, self.engine.tensors(), state, ledger=self.ledger.mark())

    def _save_now(self) -> None:
        """Save and wait; a run must not end believing in a checkpoint that is not there."""
        self._save()
        problem = self.checkpoints.settle(wait=True)
        if problem:
            self.data_check.refuse()
            saved = self.run.saved()
            last = f"the checkpoint of step {saved[-1].step} stands" if saved else "no checkpoint stands"
            raise SavedForLater(
                f"step {self.state.step} could not be saved ({problem}); {last}",
                remedy="Make room on the disk, then run the same command again",
            )

    def _heed_callbacks(self) -> None:
        """After a save: what went wrong in one of them ends the run, and nothing is lost."""
        if self.callbacks.problem:
            raise RunFailed(
                self.callbacks.problem,
                remedy=f"Mend it and run the same command again: it goes on from step {self.state.step}",
            )

    def _tell_saved(self, step: int) -> None:
        self.callbacks.tell("saved", step, self.run.checkpoint(step))

    def _pause(self, word: Word) -> Exit:
        self.data_check.refuse()
        self._save_now()
        self._heed_callbacks()
        problem = self.tokens.problem() or self.batches.problem
        if problem and not word.stop:
            raise problem
        reason = "stopped as asked" if word.stop else f"{self._launch.limit(self.state.step)} is reached"
        code = contract.EXIT_SAVED if word.stop else contract.EXIT_DONE
        if self.me.first:
            self.run.add_event("paused", rank=0, step=self.state.step, reason=reason)
        return Exit(state="paused", code=code, step=self.state.step, reason=reason)

    def _finish(self) -> None:
        """The run is saved: all that can still fail it are weights that give no numbers."""
        if not self.spec.model.masked:
            self._write_sample()
        with suppress(OSError):
            self.run.add_event("finished", rank=0, step=self.state.step, reason=self._why_done())

    def _write_sample(self) -> None:
        """What it writes by now, as a courtesy; the tokenizer may be gone, or the memory short."""
        try:
            self.engine.model.eval()
            tokenizer = Tokenizer.from_file(str(self.run.tokenizer / "tokenizer.json"))
            pieces = generate(self.engine.model, self.spec.model, tokenizer, self.tokens.end, [""], SAMPLE)
            text = "".join(piece.text for piece in pieces)
            self.run.add_event("sample", rank=0, step=self.state.step, text=text)
        except StokerError:  # its weights are no numbers
            raise
        except Exception as e:  # the library of tokenizers raises nothing narrower
            self._note(f"no sample of what the model writes: {in_a_line(e)}")

    def _note(self, text: str) -> None:
        with suppress(OSError):
            self.run.add_event("note", rank=0, text=text)

    def _finished(self) -> bool:
        steps, patience = self.derived.steps, self.spec.until.patience
        if steps is not None and self.state.step >= steps:
            return True
        return patience is not None and self.state.evaluations_without_gain >= patience

    def _why_done(self) -> str:
        if self.derived.steps is not None and self.state.step >= self.derived.steps:
            return f"all {self.derived.steps} steps are done"
        return f"no better validation loss in {self.state.evaluations_without_gain} evaluations"

    def _must_pause(self) -> bool:
        if self.data_check.problem:
            return True
        return self.me.first and (self._launch.time_is_up() or self.callbacks.problem is not None)


def _open(run: RunDir) -> AnySet:
    ref = run.data()
    tokens = open_set(run.path / ref.shards)
    if tokens.key != ref.key:
        raise UserError(f"{tokens.path} holds other data than this run began with", remedy="Restore it, or use --new")
    return tokens
