"""The samples that a step was trained on, from the ledger, compared with the computed order of samples."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stoker.data import order
from stoker.data.any_set import AnySet
from stoker.data.bert.pairs import PairSet
from stoker.data.ledger import AttemptLedger, LedgerStep, read, token_hash
from stoker.data.location import missing, token_folder
from stoker.data.mixture import Mixture
from stoker.data.passages import Passage, Passages, sentences_of
from stoker.data.sets import is_set, open_set
from stoker.data.stream.reader import StreamSet
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.rundir import RunDir
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps start+1..stop of an attempt: those that no later attempt trained again."""

    ledger: AttemptLedger
    start: int
    stop: int
    drawn: int
    """Samples that the run had used before."""
    last: int
    """Samples of step `stop`: the last step of a run that ends with an epoch may be smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBatch:
    step: int
    attempt: int
    world: int
    ranks: list[NDArray[np.int64]]
    """The samples of each rank."""
    in_order: bool
    """The computed order of samples gives the same."""
    in_shards: bool
    """The shards hold exactly the tokens that the model was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleView:
    sample: int
    rank: int
    documents: list[Passage]
    source: str | None = None
    """The part of a mixture that it comes from."""


def stretches_of(run: RunDir) -> list[Stretch]:
    """All steps that count, from the first to the last that all ranks recorded."""
    try:
        attempts = read(run.ledger)
    except ValueError as e:
        raise UserError(
            f"the ledger of run '{run.name}' contradicts itself: {e}", remedy=f"See: stoker audit {run.path}"
        ) from e
    sequences = run.spec().batch.sequences
    stretches: list[Stretch] = []
    drawn = 0
    for number, ledger in enumerate(attempts):
        later = [other.start for other in attempts[number + 1 :]]
        stop = min(later) if later else ledger.last()
        if stop > ledger.start:
            last = sum(len(record.samples) for record in _records(run, ledger, stop))
            stretches.append(Stretch(ledger=ledger, start=ledger.start, stop=stop, drawn=drawn, last=last))
            drawn += (stop - ledger.start - 1) * sequences + last
    return stretches


def step_batch(run: RunDir, step: int, tokens: AnySet) -> StepBatch:
    stretch = stretch_of(run, stretches_of(run), step)
    records = _records(run, stretch.ledger, step)
    spec = run.spec()
    drawn = stretch.drawn + (step - 1 - stretch.start) * spec.batch.sequences
    try:
        rows = [tokens.train.read(record.samples, spec.batch.length) for record in records]
    except IndexError as e:
        raise UserError(
            f"the ledger of run '{run.name}' is damaged at step {step}: {e}", remedy=f"See: stoker audit {run.path}"
        ) from e
    ids = np.concatenate([record.samples for record in records])
    ordered = order.batch(
        tokens.train.order(spec.seed, spec.batch.length),
        sequences=spec.batch.sequences,
        step=step,
        positions=drawn + len(ids),
        since=(step - 1, drawn),
    )
    return StepBatch(
        step=step,
        attempt=stretch.ledger.attempt,
        world=stretch.ledger.world,
        ranks=[record.samples for record in records],
        in_order=np.array_equal(ids, ordered.ids),
        in_shards=[token_hash(part) for part in rows] == [record.hash for record in records],
    )


def stretch_of(run: RunDir, stretches: list[Stretch], step: int) -> Stretch:
    """The stretch that contains a step. Raises UserError."""
    if not stretches:
        raise UserError(f"run '{run.name}' has not trained a step yet", remedy=f"See: stoker status {run.path}")
    last = stretches[-1].stop
    stretch = next((stretch for stretch in stretches if stretch.start < step <= stretch.stop), None)
    if stretch is None:
        problem = f"has not reached step {step}; its last is step {last}" if step > last else f"has no step {step}"
        raise UserError(f"run '{run.name}' {problem}", remedy=f"Give a step from {stretches[0].start + 1} to {last}")
    return stretch


def documents(run: RunDir, batch: StepBatch, tokens: AnySet, *, most: int | None = None) -> list[SampleView]:
    """The first `most` samples of a step, with the documents that each one consists of."""
    spec = run.spec()
    length = spec.batch.length
    samples = [(rank, sample) for rank, ids in enumerate(batch.ranks) for sample in ids.tolist()][:most]
    if isinstance(tokens, PairSet):
        return [
            SampleView(sample=sample, rank=rank, documents=sentences_of(tokens, sample)) for rank, sample in samples
        ]
    passages = lru_cache(lambda part: Passages(part, spec.data.paths))
    views = []
    for rank, sample in samples:
        source, part, number = None, tokens, sample
        if isinstance(tokens, Mixture):
            (source, _, part), number = tokens.source_of(sample, length)
        passage = passages(part).of(number * length, (number + 1) * length + 1)
        views.append(SampleView(sample=sample, rank=rank, documents=passage, source=source))
    return views


def token_set(run: RunDir) -> AnySet:
    """The token set that a run is trained on."""
    data = run.data()
    folder = token_folder(run)
    if not is_set(folder):
        raise missing(run, folder)
    tokens = open_set(folder)
    if isinstance(tokens, StreamSet):
        tokens.train.abandon()  # do not wait for shards that are still being prepared
    if tokens.key != data.key:
        raise UserError(f"{folder} holds other data than the run was trained on", remedy="Restore the run's own data")
    if tokens.index.tokenizer and not (tokens.tokenizer / TOKENIZER_FILE).is_file():
        raise UserError(f"{folder} has no tokenizer", remedy=f"Copy {run.tokenizer} there")
    return tokens


def _records(run: RunDir, ledger: AttemptLedger, step: int) -> list[LedgerStep]:
    """The records of a step, in the order of the ranks."""
    records = [record for rank in sorted(ledger.files) if (record := ledger.at(rank, step))]
    if len(records) < ledger.world:
        raise UserError(
            f"the ledger of run '{run.name}' has step {step} for only {len(records)} of {ledger.world} ranks",
            remedy=f"See: stoker audit {run.path}",
        )
    return records
